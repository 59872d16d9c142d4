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
#include "http-server/api_error.h"
#include "http-server/api_keys.h"
#include "http-server/tls.h"

namespace outrider {

struct HttpRequest {
  std::string method, path;  ///< without the query
  std::string query = {};    ///< as it was sent, without its ?
  std::string body;
  /// Who asks, as far as the server can know: "key NAME", where keys have names; else the address of the other end (of
  /// IPv6 its /64); of a proxy on this machine, whom it speaks for (the last address in X-Forwarded-For, which is the
  /// proxy's own word).
  std::string client;
  std::shared_ptr<const ApiKey> key;  ///< null where the server has none
  /// Whether nobody waits for the reply any more: the client has gone, or the server ends. Any thread, as
  /// long as the handler runs or its reply lives.
  std::function<bool()> gone = [] { return false; };
  /// Of the two: the server ends. The client still reads why.
  std::function<bool()> server_ends = [] { return false; };
  /// Counts so many bytes of memory as the request's until its reply is out, instead of what its body was counted as
  /// (kBytesPerBodyByte): the body has been read, and this is what was made of it. @return why there is no room for it.
  std::function<std::optional<ApiError>(std::int64_t bytes)> hold = [](std::int64_t) {
    return std::optional<ApiError>();
  };
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

enum class Access {
  kKey,            ///< whoever has a key, where the server has some
  kKeyOrPassword,  ///< likewise; a browser is told to ask its user for it
  kAnybody,
};

/// One entry of the route table. Handlers run on many threads at once; what one throws is a 500.
struct HttpRoute {
  std::string method;  ///< GET (HEAD too), DELETE or POST
  std::string path;    ///< {id} stands for one part of it, as in /v1/files/{id}/content
  std::function<HttpReply(const HttpRequest&)> handler;
  Access access = Access::kKey;
  std::string takes = "application/json";  ///< the type of a POST's body; empty: any
};

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 0;                                                       ///< 0: any free one
  std::shared_ptr<TlsIdentity> tls = {};                              ///< null: in clear
  std::shared_ptr<ApiKeys> keys = {};                                 ///< null: everybody may ask
  std::vector<std::string> allowed_hosts = {}, allowed_origins = {};  ///< as WebGuard's, besides this machine's names
  std::size_t request_bytes_max = 4u << 20;
  /// Of all requests together, shared by client; at least twice what the longest body is counted as.
  std::int64_t memory_bytes_max = 512 << 20;
  /// A request must have arrived whole by then: nobody holds a thread with one byte a second.
  Duration request_timeout = std::chrono::seconds(20);
  Duration idle_timeout = std::chrono::seconds(15);  ///< between two requests of a connection
  int connections_max = 1024;  ///< a thread each; shared by address, and what comes beyond is told 503
  std::function<void(int status)> on_response = [](int) {};  ///< of every reply that went out; any thread, many at once
};

/// What a byte of a body counts as until it has been read: the most that parsing and tokenising were seen to take
/// (docs/lab/server.md).
inline constexpr std::int64_t kBytesPerBodyByte = 48;

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
