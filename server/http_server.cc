#include "server/http_server.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <iterator>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

#include <fmt/format.h>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/error.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http.hpp>
#include <boost/system/system_error.hpp>

#include "common/base/shares.h"
#include "common/base/text.h"
#include "common/http/waiting_socket.h"
#include "common/os/logging.h"
#include "server/api_error.h"
#include "server/random_id.h"
#include "server/request_memory.h"
#include "server/web_guard.h"

namespace outrider {
namespace {
namespace net = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;
using net::ip::tcp;
using Head = http::request_header<>;
using Parser = http::request_parser<http::string_body>;

constexpr std::size_t kHeadBytesMax = 64 << 10;   ///< request line and headers
constexpr std::size_t kTargetBytesMax = 8 << 10;  ///< path and query
/// Interval at which the ending server checks its threads.
constexpr Duration kTick = std::chrono::milliseconds(10);
/// Time for a client to finish sending a refused body before it must read the reason.
constexpr Duration kLinger = std::chrono::seconds(5);

/// State of the server's end: first no new requests, then none at all.
struct Ending {
  std::atomic<bool> stopping = false, aborting = false;
};

/// A client's connection. Its waits end when the server ends.
class Connection : public WaitingSocket {
 public:
  Connection(tcp::socket socket, const Ending& ending)
      : WaitingSocket(std::move(socket), [&ending] { return ending.aborting.load(); }), ending_(ending) {}

  bool server_ends() const { return ending_.aborting; }
  int handle() { return socket_.native_handle(); }
  /// Also true for a client that half-closed its connection, which clients do not do.
  bool client_gone() { return ready(POLLRDHUP, Duration::zero()); }
  /// Returns the client's numeric address.
  std::string peer() const {
    error_code failed;
    const tcp::endpoint peer = socket_.remote_endpoint(failed);
    return failed ? "" : peer.address().to_string();
  }

  /// @return true if data comes before the server begins to end
  bool wait_for_request(Duration idle_timeout) {
    idle_since_ = now().time_since_epoch().count();
    bool comes = false;
    for (const TimePoint deadline = now() + idle_timeout; !comes && now() < deadline && !ending_.stopping;)
      comes = (tls_ != nullptr && tls_->has_unread()) || ready(POLLIN, kPoll);
    idle_since_ = kBusy;
    return comes;
  }
  /// Start of its wait for a request, in arbitrary units; kBusy if it is not waiting. Any thread.
  std::int64_t idle_since() const { return idle_since_; }
  /// Ends a wait for a request as if the client had closed the connection. Any thread.
  void end_wait() { ::shutdown(socket_.native_handle(), SHUT_RD); }
  static constexpr std::int64_t kBusy = std::numeric_limits<std::int64_t>::max();
  /// Ends the output, and lets the client read it: closing with unread input would discard it.
  void end(Duration linger) {
    error_code failed;
    if (tls_ != nullptr) tls_->end();
    socket_.shutdown(tcp::socket::shutdown_send, failed);
    const TimePoint deadline = now() + linger;
    std::array<char, 16 << 10> unread;
    do {
      socket_.read_some(net::buffer(unread), failed);
      if (failed == net::error::would_block) ready(POLLIN, std::min(kPoll, linger));
    } while ((!failed || failed == net::error::would_block) && now() < deadline && !ending_.aborting);
  }

 private:
  const Ending& ending_;
  std::atomic<std::int64_t> idle_since_ = now().time_since_epoch().count();  ///< also before its thread has begun
};

/// The open connections, with their clients.
class OpenConnections {
 public:
  explicit OpenConnections(int count_max) : shares_(count_max) {}

