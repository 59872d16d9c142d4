#include "common/protocol/messages.h"

#include <algorithm>
#include <array>

namespace outrider {

const char* name_of(const Message& message) {
  static constexpr std::array kNames = {"hello",   "welcome",        "refuse", "who_are_you", "heartbeat", "drain",
                                        "prefill", "kv_chunk",       "draft",  "candidates",  "need_kv",   "verify",
                                        "verdict", "cancel",         "free",   "failed",      "generate",  "tokens",
                                        "done",    "status_request", "status", "step"};
  static_assert(kNames.size() == std::variant_size_v<Body>);
  return kNames[message.body.index()];
}

void add(RequestMetrics& sum, const RequestMetrics& one) {
  for (const auto field :
       {&RequestMetrics::rounds, &RequestMetrics::drafting_rounds, &RequestMetrics::drafted_tokens,
        &RequestMetrics::accepted_tokens, &RequestMetrics::prefill_ns, &RequestMetrics::decode_ns,
        &RequestMetrics::draft_ns, &RequestMetrics::verify_ns, &RequestMetrics::wire_ns,
        &RequestMetrics::wire_bytes_to_drafter, &RequestMetrics::wire_bytes_to_drafter_prompt,
        &RequestMetrics::wire_bytes_to_verifier, &RequestMetrics::ngram_rounds, &RequestMetrics::ngram_drafted_tokens,
        &RequestMetrics::ngram_accepted_tokens, &RequestMetrics::cached_prompt_tokens}) {
    sum.*field += one.*field;
  }
  for (const auto field : {&RequestMetrics::drafted_per_position, &RequestMetrics::accepted_per_position}) {
    (sum.*field).resize(std::max((sum.*field).size(), (one.*field).size()));
    for (std::size_t i = 0; i < (one.*field).size(); ++i) (sum.*field)[i] += (one.*field)[i];
  }
}

}  // namespace outrider
