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

/// What the penalties of one text count. A token's prompt and answer are told apart because the
/// repetition penalty counts both and the other two only the answer.
struct TokenCounts {
  struct Count {
    bool in_prompt = false;
    std::int32_t in_answer = 0;
  };
  std::unordered_map<TokenId, Count> of;
};

/// A probability distribution over tokens; those that it leaves out have probability 0.
struct Distribution {
  std::vector<TokenId> ids;    ///< ascending
  std::vector<float> weights;  ///< as many, not negative, in proportion to the probabilities
  double total = 0;            ///< sum of the weights, above 0

  bool operator==(const Distribution&) const = default;
  void clear();
  void add(TokenId id, float weight);
  /// @return 0 for a token that is left out.
  double weight(TokenId id) const;
  double probability(TokenId id) const { return weight(id) / total; }
  static void fields(auto& v, auto& m) {
    constexpr Count kTop{1, kDraftTopK};
    v("ids", m.ids, kTop);
    v("weights", m.weights, kTop, Range{0., 1.});
  }
  /// Sets the total of what was read.
  Result<void> settle();
};

/// The random numbers of one decision: a pure function of (seed, output index, stream, token), so that
/// whoever decides, whenever and in whatever batch, decides the same.
class Noise {
 public:
  /// Decisions about the same token that must not know of each other.
  enum class Stream : std::uint64_t {
    kDraw,      ///< a token from the target's own distribution
    kAccept,    ///< whether a draft is kept
    kResidual,  ///< what replaces it
    kDraft,     ///< the drafter's own draw
  };
  /// @param index of the token in the answer; 0 follows the prompt.
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

/// Memory that processing a row needs; reused, so that rows allocate nothing.
struct SamplingScratch {
  std::vector<float> scores, selected;
  std::vector<std::int32_t> order;
};

/// Masks, biases and penalties, in place: what may change which token is the most probable.
/// @param scores [vocab_size], after the model's own softcap.
/// @param masked token ids to leave out besides suppress_tokens (the stop tokens before min_tokens).
/// @pre check_sampling(params, scores.size()).
void process_scores(std::span<float> scores, const SamplingParams& params, std::span<const TokenId> masked,
                    const TokenCounts& counts);

/// Temperature, min_p, top_k and top_p: the distribution that a token is drawn from. Among equal scores
/// the lower id counts as the more probable one, so that top_k keeps at most k tokens.
/// @param scores [vocab_size] after process_scores; finite, or -infinity for a masked token.
/// @pre params.temperature > 0; one score at least is finite.
/// O(vocab_size).
void make_distribution(std::span<const float> scores, const SamplingParams& params, SamplingScratch& scratch,
                       Distribution* distribution);

/// Leaves only the tokens that are typical of the distribution: p > min(epsilon, delta * exp(-H)) with its entropy H in
/// nats, epsilon 0.09 and delta sqrt(epsilon), as Medusa's code has them (Cai et al. 2024, 3.3; eta sampling, Hewitt et
/// al. 2022). The most probable token always is: exp(-H) is at most its probability.
void keep_typical(Distribution* distribution);

/// A token of the distribution. Tokens race: each needs an exponential time of its own, divided by its
/// weight, and the first wins with exactly its probability (the Gumbel-max trick, Gumbel 1954, on the
/// logarithm's other side). Because a token's time depends on nothing but the noise and its own weight, a slightly
/// other distribution mostly draws the same token.
TokenId draw(const Distribution& distribution, const Noise& noise);
/// The first `most` of that race, or all of its tokens that are fewer: draws without replacement, in their order.
std::vector<TokenId> draw_distinct(const Distribution& distribution, const Noise& noise, std::size_t most);

/// Speculative sampling of one place (Leviathan et al. 2023, Alg. 1; of several drafts as SpecInfer, Miao et al. 2023,
/// Alg. 2, does, but for drafts drawn without replacement): draft after draft is kept with min(1, p / q), and where it
/// is not, norm(max(0, p - q)) is the p of the next, and q without that draft its q. What replaces the last one is
/// drawn from the p that is left.
/// @param p      the target's distribution of output `index`.
/// @param q      the distribution that the drafts were drawn from, in their order and without replacement.
/// @param scratch for the residual distribution.
/// @return one of the drafts if and only if it was kept: their own residual is 0 when they were rejected.
TokenId accept_or_replace(const Distribution& p, const Distribution& q, std::span<const TokenId> drafts,
                          std::uint64_t seed, std::int64_t index, Distribution* scratch);

}  // namespace outrider
