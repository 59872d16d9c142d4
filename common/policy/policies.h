#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "common/policy/bandit.h"
#include "common/policy/draft_policy.h"

namespace outrider {

/// The longest draft of a policy that may choose: nothing gained from more on nano's traces (docs/policy.md).
inline constexpr int kChosenLengthMax = 16;

/// A draft length as people write it.
struct DraftLength {
  DraftPolicy policy = DraftPolicy::kFixed;
  int length = 0;                 ///< of every draft, or the most that the policy may choose; 0: plain decoding
  std::optional<int> ahead = {};  ///< Generate::draft_ahead
  AddedSources added = {};        ///< Generate's
};
/// "auto, heuristic, ucb1 or thompson": the policies that choose a length, so that none is given.
std::string choosing_policies();
/// @param text 0 to 32, tree:1 to tree:32 or one of choosing_policies(); then perhaps, behind a number or a tree,
/// +ngram, +table or +ngram+table, for `added`, or else, but for trees, @ and 0 to 8, for `ahead`. The error says so.
Result<DraftLength> parse_draft_length(const std::string& text);

/// What the sessions of one coordinator share beside their verifier's CostModel: what the bandits learned.
class Policies {
 public:
  /// @param seed of Thompson's draws. @param table  there is one to draft from.
  explicit Policies(std::uint64_t seed, bool table = false);

  /// The policy of one session. @param length for kFixed and kTree. @param costs, batch  of the session's verifier;
  /// like this object they outlive the policy. @param governed  a fixed length is only the most: the governor leaves
  /// out what costs time.
  std::unique_ptr<DraftLengthPolicy> make(DraftPolicy policy, int length, const CostModel& costs, BatchGoodput& batch,
                                          bool governed = false);
  /// Whether this policy ever takes another source than the assistant.
  static bool looks_up(DraftPolicy policy) {
    return policy != DraftPolicy::kFixed && policy != DraftPolicy::kHeuristic && policy != DraftPolicy::kTree;
  }

  /// What the bandits learned, as JSON.
  std::string save() const;
  /// @return kMalformed, and nothing has changed, when it is not of save().
  Result<void> load(const std::string& json);

 private:
  Ucb1Length ucb1_;
  Thompson thompson_;
};

}  // namespace outrider