  /// Admits a connection. A client without room loses its longest idle connection for the new one.
  /// @return true if admitted
  bool enter(const std::shared_ptr<Connection>& connection, const std::string& client) {
    const std::lock_guard lock(mutex_);
    if (!shares_.take(client, 1)) {
      auto oldest = connections_.end();
      for (auto it = connections_.begin(); it != connections_.end(); ++it) {
        if (it->second != client || it->first->idle_since() == Connection::kBusy) continue;
        if (oldest == connections_.end() || it->first->idle_since() < oldest->first->idle_since()) oldest = it;
      }
      if (oldest == connections_.end()) return false;
      oldest->first->end_wait();
      connections_.erase(oldest);
    }
    connections_.emplace(connection, client);
    return true;
  }
  void leave(const std::shared_ptr<Connection>& connection) {
    const std::lock_guard lock(mutex_);
    const auto known = connections_.find(connection);
    if (known == connections_.end()) return;  // replaced by another
    shares_.give_back(known->second, 1);
    connections_.erase(known);
  }

 private:
  std::mutex mutex_;
  Shares shares_;
  std::map<std::shared_ptr<Connection>, std::string> connections_;  ///< with the client of each
};

std::string text(beast::string_view view) { return {view.data(), view.size()}; }

/// Maps an address to a client: for IPv6 the first half, since a host has all addresses of a prefix.
std::string client_of(const std::string& address) {
  error_code failed;
  const auto v6 = net::ip::make_address_v6(address, failed);
  if (failed || v6.is_v4_mapped() || v6.is_loopback()) return address;
  auto bytes = v6.to_bytes();
  std::fill(bytes.begin() + bytes.size() / 2, bytes.end(), 0);
  return net::ip::address_v6(bytes).to_string() + "/64";
}

bool is_loopback(const std::string& address) {
  return address == "127.0.0.1" || address == "::1" || address == "::ffff:127.0.0.1";
}

/// Names a client without a key of its own, for HttpRequest::client.
std::string client_of(const Head& head, const std::string& peer) {
  if (!is_loopback(peer)) return client_of(peer);
  const auto [begin, end] = head.equal_range("X-Forwarded-For");
  const std::string list = begin == end ? "" : text(std::prev(end)->value());  // a proxy appends to it, or adds one
  error_code failed;
  const net::ip::address address = net::ip::make_address(list.substr(list.find_last_of(", ") + 1), failed);
  return failed ? peer : client_of(address.to_string());
}

/// Returns the path of a request's target: without the query, and percent-decoded.
std::string path_of(const Head& head) {
  const std::string target = text(head.target());
  return percent_decoded(std::string_view(target).substr(0, target.find('?')));
}

std::string query_of(const Head& head) {
  const std::string target = text(head.target());
  const std::size_t begin = target.find('?');
  return begin == target.npos ? "" : target.substr(begin + 1);
}

/// Rejects heads that Beast accepts although the end of the request is ambiguous: another server on the way may see a
/// second one within it (RFC 9112, 6.3).
error_code framing_error(const Head& head) {
  const std::string length = text(head[http::field::content_length]);
  if (head.count(http::field::content_length) > 1 || length.find_first_not_of("0123456789") != length.npos)
    return http::error::bad_content_length;
  if (head.count(http::field::transfer_encoding) > 0 &&
      !beast::iequals(head[http::field::transfer_encoding], "chunked"))
    return http::error::bad_transfer_encoding;
  return {};
}

/// @return true if a head breaks off at a Content-Length that no integer holds: it counts as a length that is too large
bool is_huge_length(std::string_view unread) {
  const std::string_view line = unread.substr(0, unread.find('\r'));
  return line.size() - line.find_last_not_of("0123456789") > 20;
}

/// The target of a request, and the facts of its head.
struct Asked {
  const HttpRoute* route = nullptr;
  HttpRequest http = {};
};

/// A body counts three times while it is read, since a growing string may exist up to three times.
std::int64_t reading_bytes(std::size_t body_bytes) { return 3 * static_cast<std::int64_t>(body_bytes); }

/// Allowed host names of a server. A server with keys allows any, since a page under another name has no key.
std::vector<std::string> names_of(const HttpOptions& options) {
  if (options.keys != nullptr && options.allowed_hosts.empty()) return {"*"};
  std::vector<std::string> names = own_names(options.host);
  names.insert(names.end(), options.allowed_hosts.begin(), options.allowed_hosts.end());
  return names;
}

/// Returns the possible paths: clients' base URLs may or may not end with /v1, and with a slash.
std::vector<std::string> meanings(std::string path) {
  while (path.starts_with("//")) path.erase(0, 1);
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  std::vector<std::string> paths = {path, "/v1" + path};
  if (path.starts_with("/v1/v1/")) paths.push_back(path.substr(3));
  return paths;
}

/// Names a request in its reply and in its client's log: by the client's own name, if printable.
std::string id_of(const Head& head) {
  constexpr std::size_t kIdBytesMax = 128;
  const std::string given = text(head["X-Request-Id"]);
  const bool fits = !given.empty() && given.size() <= kIdBytesMax &&
                    std::ranges::all_of(given, [](char c) { return c > 0x20 && c < 0x7f; });
  if (fits) return given;
  return fmt::format("req_{:016x}", random_number());
}

/// @return the part of the path for {id} or *, "" if the route has none; none if the path does not match
std::optional<std::string_view> match(std::string_view pattern, std::string_view path) {
  constexpr std::string_view kAny = "{id}";
  const std::size_t at = pattern.find(kAny);
  if (pattern == path) return "";
  if (pattern.ends_with('*') && path.starts_with(pattern.substr(0, pattern.size() - 1)))
    return path.substr(pattern.size() - 1);
  if (at == pattern.npos || !path.starts_with(pattern.substr(0, at))) return std::nullopt;
  const std::size_t end = std::min(path.find('/', at), path.size());
  if (end == at || path.substr(end) != pattern.substr(at + kAny.size())) return std::nullopt;
  return path.substr(at, end - at);
}

class Server final : public HttpServer {
 public:
  Server(HttpOptions options, std::vector<HttpRoute> routes)
      : options_(std::move(options)),
        routes_(std::move(routes)),
        guard_(names_of(options_), options_.allowed_origins),
        open_(options_.connections_max),
        memory_(options_.memory ? options_.memory : memory_of(options_)),
        reading_(std::make_shared<ServerMemory>(memory_->most_of_one())) {}
  ~Server() override { stop(Duration::zero()); }

