#include "common/transport/pump.h"

#include <spdlog/spdlog.h>

namespace outrider {

void Pump::log(const std::vector<Notice>& notices) {
  for (const Notice& notice : notices)
    spdlog::log(notice.warning ? spdlog::level::warn : spdlog::level::info, notice.text);
}

void Pump::reject(const PeerId& from, const Error& error) {
  const bool version = error.code == Errc::kVersionMismatch;
  if (version && from.empty()) {
    version_mismatch_ = error;
    return;
  }
  warn_limited("event=bad_frame reason=\"" + error.message + "\"");
  // Best effort: a peer that cannot read it sees by our version what is wrong. Only the bound end
  // answers, or two versions would refuse each other's refusals for ever.
  if (version) (void)endpoint_.send(from, {.body = Refuse{error.code, error.message}});
}

void Pump::warn_limited(const std::string& text) {
  std::int64_t suppressed = 0;
  if (!limit_.pass(now(), &suppressed)) return;
  spdlog::warn("{}{}", text, suppressed > 0 ? fmt::format(" ({} more held back)", suppressed) : "");
}

}  // namespace outrider
