#pragma once

#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "common/base/result.h"

namespace outrider {

/// What is wrong with a file: "FILE: PROBLEM". @param file  its path, or what its reader's caller calls it
template <typename... Args>
Error file_error(Errc code, const std::filesystem::path& file, fmt::format_string<Args...> problem, Args&&... args) {
  return {code, file.string() + ": " + fmt::format(problem, std::forward<Args>(args)...)};
}

}  // namespace outrider