  Result<void> start() {
    error_code failed;
    const std::string port = std::to_string(options_.port);
    for (const auto& entry : tcp::resolver(io_).resolve(options_.host, port, tcp::resolver::passive, failed)) {
      try {
        acceptor_ = tcp::acceptor(io_, entry.endpoint());
        thread_ = std::jthread([this] { accept_connections(); });
        return {};
      } catch (const boost::system::system_error& error) {
        failed = error.code();
      }
    }
    return Error(Errc::kIo, "cannot listen at {}:{}: {}, wanted an address of this machine and a free port",
                 options_.host, options_.port, failed.message());
  }

  int port() const override { return acceptor_.local_endpoint().port(); }

  void stop(Duration drain) override {
    if (!thread_.joinable()) return;
    ending_->stopping = true;
    for (const TimePoint deadline = now() + drain; requests_ > 0 && now() < deadline;)
      std::this_thread::sleep_for(kTick);
    ending_->aborting = true;
    ::shutdown(acceptor_.native_handle(), SHUT_RDWR);  // makes accept() return
    thread_.join();
    while (connections_ > 0) std::this_thread::sleep_for(kTick);
  }

 private:
  void accept_connections() {
    while (!ending_->aborting) {
      tcp::socket socket(io_);
      error_code failed;
      acceptor_.accept(socket, failed);
      if (ending_->aborting) return;
      if (failed) {
        log_error("event=accept_failed reason=\"{}\"", failed.message());
        std::this_thread::sleep_for(Connection::kPoll);
        continue;
      }
      const auto connection = std::make_shared<Connection>(std::move(socket), *ending_);
      if (ending_->stopping)
        refuse(*connection, "the server ends");
      else if (!open_.enter(connection, client_of(connection->peer())))
        refuse(*connection, "too many connections");
      else if (!start_thread(connection))
        refuse(*connection, "too many threads");
    }
  }

