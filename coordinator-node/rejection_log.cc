#include "common/os/logging.h"
#include "coordinator-node/rejection_log.h"

#include <cerrno>
#include <cstring>

#include <fmt/format.h>

namespace outrider {

Result<RejectionLog> RejectionLog::open(const std::filesystem::path& path) {
  RejectionLog log;
  log.path_ = path;
  errno = 0;
  log.file_.open(path, std::ios::app);
  if (!log.file_)
    return Error(Errc::kIo, "rejection log {}: cannot be opened for writing: {}", path.string(), std::strerror(errno));
  return log;
}

void RejectionLog::write(std::span<const Rejection> rejections) {
  if (rejections.empty() || !file_.is_open()) return;
  errno = 0;
  for (const Rejection& rejection : rejections) file_ << to_json(rejection) << '\n';
  file_.flush();
  if (file_) return;
  log_error("event=rejection_log_ended file={} reason=\"{}\"", path_.string(), std::strerror(errno));
  file_.close();
}

std::string to_json(const Rejection& rejection) {
  // The session is a string: some JSON readers lose digits of 64-bit numbers.
  return fmt::format(
      R"({{"session": "{}", "round": {}, "base": {}, "source": "{}", "slot": {}, "draft": {}, "target": {}, )"
      R"("rank": {}, "margin": {}}})",
      value(rejection.session), value(rejection.round), rejection.base, to_string(rejection.source), rejection.slot,
      rejection.draft, rejection.target, rejection.rank ? fmt::format("{}", *rejection.rank) : "null",
      rejection.margin ? fmt::format("{:.6g}", *rejection.margin) : "null");
}

}  // namespace outrider
