#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "http-server/http_message.h"
#include "http-server/openai.h"

// Other APIs over OpenAI's chat completions: a request becomes one of those, and its reply, whole or streamed, is told
// in the other's words. So whatever chat completions can do, they can.

namespace outrider {

/// As HttpRoute::handler.
using HttpHandler = std::function<HttpReply(const HttpRequest&)>;

/// One streamed reply in another API's events.
class StreamTranslator {
 public:
  virtual ~StreamTranslator() = default;
  /// @param chunk  the next chat.completion.chunk. @return events, perhaps none.
  virtual std::string chunk(const nlohmann::json& chunk) = 0;
  /// After the last chunk. @param error  its "error", if the stream broke off with one; else null
  virtual std::string end(const nlohmann::json& error) = 0;
};

/// The chat completion that a request of another API becomes: all of its fields, so that what a chat can do it can, and
/// what a chat refuses is refused by its name.
/// @param own  fields that the API words otherwise: they are left out
/// @return or the error of a field that only a chat's reply has room for
ApiResult<nlohmann::json> chat_of(const nlohmann::json& request, std::initializer_list<std::string_view> own);

/// One server-sent event, whose data says its type too.
std::string named_event(const nlohmann::json& data);

/// A reply with the events that its translator makes of the chat's.
HttpReply translated(HttpReply chat_stream, std::shared_ptr<StreamTranslator> translator);

}  // namespace outrider