  /// Starts a thread for a connection, which ends with it. @return false if there is none
  bool start_thread(std::shared_ptr<Connection> connection) {
    ++connections_;
    try {
      std::thread([this, connection]() mutable {
        serve(*connection);
        open_.leave(connection);
        connection.reset();  // before its server may end
        --connections_;
      }).detach();
      return true;
    } catch (const std::system_error& error) {
      log_warn("event=no_thread reason=\"{}\"", error.what());
      open_.leave(connection);
      --connections_;
      return false;
    }
  }

  /// Runs without a thread, and so does not wait: the reply fits the system's buffer for a new connection. With TLS
  /// there is no reply, since it would need a handshake.
  void refuse(Connection& connection, const std::string& reason) {
    if (options_.tls == nullptr) send(connection, error_reply({503, reason}), Head(), id_of(Head()), /*close=*/true);
    connection.end(Duration::zero());
  }

  void serve(Connection& connection) {
    beast::flat_buffer buffer(kHeadBytesMax);
    bool more = options_.tls == nullptr || encrypt(connection);
    while (more && (buffer.size() > 0 || connection.wait_for_request(options_.idle_timeout))) {
      ++requests_;
      try {
        more = serve_request(connection, buffer);
      } catch (const std::exception& error) {
        log_error("event=connection_failed reason=\"{}\"", error.what());
        more = false;
      }
      --requests_;
    }
    connection.end(kLinger);
  }

  bool encrypt(Connection& connection) {
    if (!connection.wait_for_request(options_.idle_timeout)) return false;
    connection.read_deadline = now() + options_.request_timeout;
    std::unique_ptr<TlsSession> session = options_.tls->session(connection.handle());
    if (session == nullptr) return false;
    error_code failed;
    connection.encrypt(std::move(session), failed);
    return !failed;
  }

  /// @param buffer  the connection's: bytes read beyond the last request @return true if another request may follow
  bool serve_request(Connection& connection, beast::flat_buffer& buffer) {
    Parser parser;
    parser.header_limit(kHeadBytesMax);
    parser.body_limit(body_bytes_max());
    connection.read_deadline = now() + options_.request_timeout;
    error_code failed;
    http::read_header(connection, buffer, parser, failed);
    const Head head = parser.get();  // without trailers
    if (!failed) failed = framing_error(head);
    Asked asked;
    asked.http.request_id = id_of(head);
    std::optional<HttpReply> reply;
    if (!failed) reply = refusal(head, connection, asked);
    std::shared_ptr<const void> under_way;  // until the reply is sent
    if (!failed && !reply && asked.http.key != nullptr && asked.route->method == "POST" &&
        !asked.route->takes.empty()) {
      auto begun = asked.http.key->begin(now());
      if (begun)
        under_way = *std::move(begun);
      else
        reply = error_reply(begun.error());
    }
    const auto room = std::make_shared<RequestMemory>(memory_, asked.http.client);
    RequestMemory reading(reading_, asked.http.client);  // of half of it: room is left for requests already read
    if (!failed && !reply && asked.route->method == "POST") {
      const auto length = parser.content_length();
      const std::size_t unknown = parser.is_done() ? 0 : body_bytes_max();  // in chunks
      const std::int64_t bytes = reading_bytes(length ? static_cast<std::size_t>(*length) : unknown);
      reply = wait_for_room(connection, reading, bytes);
      if (!reply) reply = wait_for_room(connection, *room, bytes);
    }
    if (!failed && !reply && asked.route->method == "POST" && !parser.is_done()) {
      if (beast::iequals(head[http::field::expect], "100-continue") && head.version() == 11)
        net::write(connection, net::buffer(std::string_view("HTTP/1.1 100 Continue\r\n\r\n")), failed);
      if (!failed) http::read(connection, buffer, parser, failed);
    }
    if (failed) {
      const std::string_view unread(static_cast<const char*>(buffer.data().data()), buffer.size());
      const std::optional<ApiError> error = read_error(failed, parser, unread, connection.server_ends());
      if (error) {
        HttpReply refused = error_reply(*error);
        put_in_form_of(asked.route, refused);
        send(connection, std::move(refused), head, asked.http.request_id, /*close=*/true);
      }
      return false;
    }
    if (!reply && asked.route->method == "POST") {
      const std::string& body = parser.get().body();
      const bool is_form = asked.route->takes == kFormType;  // files are not tokenised
      const std::size_t files = is_form ? body.size() : file_characters(body), text = body.size() - files;
      if (!is_form && (text > options_.request_bytes_max || files > options_.file_bytes_max))
        reply = error_reply(too_large());
      else
        reply = wait_for_room(connection, *room, counted_bytes(text, files));
      reading.take(0);
    }
    // The body of a refused request, or of a GET, is not read, and would be taken for the next request.
    const bool close = !parser.is_done() || !parser.keep_alive() || head.version() != 11;
    if (options_.traces) asked.http.trace = TraceContext::begin(text(head["traceparent"]));
    if (!reply) {
      asked.http.method = text(head.method_string());
      asked.http.query = query_of(head);
      asked.http.body = std::move(parser.get().body());
      asked.http.gone = [&connection] { return connection.server_ends() || connection.client_gone(); };
      asked.http.server_ends = [ending = ending_]() -> bool { return ending->aborting; };
      asked.http.reserve = [room, under_way](std::int64_t bytes) { return room->reserve(bytes); };
      reply = answer_with(asked.route->handler, asked.http);
      asked.http.body = std::string();  // the reply may take long, and its memory was reserved in place of this
    }
    const TraceContext& trace = asked.http.trace;
    if (trace.is_traced() && asked.route->method == "POST")
      reply->headers.emplace_back("traceparent", trace.traceparent());
    if (const std::string origin = text(head[http::field::origin]); guard_.shares_with(origin)) {
      reply->headers.emplace_back("Access-Control-Allow-Origin", origin);
      reply->headers.emplace_back("Access-Control-Expose-Headers", "X-Request-Id, request-id, X-Outrider-Warning");
      reply->headers.emplace_back("Vary", "Origin");
    }
    put_in_form_of(asked.route, *reply);
    return send(connection, *std::move(reply), head, asked.http.request_id, close) && !close;
  }

