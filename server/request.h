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
#include "common/decoding/drafting/policies.h"
#include "common/decoding/sampling/params.h"
#include "common/media/media_prompt.h"
#include "common/model/tokenizer/answer_controls.h"
#include "common/model/tokenizer/chat.h"
#include "server/api_error.h"

// A request to generate, as ApiServer takes it from the parser of any API (OpenAI's, Responses, Messages,
// transcriptions, llama.cpp's). request_reader.h has what the parsers share.

namespace outrider {

template <typename T>
using ApiResult = Result<T, ApiError>;

/// A body that is a JSON object of no more than kJsonDepthMax levels.
ApiResult<nlohmann::json> parse_object(std::string_view body);

/// Levels of brackets in what may be JSON. Asked before a parser builds a tree of them, whose copies and
/// texts are made by recursion.
int json_nesting(std::string_view json);
/// A request may nest this deep: arguments and schemas kChatJsonDepthMax, some levels below the body's own.
inline constexpr int kJsonDepthMax = kChatJsonDepthMax + 8;

/// Longest answer of a chat that does not say. Not the whole context, which vLLM takes: the verifier sets the memory
/// of the longest possible answer aside, so that few such requests would fit at once.
inline constexpr std::int64_t kMaxChatTokens = 8192;

/// The server answers with these where a request does not say.
struct ApiDefaults {
  std::string model;  ///< the one model that there is
  std::int32_t vocab_size = 0;
  SamplingParams sampling = {};  ///< as the checkpoint advises
  AnswerControls controls = {};  ///< of its vocabulary
  DraftLength draft_length = {};
  bool strict_fields = false;  ///< a field that nobody knows is refused
};

/// Text, or tokens.
using Prompt = std::variant<std::string, std::vector<TokenId>>;

/// It words the errors of a request in which more is wrong than its parser sees.
struct RequestSource {
  const char* turns = "messages";  ///< the field that its conversation came in
  std::int64_t bytes = 0;          ///< of the JSON that was read, and of what stood for files in it
};

/// One request to generate: a chat's, or a plain completion's.
struct CompletionRequest {
  RequestSource source;
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
  bool timings_in_each_chunk = false;   ///< of a stream: llama.cpp's too
  bool include_reasoning = true;        ///< the reply has the model's thoughts
  bool report_rounds = false;           ///< of a stream: how each round went
  std::string cache_salt;               ///< prefixes are shared only with requests of the same
  std::vector<std::string> warnings;    ///< of fields that nobody knows; printable ASCII
};

/// Most choices of one request: prompts times n.
inline constexpr std::int64_t kChoicesMax = 64;

/// A prompt whose tokens are asked for. Of /tokenize: a prompt or a conversation, as vLLM's; or llama.cpp's `content`.
struct TokenizeRequest {
  /// It is the form of the reply.
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
  RequestSource source = {};
};

}  // namespace outrider
