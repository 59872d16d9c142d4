#include "common/decoding/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/token_tree.h"
#include "common/compute/kernels/ops.h"

namespace outrider {
namespace {

Result<void> check_finite(std::span<const float> logits) {
  if (all_finite(logits)) return {};
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i]))
      return Error(Errc::kMalformed, "the logit of token {} is {}, wanted a finite number", i, logits[i]);
  }
  return {};
}

}  // namespace

Sampler::Sampler(SamplingParams params, std::vector<TokenId> stop_ids, float softcap,
                 std::shared_ptr<const Grammar> grammar)
    : params_(std::move(params)), stop_ids_(std::move(stop_ids)), softcap_(softcap) {
  diverged_ = grammar == nullptr && !params_.grammar.empty();
  if (grammar != nullptr) grammar_.emplace(std::move(grammar), stop_ids_);
}

void Sampler::add_text(std::span<const TokenId> tokens, std::int64_t answered) {
  const auto prompt = tokens.size() - static_cast<std::size_t>(answered);
  if (params_.has_penalties())
    for (const TokenId token : tokens.first(prompt)) counts_.try_emplace(token);
  for (const TokenId token : tokens.subspan(prompt)) add_answer(token);
}

void Sampler::add_answer(TokenId token) {
  ++answer_length_;
  if (params_.has_penalties()) ++counts_[token];
  if (!params_.bad_words.empty()) answer_.push_back(token);
  if (grammar_ && !grammar_->accept(token)) diverged_ = true;
}

Result<std::span<const float>> Sampler::scores(std::span<const float> logits, SamplingScratch& scratch) {
  RETURN_IF_ERROR(check_finite(logits));
  const std::span<const std::uint32_t> allowed =
      grammar_ && !diverged_ ? grammar_->allowed() : std::span<const std::uint32_t>();
  if (const auto failure = grammar_ ? grammar_->failure() : std::nullopt)
    return Error(failure->code, "at output {}: {}", answer_length_, failure->message);
  // For example, another verifier began the answer with another tokenizer.
  if (diverged_)
    return Error(Errc::kInvalidArgument, "at output {} the answer follows its grammar no more", answer_length_);
  // The softcap is monotonic, except that its rounding may make scores equal; so plain greedy omits it.
  const bool values_matter = !params_.greedy() || params_.has_penalties() || !params_.logit_bias.empty();
  const auto size = static_cast<std::int64_t>(logits.size());
  bool guarded = answer_length_ < params_.min_tokens;
  const bool masked = !allowed.empty() || !params_.suppress_tokens.empty() || !params_.allowed_tokens.empty() ||
                      !params_.bad_words.empty();
  if (!values_matter && !guarded && !masked) return logits;
  for (;; guarded = false) {
    scratch.scores.assign(logits.begin(), logits.end());
    if (values_matter && softcap_ > 0) softcap_in_place({scratch.scores.data(), {1, size}}, softcap_);
    mask_scores(allowed, scratch.scores);
    std::vector<TokenId> out = completes_bad_word(params_.bad_words, answer_);
    if (guarded) out.insert(out.end(), stop_ids_.begin(), stop_ids_.end());
    process_scores(scratch.scores, params_, out, counts_);
    if (std::isfinite(scratch.scores[static_cast<std::size_t>(argmax(scratch.scores))]))
      return std::span<const float>(scratch.scores);
    // A completed grammar ends the answer, even before min_tokens.
    if (!guarded || !grammar_) break;
  }
  return Error(Errc::kInvalidArgument, "all {} tokens are masked at output {}", size, answer_length_);
}

Result<TokenId> Sampler::choose(std::span<const float> logits, SamplingScratch& scratch,
                                std::span<const TokenId> drafts, const Distribution* q) {
  ASSIGN_OR_RETURN(const std::span<const float> row, scores(logits, scratch));
  if (params_.greedy()) return static_cast<TokenId>(argmax(row));
  make_distribution(row, params_, scratch, &p_);
  if (q != nullptr) return accept_or_replace(p_, *q, drafts, params_.seed, answer_length_, &residual_);
  if (params_.rule == SamplingRule::kTypical) keep_typical(&p_);
  return draw(p_, Noise(params_.seed, answer_length_, Noise::Stream::kDraw));
}

std::vector<TokenLogprobs> Sampler::logprobs(Matrix<const float> logits, std::span<const TokenId> tokens,
                                             SamplingScratch& scratch) const {
  std::vector<TokenLogprobs> result;
  if (!params_.logprobs) return result;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::span<const float> row = logits[static_cast<std::int64_t>(i)].span();
    result.push_back(params_.logprob_token_ids.empty()
                         ? logprobs_of(row, softcap_, tokens[i], *params_.logprobs, scratch)
                         : logprobs_of(row, softcap_, tokens[i], params_.logprob_token_ids, scratch));
  }
  return result;
}

Result<TokenLogprobs> Sampler::prompt_logprobs(std::span<const float> logits, TokenId token,
                                               SamplingScratch& scratch) const {
  RETURN_IF_ERROR(check_finite(logits));
  return logprobs_of(logits, softcap_, token, params_.prompt_logprobs.value(), scratch);
}

Result<VerifyOutcome> Sampler::verify(Matrix<const float> logits, std::span<const TokenId> tokens,
                                      SamplingScratch& scratch, std::span<const std::int32_t> depths,
                                      std::span<const Distribution> q) {
  CHECK(logits.size(0) == std::ssize(tokens) && !tokens.empty(), "rows {}, tokens {}", logits.size(0), tokens.size());
  CHECK(q.empty() || (q.size() + 1 == tokens.size() && !params_.greedy()),
        "tokens {}, distributions {}, temperature {}", tokens.size(), q.size(), params_.temperature);
  const TokenTree tree(std::ssize(tokens) - 1, depths);
  const bool typical = params_.rule == SamplingRule::kTypical && !params_.greedy() && q.empty();
  begin_round(tokens[0]);
  begun_ = false;
  for (std::int64_t row = 0, parent = 0;;) {
    const std::vector<std::int64_t> children = tree.children(row);
    std::vector<TokenId> drafts;
    for (const std::int64_t child : children) drafts.push_back(tokens[static_cast<std::size_t>(child)]);
    const Distribution* const drawn_from =
        q.empty() || children.empty() ? nullptr : &q[static_cast<std::size_t>(children.front()) - 1];
    const Result<TokenId> choice = choose(logits[row].span(), scratch, drafts, drawn_from);
    if (!choice && row == 0) return choice.error();
    if (!choice) {
      begun_ = true;
      return VerifyOutcome{tree.depth(parent), tokens[static_cast<std::size_t>(row)], parent};
    }
    const auto kept = std::ranges::find_if(
        drafts, [&](TokenId draft) { return typical ? p_.probability(draft) > 0 : draft == *choice; });
    if (kept == drafts.end()) return VerifyOutcome{tree.depth(row), *choice, row};
    parent = std::exchange(row, children[static_cast<std::size_t>(kept - drafts.begin())]);
    add_answer(tokens[static_cast<std::size_t>(row)]);
  }
}

}  // namespace outrider
