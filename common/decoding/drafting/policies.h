#pragma once

#include <memory>
#include <optional>
#include <string>

#include "common/base/result.h"
#include "common/decoding/drafting/batch_goodput.h"
#include "common/decoding/drafting/draft_length.h"
#include "common/decoding/drafting/draft_policy.h"

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
/// @param text 0 to 32, tree:1 to tree:32 or auto; then perhaps, behind a number or a tree, +ngram, +table or
/// +ngram+table, for `added`, or else, but for trees, @ and 0 to 8, for `ahead`. The error names the usual ones.
Result<DraftLength> parse_draft_length(const std::string& text);

/// The policy of one session. @param length for kFixed and kTree. @param estimates, batch  of the session's verifier;
/// they outlive the policy. @param governed  a fixed length is only the most: the governor leaves out what costs time.
/// @pre is_offered(policy)
std::unique_ptr<DraftLengthPolicy> make_policy(DraftPolicy policy, int length, const Estimates& estimates,
                                               BatchGoodput& batch, bool governed = false);

}  // namespace outrider
