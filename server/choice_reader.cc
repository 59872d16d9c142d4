#include "server/choice_reader.h"

#include <algorithm>
#include <utility>

#include "common/model/tokenizer/stop_matcher.h"

namespace outrider {

std::string token_bytes(const Tokenizer& tokenizer, TokenId token) {
  if (const auto byte = tokenizer.byte_value(token)) return std::string(1, static_cast<char>(*byte));
  return tokenizer.plain_text(token);
}

ChoiceReader::ChoiceReader(const Tokenizer& tokenizer, const GenerationTask& task, std::size_t index, ChoiceSink& sink)
    : tokenizer_(tokenizer),
      request_(task.request),
      prompt_(task.prompt_of(index)),
      // With log-probabilities, the echo is sent together with them, piece by piece.
      scores_echo_(request_.echo && !request_.chat && request_.sampling.logprobs),
      echo_(scores_echo_ ? "" : task.echo_of(index, tokenizer)),
      index_(index),
      sink_(sink),
      answer_(tokenizer, StopMatcher::create(request_.stop, request_.include_stop).value(),
              request_.chat ? std::optional<std::span<const TokenId>>(prompt_) : std::nullopt,
              [this](const ChatEvent& event) {
                const bool thought = event.kind == ChatEvent::Kind::kReasoning;
                if (!thought || request_.include_reasoning) sink_.event(index_, event);
              }),
      round_text_(tokenizer, /*skip_special=*/true),
      prompt_text_(tokenizer, /*skip_special=*/true) {}

void ChoiceReader::prompt_scores(std::span<const TokenLogprobs> scores) {
  begin();
  std::string text;
  for (const TokenLogprobs& logprobs : scores) text += prompt_token(&logprobs);
  if (!text.empty()) sink_.event(index_, {ChatEvent::Kind::kContent, std::move(text), {}});
}

bool ChoiceReader::push(std::span<const TokenId> tokens, const Generation& so_far, FinishedRequest& facts) {
  begin();
  if (request_.max_tokens == 0) return true;
  if (request_.report_rounds) report_round(tokens);
  for (const TokenId token : tokens) {
    if (request_.return_token_ids) choice().token_ids.push_back(token);
    if (request_.sampling.logprobs)
      choice().scores.push_back(score(token, so_far.logprobs[static_cast<std::size_t>(tokens_.count)]));
    ++tokens_.count;
    ++facts.generated_tokens;
    tokens_.last = token;
    const bool thought = answer_.thinks();
    if (thought) ++facts.reasoning_tokens;
    if (answer_.push(token)) return true;
    if (thought && !answer_.thinks()) sink_.pause(index_, /*end_thought=*/true);
  }
  sink_.pause(index_, /*end_thought=*/false);
  return false;
}

const char* ChoiceReader::finish(FinishReason reason) {
  begin();
  switch (answer_.finish(reason == FinishReason::kLength || request_.max_tokens == 0)) {
    case ChatFinish::kToolCalls: return "tool_calls";
    case ChatFinish::kLength: return "length";
    default: return "stop";
  }
}

StopReason ChoiceReader::stop_reason(FinishReason reason) const {
  if (!answer_.stop().empty()) return answer_.stop();
  const std::vector<TokenId>& ids = request_.stop_ids;
  if (reason != FinishReason::kStop || std::ranges::find(ids, tokens_.last) == ids.end()) return {};
  return tokens_.last;
}

void ChoiceReader::begin() {
  if (std::exchange(begun_, true)) return;
  sink_.begin(index_);
  if (!echo_.empty()) sink_.event(index_, {ChatEvent::Kind::kContent, echo_, {}});
  if (!request_.sampling.prompt_logprobs) return;
  const std::string first = prompt_token(nullptr);
  if (!first.empty()) sink_.event(index_, {ChatEvent::Kind::kContent, first, {}});
}

std::string ChoiceReader::prompt_token(const TokenLogprobs* logprobs) {
  const TokenId token = prompt_[prompt_read_++];
  TokenScore scored = score(token, logprobs != nullptr ? *logprobs : TokenLogprobs{});
  scored.scored = logprobs != nullptr;
  if (request_.return_prompt_logprobs) choice().prompt_scores.push_back(scores_echo_ ? scored : std::move(scored));
  if (!scores_echo_) return characters_ = 0, "";
  choice().scores.push_back(std::move(scored));
  const bool last = prompt_read_ == prompt_.size();
  std::string text = prompt_text_.push(token);
  return last ? text + prompt_text_.finish() : text;
}

ScoredText ChoiceReader::scored(TokenId token, float logprob) const {
  return {token_bytes(tokenizer_, token), logprob, token};
}

TokenScore ChoiceReader::score(TokenId token, const TokenLogprobs& logprobs) {
  TokenScore result{
      .token = scored(token, logprobs.logprob), .top = {}, .text_offset = characters_, .rank = logprobs.rank};
  bool among = false;
  for (const Logprob& other : logprobs.top) {
    among = among || other.token == token;
    result.top.push_back(scored(other.token, other.logprob));
  }
  // vLLM lists the token itself besides the requested ids.
  if (!among && !request_.sampling.logprob_token_ids.empty()) result.top.push_back(result.token);
  // Text excludes control tokens.
  const auto begins = [](char c) { return (c & 0xC0) != 0x80; };
  if (!tokenizer_.is_special(token))
    characters_ += static_cast<std::size_t>(std::ranges::count_if(result.token.bytes, begins));
  return result;
}

void ChoiceReader::report_round(std::span<const TokenId> tokens) {
  ReportedRound reported{.tokens = {},
                         .round = std::exchange(round_, std::nullopt),
                         .drafts = {},
                         .token_ids = {tokens.begin(), tokens.end()}};
  for (const TokenId token : tokens) reported.tokens.push_back(round_text_.push(token));
  if (reported.round) {
    for (const TokenId token : reported.round->drafts) reported.drafts.push_back(token_bytes(tokenizer_, token));
  }
  sink_.round(index_, reported);
}

}  // namespace outrider
