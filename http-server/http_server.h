#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/base/time.h"

namespace outrider {

struct HttpRequest {
  std::string method, path;  ///< without the query
  std::string body;
  /// Who asks, as far as the server can know: the address of the other end; of a proxy on this machine, whom it speaks
  /// for (the last address in X-Forwarded-For, which is the proxy's own word).
  std::string client;
  /// Whether nobody waits for the reply any more: the client has gone, or the server ends. Any thread, as
  /// long as the handler runs or its reply lives.
  std::function<bool()> gone;
  /// Of the two: the server ends. The client still reads why.
  std::function<bool()> server_ends;
};

struct HttpReply {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers = {};
  /// Instead of `body`: its next piece; an empty one for "not yet", within about 100 ms; nothing at the end, which
  /// comes soon after the server ends. Destroyed early when the client has gone.
  std::function<std::optional<std::string>()> next = {};
};

/// One entry of the route table. Handlers run on many threads at once; what one throws is a 500.
struct HttpRoute {
  std::string method;  ///< GET (HEAD too), DELETE or POST
  std::string path;    ///< {id} stands for one part of it, as in /v1/files/{id}/content
  std::function<HttpReply(const HttpRequest&)> handler;
  bool needs_key = true;  ///< where the server has one
  std::string takes = "application/json";  ///< the type of a POST's body; empty: any
};

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 0;         ///< 0: any free one
  std::string api_key;  ///< empty: everybody may ask
  std::size_t request_bytes_max = 4u << 20;
  /// A request must have arrived whole by then: nobody holds a thread with one byte a second.
  Duration request_timeout = std::chrono::seconds(20);
  Duration idle_timeout = std::chrono::seconds(15);          ///< between two requests of a connection
  int connections_max = 512;                                 ///< a thread each; what comes beyond is told 503
  std::function<void(int status)> on_response = [](int) {};  ///< of every reply that went out; any thread, many at once
};

/// HTTP/1.1 on Boost.Beast, which nothing else sees: routes, API key, limits, error objects for what never
/// reaches a handler, streams. One thread per connection.
class HttpServer {
 public:
  /// Serves from now on. @return kInvalidArgument or kIo when it cannot listen there.
  static Result<std::unique_ptr<HttpServer>> start(HttpOptions options, std::vector<HttpRoute> routes);
  virtual ~HttpServer() = default;  ///< stop() without a delay

  virtual int port() const = 0;
  /// Takes nothing new, gives what is open `drain` to end, then tells it gone() and waits for it.
  virtual void stop(Duration drain) = 0;
};

}  // namespace outrider
