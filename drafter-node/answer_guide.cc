#include "drafter-node/answer_guide.h"

#include <algorithm>
#include <memory>

#include "common/decoding/sampling/distribution.h"

namespace outrider {

GrammarState* AnswerGuide::follow(Draft& draft, GrammarCompiler* grammars) {
  if (!draft.sampling_known) {
    *this = {};
    sampling_ = draft.sampling;
    stop_ids_ = draft.stop_ids;
  }
  draft.sampling = sampling_;
  draft.stop_ids = stop_ids_;
  if (!sampling_ || !sampling_->follows_answer() || lost_) return nullptr;
  // The Draft's tokens end at its index; some may be known.
  const std::int64_t fresh = draft.index - std::ssize(answer_);
  lost_ = fresh < 0 || fresh > std::ssize(draft.answer);
  if (lost_) return nullptr;
  const std::span<const TokenId> tokens = std::span(draft.answer).last(static_cast<std::size_t>(fresh));
  answer_.insert(answer_.end(), tokens.begin(), tokens.end());
  if (sampling_->grammar.empty() || grammars == nullptr) return nullptr;
  std::span<const TokenId> behind = tokens;
  if (!state_) {
    if (!wait_) wait_ = grammars->want(sampling_->grammar);
    const Result<std::shared_ptr<const Grammar>> grammar = wait_();
    lost_ = !grammar;
    if (lost_ || *grammar == nullptr) return nullptr;
    wait_ = nullptr;
    state_.emplace(*grammar, stop_ids_, GrammarState::User::kDrafter);
    behind = answer_;
  }
  lost_ = !std::ranges::all_of(behind, [&](TokenId token) { return state_->accept(token); });
  return lost_ ? nullptr : &*state_;
}

std::vector<TokenId> AnswerGuide::completes_bad_word(std::span<const TokenId> drafts) const {
  if (!sampling_ || sampling_->bad_words.empty()) return {};
  std::span<const TokenId> answer = answer_;
  std::vector<TokenId> tokens;
  if (answer.size() > kBadWordTokensMax) answer = answer.last(kBadWordTokensMax);
  tokens.assign(answer.begin(), answer.end());
  tokens.insert(tokens.end(), drafts.begin(), drafts.end());
  return outrider::completes_bad_word(sampling_->bad_words, tokens);
}

}  // namespace outrider
