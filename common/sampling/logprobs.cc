#include "common/sampling/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "common/kernels/kernel_table.h"
#include "common/kernels/ops.h"

namespace outrider {

TokenLogprobs logprobs_of(std::span<const float> logits, float softcap, TokenId token, std::int32_t count,
                          SamplingScratch& scratch) {
  std::vector<float>& scores = scratch.scores;
  scores.assign(logits.begin(), logits.end());
  if (softcap > 0) softcap_in_place({scores.data(), {1, std::ssize(scores)}}, softcap);
  const auto score = [&](TokenId id) { return scores[static_cast<std::size_t>(id)]; };
  const float highest = scores[static_cast<std::size_t>(kernels().argmax(scores.data(), std::ssize(scores)))];
  scratch.selected.resize(scores.size());
  kernels().softmax_weights(scores.data(), highest, 1, std::ssize(scores), scratch.selected.data());
  double sum = 0;
  for (const float weight : scratch.selected) sum += static_cast<double>(weight);
  const double log_sum = std::log(sum);
  const auto logprob = [&](TokenId id) {
    // Without a softcap a difference of floats may be more than a float holds.
    const double value = static_cast<double>(score(id)) - static_cast<double>(highest) - log_sum;
    return static_cast<float>(std::max(value, static_cast<double>(std::numeric_limits<float>::lowest())));
  };

  TokenLogprobs result{.logprob = logprob(token), .top = {}};
  scratch.order.resize(scores.size());
  std::iota(scratch.order.begin(), scratch.order.end(), 0);
  const auto end = scratch.order.begin() + std::min<std::ptrdiff_t>(count, std::ssize(scratch.order));
  std::partial_sort(scratch.order.begin(), end, scratch.order.end(),
                    [&](TokenId a, TokenId b) { return score(a) > score(b) || (score(a) == score(b) && a < b); });
  for (auto id = scratch.order.begin(); id != end; ++id) result.top.push_back({*id, logprob(*id)});
  return result;
}

}  // namespace outrider
