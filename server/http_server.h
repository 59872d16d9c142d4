#pragma once

#include <cstddef>
#include <cstdint>
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
#include "server/request_memory.h"

namespace outrider {

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 0;                                                       ///< 0: any free one
  std::shared_ptr<TlsIdentity> tls = {};                              ///< null: unencrypted
  std::shared_ptr<ApiKeys> keys = {};                                 ///< null: open to everyone
  std::vector<std::string> allowed_hosts = {}, allowed_origins = {};  ///< see WebGuard, besides this machine's names
  /// Optional prefix of paths ("/llm"), for proxies that pass paths on unchanged; it is removed.
  std::string root_path = {};
  std::size_t request_bytes_max = 4u << 20;  ///< of one request without its base64 files
  std::size_t file_bytes_max = 24u << 20;    ///< of one request's files, in base64
  /// Shared by all requests, client by client; at least twice the memory of the longest text or the largest files.
  std::int64_t memory_bytes_max = 512 << 20;
  std::shared_ptr<ServerMemory> memory = {};  ///< memory_of() these options, if others use it too
  /// Time-out for a complete request: no client can occupy a thread with one byte a second.
  Duration request_timeout = std::chrono::seconds(20);
  Duration idle_timeout = std::chrono::seconds(15);  ///< between two requests of a connection
  int connections_max = 1024;                        ///< one thread each; shared by address; further ones get 503
  bool traces = false;                               ///< accept and answer `traceparent`
  std::function<void(int status)> on_response = [](int) {};  ///< called after every reply; any thread, many at once
};

std::shared_ptr<ServerMemory> memory_of(const HttpOptions& options);

/// The page at /: page/index.html, compiled into the program. The page needs no key; its requests do.
HttpRoute live_page();

/// HTTP/1.1 on Boost.Beast, which no other file sees: routes, API key, limits, error objects for requests that never
/// reach a handler, streams. One thread per connection.
class HttpServer {
 public:
  /// Starts serving. @return kInvalidArgument or kIo when it cannot listen there
  static Result<std::unique_ptr<HttpServer>> start(HttpOptions options, std::vector<HttpRoute> routes);
  virtual ~HttpServer() = default;  ///< calls stop() without a delay

  virtual int port() const = 0;
  /// Accepts no new request, gives open requests the time `drain` to end, then lets gone() be true and waits for them.
  virtual void stop(Duration drain) = 0;
};

}  // namespace outrider
