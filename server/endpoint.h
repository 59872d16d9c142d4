#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/http/http_client.h"
#include "server/http_message.h"

namespace outrider {

/// A remote HTTP/1.1 server: with OpenAI's API, or a collector of traces.
class HttpEndpoint {
 public:
  /// @param option  its option, for messages @param url  http://HOST[:PORT][/v1] @param api_key  empty: none is sent
  /// @return kInvalidArgument for another URL
  static Result<std::shared_ptr<const HttpEndpoint>> open(const std::string& option, const std::string& url,
                                                          std::string api_key);
  /// The same without a key, with the name resolved once, so that no answer() waits for a name server.
  /// @return also kNotFound, for an unknown name
  static Result<std::shared_ptr<const HttpEndpoint>> open_known(const std::string& option, const std::string& url);

  /// Sends the request and waits for its reply, on a connection of its own. Any thread, many concurrently.
  /// @return status 0 without a reply: no server, or request.gone() ended the wait; `body` has the reason
  HttpReply answer(const HttpRequest& request) const;

 private:
  HttpEndpoint(HttpUrl url, std::string api_key) : url_(std::move(url)), api_key_(std::move(api_key)) {}

  const HttpUrl url_;
  const std::string api_key_;
  std::vector<std::string> addresses_;  ///< numeric; empty: resolved each time
};

}  // namespace outrider
