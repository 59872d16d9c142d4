#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/base/time.h"
#include "common/http/tls.h"
#include "server/api_keys.h"
#include "server/http_message.h"

namespace outrider {

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 0;                                                       ///< 0: any free one
  std::shared_ptr<TlsIdentity> tls = {};                              ///< null: in clear
  std::shared_ptr<ApiKeys> keys = {};                                 ///< null: everybody may ask
  std::vector<std::string> allowed_hosts = {}, allowed_origins = {};  ///< as WebGuard's, besides this machine's names
  /// Paths may begin with it ("/llm"), where a proxy passes on such requests as they are; where it is there, it is
  /// taken away.
  std::string root_path = {};
  std::size_t request_bytes_max = 4u << 20;  ///< but for files in it, in base64:
  std::size_t file_bytes_max = 24u << 20;    ///< of one request, as they are written there
  /// All requests share it, client by client; it is at least twice the count of the longest text or the largest files.
  std::int64_t memory_bytes_max = 512 << 20;
  /// A request must have arrived whole by then: nobody holds a thread with one byte a second.
  Duration request_timeout = std::chrono::seconds(20);
  Duration idle_timeout = std::chrono::seconds(15);  ///< between two requests of a connection
  int connections_max = 1024;  ///< a thread each; shared by address, and what comes beyond is told 503
  bool traces = false;         ///< takes `traceparent` and answers it
  std::function<void(int status)> on_response = [](int) {};  ///< of every reply that went out; any thread, many at once
};

/// Characters of a body's JSON that are files in base64: strings of at least 1,024 characters that only base64, ends of
/// lines (\n) and the head of a data: URL are made of.
std::size_t file_characters(std::string_view body);

/// The page at /: page/index.html, which is within the program. It needs no key itself; its requests do.
HttpRoute live_page();

/// HTTP/1.1 on Boost.Beast, which nothing else sees: routes, API key, limits, error objects for what never
/// reaches a handler, streams. One thread per connection.
class HttpServer {
 public:
  /// Serves from now on. @return kInvalidArgument or kIo when it cannot listen there.
  static Result<std::unique_ptr<HttpServer>> start(HttpOptions options, std::vector<HttpRoute> routes);
  virtual ~HttpServer() = default;  ///< stop() without a delay

  virtual int port() const = 0;
  /// Accepts no new request, gives open requests the time `drain` to end, then lets gone() be true and waits for them.
  virtual void stop(Duration drain) = 0;
};

}  // namespace outrider
