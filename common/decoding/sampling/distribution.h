#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <unordered_map>
#include <vector>

#include "common/base/ids.h"
#include "common/base/random.h"
#include "common/base/result.h"
#include "common/decoding/sampling/params.h"

namespace outrider {

/// The tokens of one sequence with their numbers in the answer, for penalties. The repetition penalty is for all of
/// them, those with 0 in the prompt alone; the other two only for the answer's.
using TokenCounts = std::unordered_map<TokenId, std::int32_t>;

/// A probability distribution over tokens; absent tokens have probability 0.
struct Distribution {
  std::vector<TokenId> ids;    ///< ascending
  std::vector<float> weights;  ///< one per id, non-negative, proportional to the probabilities
  double total = 0;            ///< sum of the weights, above 0

  bool operator==(const Distribution&) const = default;
  void clear();
  void add(TokenId id, float weight);
  /// Returns 0 for an absent token.
  double weight(TokenId id) const;
  double probability(TokenId id) const { return weight(id) / total; }
  static void fields(auto& v, auto& m) {
    constexpr Count kTop{1, kDraftTopK};
    v("ids", m.ids, kTop);
    v("weights", m.weights, kTop, Range{0., 1.});
  }
  /// Sets the total after decoding.
  Result<void> settle();
};

/// The random numbers of one decision: a pure function of (seed, output index, stream, token), so that every node
/// decides the same, at any time and in any batch.
class Noise {
 public:
  /// Independent decisions about the same token.
  enum class Stream : std::uint64_t {
    kDraw,      ///< a token from the target's own distribution
    kAccept,    ///< keeping a draft
    kResidual,  ///< the replacement of a rejected draft
    kDraft,     ///< the drafter's own draw
  };
  /// @param index  of the token in the answer; 0 follows the prompt
  Noise(std::uint64_t seed, std::int64_t index, Stream stream)
      : key_(CounterRng::at(CounterRng::at(mix64(seed), static_cast<std::uint64_t>(stream)),
                            static_cast<std::uint64_t>(index))) {}

  /// Uniform in (0, 1), neither end included; 52 bits.
  double at(TokenId token) const {
    const std::uint64_t bits = CounterRng::at(key_, static_cast<std::uint64_t>(token));
    return (static_cast<double>(bits >> 12) + 0.5) * 0x1.0p-52;
  }

 private:
  std::uint64_t key_;
};

/// Scratch memory of a row; reused, so that rows allocate nothing.
struct SamplingScratch {
  std::vector<float> scores, selected;
  std::vector<std::int32_t> order;
};

/// Returns the tokens that would complete a bad word after this answer, which excludes the prompt, as in vLLM. May
/// contain duplicates. @param answer  its last kBadWordTokensMax - 1 tokens at least, or all of it
std::vector<TokenId> completes_bad_word(std::span<const TokenWord> words, std::span<const TokenId> answer);

/// Applies masks, biases and penalties in place: everything that may change the most probable token.
/// @param scores  [vocab_size], after the model's own softcap
/// @param masked  tokens to mask besides suppress_tokens (the stop tokens before min_tokens)
/// @pre check_sampling(params, scores.size())
void process_scores(std::span<float> scores, const SamplingParams& params, std::span<const TokenId> masked,
                    const TokenCounts& counts);

/// Applies temperature, min_p, top_k and top_p: makes the distribution that a token is drawn from. Among equal scores
/// the lower id counts as the more probable one, so that top_k keeps at most k tokens.
/// @param scores  [vocab_size] after process_scores; finite, or -infinity for a masked token
/// @pre params.temperature > 0; one score at least is finite. O(vocab_size)
void make_distribution(std::span<const float> scores, const SamplingParams& params, SamplingScratch& scratch,
                       Distribution* distribution);

/// Keeps only the tokens that are typical of the distribution: p > min(epsilon, delta * exp(-H)) with its entropy H in
/// nats, epsilon 0.09 and delta sqrt(epsilon), as in Medusa's code (Cai et al. 2024, 3.3; eta sampling, Hewitt et al.
/// 2022). The most probable token always is: exp(-H) is at most its probability.
void keep_typical(Distribution* distribution);

/// Draws a token by a race: each token has an exponential time of its own, divided by its weight, and the first wins
/// with exactly its probability (the Gumbel-max trick, Gumbel 1954, after exponentiation). A token's time depends on
/// the noise and its own weight only, so that a slightly different distribution mostly draws the same token.
TokenId draw(const Distribution& distribution, const Noise& noise);
/// Returns the first `most` tokens of that race: draws without replacement, in order. Fewer if the distribution is
/// smaller.
std::vector<TokenId> draw_distinct(const Distribution& distribution, const Noise& noise, std::size_t most);

/// Speculative sampling of one position (Leviathan et al. 2023, Alg. 1; with several drafts as in SpecInfer, Miao et
/// al. 2023, Alg. 2, but for drafts drawn without replacement). Each draft is kept with min(1, p / q). After a
/// rejection norm(max(0, p - q)) is the next p, and q without that draft the next q. The final replacement is drawn
/// from the remaining p.
/// @param p  the target's distribution of output `index`
/// @param q  the distribution of the drafts, which are in order and without replacement
/// @param scratch  for the residual distribution
/// @return one of the drafts if and only if it was kept: a rejected draft has residual 0
TokenId accept_or_replace(const Distribution& p, const Distribution& q, std::span<const TokenId> drafts,
                          std::uint64_t seed, std::int64_t index, Distribution* scratch);

}  // namespace outrider
