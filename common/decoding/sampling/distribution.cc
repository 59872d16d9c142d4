#include "common/decoding/sampling/distribution.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "common/base/check.h"
#include "common/compute/kernels/kernel_table.h"

namespace outrider {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

/// Returns a score that the k highest of `scores` all reach: the k-th highest of the maxima of blocks. One branch-free
/// pass, while a selection among 262,144 scores would move them all.
float lower_bound_of_kth(std::span<const float> scores, std::size_t k, std::vector<float>& maxima) {
  constexpr std::size_t kBlock = 32;
  maxima.clear();
  for (std::size_t first = 0; first < scores.size(); first += kBlock) {
    float highest = kMasked;
    for (const float score : scores.subspan(first, std::min(kBlock, scores.size() - first)))
      highest = std::max(highest, score);
    maxima.push_back(highest);
  }
  if (maxima.size() < k) return kMasked;
  const auto kth = maxima.begin() + static_cast<std::ptrdiff_t>(k) - 1;
  std::nth_element(maxima.begin(), kth, maxima.end(), std::greater<>());
  return *kth;
}

/// The remaining tokens of a distribution, with their scores. Tokens stay in ascending order of id, so that sums have
/// one order.
class Selection {
  /// Compares scores, not weights: different scores may have equal weights.
  struct MoreProbable {
    const std::vector<float>& scores;
    bool operator()(std::int32_t a, std::int32_t b) const {
      const float score_a = scores[static_cast<std::size_t>(a)], score_b = scores[static_cast<std::size_t>(b)];
      return score_a > score_b || (score_a == score_b && a < b);
    }
  };

 public:
  Selection(SamplingScratch& scratch, Distribution& kept)
      : scores_(scratch.selected), order_(scratch.order), kept_(kept), ids_(kept.ids), weights_(kept.weights) {}

  /// Selects all unmasked tokens with a score of `bound` or more.
  void from(std::span<const float> scores, float bound, float temperature) {
    ids_.resize(scores.size());
    scores_.resize(scores.size());
    std::size_t count = 0;
    for (std::size_t i = 0; i < scores.size(); ++i) {
      if (scores[i] < bound || scores[i] == kMasked) continue;
      ids_[count] = static_cast<TokenId>(i);
      scores_[count++] = scores[i];
    }
    weights_.resize(count);
    const float highest = scores[static_cast<std::size_t>(kernels().argmax(scores.data(), std::ssize(scores)))];
    kernels().softmax_weights(scores_.data(), highest, temperature, std::ssize(weights_), weights_.data());
  }

  /// Removes tokens with less than `least` times the most probable token's weight, or with a weight that underflows.
  void min_p(float least) {
    kept_.total = 0;
    std::size_t count = 0;
    for (std::size_t i = 0; i < weights_.size(); ++i)
      if (weights_[i] != 0 && weights_[i] >= least) move(i, count++);
    resize(count);
  }

  /// Keeps the k most probable tokens.
  void top_k(std::size_t k) {
    if (ids_.size() <= k) return;
    order_.resize(ids_.size());
    std::iota(order_.begin(), order_.end(), 0);
    std::nth_element(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(k), order_.end(),
                     MoreProbable{scores_});
    order_.resize(k);
    keep();
  }

  /// Keeps the fewest tokens, the most probable first, whose weights reach the share p.
  void top_p(double p) {
    // First removes tokens that are so improbable that all of them together weigh less than 1 - p.
    const double total = kept_.total, wanted = p * total;
    const double least = (total - wanted) / static_cast<double>(ids_.size());
    order_.clear();
    for (std::size_t i = 0; i < ids_.size(); ++i)
      if (static_cast<double>(weights_[i]) >= least) order_.push_back(static_cast<std::int32_t>(i));
    // Bisects for the point where the mass is reached, so that only its neighbourhood is sorted: [0, low) is in, with
    // mass `above`, and entries from `high` on are out.
    constexpr std::ptrdiff_t kSorted = 1024;
    double above = 0;
    auto low = order_.begin(), high = order_.end();
    while (high - low > kSorted) {
      const auto middle = low + (high - low) / 2;
      std::nth_element(low, middle, high, MoreProbable{scores_});
      double mass = 0;
      for (auto entry = low; entry != middle; ++entry) mass += weight(*entry);
      if (above + mass >= wanted) {
        high = middle;
      } else {
        above += mass;
        low = middle;
      }
    }
    std::sort(low, high, MoreProbable{scores_});
    while (low != high && above < wanted) above += weight(*low++);
    order_.erase(low, order_.end());
    keep();
  }

