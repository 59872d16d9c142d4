// Bytes on a connection to the HTTP server: head, framing, chunks, body, what follows. A real server on loopback. Bytes
// that begin as an answer does are one to the HTTP client, redirections included.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "common/base/check.h"
#include "common/http/http_client.h"
#include "server/http_server.h"
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

/// Gives each connection the same bytes, once a request has come.
class Answerer {
 public:
  Answerer() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    CHECK(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0 && ::listen(listener_, 8) == 0);
    CHECK(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port_ = ntohs(address.sin_port);
    std::thread([this] { serve(); }).detach();
  }
  int port() const { return port_; }
  void set(std::string bytes) {
    const std::lock_guard lock(mutex_);
    bytes_ = std::move(bytes);
  }

 private:
  void serve() {
    for (;;) {
      const int socket = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      std::string request;
      std::array<char, 4096> piece;
      while (request.find("\r\n\r\n") == request.npos) {
        const ssize_t got = ::recv(socket, piece.data(), piece.size(), 0);
        if (got <= 0) break;
        request.append(piece.data(), static_cast<std::size_t>(got));
      }
      {
        const std::lock_guard lock(mutex_);
        (void)::send(socket, bytes_.data(), bytes_.size(), MSG_NOSIGNAL);
      }
      ::close(socket);
    }
  }

  const int listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int port_ = 0;
  std::mutex mutex_;
  std::string bytes_;
};

void answer(std::string bytes) {
  static Answerer& answerer = *new Answerer;  // its thread never ends
  answerer.set(std::move(bytes));
  constexpr std::int64_t kBodyMax = 4096;
  std::int64_t body = 0;
  HttpCall call{.url = parse_http_url("http://127.0.0.1:" + std::to_string(answerer.port()) + "/a").value(),
                .addresses = {},
                .silence_max = std::chrono::seconds(10)};
  const std::string server = call.url.server();
  call.admit = [&](const HttpAnswer&, std::int64_t) { return kBodyMax; };
  call.on_body = [&](std::string_view piece) -> Result<void> {
    body += std::ssize(piece);
    return {};
  };
  (void)follow_http(std::move(call), [&](const HttpUrl& place) -> Result<std::vector<std::string>> {
    if (place.server() != server) return Error{Errc::kInvalidArgument, "another place"};
    return std::vector<std::string>{"127.0.0.1"};
  });
  CHECK(body <= kBodyMax, "{} bytes", body);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (bytes.starts_with("HTTP/")) {
    answer(std::string(bytes));
    return 0;
  }
  const std::string reply = exchange(bytes);
  CHECK(reply.empty() || reply.starts_with("HTTP/1."), "{}", reply);
  return 0;
}
