#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "server/api_server.h"
#include "server/form.h"
#include "server/http_message.h"

// APIs other than OpenAI's chat completions: each has a parser of requests, based on request_reader.h, and a writer of
// replies, and so supports everything that chat completions do.

namespace outrider {

// ---- Anthropic's Messages: text, tools, thoughts, streams (messages_api.cc) ----

ApiResult<CompletionRequest> parse_messages(std::string_view body, const ApiDefaults& defaults);
/// Reads a body of /v1/messages/count_tokens.
ApiResult<TokenizeRequest> parse_messages_prompt(std::string_view body, const ApiDefaults& defaults);
std::vector<HttpRoute> messages_routes(const ChatBackend& backend);

// ---- OpenAI's Responses: text, functions, thoughts, streams, remembered conversations, background (responses_api.cc)

struct ResponsesBody {
  nlohmann::json json;    ///< an object
  std::string_view text;  ///< its original text
  /// {"items", "response"} of the continued response: its conversation, and the response itself. Null: none.
  nlohmann::json before = {};
  std::int64_t before_bytes = 0;  ///< size of its text, and of the items that the input refers to
};
ApiResult<CompletionRequest> parse_responses(const ResponsesBody& body, const ApiDefaults& defaults);
/// Reads a body of /v1/responses/input_tokens.
ApiResult<TokenizeRequest> parse_responses_prompt(const ResponsesBody& body, const ApiDefaults& defaults);
std::vector<HttpRoute> responses_routes(ChatBackend backend);

// ---- OpenAI's transcriptions and translations: one sound in a chat, with its prompts (transcription_api.cc)

enum class SpeechTask : std::uint8_t { kTranscribe, kTranslate };

/// Fields for sampling and the like are those of a chat. @param path  of the endpoint @return or the first error
ApiResult<CompletionRequest> parse_speech(const std::vector<FormPart>& form, SpeechTask task,
                                          const ApiDefaults& defaults, std::string_view path);

/// Extracts the text of a streamed answer: after a translation's "English: ", or all without one.
class SpeechText {
 public:
  explicit SpeechText(SpeechTask task) : open_(task == SpeechTask::kTranscribe) {}
  /// @return the text that can be emitted now
  std::string push(std::string_view text);
  /// @return the remaining text at the end of the answer
  std::string finish();

 private:
  bool open_;
  std::string held_;  ///< text before the marker
};

std::vector<HttpRoute> transcription_routes(const ChatBackend& backend);

// ---- llama.cpp's own endpoints, over those of OpenAI and vLLM; docs/http.md lists their fields (llama_api.cc) ----

/// /completion, /props, /slots, /apply-template and the count of a chat's tokens. @param api  outlives the routes
std::vector<HttpRoute> llama_routes(ApiServer& api);

}  // namespace outrider
