#pragma once

#include <string>
#include <vector>

#include "http-server/dialect.h"
#include "http-server/openai.h"

// OpenAI's Responses API: text, functions, thoughts, streams, conversations that the server remembers, answers that are
// made in the background.

namespace outrider {

/// A request as a chat completion's.
struct ResponsesRequest {
  nlohmann::json chat;     ///< the body of that
  nlohmann::json request;  ///< as it came, without its input
};
/// @param before  messages of the conversation that it goes on with
ApiResult<ResponsesRequest> chat_of_responses(nlohmann::json request, nlohmann::json before);
/// @param chat  a chat.completion. @return the response object.
nlohmann::json response_of_chat(const nlohmann::json& request, const std::string& id, const nlohmann::json& chat);

/// The routes of /v1/responses.
/// @param chat  the route of /v1/chat/completions
/// @param tokenize, detokenize  of /tokenize and /detokenize
/// @param model  its name
std::vector<HttpRoute> responses_routes(HttpHandler chat, HttpHandler tokenize, HttpHandler detokenize,
                                        std::string model);

}  // namespace outrider
