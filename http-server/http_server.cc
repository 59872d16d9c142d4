#include "http-server/http_server.h"

#include <arpa/inet.h>
#include <httplib.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "http-server/api_error.h"

namespace outrider {
namespace {

/// Request line and headers. httplib bounds each line, not their number.
constexpr std::size_t kHeadBytesMax = 64 << 10;
/// What chunks may cost beside the body that they carry.
constexpr std::size_t kFramingBytesMax = 64 << 10;
/// How often a waiting thread looks whether the server ends.
constexpr int kPollMs = 100;
constexpr std::size_t kRequestsPerConnection = 1000;
/// How long a client may go on sending what was refused before it must read why.
constexpr Duration kLinger = std::chrono::seconds(5);
/// How long a client may leave the connection full.
constexpr Duration kWriteTimeout = std::chrono::seconds(10);
constexpr int kBacklog = 128;

/// When the server ends: first no new requests, then none at all.
struct Ending {
  std::atomic<bool> stopping = false, aborting = false;
};

/// A client's connection as httplib reads and writes it, with what httplib's own lacks: limits on the bytes and
/// on the time of a whole request, and an answer to "is the client still there?".
class Connection final : public httplib::Stream {
 public:
  enum class Failure { kNone, kTimeout, kHeadTooLarge, kBodyTooLarge };

  Connection(int socket, const Ending& ending) : socket_(socket), ending_(ending) {}

  /// Waits for the first byte of a request.
  bool wait_for_request(Duration idle_timeout) {
    const TimePoint deadline = now() + idle_timeout;
    while (begin_ == end_) {
      if (ending_.stopping || now() > deadline) return false;
      if (readable()) break;
    }
    return true;
  }
  void begin_head(Duration timeout) {
    budget_ = kHeadBytesMax;
    deadline_ = now() + timeout;
    in_body_ = false;
    failure = Failure::kNone;
    close_after = false;
  }
  void begin_body(std::size_t bytes_max) {
    budget_ = bytes_max + kFramingBytesMax;
    in_body_ = true;
  }

  bool server_ends() const { return ending_.aborting; }
  /// Also true of a client that only said that it will send nothing more: they do not do that.
  bool client_gone() const {
    pollfd state{.fd = socket_, .events = POLLRDHUP, .revents = 0};
    return poll(&state, 1, 0) > 0;
  }