  /// Words an error as the route's API does. @param route  null: unknown
  static void put_in_form_of(const HttpRoute* route, HttpReply& reply) {
    if (reply.error && route != nullptr && route->error_form) reply.body = route->error_form(*reply.error);
  }

  /// @return the error for an unreadable request; none if no client is left, or not even one line arrived
  /// @param unread  received bytes that were not parsed
  std::optional<ApiError> read_error(error_code failed, const Parser& parser, std::string_view unread,
                                     bool server_ends) const {
    if (failed == beast::error::timeout) {
      if (server_ends) return ApiError{503, "the server ends"};
      if (parser.get().method_string().empty()) return std::nullopt;
      return ApiError{408, "the request did not arrive in time"};
    }
    const bool gone = failed == http::error::end_of_stream || failed == http::error::partial_message;
    if (gone || failed.category() != error_code(http::error::end_of_stream).category()) return std::nullopt;
    if (failed == http::error::header_limit || failed == http::error::buffer_overflow)
      return ApiError{431, "the request's headers are too large"};
    if (failed == http::error::body_limit ||
        (failed == http::error::bad_content_length && !parser.is_header_done() && is_huge_length(unread)))
      return too_large();
    return ApiError{400, "the request is not valid HTTP: " + failed.message()};
  }

  std::size_t body_bytes_max() const { return options_.request_bytes_max + options_.file_bytes_max; }
  ApiError too_large() const {
    return {413, fmt::format("the request is too large, wanted at most {} bytes, and {} of files in base64 beside them",
                             options_.request_bytes_max, options_.file_bytes_max)};
  }

