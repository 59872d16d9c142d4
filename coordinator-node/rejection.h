#pragma once

#include <cstdint>
#include <optional>

#include "common/base/ids.h"
#include "common/decoding/drafting/draft_policy.h"
#include "common/decoding/sampling/distribution.h"

namespace outrider {

/// The first rejected draft of a round, for the rejection log (docs/policy.md); if several drafts of one position were
/// all rejected, the drafter's first.
struct Rejection {
  SessionId session{};  ///< by the coordinator's number
  RoundId round{};
  Position base = 0;  ///< of the token before the round's drafts
  DraftSource source = DraftSource::kAssistant;
  std::int32_t slot = 0;  ///< index of the draft in its round, from 0: the number of accepted drafts before it
  TokenId draft = 0;
  TokenId target = 0;  ///< the target's own token there
  /// Number of tokens that the drafter found more probable than `target`; of two equal ones the lower id. None if the
  /// drafts had no distribution, or `target` is not in it.
  std::optional<std::int32_t> rank = {};
  /// log q(draft) - log q(target), in nats; negative if the drafter drew a less probable token. None without a rank, or
  /// if `draft` is not in the distribution.
  std::optional<double> margin = {};

  bool operator==(const Rejection&) const = default;
};

/// Sets rank and margin from the draft's distribution. Weights of 0 count as absent.
void compare(Rejection& rejection, const Distribution& q);

}  // namespace outrider
