#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/media_prompt/media_prompt.h"
#include "common/policy/policies.h"
#include "common/protocol/messages.h"
#include "common/sampling/params.h"
#include "common/tokenizer/answer_controls.h"
#include "common/tokenizer/chat.h"
#include "common/tokenizer/chat_parser.h"
#include "http-server/api_error.h"

// OpenAI's HTTP API as pure functions: bodies of requests to structs, and results to bodies. Fields and
// defaults are OpenAI's, then vLLM's; docs/http.md lists them.

namespace outrider {

template <typename T>
using ApiResult = Result<T, ApiError>;

/// A body that is a JSON object of no more than kJsonDepthMax levels.
ApiResult<nlohmann::json> parse_object(std::string_view body);

/// Levels of brackets in what may be JSON. Asked before a parser builds a tree of them, whose copies and
/// texts are made by recursion.
int json_nesting(std::string_view json);
/// Of a request. Arguments and schemas nest kChatJsonDepthMax deep, some levels below the body's own.
inline constexpr int kJsonDepthMax = kChatJsonDepthMax + 8;

/// Longest answer of a chat that does not say. Not the whole context, which vLLM takes: the verifier sets the memory
/// of the longest possible answer aside, so that few such requests would fit at once.
inline constexpr std::int64_t kMaxChatTokens = 8192;

/// What the server answers with where a request does not say.
struct ApiDefaults {
  std::string model;  ///< the one model that there is
  std::int32_t vocab_size = 0;
  SamplingParams sampling = {};  ///< as the checkpoint advises
  AnswerControls controls = {};  ///< of its vocabulary
  DraftLength draft_length = {};
};

/// Text, or tokens.
using Prompt = std::variant<std::string, std::vector<TokenId>>;

/// One request of /v1/chat/completions or /v1/completions.
struct CompletionRequest {
  bool chat = false;
  Conversation conversation;      ///< of chat
  std::vector<MediumFile> media;  ///< of the conversation, in its order; kMediaMax at most
  std::vector<Prompt> prompts;    ///< of a completion; at least one
  SamplingParams sampling;        ///< with a seed, if the request has one
  bool has_seed = false;
  std::optional<std::int64_t> max_tokens;  ///< none: what the context holds; 0: the prompt's echo alone
  std::int32_t n = 1;
  DraftLength draft_length = {};
  std::vector<std::string> stop;
  std::vector<TokenId> stop_ids;  ///< besides the model's own
  bool ignore_eos = false;        ///< without the model's own
  bool stream = false, include_usage = false;
  bool usage_in_each_chunk = false;         ///< of a stream
  std::optional<std::int64_t> prompt_tail;  ///< only so many tokens of a prompt, its last; 0: what the context holds
  bool tail_is_head = false;                ///< its first instead of its last
  bool add_special_tokens = true;           ///< <bos> before a prompt that is text
  bool echo = false;                        ///< the answer begins with the prompt; of a chat, with what it goes on with
  bool include_stop = false;                ///< the stop text that ends the answer belongs to it
  bool return_token_ids = false, tokens_as_ids = false;
  std::vector<std::string> bad_words;   ///< as texts
  bool return_prompt_logprobs = false;  ///< sampling.prompt_logprobs is not for the echo alone
  bool verbose = false;                 ///< llama.cpp's: the reply has the prompt's text
  bool timings_in_each_chunk = false;   ///< likewise, of a stream
  bool include_reasoning = true;        ///< the reply has the model's thoughts
  bool report_rounds = false;           ///< of a stream: how each round went
  std::string cache_salt;               ///< prefixes are shared only with requests of the same
};

/// Most choices of one request: prompts times n.
inline constexpr std::int64_t kChoicesMax = 64;

ApiResult<CompletionRequest> parse_chat_completion(std::string_view body, const ApiDefaults& defaults);
ApiResult<CompletionRequest> parse_completion(std::string_view body, const ApiDefaults& defaults);

/// /tokenize: a prompt or a conversation, as vLLM's; or llama.cpp's `content`.
struct TokenizeRequest {
  /// Of the reply.
  struct Form {
    bool token_strings = false;
    bool of_llama = false;  ///< asked in llama.cpp's words
    bool pieces = false;    ///< then: of each token, its text
  };
  std::variant<std::string, Conversation> text;
  std::vector<MediumFile> media;   ///< as CompletionRequest's
  bool add_special_tokens = true;  ///< <bos>, of a prompt
  bool parse_special = true;       ///< of a prompt: text that spells a control token is one
  Form form;
};
ApiResult<TokenizeRequest> parse_tokenize(std::string_view body, const ApiDefaults& defaults);
/// /detokenize: vLLM's, which names the model, or llama.cpp's.
struct DetokenizeRequest {
  std::vector<TokenId> tokens;  ///< within the vocabulary
  bool of_vllm = false;
};
ApiResult<DetokenizeRequest> parse_detokenize(std::string_view body, const ApiDefaults& defaults);

struct ScoredText {
  std::string bytes;  ///< of a token; perhaps part of a character
  float logprob = 0;
  TokenId id = 0;
};
/// One token of an answer and what the model thought of it and of others in its place.
struct TokenScore {
  ScoredText token;
  std::vector<ScoredText> top;
  std::size_t text_offset = 0;  ///< characters of the answer before it
  std::int32_t rank = 1;        ///< as TokenLogprobs'
  bool scored = true;           ///< else, a prompt's first token, there is only the token
};

/// What ended an answer that ended by itself, where it is not one of the model's own tokens: a stop text of the
/// request, or a stop token.
using StopReason = std::variant<std::monostate, std::string, TokenId>;

/// One answer, whole.
struct Choice {
  ChatMessage message;             ///< of a completion: its content
  std::vector<TokenScore> scores;  ///< where the request wants them
  std::string finish_reason;
  std::vector<TokenId> prompt_ids = {}, token_ids = {};  ///< likewise
  StopReason stop_reason = {};
  std::vector<TokenScore> prompt_scores = {};  ///< of prompt_logprobs
};

/// What a request cost.
struct Usage {
  std::int64_t prompt_tokens = 0, cached_tokens = 0;  ///< each prompt once, however many choices it has
  std::int64_t completion_tokens = 0;                 ///< of all choices
  std::int64_t reasoning_tokens = 0;                  ///< those of them that belong to thoughts
  RequestMetrics metrics = {};                        ///< likewise
  std::size_t choices = 1;
  std::int32_t draft_length_max = 0;  ///< of a round; 0: decoded plainly
};

/// What is the same in every body of one reply.
struct ReplyHead {
  bool chat = false;
  bool logprobs = false;
  std::string id = {}, model = {};
  std::int64_t created = 0;                       ///< Unix seconds
  bool token_ids = false, tokens_as_ids = false;  ///< what a choice has besides
  bool prompt_logprobs = false;                   ///< likewise; of a chat, the reply
  std::string fingerprint = {};                   ///< of what computes it
  std::string prompt_text = {};                   ///< as the model reads it; empty: not wanted
};

std::string completion_body(const ReplyHead& head, const std::vector<Choice>& choices, const Usage& usage);

// Pieces of a streamed reply, each one whole SSE event.

/// What a chunk says besides its event.
struct ChunkNotes {
  std::vector<TokenScore> scores = {};   ///< of the tokens since the last chunk
  std::vector<TokenId> token_ids = {};   ///< likewise
  std::vector<TokenId> prompt_ids = {};  ///< in the first
  const Usage* so_far = nullptr;         ///< stream_options.continuous_usage_stats
  const Usage* timed = nullptr;          ///< timings_per_token
};
/// The first of a choice: its role. Of a completion empty, unless there are notes.
std::string first_chunk(const ReplyHead& head, std::size_t index, const ChunkNotes& notes = {});
/// Notes alone, of a choice whose next text is still to come.
std::string empty_chunk(const ReplyHead& head, std::size_t index, const ChunkNotes& notes);
/// Whether an event says something to a client: a call is sent whole, at its end, and a completion has only text.
bool has_chunk(const ReplyHead& head, const ChatEvent& event);
/// More of a choice. @pre has_chunk()
/// @param calls   complete calls of this choice before this event
std::string event_chunk(const ReplyHead& head, std::size_t index, const ChatEvent& event, std::size_t calls,
                        const ChunkNotes& notes);
/// The end of a choice. `usage`: of the whole request, in its last chunk.
std::string finish_chunk(const ReplyHead& head, std::size_t index, const std::string& finish_reason,
                         const StopReason& stop_reason, const ChunkNotes& notes, const Usage* usage);
/// stream_options.include_usage: after all choices.
std::string usage_chunk(const ReplyHead& head, const Usage& usage);
/// How some tokens of a choice came to be.
struct ReportedRound {
  std::vector<std::string>
      tokens;  ///< what each adds to the text; joined they are it. Accepted drafts first, then the target's own
  std::optional<RoundReport> round;     ///< none: the token after the prompt
  std::vector<std::string> drafts;      ///< of `round`, rejected ones too
  std::vector<TokenId> token_ids = {};  ///< of `tokens`
};
/// speculative.report_rounds: before the chunks of what the round says.
std::string round_chunk(const ReplyHead& head, std::size_t index, const ReportedRound& reported);
std::string error_chunk(const ApiError& error);
inline constexpr std::string_view kDoneChunk = "data: [DONE]\n\n";

}  // namespace outrider
