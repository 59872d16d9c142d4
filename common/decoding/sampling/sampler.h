#pragma once

#include <optional>
#include <span>
#include <vector>

#include "common/decoding/grammar/grammar.h"
#include "common/decoding/sampling/distribution.h"
#include "common/decoding/sampling/logprobs.h"
#include "common/decoding/sampling/params.h"
#include "common/decoding/sampling/verify.h"

namespace outrider {

/// Chooses the tokens of one text. It remembers what the K/V cache holds: the prompt, then the committed
/// tokens of the answer; a rejected draft never enters. Every choice is a pure function of that prefix, the
/// logits and the parameters, so the text for a seed is the same for every draft length and drafter, and in plain
/// decoding.
class Sampler {
 public:
  /// @param stop_ids what min_tokens masks, and what ends a grammar.
  /// @param softcap  the model's final_logit_softcapping, 0 for none. Logits come without it: greedy
  ///   decoding does not need it, probabilities do.
  /// @param grammar of params.grammar, made for this vocabulary; without it no token can be chosen, but where that is
  ///   empty.
  Sampler(SamplingParams params, std::vector<TokenId> stop_ids, float softcap,
          std::shared_ptr<const Grammar> grammar = nullptr);

  /// Tokens of the prompt, as they are prefilled.
  void add_prompt(std::span<const TokenId> tokens);
  /// The same where the last `answered` of them are the answer's already, which goes on here.
  void add_text(std::span<const TokenId> tokens, std::int64_t answered);

  /// What choices among these rows ask of the grammar, made before their logits are there; on any thread, while nothing
  /// else of this is called.
  /// @param tokens, depths  as verify() will get them; no tokens: for choose()
  void look_ahead(std::span<const TokenId> tokens, std::span<const std::int32_t> depths) {
    if (grammar_ && !diverged_) grammar_->look_ahead(tokens, depths);
  }
  bool follows_grammar() const { return grammar_.has_value(); }

  /// The token that follows all that was added.
  /// @param logits [V] finite; anything else is kMalformed, and so is a vocabulary that is masked whole.
  Result<TokenId> choose(std::span<const float> logits, SamplingScratch& scratch);

  /// The rule `match`, and at temperature 0 `greedy`: token i is drawn from the target's distribution with
  /// the noise of (seed, i), and a draft survives iff it is that token. Adds tokens[0] and what survives.
  /// The rule `typical`: a draft survives iff keep_typical() leaves it, and what follows is drawn from what that
  /// leaves.
  /// Of several drafts for one place the first that survives is followed.
  /// @param logits [G + 1, V]; row i follows tokens[i].
  /// @param tokens the last emitted token, then G drafts.
  /// @param depths of the drafts, a TokenTree's; empty: a chain.
  Result<VerifyOutcome> verify(Matrix<const float> logits, std::span<const TokenId> tokens, SamplingScratch& scratch,
                               std::span<const std::int32_t> depths = {});

  /// The rule `rejection` (Leviathan et al. 2023, Chen et al. 2023): a draft survives with min(1, p / q).
  /// Exact in distribution if each draft was drawn from its q, independently of this seed's kAccept, kResidual
  /// and kDraw streams, and those of one place without replacement; the text depends on the drafts. The rest as
  /// verify().
  /// @param q [G] what the drafts were drawn from; those of one place from one.
  Result<VerifyOutcome> verify_rejection(Matrix<const float> logits, std::span<const TokenId> tokens,
                                         std::span<const Distribution> q, SamplingScratch& scratch,
                                         std::span<const std::int32_t> depths = {});

  /// Of tokens that were chosen, if the request wants them.
  /// @param logits [N, V] as given to choose() or verify(). @param tokens [N] token i was chosen from row i.
  /// @return [N], or nothing.
  std::vector<TokenLogprobs> logprobs(Matrix<const float> logits, std::span<const TokenId> tokens,
                                      SamplingScratch& scratch) const;
  /// Of one of the prompt's. @param logits  [V] of the row before it. @pre the request wants them.
  TokenLogprobs prompt_logprobs(std::span<const float> logits, TokenId token, SamplingScratch& scratch) const;

 private:
  void add_answer(TokenId token);
  /// The scores that choices are made by: the logits themselves where nothing changes them, else in scratch.
  Result<std::span<const float>> scores(std::span<const float> logits, SamplingScratch& scratch);

  SamplingParams params_;
  std::vector<TokenId> stop_ids_;
  float softcap_;
  std::int64_t answer_length_ = 0;
  std::optional<GrammarState> grammar_;  ///< after the committed tokens
  bool diverged_ = false;                ///< a committed token was none that it allows, or it is missing
  TokenCounts counts_;                   ///< kept only where there are penalties
  std::vector<TokenId> answer_;          ///< kept only where there are bad words
  Distribution p_, residual_;            ///< p_: what the last token was drawn from
};

}  // namespace outrider
