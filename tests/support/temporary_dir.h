#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

#include "common/base/check.h"

namespace outrider {

/// A new empty folder, removed with all that is in it.
class TemporaryDir {
 public:
  TemporaryDir() {
    std::string name = std::filesystem::temp_directory_path() / "outrider-test-XXXXXX";
    CHECK(mkdtemp(name.data()) != nullptr, "cannot make a folder {}", name);
    path_ = name;
  }
  ~TemporaryDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDir(const TemporaryDir&) = delete;
  TemporaryDir& operator=(const TemporaryDir&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::filesystem::path& name) const { return path_ / name; }
  /// Writes a file, and the folders on the way to it. @return its path.
  std::filesystem::path write(const std::filesystem::path& name, std::string_view content) const {
    const std::filesystem::path file = path_ / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << content;
    return file;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace outrider
