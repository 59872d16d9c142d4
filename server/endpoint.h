#pragma once

#include <string>

#include "common/base/result.h"
#include "server/http_message.h"

namespace outrider {

/// Returns a function that sends a request to a remote HTTP/1.1 server (with OpenAI's API, or a collector of traces)
/// and waits for its reply, on a new connection. Any thread, many concurrently. Status 0 without a reply: no server, or
/// request.gone() ended the wait; `body` has the reason.
/// @param option  the URL's, for messages @param url  http://HOST[:PORT][/v1] @param api_key  empty: none is sent
/// @param known  the name is resolved once, here, so that no request waits for a name server
/// @return kInvalidArgument for another URL; if `known`, also kNotFound for an unknown name
Result<HttpHandler> open_endpoint(const std::string& option, const std::string& url, const std::string& api_key,
                                  bool known = false);

}  // namespace outrider
