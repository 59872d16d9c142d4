#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <tuple>
#include <utility>

namespace outrider {

/// Detects changes of a file since the last call: written, replaced, removed or created. One thread.
class FileWatch {
 public:
  explicit FileWatch(std::filesystem::path path) : path_(std::move(path)), last_(look()) {}
  const std::filesystem::path& path() const { return path_; }
  bool changed() {
    const State state = look();
    return std::exchange(last_, state) != state;
  }

 private:
  using State = std::tuple<ino_t, off_t, time_t, long>;
  State look() const {
    struct stat status {};
    if (::stat(path_.c_str(), &status) != 0) return {};
    return {status.st_ino, status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
  }

  std::filesystem::path path_;
  State last_;
};

}  // namespace outrider
