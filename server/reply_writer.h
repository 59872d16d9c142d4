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

// A reply as typed events, and the interface of what writes them in the words of one API. ApiServer makes the events;
// each API (OpenAI's, Responses, Messages, llama.cpp's) has a writer.

namespace outrider {

struct ScoredText {
  std::string bytes;  ///< of a token; perhaps part of a character
  float logprob = 0;
  TokenId id = 0;
};
/// One token of an answer, with the model's log-probabilities of it and of others in its place.
struct TokenScore {
  ScoredText token;
  std::vector<ScoredText> top;
  std::size_t text_offset = 0;  ///< characters of the answer before it
  std::int32_t rank = 1;        ///< as TokenLogprobs'
  bool scored = true;           ///< else, a prompt's first token, there is only the token
};

/// It is the ending of an answer that ended by itself, unless that is one of the model's own tokens: a stop text of the
/// request, or a stop token.
using StopReason = std::variant<std::monostate, std::string, TokenId>;

/// One answer, whole.
struct Choice {
  ChatMessage message;             ///< of a completion: its content
  std::vector<TokenScore> scores;  ///< where the request wants them
  std::string finish_reason;
  std::vector<TokenId> prompt_ids = {}, token_ids = {};  ///< where it wants ids
  StopReason stop_reason = {};
  std::vector<TokenScore> prompt_scores = {};  ///< of prompt_logprobs
};

/// It holds the costs of a request.
struct Usage {
  std::int64_t prompt_tokens = 0, cached_tokens = 0;  ///< each prompt once, however many choices it has
  std::int64_t completion_tokens = 0;                 ///< of all choices
  std::int64_t reasoning_tokens = 0;                  ///< those of them that belong to thoughts
  RequestMetrics metrics = {};                        ///< of all choices
  std::size_t choices = 1;
  std::int32_t draft_length_max = 0;  ///< of a round; 0: decoded plainly
};

/// It holds the fields that every body of one reply shares.
struct ReplyHead {
  bool chat = false;
  bool logprobs = false;
  std::string id = {}, model = {};
  std::int64_t created = 0;                       ///< Unix seconds
  bool token_ids = false, tokens_as_ids = false;  ///< what a choice has besides
  bool prompt_logprobs = false;                   ///< the same; of a chat, the reply
  std::string fingerprint = {};                   ///< of what computes it
  std::vector<std::string> warnings = {};         ///< of the request
  std::string prompt_text = {};                   ///< as the model reads it; empty: not wanted
};

/// An event may say this besides.
struct ChunkNotes {
  std::vector<TokenScore> scores = {};   ///< of the tokens since the last chunk
  std::vector<TokenId> token_ids = {};   ///< of the same tokens
  std::vector<TokenId> prompt_ids = {};  ///< in the first
  const Usage* so_far = nullptr;         ///< stream_options.continuous_usage_stats
  const Usage* timed = nullptr;          ///< timings_per_token
};
/// The origin of some tokens of a choice.
struct ReportedRound {
  std::vector<std::string>
      tokens;  ///< what each adds to the text; joined they are it. Accepted drafts first, then the target's own
  std::optional<RoundReport> round;     ///< none: the token after the prompt
  std::vector<std::string> drafts;      ///< of `round`, rejected ones too
  std::vector<TokenId> token_ids = {};  ///< of `tokens`
};
// A choice has these events, in this order: it begins; rounds, more of its text, tokens; it ends.
struct ChoiceBegins {};
/// Tokens whose text is still to come: the notes have their ids.
struct TokensAlone {};
struct ChoiceEnds {
  std::string finish_reason;
  StopReason stop_reason = {};
  const Usage* usage = nullptr;  ///< of the whole request, in its last event, where usage() does not follow
};

/// One event of a stream. A call is one event, at its end; a completion has only content.
struct ChoiceEvent {
  std::size_t index = 0;  ///< of the choice
  std::variant<ChoiceBegins, ReportedRound, ChatEvent, TokensAlone, ChoiceEnds> what;
  ChunkNotes notes = {};
  std::size_t calls = 0;  ///< complete calls of the choice before this event
};

/// Writes one reply, whole or as server-sent events. Each of the functions but whole() returns whole events, perhaps
/// none. One thread at a time.
class ReplyWriter {
 public:
  virtual ~ReplyWriter() = default;
  virtual std::string event(const ReplyHead& head, const ChoiceEvent& event) = 0;
  /// After all choices, of a request with stream_options.include_usage.
  virtual std::string usage(const ReplyHead& head, const Usage& usage) = 0;
  /// The end of the stream. @param error  why it broke off; null: it did not
  virtual std::string end(const ApiError* error) = 0;
  /// The body of a reply that is not streamed.
  virtual std::string whole(const ReplyHead& head, const std::vector<Choice>& choices, const Usage& usage) = 0;
};

/// It makes a handler of std::visit.
template <typename... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};

}  // namespace outrider