 private:
  double weight(std::int32_t entry) const { return static_cast<double>(weights_[static_cast<std::size_t>(entry)]); }

  /// Keeps the entries that the order names, in any order.
  void keep() {
    std::sort(order_.begin(), order_.end());
    kept_.total = 0;
    for (std::size_t to = 0; to < order_.size(); ++to) move(static_cast<std::size_t>(order_[to]), to);
    resize(order_.size());
  }

  void move(std::size_t from, std::size_t to) {
    ids_[to] = ids_[from];
    weights_[to] = weights_[from];
    scores_[to] = scores_[from];
    kept_.total += static_cast<double>(weights_[to]);
  }

  void resize(std::size_t count) {
    ids_.resize(count);
    weights_.resize(count);
    scores_.resize(count);
  }

  std::vector<float>& scores_;
  std::vector<std::int32_t>& order_;
  Distribution& kept_;
  std::vector<TokenId>& ids_;
  std::vector<float>& weights_;
};

}  // namespace

Result<void> Distribution::settle() {
  if (weights.size() != ids.size())
    return Error(Errc::kMalformed, "{} ids and {} weights, wanted as many", ids.size(), weights.size());
  if (const auto place = std::adjacent_find(ids.begin(), ids.end(), std::greater_equal()); place != ids.end())
    return Error(Errc::kMalformed, "id {} after {}, wanted ascending ids", place[1], place[0]);
  total = 0;
  for (const float weight : weights) total += static_cast<double>(weight);
  if (total <= 0) return Error{Errc::kMalformed, "weights are all 0, wanted one above"};
  return {};
}

void Distribution::clear() {
  ids.clear();
  weights.clear();
  total = 0;
}

void Distribution::add(TokenId id, float weight) {
  ids.push_back(id);
  weights.push_back(weight);
  total += static_cast<double>(weight);
}

double Distribution::weight(TokenId id) const {
  const auto place = std::lower_bound(ids.begin(), ids.end(), id);
  if (place == ids.end() || *place != id) return 0;
  return static_cast<double>(weights[static_cast<std::size_t>(place - ids.begin())]);
}

std::vector<TokenId> completes_bad_word(std::span<const TokenWord> words, std::span<const TokenId> answer) {
  std::vector<TokenId> last;
  for (const TokenWord& word : words) {
    const std::span<const TokenId> before = std::span(word.tokens).first(word.tokens.size() - 1);
    if (before.size() > answer.size()) continue;
    if (std::ranges::equal(before, answer.last(before.size()))) last.push_back(word.tokens.back());
  }
  return last;
}

void process_scores(std::span<float> scores, const SamplingParams& params, std::span<const TokenId> masked,
                    const TokenCounts& counts) {
  const auto score = [&](TokenId token) -> float& { return scores[static_cast<std::size_t>(token)]; };
  if (!params.allowed_tokens.empty()) {
    std::vector<float> kept;
    for (const TokenId token : params.allowed_tokens) kept.push_back(score(token));
    std::ranges::fill(scores, kMasked);
    for (std::size_t i = 0; i < kept.size(); ++i) score(params.allowed_tokens[i]) = kept[i];
  }
  for (const TokenId token : masked) score(token) = kMasked;
  for (const TokenId token : params.suppress_tokens) score(token) = kMasked;
  for (const LogitBias& entry : params.logit_bias) score(entry.token) += entry.bias;
  if (!params.has_penalties()) return;
  for (const auto& [token, in_answer] : counts) {
    float& s = score(token);
    s = s > 0 ? s / params.repetition_penalty : s * params.repetition_penalty;
    if (in_answer == 0) continue;
    s -= params.frequency_penalty * static_cast<float>(in_answer);
    s -= params.presence_penalty;
  }
}

void make_distribution(std::span<const float> scores, const SamplingParams& params, SamplingScratch& scratch,
                       Distribution* distribution) {
  CHECK(params.temperature > 0, "temperature {}", params.temperature);
  Selection selection(scratch, *distribution);
  const auto k = static_cast<std::size_t>(params.top_k);
  const bool limited = k > 0 && k < scores.size();
  selection.from(scores, limited ? lower_bound_of_kth(scores, k, scratch.selected) : kMasked, params.temperature);
  selection.min_p(params.min_p);
  if (limited) selection.top_k(k);
  if (params.top_p < 1) selection.top_p(static_cast<double>(params.top_p));
}

