// Bytes on a connection to the HTTP server: head, framing, chunks, body, what follows. A real server on loopback.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/check.h"
#include "http-server/http_server.h"
#include "tests/fuzz/driver.h"

namespace {
using namespace outrider;

HttpReply say(const HttpRequest& request) {
  CHECK(request.body.size() <= 4096 + 2048, "{} bytes", request.body.size());
  return {.status = 200, .body = R"({"bytes":)" + std::to_string(request.body.size()) + "}"};
}

int server_port() {
  static const std::unique_ptr<HttpServer> server =
      HttpServer::start({.keys = ApiKeys::of("secret"), .request_bytes_max = 4096, .file_bytes_max = 2048},
                        {{"GET", "/health", say, Access::kAnybody},
                         {"POST", "/v1/open", say, Access::kAnybody},
                         {"POST", "/v1/any", say, Access::kAnybody, ""},
                         {"POST", "/v1/files/{id}/content", say},
                         {"DELETE", "/v1/files/{id}", say, Access::kKeyOrPassword}})
          .value();
  return server->port();
}

/// All that comes back once nothing more is sent.
std::string exchange(std::string_view bytes) {
  static const int port = server_port();
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK(::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  // Closed without a wait: thousands of inputs would else use up the ports.
  const linger at_once{1, 0};
  ::setsockopt(socket, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) break;  // it has read enough
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  ::shutdown(socket, SHUT_WR);
  std::string reply;
  std::array<char, 4096> piece;
  for (ssize_t got; (got = ::recv(socket, piece.data(), piece.size(), 0)) > 0;)
    reply.append(piece.data(), static_cast<std::size_t>(got));
  ::close(socket);
  return reply;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string reply = exchange({reinterpret_cast<const char*>(data), size});
  CHECK(reply.empty() || reply.starts_with("HTTP/1."), "{}", reply);
  return 0;
}
