#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/http/http_client.h"
#include "server/http_message.h"

namespace outrider {

/// A server elsewhere, over HTTP/1.1: of OpenAI's API, or a collector of traces.
class HttpEndpoint {
 public:
  /// @param option  what names it, for messages. @param url  http://HOST[:PORT][/v1]. @param api_key  empty: none is
  ///   sent.
  /// @return kInvalidArgument for another URL.
  static Result<std::shared_ptr<const HttpEndpoint>> open(const std::string& option, const std::string& url,
                                                          std::string api_key);
  /// The same without a key, its name looked up now and never again: no answer() waits for a name server.
  /// @return kNotFound too, for a name that nobody knows.
  static Result<std::shared_ptr<const HttpEndpoint>> open_known(const std::string& option, const std::string& url);

  /// Sends the request and waits for its reply, on a connection of its own. Any thread, many at once.
  /// @return status 0 when there is none: nobody is there, or request.gone() says not to wait any longer; `body` says
  ///   which.
  HttpReply answer(const HttpRequest& request) const;

 private:
  HttpEndpoint(HttpUrl url, std::string api_key) : url_(std::move(url)), api_key_(std::move(api_key)) {}

  const HttpUrl url_;
  const std::string api_key_;
  std::vector<std::string> addresses_;  ///< in numbers; empty: looked up each time
};

}  // namespace outrider