void keep_typical(Distribution* distribution) {
  constexpr double kEpsilon = 0.09, kDelta = 0.3;
  double entropy = 0;
  for (const float weight : distribution->weights) {
    const double p = static_cast<double>(weight) / distribution->total;
    if (p > 0) entropy -= p * std::log(p);
  }
  const double least = std::min(kEpsilon, kDelta * std::exp(-entropy)) * distribution->total;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < distribution->ids.size(); ++i) {
    if (!(static_cast<double>(distribution->weights[i]) > least)) continue;
    distribution->ids[kept] = distribution->ids[i];
    distribution->weights[kept++] = distribution->weights[i];
  }
  distribution->ids.resize(kept);
  distribution->weights.resize(kept);
  distribution->total = 0;
  for (const float weight : distribution->weights) distribution->total += static_cast<double>(weight);
}

namespace {

/// A drawn token with its time.
struct Finisher {
  double time = std::numeric_limits<double>::infinity();
  TokenId token = -1;
};

/// Writes the first of the race, in order; fewer if the distribution has fewer tokens.
void race(const Distribution& distribution, const Noise& noise, std::span<Finisher> first) {
  for (std::size_t i = 0; i < distribution.ids.size(); ++i) {
    const double uniform = noise.at(distribution.ids[i]), weight = static_cast<double>(distribution.weights[i]);
    // -log(u) >= 1 - u: most tokens lose without a logarithm.
    if (!(1 - uniform < first.back().time * weight)) continue;
    const Finisher finisher{-std::log(uniform) / weight, distribution.ids[i]};
    if (!(finisher.time < first.back().time)) continue;
    const auto place = std::ranges::upper_bound(first, finisher.time, {}, &Finisher::time);
    std::move_backward(place, first.end() - 1, first.end());
    *place = finisher;
  }
}

/// *rest = max(0, p - q), where q has these weights over q_total, without the drafts tried so far, the last of which
/// was just rejected. p may be *rest.
void subtract(const Distribution& p, const Distribution& q, double q_total, std::span<const TokenId> tried,
              Distribution* rest) {
  const double p_total = p.total;
  const std::size_t size = p.ids.size();
  std::size_t count = 0;
  double total = 0;
  rest->ids.resize(size);
  rest->weights.resize(size);
  for (std::size_t i = 0, j = 0; i < size; ++i) {
    const TokenId id = p.ids[i];
    while (j < q.ids.size() && q.ids[j] < id) ++j;
    const bool drawable = q_total > 0 && j < q.ids.size() && q.ids[j] == id;
    const double q_i = drawable ? static_cast<double>(q.weights[j]) / q_total : 0;
    const auto left = static_cast<double>(p.weights[i]) / p_total - q_i;
    if (!(left > 0) || std::ranges::find(tried, id) != tried.end()) continue;
    rest->ids[count] = id;
    rest->weights[count++] = static_cast<float>(left);
    total += static_cast<double>(static_cast<float>(left));
  }
  rest->ids.resize(count);
  rest->weights.resize(count);
  rest->total = total;
}

}  // namespace

TokenId draw(const Distribution& distribution, const Noise& noise) {
  Finisher first;
  race(distribution, noise, {&first, 1});
  CHECK(first.token >= 0, "{} tokens of total weight {}", distribution.ids.size(), distribution.total);
  return first.token;
}

std::vector<TokenId> draw_distinct(const Distribution& distribution, const Noise& noise, std::size_t most) {
  std::vector<Finisher> first(most);
  race(distribution, noise, first);
  std::vector<TokenId> tokens;
  for (const Finisher& finisher : first)
    if (finisher.token >= 0) tokens.push_back(finisher.token);
  return tokens;
}

TokenId accept_or_replace(const Distribution& p, const Distribution& q, std::span<const TokenId> drafts,
                          std::uint64_t seed, std::int64_t index, Distribution* scratch) {
  const Noise accepts(seed, index, Noise::Stream::kAccept);
  const Distribution* left = &p;
  double q_total = q.total;
  for (std::size_t i = 0; i < drafts.size(); ++i) {
    // A draft that cannot be drawn from q, or not again, is not a sample of q: rejected.
    const TokenId draft = drafts[i];
    const bool is_new = std::ranges::find(drafts.first(i), draft) == drafts.begin() + static_cast<std::ptrdiff_t>(i);
    const double weight = is_new ? q.weight(draft) : 0;
    if (weight > 0 && accepts.at(draft) * (weight / q_total) < left->probability(draft)) return draft;
    subtract(*left, q, q_total, drafts.first(i + 1), scratch);
    q_total -= weight;
    // Nothing may be left when p and q differ by rounding only.
    if (scratch->total <= 0) return draw(p, Noise(seed, index, Noise::Stream::kResidual));
    left = scratch;
  }
  return draw(*left, Noise(seed, index, Noise::Stream::kResidual));
}

}  // namespace outrider
