#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/ids.h"
#include "server/reply_writer.h"
#include "server/request.h"

// OpenAI's HTTP API as pure functions: bodies of requests to structs, and results to bodies. Fields and defaults are
// OpenAI's, then vLLM's; docs/http.md lists them.

namespace outrider {

/// @param path  of the request: determines the API and its known fields
ApiResult<CompletionRequest> parse_chat_completion(std::string_view body, const ApiDefaults& defaults,
                                                   std::string_view path = "");
ApiResult<CompletionRequest> parse_completion(std::string_view body, const ApiDefaults& defaults,
                                              std::string_view path = "");

/// @return true for a list of prompts; a list with a number is one prompt
bool lists_prompts(const nlohmann::json& prompt);
/// parse_completion() for a body with fields renamed to OpenAI's. @param body  its original text
ApiResult<CompletionRequest> completion_of(const nlohmann::json& json, std::string_view body,
                                           const ApiDefaults& defaults, std::string_view path);

ApiResult<TokenizeRequest> parse_tokenize(std::string_view body, const ApiDefaults& defaults);
/// /detokenize: vLLM's, with the model's name, or llama.cpp's.
struct DetokenizeRequest {
  std::vector<TokenId> tokens;  ///< within the vocabulary
  bool of_vllm = false;
};
ApiResult<DetokenizeRequest> parse_detokenize(std::string_view body, const ApiDefaults& defaults);

/// Writes OpenAI's bodies and chunks. A chunk is one whole server-sent event.
std::shared_ptr<ReplyWriter> openai_writer();

// Parts that other APIs write in OpenAI's form.

/// {"warnings", "speculative", "metrics", "timings"}: facts about a request and its processing, in its last chunk or
/// its body. Warnings only if there are some, timings only with one choice.
nlohmann::json reply_notes(const ReplyHead& head, const Usage& usage);
/// llama.cpp's `timings`, of one stream of tokens.
nlohmann::json timings_of(const Usage& usage);
/// Returns the entries of a chat's logprobs.content, as text: a tree would be ten times as large.
std::string content_logprobs(const ReplyHead& head, const std::vector<TokenScore>& scores);
/// Adds a member to a JSON object's text. @param json  its value
std::string with_member(std::string object, const char* key, std::string_view json);
/// Adds entries to those of a JSON array's text.
void add_entries(std::string& list, std::string_view more);
/// @param call  number of the choice's earlier calls
std::string call_id(const ReplyHead& head, std::size_t index, std::size_t call);

}  // namespace outrider
