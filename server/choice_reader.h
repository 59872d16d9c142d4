#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/client/client_core.h"
#include "common/model/tokenizer/answer_reader.h"
#include "common/model/tokenizer/detokenizer.h"
#include "common/model/tokenizer/tokenizer.h"
#include "server/choice_sink.h"
#include "server/generation_task.h"

namespace outrider {

/// Returns a token's bytes in a text, perhaps part of a character; a control token is spelled out.
std::string token_bytes(const Tokenizer& tokenizer, TokenId token);

/// Converts one choice's tokens into events for its sink.
class ChoiceReader {
 public:
  ChoiceReader(const Tokenizer& tokenizer, const GenerationTask& task, std::size_t index, ChoiceSink& sink);

  /// Handles the scores of the prompt's next tokens. The first token has none: begin() handles it.
  void prompt_scores(std::span<const TokenLogprobs> scores);
  /// Stores the report of the tokens that come next.
  void round(const RoundReport& round) { round_ = round; }
  /// @param so_far  the whole choice, with the requested logprobs
  /// @param facts  of the request: its token counts, which chunks report, grow with each call
  /// @return true if the answer is complete: a stop string was found, or only the prompt is wanted
  bool push(std::span<const TokenId> tokens, const Generation& so_far, FinishedRequest& facts);
  /// Returns its finish_reason, before the sink learns of the end.
  const char* finish(FinishReason reason);
  /// Returns the request's stop string or token that ended the answer, after finish().
  StopReason stop_reason(FinishReason reason) const;
  /// Number of the choice's tokens.
  std::int64_t count() const { return tokens_.count; }
  int broken_calls() const { return answer_.broken_calls(); }

 private:
  Choice& choice() { return sink_.choices[index_]; }
  void begin();
  /// Handles the prompt's next token. @param logprobs  null: the token has none @return the token's text in the answer
  std::string prompt_token(const TokenLogprobs* logprobs);
  ScoredText scored(TokenId token, float logprob) const;
  TokenScore score(TokenId token, const TokenLogprobs& logprobs);
  void report_round(std::span<const TokenId> tokens);

  const Tokenizer& tokenizer_;
  const CompletionRequest& request_;
  const std::vector<TokenId>& prompt_;
  const bool scores_echo_;  ///< the answer begins with the prompt, and both have log-probabilities
  const std::string echo_;  ///< start of the answer
  const std::size_t index_;
  ChoiceSink& sink_;
  AnswerReader answer_;
  StreamingDetokenizer round_text_, prompt_text_;
  std::optional<RoundReport> round_;
  struct {
    std::int64_t count = 0;
    TokenId last = -1;
  } tokens_;
  std::size_t prompt_read_ = 0;  ///< tokens of the prompt already handled
  std::size_t characters_ = 0;
  bool begun_ = false;
};

}  // namespace outrider
