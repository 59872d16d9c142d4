#pragma once

#include <cstdint>
#include <optional>

#include "common/base/ids.h"
#include "common/decoding/drafting/draft_policy.h"
#include "common/decoding/sampling/distribution.h"

namespace outrider {

/// The first draft of a round that the target did not keep, for the rejection log (docs/policy.md): of several for one
/// place, of which it kept none, the drafter's first.
struct Rejection {
  SessionId session{};  ///< the coordinator's number for it
  RoundId round{};
  Position base = 0;  ///< of the token before the round's drafts
  DraftSource source = DraftSource::kAssistant;
  std::int32_t slot = 0;  ///< of the draft in its round, from 0: so many drafts before it were kept
  TokenId draft = 0;
  TokenId target = 0;  ///< the target's own token there
  /// Tokens that the drafter found more probable than `target`; of two equals the lower id is. None where its
  /// distribution did not come with the drafts, or does not have `target`.
  std::optional<std::int32_t> rank = {};
  /// log q(draft) - log q(target), in nats; negative where the drafter drew a token that it found less probable. None
  /// without a rank, or where the distribution does not have `draft`.
  std::optional<double> margin = {};

  bool operator==(const Rejection&) const = default;
};

/// Sets rank and margin by the distribution that the draft came with. Weights of 0 count as not there.
void compare(Rejection& rejection, const Distribution& q);

}  // namespace outrider
