#include "common/protocol/messages.h"

#include <array>

namespace outrider {

const char* name_of(const Message& message) {
  static constexpr std::array kNames = {
      "hello",  "welcome", "refuse",  "who_are_you", "heartbeat", "drain",  "prefill",
      "kv_chunk", "draft", "candidates", "need_kv",  "verify",    "verdict", "cancel",
      "free",   "failed",  "generate", "tokens",     "done",      "status_request", "status",
      "step"};
  static_assert(kNames.size() == std::variant_size_v<Body>);
  return kNames[message.body.index()];
}

}  // namespace outrider
