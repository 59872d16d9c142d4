#pragma once

#include <string>
#include <vector>

#include "server/api_server.h"

// llama.cpp's own endpoints, over those of OpenAI and vLLM: docs/http.md says which fields there are.

namespace outrider {

/// /completion, /props, /slots, /apply-template and the count of a chat's tokens.
/// @param api  outlives the routes. @param model_path  what /props says of the model
std::vector<HttpRoute> llama_routes(ApiServer& api, std::string model_path);

}  // namespace outrider
