#include "common/decoding/sampling/logprobs.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/compute/kernels/kernel_table.h"
#include "common/compute/kernels/ops.h"

namespace outrider {
namespace {

/// A row of scores as log-probabilities.
class ScoredRow {
 public:
  ScoredRow(std::span<const float> logits, float softcap, SamplingScratch& scratch) : scores_(scratch.scores) {
    scores_.assign(logits.begin(), logits.end());
    if (softcap > 0) softcap_in_place({scores_.data(), {1, std::ssize(scores_)}}, softcap);
    highest_ = score(static_cast<TokenId>(kernels().argmax(scores_.data(), std::ssize(scores_))));
    scratch.selected.resize(scores_.size());
    kernels().softmax_weights(scores_.data(), highest_, 1, std::ssize(scores_), scratch.selected.data());
    double sum = 0;
    for (const float weight : scratch.selected) sum += static_cast<double>(weight);
    log_sum_ = std::log(sum);
  }
  float score(TokenId id) const { return scores_[static_cast<std::size_t>(id)]; }
  float logprob(TokenId id) const {
    // Without a softcap a difference of floats may exceed the range of float.
    const double value = static_cast<double>(score(id)) - static_cast<double>(highest_) - log_sum_;
    return static_cast<float>(std::max(value, static_cast<double>(std::numeric_limits<float>::lowest())));
  }
  /// Returns the token's log-probability without alternatives.
  TokenLogprobs of(TokenId token) const {
    const auto above = std::ranges::count_if(scores_, [s = score(token)](float other) { return other > s; });
    return {.logprob = logprob(token), .top = {}, .rank = static_cast<std::int32_t>(above) + 1};
  }

 private:
  std::vector<float>& scores_;
  float highest_ = 0;
  double log_sum_ = 0;
};

}  // namespace

TokenLogprobs logprobs_of(std::span<const float> logits, float softcap, TokenId token, std::int32_t count,
                          SamplingScratch& scratch) {
  const ScoredRow row(logits, softcap, scratch);
  TokenLogprobs result = row.of(token);
  scratch.order.resize(logits.size());
  std::iota(scratch.order.begin(), scratch.order.end(), 0);
  const auto end = scratch.order.begin() + std::min<std::ptrdiff_t>(count, std::ssize(scratch.order));
  std::partial_sort(scratch.order.begin(), end, scratch.order.end(), [&](TokenId a, TokenId b) {
    return row.score(a) > row.score(b) || (row.score(a) == row.score(b) && a < b);
  });
  for (auto id = scratch.order.begin(); id != end; ++id) result.top.push_back({*id, row.logprob(*id)});
  return result;
}

TokenLogprobs logprobs_of(std::span<const float> logits, float softcap, TokenId token, std::span<const TokenId> ids,
                          SamplingScratch& scratch) {
  const ScoredRow row(logits, softcap, scratch);
  TokenLogprobs result = row.of(token);
  for (const TokenId id : ids) result.top.push_back({id, row.logprob(id)});
  return result;
}

}  // namespace outrider
