#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/ids.h"
#include "common/base/json_nesting.h"
#include "common/base/result.h"
#include "common/decoding/drafting/policies.h"
#include "common/decoding/sampling/params.h"
#include "common/media/media_prompt.h"
#include "common/model/tokenizer/answer_controls.h"
#include "common/model/tokenizer/chat.h"
#include "server/api_error.h"

// A generation request in ApiServer's form, from any API's parser (OpenAI's, Responses, Messages, transcriptions,
// llama.cpp's). request_reader.h has the parsers' common part.

namespace outrider {

template <typename T>
using ApiResult = Result<T, ApiError>;

/// Parses a body that is a JSON object of no more than kJsonDepthMax levels.
ApiResult<nlohmann::json> parse_object(std::string_view body);

/// Limit of a request's nesting: arguments and schemas have kChatJsonDepthMax, some levels below the body.
inline constexpr int kJsonDepthMax = kChatJsonDepthMax + 8;

/// Default limit of a chat's answer. vLLM's default is the whole context. But the verifier reserves memory for the
/// longest possible answer, so that few such requests would fit at once.
inline constexpr std::int64_t kMaxChatTokens = 8192;

/// Names of that limit in requests, llama.cpp's and OpenAI's; a later one takes precedence, and -1 is no limit.
inline constexpr const char* kLengthNames[] = {"n_predict", "max_tokens", "max_completion_tokens"};

/// Default values for requests.
struct ApiDefaults {
  std::string model;  ///< the only model
  std::int32_t vocab_size = 0;
  SamplingParams sampling = {};  ///< the checkpoint's recommendation
  AnswerControls controls = {};  ///< of its vocabulary
  DraftLength draft_length = {};
  bool strict_fields = false;  ///< refuse unknown fields
};

/// Texts and tokens in sequence.
using Prompt = std::vector<std::variant<std::string, std::vector<TokenId>>>;

/// Facts about a request for errors that its parser does not detect.
struct RequestSource {
  const char* turns = "messages";  ///< the field with its conversation
  std::int64_t bytes = 0;          ///< of the JSON that was read, including its files in base64
};

/// A generation request: a chat's, or a plain completion's.
struct CompletionRequest {
  RequestSource source;
  bool chat = false;
  Conversation conversation;      ///< of a chat
  std::vector<MediumFile> media;  ///< of the conversation, in its order; kMediaMax at most
  std::vector<Prompt> prompts;    ///< of a completion; at least one
  SamplingParams sampling;        ///< with a seed, if the request has one
  bool has_seed = false;
  std::optional<std::int64_t> max_tokens;  ///< none: as much as the context has; 0: only the prompt
  std::int32_t n = 1;
  DraftLength draft_length = {};
  std::vector<std::string> stop;
  std::vector<TokenId> stop_ids;  ///< besides the model's own
  bool ignore_eos = false;        ///< without the model's own
  bool stream = false, include_usage = false;
  bool usage_in_each_chunk = false;         ///< of a stream
  std::optional<std::int64_t> prompt_tail;  ///< keep only so many tokens at a prompt's end; 0: the context's
  bool tail_is_head = false;                ///< keep its start instead of its end
  bool add_special_tokens = true;           ///< <bos> before a prompt that begins with text
  bool echo = false;                        ///< the answer begins with the prompt; in a chat, with the last message
  bool include_stop = false;                ///< keep the stop string that ends the answer
  bool return_token_ids = false, tokens_as_ids = false;
  std::vector<std::string> bad_words;   ///< as texts
  bool return_prompt_logprobs = false;  ///< sampling.prompt_logprobs are not only for the echo
  bool verbose = false;                 ///< llama.cpp's: the reply has the prompt's text
  bool timings_in_each_chunk = false;   ///< of a stream: llama.cpp's too
  bool include_reasoning = true;        ///< the reply has the model's thoughts
  bool report_rounds = false;           ///< of a stream: the outcome of each round
  bool of_events = false;               ///< the writer makes the reply of its events, streamed or not
  std::string cache_salt;               ///< prefixes are shared only with requests of the same salt
  std::vector<std::string> warnings;    ///< about unknown fields; printable ASCII
};

/// Most choices of one request: prompts times n.
inline constexpr std::int64_t kChoicesMax = 64;

/// A prompt to be tokenized. For /tokenize: a prompt or a conversation, as in vLLM; or llama.cpp's `content`.
struct TokenizeRequest {
  /// The form of the reply.
  struct Form {
    bool token_strings = false;
    bool of_llama = false;  ///< llama.cpp's form of the request
    bool pieces = false;    ///< for llama.cpp: the text of each token
  };
  std::variant<std::string, Conversation> text;
  std::vector<MediumFile> media;   ///< see CompletionRequest
  bool add_special_tokens = true;  ///< <bos>, of a prompt
  bool parse_special = true;       ///< of a prompt: parse control tokens in the text
  Form form;
  RequestSource source = {};
};

}  // namespace outrider
