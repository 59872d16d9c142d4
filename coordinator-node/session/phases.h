#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace outrider {

/// Phase of a session.
enum class Phase : std::uint8_t {
  kWaiting,    ///< queued; has no verifier and no drafter
  kMoving,     ///< needs a verifier, since its former one is gone
  kEncoding,   ///< has a verifier; an Encode is outstanding, and repeated until it is answered
  kPrefill,    ///< the Prefill is outstanding, and repeated until its Verdict arrives
  kPaused,     ///< stepwise: a round is open, nothing is outstanding, the client must send a Step
  kDrafting,   ///< a Draft is outstanding at a drafter with rows to base(), until Candidates, NeedKv or a time-out
  kVerifying,  ///< a Verify is outstanding, and repeated until its Verdict arrives
  kEnded,      ///< client and workers were told
};
inline const char* to_string(Phase phase) {
  return std::array{"waiting", "moving", "encoding", "prefill", "paused", "drafting", "verifying", "ended"}.at(
      static_cast<std::size_t>(phase));
}

/// A transition between phases, and its cause. Every phase but kEnded may also end: the answer is complete, the client
/// cancels, or the session fails.
struct Transition {
  Phase from, to;
  const char* when;
};
/// The table in docs/protocol.md, "The phases of a session"; a test prints it.
inline constexpr std::array kTransitions = {
    Transition{Phase::kWaiting, Phase::kPrefill, "its turn has come and a verifier has room"},
    Transition{Phase::kWaiting, Phase::kEncoding, "the same, and an encoder has room for its pictures or sounds"},
    Transition{Phase::kMoving, Phase::kPrefill, "another verifier has room"},
    Transition{Phase::kMoving, Phase::kEncoding, "the same, with pictures or sounds that are not encoded yet"},
    Transition{Phase::kEncoding, Phase::kEncoding, "the encoder is lost or drains, and another encoder continues"},
    Transition{Phase::kEncoding, Phase::kPrefill, "everything is encoded, or the verifier's own towers continue"},
    Transition{Phase::kEncoding, Phase::kMoving, "the verifier is lost or drains, or no encoder is left"},
    Transition{Phase::kPrefill, Phase::kDrafting, "the Verdict came; the policy wants drafts"},
    Transition{Phase::kPrefill, Phase::kVerifying,
               "the same, with drafts at hand or none wanted; or another verifier has caught up"},
    Transition{Phase::kPrefill, Phase::kPaused, "the Verdict came; the client takes the steps"},
    Transition{Phase::kPrefill, Phase::kMoving, "the verifier is lost or drains"},
    Transition{Phase::kPaused, Phase::kDrafting, "the client asked for drafts"},
    Transition{Phase::kPaused, Phase::kPaused,
               "the client asked for drafts; there is no drafter, or the same drafts are shown again"},
    Transition{Phase::kPaused, Phase::kVerifying, "the client asked to verify"},
    Transition{Phase::kPaused, Phase::kMoving, "the client asked to verify, and the verifier is lost or drains"},
    Transition{Phase::kDrafting, Phase::kVerifying, "the drafts came, or are too late"},
    Transition{Phase::kDrafting, Phase::kPaused, "the same; the client takes the steps"},
    Transition{Phase::kDrafting, Phase::kMoving, "the same, and the verifier is lost or drains"},
    Transition{Phase::kVerifying, Phase::kDrafting, "the Verdict came; the policy wants drafts"},
    Transition{Phase::kVerifying, Phase::kVerifying, "the Verdict came; drafts are at hand, or none are wanted"},
    Transition{Phase::kVerifying, Phase::kPaused, "the Verdict came; the client takes the steps"},
    Transition{Phase::kVerifying, Phase::kMoving, "the verifier is lost or drains"},
};
inline bool may_follow(Phase from, Phase to) {
  return (to == Phase::kEnded && from != Phase::kEnded) ||
         std::ranges::any_of(kTransitions, [&](const Transition& t) { return t.from == from && t.to == to; });
}

}  // namespace outrider