  /// Returns the refusal of a request by its head; none: asked.route answers it.
  std::optional<HttpReply> refusal(const Head& head, const Connection& connection, Asked& asked) const {
    if (head.method() == http::verb::unknown) return error_reply({400, "no such method"});
    if (head.target().size() > kTargetBytesMax) return error_reply({414, "the request's URI is too long"});
    if (const auto refused = refuse_host_or_origin(head)) return error_reply(*refused);
    if (head.method() == http::verb::options && guard_.shares_with(text(head[http::field::origin])))
      return preflight_reply(text(head["Access-Control-Request-Headers"]));
    if (auto nowhere = find_route(head, asked)) return nowhere;
    asked.http.client = client_of(head, connection.peer());
    if (asked.route->access != Access::kAnybody && options_.keys != nullptr) {
      const std::string authorization = text(head[http::field::authorization]);
      asked.http.key = options_.keys->find(authorization.empty() ? text(head["X-Api-Key"])  // Anthropic's clients
                                                                 : key_of_authorization(authorization));
      if (asked.http.key == nullptr) return no_key_reply(*asked.route);
      if (!asked.http.key->name().empty()) asked.http.client = std::string(kKeyClient) + asked.http.key->name();
    }
    return asked.route->method == "POST" ? refuse_body(head, *asked.route) : std::nullopt;
  }

  /// Refuses a request under another host name, or from another server's page.
  std::optional<ApiError> refuse_host_or_origin(const Head& head) const {
    const std::size_t hosts = head.count(http::field::host);
    const std::string host = text(head[http::field::host]);
    if (hosts > 1 || (hosts == 1 && host.empty())) return ApiError{400, "more than one Host, or an empty one"};
    if (hosts == 0 && head.version() == 11) return ApiError{400, "no Host"};
    if (hosts == 1) {
      if (auto refused = guard_.check_host(host)) return refused;
    }
    if (head.count(http::field::origin) == 0) return std::nullopt;
    return guard_.check_origin(text(head[http::field::origin]), host);
  }

  /// Answers a browser's preflight request for JSON or a key from another server's page.
  /// @param headers  that it would send: client libraries add many
  static HttpReply preflight_reply(const std::string& headers) {
    return {.status = 200,
            .body = "",
            .headers = {{"Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS"},
                        {"Access-Control-Allow-Headers", headers.empty() ? "Authorization, Content-Type" : headers},
                        {"Access-Control-Max-Age", "600"}}};
  }

  /// @return the reply if there is none
  std::optional<HttpReply> find_route(const Head& head, Asked& asked) const {
    const std::string method = text(head.method_string()), path = path_of(head);
    const std::string wanted = method == "HEAD" ? "GET" : method;
    std::string allowed;
    for (const std::string& meant : meanings(without_root(path))) {
      if (!allowed.empty()) break;
      asked.http.path = meant;
      for (const HttpRoute& candidate : routes_) {
        const std::optional<std::string_view> id = match(candidate.path, meant);
        if (!id) continue;
        if (candidate.method == wanted && asked.route == nullptr) {
          asked.route = &candidate;
          asked.http.id = *id;
        }
        if (allowed.find(candidate.method) == allowed.npos) allowed += (allowed.empty() ? "" : ", ") + candidate.method;
      }
    }
    if (allowed.empty()) return error_reply({404, fmt::format("no endpoint {} {}", method, path)});
    if (asked.route != nullptr) return std::nullopt;
    HttpReply reply = error_reply({405, fmt::format("{} takes {}, not {}", path, allowed, method)});
    reply.headers.emplace_back("Allow", allowed);
    return reply;
  }

  std::string without_root(const std::string& path) const {
    const std::string& root = options_.root_path;
    const bool under =
        !root.empty() && path.starts_with(root) && (path.size() == root.size() || path[root.size()] == '/');
    return under ? path.substr(root.size()) + (path.size() == root.size() ? "/" : "") : path;
  }

  static HttpReply no_key_reply(const HttpRoute& route) {
    HttpReply reply = error_reply({.status = 401,
                                   .message = "no API key, or a wrong one: send it as 'Authorization: Bearer KEY'",
                                   .code = "invalid_api_key"});
    reply.headers.emplace_back("WWW-Authenticate", route.access == Access::kKeyOrPassword
                                                       ? "Basic realm=\"any name, and the API key\""
                                                       : "Bearer");
    return reply;
  }

