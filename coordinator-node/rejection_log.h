#pragma once

#include <filesystem>
#include <fstream>
#include <span>
#include <string>

#include "common/base/result.h"
#include "coordinator-node/rejection.h"

namespace outrider {

/// A file of JSON lines, one for each rejection (docs/policy.md).
class RejectionLog {
 public:
  /// Appends to the file, which need not be there yet.
  static Result<RejectionLog> open(const std::filesystem::path& path);

  /// They are in the file when it returns. Where they cannot be written, that is logged once and nothing more is: the
  /// log is no reason to end a coordinator.
  void write(std::span<const Rejection> rejections);

 private:
  std::filesystem::path path_;
  std::ofstream file_;
};

/// The line for one, without its end.
std::string to_json(const Rejection& rejection);

}  // namespace outrider
