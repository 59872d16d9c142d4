#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/compute/tensor/tensor.h"
#include "common/decoding/grammar/grammar.h"
#include "common/decoding/sampling/distribution.h"
#include "common/decoding/sampling/logprobs.h"
#include "common/decoding/sampling/params.h"

namespace outrider {

/// The accepted drafts of a round, and the token that the target adds.
struct VerifyOutcome {
  std::int32_t accepted = 0;  ///< length of the longest accepted prefix
  TokenId next_token = 0;     ///< bonus token if all were accepted, else the replacement of the first rejected one
  std::int64_t row = 0;       ///< row of the last accepted draft (TokenTree); in a chain equal to `accepted`
};

/// Chooses the tokens of one sequence. Its state matches the K/V cache: the prompt, then the committed tokens of the
/// answer; a rejected draft never enters. Every choice is a pure function of that prefix, the logits and the
/// parameters, so that the answer for a seed is the same for every draft length and drafter, and in plain decoding.
class Sampler {
 public:
  /// @param stop_ids  masked by min_tokens, and accepted at the end of a grammar
  /// @param softcap  the model's final_logit_softcapping, 0 for none. Logits come before it: greedy decoding does not
  /// need it, probabilities do.
  /// @param grammar  of params.grammar, compiled for this vocabulary; without it no token can be chosen, unless
  /// params.grammar is empty
  Sampler(SamplingParams params, std::vector<TokenId> stop_ids, float softcap,
          std::shared_ptr<const Grammar> grammar = nullptr);

  /// Adds tokens as they are prefilled. The last `answered` of them belong to an answer that is continued here, the
  /// others to the prompt.
  void add_text(std::span<const TokenId> tokens, std::int64_t answered);

  /// Computes the grammar's mask for the next choice before its logits are there; on any thread, while no other
  /// function is called. Drafts get no mask: a rejected one would take of the answer's time.
  /// @param token  the first of the next verify(), which is added now; none: choose() is next
  void look_ahead(std::optional<TokenId> token) {
    if (token) begin_round(*token);
    if (grammar_ && !diverged_) grammar_->allowed();
  }
  bool follows_grammar() const { return grammar_.has_value(); }

  /// Chooses the token that follows all added ones.
  /// @param logits  [V]
  /// @return kMalformed unless they are finite, kInvalidArgument if the whole vocabulary is masked, and errors of the
  /// grammar
  Result<TokenId> choose(std::span<const float> logits, SamplingScratch& scratch) {
    return choose(logits, scratch, {}, nullptr);
  }

  /// Decides which drafts survive. Adds tokens[0] and the surviving drafts. Among several drafts for one position, the
  /// first survivor is followed. If no token can be chosen after a surviving draft, the outcome ends with that draft as
  /// its next token, and the next call has the error, as in plain decoding.
  ///
  /// Without q, the rule `match`, and at temperature 0 `greedy`: token i is drawn from the target's distribution with
  /// the noise of (seed, i), and a draft survives iff it is that token. The rule `typical`: a draft survives iff
  /// keep_typical() leaves it, and the next token is drawn from what remains.
  ///
  /// With q, the rule `rejection` (Leviathan et al. 2023, Chen et al. 2023): a draft survives with min(1, p / q). Exact
  /// in distribution if each draft was drawn from its q, independently of this seed's kAccept, kResidual and kDraw
  /// streams, and those of one position without replacement; the answer depends on the drafts.
  /// @param logits  [G + 1, V]; row i follows tokens[i] @param tokens  the last emitted token, then G drafts
  /// @param depths  of the drafts, a TokenTree's; empty: a chain
  /// @param q  [G] the distribution of each draft; drafts of one position share it. Not at temperature 0
  Result<VerifyOutcome> verify(Matrix<const float> logits, std::span<const TokenId> tokens, SamplingScratch& scratch,
                               std::span<const std::int32_t> depths = {}, std::span<const Distribution> q = {});

  /// Returns log-probabilities of chosen tokens, if the request wants them.
  /// @param logits  [N, V] as given to choose() or verify()
  /// @param tokens  [N] token i was chosen from row i
  /// @return [N], or nothing
  std::vector<TokenLogprobs> logprobs(Matrix<const float> logits, std::span<const TokenId> tokens,
                                      SamplingScratch& scratch) const;
  /// Returns those of a prompt token. @param logits  [V] of the row before it @pre the request wants them
  /// @return kMalformed unless the logits are finite
  Result<TokenLogprobs> prompt_logprobs(std::span<const float> logits, TokenId token, SamplingScratch& scratch) const;

 private:
  void add_answer(TokenId token);
  /// Adds the first token of a round, once.
  void begin_round(TokenId token) {
    if (!std::exchange(begun_, true)) add_answer(token);
  }
  /// @param drafts  for this position @param q  the distribution that they were drawn from; null: not by rejection
  Result<TokenId> choose(std::span<const float> logits, SamplingScratch& scratch, std::span<const TokenId> drafts,
                         const Distribution* q);
  /// Returns the scores for choosing: the logits themselves if nothing changes them, else in scratch.
  Result<std::span<const float>> scores(std::span<const float> logits, SamplingScratch& scratch);

  SamplingParams params_;
  std::vector<TokenId> stop_ids_;
  float softcap_;
  std::int64_t answer_length_ = 0;
  std::optional<GrammarState> grammar_;  ///< after the committed tokens
  bool diverged_ = false;                ///< the grammar is missing, or did not allow a committed token
  bool begun_ = false;                   ///< the first token of the next verify() is added
  TokenCounts counts_;                   ///< only with penalties
  std::vector<TokenId> answer_;          ///< only with bad words
  Distribution p_, residual_;            ///< p_: distribution of the last token
};

}  // namespace outrider
