#pragma once

#include <memory>
#include <optional>
#include <string>

#include "common/base/result.h"
#include "common/decoding/drafting/batch_goodput.h"
#include "common/decoding/drafting/draft_length.h"
#include "common/decoding/drafting/draft_policy.h"

namespace outrider {

/// Longest draft that an adaptive policy chooses: more gained nothing on nano's traces (docs/policy.md).
inline constexpr int kChosenLengthMax = 16;

/// A draft length as users write it.
struct DraftLength {
  DraftPolicy policy = DraftPolicy::kFixed;
  int length = 0;                 ///< of every draft, or the policy's limit; 0: plain decoding
  std::optional<int> ahead = {};  ///< Generate::draft_ahead
  AddedSources added = {};        ///< Generate::added
};
/// @param text  0 to 32, tree:1 to tree:32 or auto. A number or a tree may be followed by +ngram, +table or
/// +ngram+table, for `added`; a number or auto instead by @ and 0 to 8, for `ahead`. The error lists the usual forms.
Result<DraftLength> parse_draft_length(const std::string& text);

/// Makes the policy of one session.
/// @param length  for kFixed and kTree
/// @param estimates, batch  of the session's verifier; outlive the policy
/// @param governed  a fixed length is an upper limit: the governor drops drafts that cost time
/// @pre is_offered(policy)
std::unique_ptr<DraftLengthPolicy> make_policy(DraftPolicy policy, int length, const Estimates& estimates,
                                               BatchGoodput& batch, bool governed = false);

}  // namespace outrider
