#include "common/wire/transport/pump.h"

namespace outrider {

void Pump::log(const std::vector<Notice>& notices) {
  for (const Notice& notice : notices) {
    if (const auto more = notices_.pass(now()))
      log_at(notice.warning ? LogLevel::kWarn : LogLevel::kInfo, "{}{}", to_text(notice), *more);
  }
}

void Pump::reject(const Received& received) {
  const auto& [from, message, bytes, refused, about] = received;
  const Error& error = message.error();
  const bool version = error.code == Errc::kVersionMismatch;
  if (version && from.empty()) {
    version_mismatch_ = Error(error.code, "{}: {}", endpoint_.address(), error.message);
    return;
  }
  warn_limited(fmt::format("event={} reason=\"{}\"", refused ? "refused" : "bad_frame", error.message));
  // Best effort: a peer that cannot read it learns the mismatch from our version. Only the bound end answers; otherwise
  // two versions would refuse each other's refusals for ever.
  if (version || refused) (void)endpoint_.send(from, {.body = Refuse{error.code, error.message}});
}

void Pump::log_problem() {
  const std::optional<Error> error = endpoint_.connection_error();
  if (reminder_.is_due(error ? error->message : "", now()))
    warn_limited(fmt::format("event=no_coordinator reason=\"{}\"; trying on", error->message));
}

void Pump::warn_limited(const std::string& text) {
  if (const auto more = limit_.pass(now())) log_warn("{}{}", text, *more);
}

}  // namespace outrider
