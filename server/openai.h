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

// OpenAI's HTTP API as pure functions: bodies of requests to structs, and results to bodies. Fields and
// defaults are OpenAI's, then vLLM's; docs/http.md lists them.

namespace outrider {

/// @param path  of the request as it was asked: its API says which fields are known
ApiResult<CompletionRequest> parse_chat_completion(std::string_view body, const ApiDefaults& defaults,
                                                   std::string_view path = "");
ApiResult<CompletionRequest> parse_completion(std::string_view body, const ApiDefaults& defaults,
                                              std::string_view path = "");

/// It is parse_completion() for a body with fields renamed to OpenAI's. @param body  its text before that
ApiResult<CompletionRequest> completion_of(const nlohmann::json& json, std::string_view body,
                                           const ApiDefaults& defaults, std::string_view path);

ApiResult<TokenizeRequest> parse_tokenize(std::string_view body, const ApiDefaults& defaults);
/// /detokenize: vLLM's, which names the model, or llama.cpp's.
struct DetokenizeRequest {
  std::vector<TokenId> tokens;  ///< within the vocabulary
  bool of_vllm = false;
};
ApiResult<DetokenizeRequest> parse_detokenize(std::string_view body, const ApiDefaults& defaults);

/// Writes OpenAI's bodies and chunks. A chunk is one whole server-sent event.
std::shared_ptr<ReplyWriter> openai_writer();

// Other APIs write these parts in OpenAI's form.

/// {"warnings", "speculative", "metrics", "timings"}: a request and its making, of its last chunk or its body. Warnings
/// are there if there are some, timings if there is one choice.
nlohmann::json reply_notes(const ReplyHead& head, const Usage& usage);
/// llama.cpp's `timings`, of one stream of tokens.
nlohmann::json timings_of(const Usage& usage);
/// The list under a chat's logprobs.content.
nlohmann::json content_logprobs(const ReplyHead& head, const std::vector<TokenScore>& scores);
/// @param call  complete ones of the choice before it
std::string call_id(const ReplyHead& head, std::size_t index, std::size_t call);

}  // namespace outrider
