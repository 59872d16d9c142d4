#pragma once

#include <string_view>
#include <vector>

#include "server/dialect.h"
#include "server/openai.h"

// Anthropic's Messages API: text, tools, thoughts, streams.

namespace outrider {

ApiResult<CompletionRequest> parse_messages(std::string_view body, const ApiDefaults& defaults);
/// Of /v1/messages/count_tokens.
ApiResult<TokenizeRequest> parse_messages_prompt(std::string_view body, const ApiDefaults& defaults);

/// /v1/messages, /v1/messages/count_tokens.
std::vector<HttpRoute> messages_routes(const ChatBackend& backend);

}  // namespace outrider
