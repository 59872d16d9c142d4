#include "common/decoding/sampling/verify.h"

#include "common/compute/kernels/ops.h"

namespace outrider {

VerifyOutcome verify_greedy(Matrix<const float> logits, std::span<const TokenId> drafts) {
  CHECK(logits.size(0) == static_cast<std::int64_t>(drafts.size()) + 1, "rows {}, drafts {}", logits.size(0),
        drafts.size());
  std::int32_t accepted = 0;
  for (const TokenId draft : drafts) {
    const auto choice = static_cast<TokenId>(argmax(logits[accepted].span()));
    if (choice != draft) return {accepted, choice};
    ++accepted;
  }
  return {accepted, static_cast<TokenId>(argmax(logits[accepted].span()))};
}

}  // namespace outrider
