#pragma once

#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace outrider {

/// Memory of a process that belongs to no file, in bytes.
inline std::int64_t anonymous_bytes(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/smaps_rollup", pid));
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("Anonymous:")) return std::stoll(line.substr(10)) * 1024;
  }
  ADD_FAILURE() << "no smaps_rollup of process " << pid;
  return 0;
}

}  // namespace outrider
