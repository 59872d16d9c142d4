#pragma once

#include <string_view>
#include <vector>

#include "http-server/dialect.h"
#include "http-server/openai.h"

// Anthropic's Messages API: text, tools, thoughts, streams.

namespace outrider {

/// @return the body of the chat completion that is asked for.
ApiResult<nlohmann::json> chat_of_messages(std::string_view body);
/// @param chat  a chat.completion
nlohmann::json message_of_chat(const nlohmann::json& chat);
std::shared_ptr<StreamTranslator> messages_stream();

/// /v1/messages, /v1/messages/count_tokens.
/// @param chat, tokenize  the routes of that name
std::vector<HttpRoute> messages_routes(HttpHandler chat, HttpHandler tokenize);

}  // namespace outrider
