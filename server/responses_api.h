#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "server/dialect.h"
#include "server/openai.h"

// OpenAI's Responses API: text, functions, thoughts, streams, conversations that the server remembers, answers that are
// made in the background.

namespace outrider {

struct ResponsesBody {
  nlohmann::json json;    ///< an object
  std::string_view text;  ///< it, as it came
  /// {"items", "response"} of the response that it goes on with: what went before it, and itself. Null: of none.
  nlohmann::json before = {};
  std::int64_t before_bytes = 0;  ///< of its text
};
ApiResult<CompletionRequest> parse_responses(const ResponsesBody& body, const ApiDefaults& defaults);
/// Of /v1/responses/input_tokens.
ApiResult<TokenizeRequest> parse_responses_prompt(const ResponsesBody& body, const ApiDefaults& defaults);

/// The routes of /v1/responses.
std::vector<HttpRoute> responses_routes(ChatBackend backend);

}  // namespace outrider
