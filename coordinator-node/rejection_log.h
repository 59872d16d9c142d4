#pragma once

#include <filesystem>
#include <fstream>
#include <span>
#include <string>

#include "common/base/result.h"
#include "coordinator-node/rejection.h"

namespace outrider {

/// A file of JSON lines, one per rejection (docs/policy.md).
class RejectionLog {
 public:
  /// Opens a file for appending; it need not exist yet.
  static Result<RejectionLog> open(const std::filesystem::path& path);

  /// Writes rejections to the file before returning. A write error is logged once and ends the log, not the
  /// coordinator.
  void write(std::span<const Rejection> rejections);

 private:
  std::filesystem::path path_;
  std::ofstream file_;
};

/// Returns the line of one rejection, without its end.
std::string to_json(const Rejection& rejection);

}  // namespace outrider