  /// The client's address, in numbers.
  std::string peer() const {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    std::array<char, NI_MAXHOST> host{};
    if (getpeername(socket_, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "";
    if (getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host.data(), host.size(), nullptr, 0,
                    NI_NUMERICHOST) != 0)
      return "";
    return host.data();
  }

  /// Says that all is said, and lets the client read it: closing with unread input would discard it.
  void linger() {
    shutdown(socket_, SHUT_WR);
    const TimePoint deadline = now() + kLinger;
    while (now() < deadline && !ending_.aborting) {
      if (readable() && recv(socket_, buffer_.data(), buffer_.size(), MSG_DONTWAIT) <= 0) return;
    }
  }

  // httplib::Stream
  bool is_readable() const override { return begin_ != end_ || readable(); }
  bool is_writable() const override { return !client_gone(); }
  ssize_t read(char* bytes, std::size_t size) override {
    if (budget_ == 0) {
      failure = in_body_ ? Failure::kBodyTooLarge : Failure::kHeadTooLarge;
      return -1;
    }
    while (begin_ == end_) {
      if (now() > deadline_) failure = Failure::kTimeout;
      if (failure == Failure::kTimeout || ending_.aborting) return -1;
      if (!readable()) continue;
      const ssize_t got = recv(socket_, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (got <= 0) return got;
      begin_ = 0;
      end_ = static_cast<std::size_t>(got);
    }
    const std::size_t count = std::min({size, end_ - begin_, budget_});
    std::memcpy(bytes, buffer_.data() + begin_, count);
    begin_ += count;
    budget_ -= count;
    return static_cast<ssize_t>(count);
  }
  /// Also when the server ends, as far as the client reads: it is told so.
  ssize_t write(const char* bytes, std::size_t size) override {
    const TimePoint deadline = now() + kWriteTimeout;
    while (true) {
      const ssize_t sent = send(socket_, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent >= 0 || (errno != EAGAIN && errno != EINTR)) return sent;
      if (ending_.aborting || now() > deadline) return -1;
      pollfd state{.fd = socket_, .events = POLLOUT, .revents = 0};
      poll(&state, 1, kPollMs);
    }
  }
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  /// None: httplib would refuse those that its select() can not take. Nothing of ours uses select().
  socket_t socket() const override { return INVALID_SOCKET; }

  Failure failure = Failure::kNone;  ///< why read() gave up
  bool close_after = false;          ///< there is something of the request that nobody has read

 private:
  bool readable() const {
    pollfd state{.fd = socket_, .events = POLLIN, .revents = 0};
    return poll(&state, 1, kPollMs) > 0;
  }

  int socket_;
  const Ending& ending_;
  TimePoint deadline_{};
  std::size_t budget_ = 0;  ///< bytes that read() may still give
  bool in_body_ = false;
  std::array<char, 16 << 10> buffer_;
  std::size_t begin_ = 0, end_ = 0;  ///< what of the buffer is not read yet
};

/// The connection that this thread serves. httplib's callbacks do not say which one they are for.
thread_local Connection* current = nullptr;
/// This thread is the one that accepts, and there is no thread for the connection.
thread_local bool refusing = false;

class ConnectionThreads final : public httplib::TaskQueue {
  using Accepted = decltype(std::declval<httplib::TaskQueue&>().enqueue({}));  // void, or bool in newer versions

 public:
  explicit ConnectionThreads(int max) : max_(max) {}

  Accepted enqueue(std::function<void()> serve) override {
    if (!start(serve)) {
      refusing = true;
      serve();
      refusing = false;
    }
    return static_cast<Accepted>(true);
  }
  void shutdown() override {
    std::unique_lock lock(mutex_);
    none_open_.wait(lock, [&] { return open_ == 0; });
  }

 private:
  bool start(const std::function<void()>& serve) {
    {
      const std::lock_guard lock(mutex_);
      if (open_ == max_) return false;
      ++open_;
    }
    try {
      std::thread([this, serve] {
        serve();
        end();
      }).detach();
      return true;
    } catch (const std::system_error& error) {
      spdlog::warn("event=no_thread reason=\"{}\"", error.what());
      end();
      return false;
    }
  }
  void end() {
    const std::lock_guard lock(mutex_);
    if (--open_ == 0) none_open_.notify_all();
  }

  const int max_;
  std::mutex mutex_;
  std::condition_variable none_open_;
  int open_ = 0;
};

HttpReply error_reply(const ApiError& error) { return {.status = error.status, .body = error_body(error)}; }

/// What httplib or the connection refused.
ApiError transport_error(int status, Connection::Failure failure) {
  if (failure == Connection::Failure::kTimeout) return {408, "the request did not arrive in time"};
  if (failure == Connection::Failure::kHeadTooLarge) return {431, "the request's headers are too large"};
  if (failure == Connection::Failure::kBodyTooLarge) return {413, "the request is too large"};
  switch (status) {
    case 404: return {404, "no such endpoint"};
    case 413: return {413, "the request is too large"};
    case 414: return {414, "the request's URI is too long"};
    case 416: return {416, "there are no ranges here"};
    case 500: return {500, "internal error"};
    default: return {400, "the request is not valid HTTP"};
  }
}

/// @param chunked  whether the client knows chunks; else the end of the connection ends a stream
void apply(HttpReply reply, httplib::Response& response, bool chunked = true) {
  response.status = reply.status;
  for (const auto& [name, value] : reply.headers) response.set_header(name, value);
  if (!reply.next) return response.set_content(reply.body, reply.content_type);
  const auto pieces = [next = std::move(reply.next)](std::size_t, httplib::DataSink& sink) {
    // All in one call: httplib asks for no more once the server stops.
    while (const std::optional<std::string> piece = next()) {
      if (piece->empty() ? current->client_gone() : !sink.write(piece->data(), piece->size())) return false;
    }
    sink.done();
    return true;
  };
  if (chunked)
    response.set_chunked_content_provider(reply.content_type, pieces);
  else
    response.set_content_provider(reply.content_type, pieces);
}

/// As HttpRequest::client.
std::string client_of(const httplib::Request& request, const std::string& peer) {
  if (peer != "127.0.0.1" && peer != "::1" && peer != "::ffff:127.0.0.1") return peer;
  const std::string list = request.get_header_value("X-Forwarded-For");
  const std::string last = list.substr(list.find_last_of(", ") + 1);
  in6_addr address;
  return inet_pton(AF_INET, last.c_str(), &address) == 1 || inet_pton(AF_INET6, last.c_str(), &address) == 1 ? last
                                                                                                             : peer;
}

/// Whether two strings are equal, in a time that tells nothing about where they differ.
bool same_secret(const std::string& given, const std::string& key) {
  std::size_t difference = given.size() ^ key.size();
  for (std::size_t i = 0; i < given.size(); ++i)
    difference |= static_cast<unsigned char>(given[i] ^ key[i % key.size()]);
  return difference == 0;
}

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

/// A path as the regular expression that httplib wants.
std::string exactly(const std::string& path) {
  std::string pattern;
  for (const char c : path)
    pattern += std::isalnum(static_cast<unsigned char>(c)) || c == '/' || c == '_' || c == '-'
                   ? std::string(1, c)
                   : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return pattern;
}

bool is_get(const httplib::Request& request) { return request.method == "GET" || request.method == "HEAD"; }

/// httplib says in its reply that the connection ends, where a client asked for that.
void set_close(httplib::Request& request) {
  request.headers.erase("Connection");
  request.set_header("Connection", "close");
}

/// What leaves it open where a request ends, so that another server on the way may see another one begin within it
/// (RFC 9112, 6.3); none: nothing does.
std::optional<ApiError> framing_error(const httplib::Request& request) {
  const auto blank = [](const auto& header) { return header.first.find_first_of(" \t") != std::string::npos; };
  if (std::ranges::any_of(request.headers, blank)) return ApiError{400, "the name of a header has a blank"};
  const std::size_t lengths = request.get_header_value_count("Content-Length"),
                    codings = request.get_header_value_count("Transfer-Encoding");
  if (lengths > 1) return ApiError{400, "more than one Content-Length"};
  if (codings == 0) return std::nullopt;
  if (lengths > 0) return ApiError{400, "both a Content-Length and a Transfer-Encoding"};
  const std::string coding = lower(request.get_header_value("Transfer-Encoding"));
  if (codings > 1 || coding != "chunked")
    return ApiError{400, fmt::format("Transfer-Encoding is '{}', wanted chunked alone", coding)};
  return std::nullopt;
}

class Server final : public HttpServer, private httplib::Server {
 public:
  Server(HttpOptions options, std::vector<HttpRoute> routes)
      : options_(std::move(options)), routes_(std::move(routes)) {
    new_task_queue = [this] { return new ConnectionThreads(options_.connections_max); };
    set_keep_alive_max_count(kRequestsPerConnection);  // the rest of this is only what it tells clients
    set_keep_alive_timeout(std::chrono::duration_cast<std::chrono::seconds>(options_.idle_timeout).count());
    set_payload_max_length(options_.request_bytes_max);
    // Not httplib's SO_REUSEPORT, with which two servers can share a port and its requests.
    set_socket_options([](socket_t socket) {
      const int yes = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
      std::optional<HttpReply> reply = refusal(request);
      if (!reply) return HandlerResponse::Unhandled;
      apply(std::move(*reply), response);
      return HandlerResponse::Handled;
    });
    set_expect_100_continue_handler([this](const httplib::Request& request, httplib::Response& response) {
      std::optional<HttpReply> reply = refusal(request);
      if (!reply) return 100;
      apply(std::move(*reply), response);
      return response.status;
    });
    set_error_handler(HandlerWithResponse([](const httplib::Request& request, httplib::Response& response) {
      if (response.body.empty()) {
        const ApiError error = transport_error(response.status, current->failure);
        response.status = error.status;
        response.set_content(error_body(error), "application/json");
        current->close_after = true;
      }
      if (current->close_after && request.get_header_value("Connection") != "close")
        response.set_header("Connection", "close");
      return HandlerResponse::Handled;
    }));
    set_logger(
        [this](const httplib::Request&, const httplib::Response& response) { options_.on_response(response.status); });
    for (const HttpRoute& route : routes_) {
      const Handler handler = [&route](const httplib::Request& request, httplib::Response& response) {
        answer(route, request, response);
      };
      route.method == "POST" ? Post(exactly(route.path), handler) : Get(exactly(route.path), handler);
    }
  }

  ~Server() override { stop(Duration::zero()); }

  Result<void> start() {
    const std::string where = fmt::format("{}:{}", options_.host, options_.port);
    errno = 0;
    port_ = options_.port == 0                           ? bind_to_any_port(options_.host)
            : bind_to_port(options_.host, options_.port) ? options_.port
                                                         : -1;
    if (port_ < 0) {
      return Error{Errc::kIo, fmt::format("cannot listen at {}{}{}, wanted an address of this machine and a free port",
                                          where, errno != 0 ? ": " : "", errno != 0 ? std::strerror(errno) : "")};
    }
    ::listen(svr_sock_, kBacklog);  // httplib's own is 5: clients that come together would wait a second
    thread_ = std::jthread([this] { accept_connections(); });
    return {};
  }

  int port() const override { return port_; }

  void stop(Duration drain) override {
    if (!thread_.joinable()) return;
    ending_.stopping = true;
    const TimePoint deadline = now() + drain;
    while (open_ > 0 && now() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ending_.aborting = true;
    while (open_ > 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    // Last: once httplib is told, it begins no stream any more, and leaves empty those that come to their first piece
    // now.
    while (!ended_ && svr_sock_ != INVALID_SOCKET) {  // its stop() does nothing before the thread listens
      if (is_running())
        httplib::Server::stop();
      else
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    thread_.join();
  }

 private:
  void accept_connections() {
    while (!ending_.stopping) {
      listen_after_bind();  // until stop(), or until accept() fails, if only for one client
      if (ending_.stopping) break;
      spdlog::error("event=accept_failed reason=\"{}\"", std::strerror(errno));
      std::this_thread::sleep_for(std::chrono::milliseconds(kPollMs));
      httplib::Server::stop();  // newer versions do not bind again after a failure, unless they are told this
      if (bind_to_port(options_.host, port_)) ::listen(svr_sock_, kBacklog);
    }
    ended_ = true;
  }

  static void answer(const HttpRoute& route, const httplib::Request& request, httplib::Response& response) {
    Connection& connection = *current;
    try {
      apply(route.handler({.method = request.method,
                           .path = request.path,
                           .body = request.body,
                           .client = client_of(request, connection.peer()),
                           .gone = [&connection] { return connection.server_ends() || connection.client_gone(); },
                           .server_ends = [&connection] { return connection.server_ends(); }}),
            response, /*chunked=*/request.version != "HTTP/1.0");
    } catch (const std::exception& error) {
      spdlog::error("event=request_failed path={} reason=\"{}\"", route.path, error.what());
      apply(error_reply({500, "internal error"}), response);
    }
  }

  /// Why a request is not to be answered, judged by its head. Its body is not read then.
  std::optional<HttpReply> refusal(const httplib::Request& request) const {
    const std::optional<ApiError> unclear = framing_error(request);
    const std::optional<HttpReply> reply = unclear ? error_reply(*unclear) : judge(request);
    if (reply && (unclear || !is_get(request))) current->close_after = true;
    return reply;
  }
  std::optional<HttpReply> judge(const httplib::Request& request) const {
    const std::string method = is_get(request) ? "GET" : request.method;
    const HttpRoute* route = nullptr;
    std::string allowed;
    for (const HttpRoute& candidate : routes_) {
      if (candidate.path != request.path) continue;
      if (candidate.method == method) route = &candidate;
      allowed += (allowed.empty() ? "" : ", ") + candidate.method;
    }
    if (route == nullptr && allowed.empty())
      return error_reply({404, fmt::format("no endpoint {} {}", request.method, request.path)});
    if (route == nullptr) {
      HttpReply reply = error_reply({405, fmt::format("{} takes {}, not {}", request.path, allowed, request.method)});
      reply.headers.emplace_back("Allow", allowed);
      return reply;
    }
    if (route->needs_key && !options_.api_key.empty() &&
        !same_secret(request.get_header_value("Authorization"), "Bearer " + options_.api_key)) {
      HttpReply reply = error_reply({.status = 401,
                                     .message = "no API key, or a wrong one: send it as 'Authorization: Bearer KEY'",
                                     .code = "invalid_api_key"});
      reply.headers.emplace_back("WWW-Authenticate", "Bearer");
      return reply;
    }
    if (method == "GET") return std::nullopt;
    // A browser asks its user's leave before a page sends this type to another host.
    std::string type = request.get_header_value("Content-Type");
    type = lower(type.substr(0, type.find_first_of("; \t")));
    if (type != "application/json")
      return error_reply({415, fmt::format("Content-Type is '{}', wanted application/json", type)});
    if (request.has_header("Content-Encoding")) return error_reply({415, "compressed requests are not supported"});
    if (request.has_header("Transfer-Encoding")) return std::nullopt;  // the connection counts what comes
    const std::string length = request.get_header_value("Content-Length");
    if (length.empty()) return error_reply({411, "no Content-Length"});
    if (length.size() > 18 || !std::ranges::all_of(length, [](char c) { return c >= '0' && c <= '9'; })) {
      return error_reply({length.size() > 18 ? 413 : 400, "Content-Length is not a size"});
    }
    if (std::stoull(length) > options_.request_bytes_max) {
      return error_reply(
          {413, fmt::format("the request has {} bytes, wanted at most {}", length, options_.request_bytes_max)});
    }
    return std::nullopt;
  }

  /// httplib's own, on a Connection. process_request() has got more parameters on the way.
  template <typename Stream>
  bool serve_one(Stream& stream, bool last, bool& closed) {
    const auto body_comes = [&](httplib::Request& request) {
      stream.begin_body(options_.request_bytes_max);
      // What httplib would do of itself: compress replies, on the cores of the verifier, and cut ranges out of them.
      request.headers.erase("Accept-Encoding");
      request.headers.erase("Range");
      request.ranges.clear();
      if (request.version == "HTTP/1.0") stream.close_after = true;
      // Nobody reads a GET's body: what comes after the head would be taken for the next request.
      const std::string length = request.get_header_value("Content-Length");
      if (is_get(request) && (request.has_header("Transfer-Encoding") || (!length.empty() && length != "0")))
        stream.close_after = true;
      if (stream.close_after) set_close(request);
    };
    if constexpr (requires { this->process_request(stream, last, closed, body_comes); }) {
      return process_request(stream, last, closed, body_comes);
    } else {
      return process_request(stream, "", 0, "", 0, last, closed, body_comes);
    }
  }

  bool process_and_close_socket(socket_t socket) override {
    Connection connection(socket, ending_);
    const int yes = 1;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    if (refusing || ending_.stopping) {
      const std::string body = error_body({503, refusing ? "too many connections" : "the server ends"});
      const std::string reply = fmt::format(
          "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
          "Connection: close\r\nContent-Length: {}\r\n\r\n{}",
          body.size(), body);
      (void)send(socket, reply.data(), reply.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      options_.on_response(503);
      shutdown(socket, SHUT_WR);
      char request[4096];  // closing with unread input would discard the reply
      while (recv(socket, request, sizeof request, MSG_DONTWAIT) > 0) {
      }
    } else {
      try {
        serve(connection);
      } catch (const std::exception& error) {
        spdlog::error("event=connection_failed reason=\"{}\"", error.what());
      }
      connection.linger();
    }
    close(socket);
    return true;
  }

  void serve(Connection& connection) {
    current = &connection;
    for (std::size_t left = kRequestsPerConnection; left > 0 && connection.wait_for_request(options_.idle_timeout);
         --left) {
      ++open_;
      connection.begin_head(options_.request_timeout);
      bool closed = false;
      const bool ok = serve_one(connection, left == 1, closed);
      --open_;
      if (!ok || closed || connection.close_after) break;
    }
    current = nullptr;
  }

  const HttpOptions options_;
  const std::vector<HttpRoute> routes_;
  Ending ending_;
  std::atomic<int> open_ = 0;        ///< requests
  std::atomic<bool> ended_ = false;  ///< accept_connections()
  int port_ = -1;
  std::jthread thread_;
};

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::start(HttpOptions options, std::vector<HttpRoute> routes) {
  auto server = std::make_unique<Server>(std::move(options), std::move(routes));
  RETURN_IF_ERROR(server->start());
  return Result<std::unique_ptr<HttpServer>>(std::move(server));
}

}  // namespace outrider
