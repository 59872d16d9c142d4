#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/base/ids.h"
#include "common/model/tokenizer/chat.h"
#include "common/model/tokenizer/chat_parser.h"
#include "common/wire/messages/messages.h"
#include "server/api_error.h"

// A reply as typed events, and the interface of their writers. ApiServer makes the events; each API (OpenAI's,
// Responses, Messages, llama.cpp's) has a writer.

namespace outrider {

struct ScoredText {
  std::string bytes;  ///< of a token; perhaps part of a character
  float logprob = 0;
  TokenId id = 0;
};
/// One token of an answer, with the model's log-probabilities of it and of its alternatives.
struct TokenScore {
  ScoredText token;
  std::vector<ScoredText> top;
  std::size_t text_offset = 0;  ///< characters of the answer before it
  std::int32_t rank = 1;        ///< see TokenLogprobs
  bool scored = true;           ///< false for a prompt's first token, which has no score
};

/// The stop string or stop token of the request that ended an answer; empty for any other end, such as the model's own
/// stop tokens.
using StopReason = std::variant<std::monostate, std::string, TokenId>;

/// One answer, whole.
struct Choice {
  ChatMessage message;             ///< for a completion: its content
  std::vector<TokenScore> scores;  ///< if requested
  std::string finish_reason;
  std::vector<TokenId> prompt_ids = {}, token_ids = {};  ///< if requested
  StopReason stop_reason = {};
  std::vector<TokenScore> prompt_scores = {};  ///< of prompt_logprobs
};

/// The cost of a request.
struct Usage {
  std::int64_t prompt_tokens = 0, cached_tokens = 0;  ///< each prompt once, however many choices it has
  std::int64_t completion_tokens = 0;                 ///< of all choices
  std::int64_t reasoning_tokens = 0;                  ///< those in thoughts
  RequestMetrics metrics = {};                        ///< of all choices
  std::size_t choices = 1;
  std::int32_t draft_length_max = 0;  ///< of a round; 0: plain decoding
};

/// Fields that all bodies of one reply share.
struct ReplyHead {
  bool chat = false;
  bool logprobs = false;
  std::string id = {}, model = {};
  std::int64_t created = 0;                       ///< Unix seconds
  bool token_ids = false, tokens_as_ids = false;  ///< additional members of a choice
  bool prompt_logprobs = false;                   ///< additional member of a choice; in a chat, of the reply
  std::string fingerprint = {};                   ///< of the serving system
  std::vector<std::string> warnings = {};         ///< of the request
  std::string prompt_text = {};                   ///< as the model reads it; empty: not requested
};

/// Additional content of an event.
struct ChunkNotes {
  std::vector<TokenScore> scores = {};   ///< of the tokens since the last chunk
  std::vector<TokenId> token_ids = {};   ///< of the same tokens
  std::vector<TokenId> prompt_ids = {};  ///< in the first
  const Usage* so_far = nullptr;         ///< stream_options.continuous_usage_stats
  const Usage* timed = nullptr;          ///< timings_per_token
};
/// Some tokens of a choice with their origin.
struct ReportedRound {
  std::vector<std::string>
      tokens;  ///< each token's text; joined, the text. Accepted drafts first, then the target's own
  std::optional<RoundReport> round;     ///< none: the token after the prompt
  std::vector<std::string> drafts;      ///< of `round`, including rejected ones
  std::vector<TokenId> token_ids = {};  ///< of `tokens`
};
// The events of a choice, in this order: it begins; rounds, more of its text, tokens; it ends.
struct ChoiceBegins {};
/// Tokens whose text follows later, or that have none: the notes have their ids and scores.
struct TokensAlone {
  bool end_thought = false;  ///< the last of a thought
};
struct ChoiceEnds {
  std::string finish_reason;
  StopReason stop_reason = {};
  const Usage* usage = nullptr;  ///< of the whole request, in its last event, if usage() does not follow
};

/// One event of a stream. A call is one event, at its end; a completion has only content.
struct ChoiceEvent {
  std::size_t index = 0;  ///< of the choice
  std::variant<ChoiceBegins, ReportedRound, ChatEvent, TokensAlone, ChoiceEnds> what;
  ChunkNotes notes = {};
  std::size_t calls = 0;  ///< complete calls of the choice before this event
};

/// Writes one reply, whole or as server-sent events. Each function except whole() returns complete events, perhaps
/// none. One thread at a time.
class ReplyWriter {
 public:
  virtual ~ReplyWriter() = default;
  virtual std::string event(const ReplyHead& head, const ChoiceEvent& event) = 0;
  /// Follows all choices, for a request with stream_options.include_usage.
  virtual std::string usage(const ReplyHead& head, const Usage& usage) = 0;
  /// Ends the stream. @param error  reason of an abort; null: none
  virtual std::string end(const ApiError* error) = 0;
  /// Returns the body of a reply that is not streamed. Follows its events if the request is `of_events`.
  virtual std::string whole(const ReplyHead& head, const std::vector<Choice>& choices, const Usage& usage) = 0;
};

/// Makes a handler for std::visit.
template <typename... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};

}  // namespace outrider
