#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "server/http_message.h"
#include "server/openai.h"

// Other APIs than OpenAI's chat completions: each is a parser of requests, with request_reader.h, and a writer of
// replies. So whatever chat completions can do, they can.

namespace outrider {

class ApiServer;

/// As HttpRoute::handler.
using HttpHandler = std::function<HttpReply(const HttpRequest&)>;

/// What other APIs are made of: functions of an ApiServer.
struct ChatBackend {
  std::function<HttpReply(const HttpRequest& http, ApiResult<CompletionRequest> request,
                          const std::shared_ptr<ReplyWriter>& writer)>
      chat;
  std::function<ApiResult<std::int64_t>(const HttpRequest& http, ApiResult<TokenizeRequest> prompt)> count;
  std::function<std::string(const std::vector<TokenId>& tokens)> text_of;
  ApiDefaults defaults;
};

/// @param api  outlives it.
ChatBackend chat_backend(ApiServer& api);

/// One server-sent event, whose data says its type too.
std::string named_event(const nlohmann::json& data);

}  // namespace outrider
