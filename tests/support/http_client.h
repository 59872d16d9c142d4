#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/cluster_fixtures.h"

namespace outrider {
using Json = nlohmann::json;

struct Response {
  int status = 0;    ///< 0: the connection ended without one
  std::string head;  ///< status line and headers
  std::string body;  ///< without the framing of chunks
};

/// One connection to a server on this machine.
class Connection {
 public:
  /// @param from  the last number of its own address, 127.0.0.1 or another of this machine's
  explicit Connection(int port, std::uint32_t from = 1) : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{
        .sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK - 1 + from)}, .sin_zero = {}};
    EXPECT_EQ(bind(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0) << std::strerror(errno);
    address.sin_addr = {htonl(INADDR_LOOPBACK)};
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    EXPECT_EQ(connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0) << std::strerror(errno);
    const timeval patience{.tv_sec = std::chrono::duration_cast<std::chrono::seconds>(kHang).count(), .tv_usec = 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }
  ~Connection() { close(socket_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// @return whether the other end took it all.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }
  void send(const std::string& method, const std::string& path, const std::string& body,
            const std::string& headers = "") {
    send(fmt::format("{} {} HTTP/1.1\r\nHost: localhost\r\n{}", method, path, headers) +
         (method == "POST" ? fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.size())
                           : "\r\n") +
         body);
  }
  /// Reads on until `part` has come. @return whether it has before the end.
  bool wait_for(const std::string& part) {
    while (received_.find(part) == received_.npos) {
      if (!receive()) return false;
    }
    return true;
  }
  /// Whatever comes until the other end closes.
  std::string all() {
    while (receive()) {
    }
    return std::exchange(received_, {});
  }
  Response response() {
    Response response;
    if (!wait_for("\r\n\r\n")) return response;
    response.head = take(received_.find("\r\n\r\n") + 4);
    response.status = std::stoi(response.head.substr(9, 3));
    if (response.head.find("Transfer-Encoding: chunked") == response.head.npos) {
      const std::size_t at = response.head.find("Content-Length: ");
      if (at != response.head.npos) response.body = take(std::stoull(response.head.substr(at + 16)));
      return response;
    }
    while (wait_for("\r\n")) {
      const std::size_t size = std::stoull(take(received_.find("\r\n") + 2), nullptr, 16);
      response.body += take(size);
      take(2);
      if (size == 0) return response;
    }
    return response;  // cut off
  }

 private:
  bool receive() {
    char bytes[4096];
    const ssize_t got = recv(socket_, bytes, sizeof bytes, 0);
    if (got > 0) received_.append(bytes, static_cast<std::size_t>(got));
    return got > 0;
  }
  std::string take(std::size_t count) {
    while (received_.size() < count && receive()) {
    }
    std::string taken = received_.substr(0, count);
    received_.erase(0, count);
    return taken;
  }

  int socket_;
  std::string received_;
};

inline Response get(int port, const std::string& path, const std::string& headers = "") {
  Connection connection(port);
  connection.send("GET", path, "", headers);
  return connection.response();
}
inline Response post(int port, const std::string& path, const std::string& body, const std::string& headers = "") {
  Connection connection(port);
  connection.send("POST", path, body, headers);
  return connection.response();
}
inline Json json_of(const Response& response) { return Json::parse(response.body, nullptr, false); }

/// The events of a stream, but for the last, which must be [DONE].
inline std::vector<Json> events_of(const Response& response) {
  std::vector<Json> events;
  std::string_view rest = response.body;
  bool done = false;
  while (rest.starts_with("data: ") && !done) {
    const std::size_t end = rest.find("\n\n");
    const std::string_view data = rest.substr(6, end - 6);
    done = data == "[DONE]";
    if (!done) events.push_back(Json::parse(data, nullptr, false));
    rest.remove_prefix(end + 2);
  }
  EXPECT_TRUE(done && rest.empty()) << response.body;
  return events;
}

/// `outrider serve`, once it listens.
class Serve {
 public:
  /// @param options  with the --api-key, if there is one, last
  explicit Serve(std::vector<std::string> options = {}, bool wait_until_ready = true)
      : headers(std::ranges::find(options, "--api-key") == options.end()
                    ? ""
                    : "Authorization: Bearer " + options.back() + "\r\n"),
        program(arguments(std::move(options))) {
    const std::string before = "listening at http://127.0.0.1:";
    EXPECT_TRUE(eventually([&] { return program.out().ends_with("\n") || !program.running(); }));
    const std::string out = program.out();
    if (out.starts_with(before)) port = std::stoi(out.substr(before.size()));
    if (wait_until_ready) {
      EXPECT_TRUE(eventually([&] { return workers() == 2 || !program.running(); }));
    }
  }
  Json chat(Json fields) { return json_of(post(port, "/v1/chat/completions", fields.dump(), headers)); }
  std::vector<Json> stream(Json fields) {
    fields["stream"] = true;
    return events_of(post(port, "/v1/chat/completions", fields.dump(), headers));
  }
  /// A number of /v1/outrider/status.
  int status(const char* name) { return json_of(get(port, "/v1/outrider/status", headers)).value(name, -1); }
  int sessions() { return json_of(get(port, "/ready", headers)).value("sessions", -1); }
  int workers() {
    const Json ready = json_of(get(port, "/ready", headers));
    return ready.value("verifiers", 0) + ready.value("drafters", 0);
  }

  const std::string headers;  ///< with its key
  Program program;
  int port = 0;

 private:
  static std::vector<std::string> arguments(std::vector<std::string> options) {
    if (std::ranges::find(options, "--connect") == options.end()) options.insert(options.begin(), {"--dtype", "f32"});
    options.insert(options.begin(), {"serve", "--port", "0"});
    return options;
  }
};

}  // namespace outrider