  static std::optional<HttpReply> refuse_body(const Head& head, const HttpRoute& route) {
    // Browsers ask for permission before a page sends this type to another host.
    std::string type = text(head[http::field::content_type]);
    type = type.substr(0, type.find_first_of("; \t"));
    if (!route.takes.empty() && !beast::iequals(type, route.takes))
      return error_reply({415, fmt::format("Content-Type is '{}', wanted {}", type, route.takes)});
    if (head.count(http::field::content_encoding) > 0)
      return error_reply({415, "compressed requests are not supported"});
    if (!route.takes.empty() &&
        head.count(http::field::content_length) + head.count(http::field::transfer_encoding) == 0)
      return error_reply({411, "no Content-Length"});
    return std::nullopt;
  }

  /// Waits for memory. @return the reply if there was none in time
  static std::optional<HttpReply> wait_for_room(Connection& connection, RequestMemory& room, std::int64_t bytes) {
    while (!room.take(bytes)) {
      if (now() >= connection.read_deadline || connection.server_ends() || connection.client_gone())
        return error_reply({503, "too many large requests at once"});
      std::this_thread::sleep_for(kTick);
    }
    return std::nullopt;
  }

  /// @param request  the answered one, as far as it was read
  /// @param close  the connection ends with it
  /// @return true if all of it was sent
  bool send(Connection& connection, HttpReply reply, const Head& request, const std::string& request_id, bool close) {
    const bool head_only = request.method() == http::verb::head;
    const bool chunks = request.version() == 11;  // otherwise the connection's end ends a stream
    http::response<http::string_body> message;
    message.result(static_cast<unsigned>(reply.status));
    message.set(http::field::content_type, reply.content_type);
    for (const char* name : {"X-Request-Id", "request-id"}) message.set(name, request_id);  // OpenAI's, Anthropic's
    for (const auto& [name, value] : reply.headers) message.insert(name, value);
    if (close) message.set(http::field::connection, "close");
    if (reply.next) {
      if (reply.length)
        message.content_length(*reply.length);
      else
        message.chunked(chunks);
    } else {
      message.body() = std::move(reply.body);
      message.prepare_payload();
    }
    http::response_serializer<http::string_body> serializer(message);
    error_code failed;
    reply.next || head_only ? http::write_header(connection, serializer, failed)
                            : http::write(connection, serializer, failed);
    if (reply.next && !head_only && !failed) send_pieces(connection, reply, chunks && !reply.length, failed);
    options_.on_response(reply.status);
    return !failed;
  }
  static void send_pieces(Connection& connection, const HttpReply& reply, bool chunks, error_code& failed) {
    std::uint64_t sent = 0;
    while (const std::optional<std::string> piece = reply.next()) {
      sent += piece->size();
      if (piece->empty()) {
        if (connection.client_gone()) failed = net::error::connection_reset;
      } else if (chunks) {
        net::write(connection, http::make_chunk(net::buffer(*piece)), failed);
      } else {
        net::write(connection, net::buffer(*piece), failed);
      }
      if (failed) return;
    }
    if (chunks) net::write(connection, http::make_chunk_last(), failed);
    if (sent != reply.length.value_or(sent)) failed = net::error::eof;  // the client must not wait for the rest
  }

  const HttpOptions options_;
  const std::vector<HttpRoute> routes_;
  const WebGuard guard_;
  OpenConnections open_;
  std::shared_ptr<ServerMemory> memory_, reading_;
  std::shared_ptr<Ending> ending_ = std::make_shared<Ending>();
  std::atomic<int> connections_ = 0, requests_ = 0;  ///< open ones
  net::io_context io_;  ///< of the sockets, whose calls are all synchronous: it is never run
  tcp::acceptor acceptor_{io_};
  std::jthread thread_;
};

}  // namespace

std::shared_ptr<ServerMemory> memory_of(const HttpOptions& options) {
  return std::make_shared<ServerMemory>(std::max({options.memory_bytes_max,
                                                  2 * counted_bytes(options.request_bytes_max, 0),
                                                  2 * counted_bytes(0, options.file_bytes_max)}));
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(HttpOptions options, std::vector<HttpRoute> routes) {
  auto server = std::make_unique<Server>(std::move(options), std::move(routes));
  RETURN_IF_ERROR(server->start());
  return Result<std::unique_ptr<HttpServer>>(std::move(server));
}

}  // namespace outrider
