#include "common/http/http_client.h"

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <future>
#include <iterator>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>
#include <tuple>

#include <fmt/format.h>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>

#include "common/base/ascii.h"
#include "common/http/waiting_socket.h"

namespace outrider {
namespace {
namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;

constexpr Duration kConnectTimeout = std::chrono::seconds(10);
constexpr Duration kPollInterval = std::chrono::milliseconds(100);  ///< between checks that the caller still waits
constexpr std::uint32_t kReplyHeadBytesMax = 64 << 10;
constexpr std::size_t kPieceBytes = 64 << 10;
constexpr int kLookUpsMax = 64;
constexpr int kInterimMax = 8;  ///< answers such as 103 (Early Hints) before the final one

Error nobody_waits() { return {Errc::kCancelled, "nobody waits any longer"}; }

/// The context of all sockets. Calls wait by themselves, so nobody runs it. A context for each call would cost three
/// more file handles. It is never destroyed, because a look-up may still be running when the program ends.
asio::io_context& sockets() {
  static asio::io_context& context = *new asio::io_context;
  return context;
}

std::optional<Error> given_up(TimePoint deadline, const Gone& gone) {
  if (gone()) return nobody_waits();
  if (now() > deadline) return Error{Errc::kTimeout, "timed out"};
  return std::nullopt;
}

/// Connects to the first address that accepts. A silent one takes its share of the time, not all of it.
Result<tcp::socket> connect(const HttpCall& call) {
  const TimePoint end = std::min(call.deadline, now() + kConnectTimeout);
  int failed = ENOENT;
  std::int64_t left = std::ssize(call.addresses);
  for (const std::string& address : call.addresses) {
    const TimePoint begun = now(), deadline = begun + (end - begun) / left--;
    const tcp::endpoint place(asio::ip::make_address(address), static_cast<std::uint16_t>(std::stoi(call.url.port)));
    tcp::socket socket(sockets());
    beast::error_code refused;
    socket.open(place.protocol(), refused);  // a machine may have no IPv6
    failed = refused.value();
    if (failed != 0) continue;
    socket.non_blocking(true);
    failed = ::connect(socket.native_handle(), place.data(), static_cast<socklen_t>(place.size())) == 0 ? 0 : errno;
    pollfd state{.fd = socket.native_handle(), .events = POLLOUT, .revents = 0};
    while (failed == EINPROGRESS) {
      if (call.gone()) return nobody_waits();
      socklen_t size = sizeof failed;
      if (now() > deadline)
        failed = ETIMEDOUT;
      else if (poll(&state, 1, static_cast<int>(to_ms(kPollInterval))) > 0)
        getsockopt(socket.native_handle(), SOL_SOCKET, SO_ERROR, &failed, &size);
    }
    if (failed != 0) continue;
    // A host that vanished is noticed, however long a reply may take.
    for (const auto& [level, option, value] : {std::tuple(SOL_SOCKET, SO_KEEPALIVE, 1),
                                               {IPPROTO_TCP, TCP_KEEPIDLE, 60},
                                               {IPPROTO_TCP, TCP_KEEPINTVL, 10},
                                               {IPPROTO_TCP, TCP_KEEPCNT, 6}})
      setsockopt(socket.native_handle(), level, option, &value, sizeof value);
    return socket;
  }
  if (failed == ETIMEDOUT) return Error{Errc::kTimeout, "timed out"};
  return Error{Errc::kIo, std::generic_category().message(failed)};
}

http::request<http::string_body> message_of(const HttpCall& call) {
  http::request<http::string_body> message(http::string_to_verb(call.method), call.url.target, 11);
  message.set(http::field::host, call.url.server());
  message.set(http::field::connection, "close");
  for (const auto& [name, value] : call.headers) message.set(name, value);
  if (call.method != "GET") {
    message.body() = call.body;
    message.prepare_payload();
  }
  return message;
}

}  // namespace

std::string HttpAnswer::header(std::string_view name) const {
  const auto found = std::ranges::find(headers, name, &std::pair<std::string, std::string>::first);
  return found == headers.end() ? "" : found->second;
}

Result<std::vector<std::string>> addresses_of(const std::string& host, TimePoint deadline, const Gone& gone) {
  // On a thread that is abandoned after its time: the system's look-up cannot be cancelled.
  static std::atomic<int> under_way = 0;
  using Found = Result<std::vector<std::string>>;
  const std::shared_ptr<void> place(nullptr, [](void*) { --under_way; });
  if (++under_way > kLookUpsMax) return Error{Errc::kUnavailable, "too many names are being looked up"};
  auto promise = std::make_shared<std::promise<Found>>();
  std::future<Found> found = promise->get_future();
  try {
    std::thread([promise, place, host] {
      promise->set_value(no_throw([&]() -> Found {
        beast::error_code unknown;
        std::vector<std::string> addresses;
        for (const auto& entry : tcp::resolver(sockets()).resolve(host, "", unknown))
          addresses.push_back(entry.endpoint().address().to_string());
        if (unknown || addresses.empty()) return Error{Errc::kNotFound, unknown.message()};
        return addresses;
      }));
    }).detach();
  } catch (const std::system_error& error) {
    return Error{Errc::kUnavailable, error.what()};
  }
  while (found.wait_for(kPollInterval) != std::future_status::ready) {
    if (auto why = given_up(deadline, gone)) return *why;
  }
  return found.get();
}

namespace {

/// See call_http(). Asio throws where the system has no file handle left.
Result<HttpAnswer> call_or_throw(const HttpCall& call) {
  ASSIGN_OR_RETURN(tcp::socket socket, connect(call));
  const int handle = socket.native_handle();
  WaitingSocket connection(std::move(socket), [&] { return given_up(call.deadline, call.gone).has_value(); });
  const auto expect_more = [&] {
    connection.read_deadline = call.silence_max ? std::min(call.deadline, now() + *call.silence_max) : call.deadline;
  };
  expect_more();
  beast::error_code failed;
  const auto why = [&]() -> Error {
    if (auto given = given_up(call.deadline, call.gone)) return *given;
    if (failed == http::error::body_limit || failed == http::error::buffer_overflow)
      return {Errc::kOutOfRange, "its reply is too long"};
    const std::string of_tls = connection.tls_problem();
    return {failed == beast::error::timeout ? Errc::kTimeout : Errc::kIo, of_tls.empty() ? failed.message() : of_tls};
  };
  if (call.url.tls) {
    ASSIGN_OR_RETURN(std::unique_ptr<TlsSession> session, TlsSession::to(call.url.host, handle));
    connection.encrypt(std::move(session), failed);
    if (failed) return why();
  }
  const http::request<http::string_body> message = message_of(call);
  http::write(connection, message, failed);
  if (failed) return why();
  expect_more();
  beast::flat_buffer buffer(kReplyHeadBytesMax + kPieceBytes);  // the line of a chunk, and a trailer, are read whole
  std::optional<http::response_parser<http::buffer_body>> parser;
  int interim = 0;
  do {
    parser.emplace();
    parser->header_limit(kReplyHeadBytesMax);
    parser->body_limit(std::uint64_t{1} << 62);  // until the head has been checked
    http::read_header(connection, buffer, *parser, failed);
    if (failed) return why();
  } while (parser->get().result_int() / 100 == 1 && interim++ < kInterimMax);
  http::response_parser<http::buffer_body>& reply = *parser;
  HttpAnswer answer{.status = static_cast<int>(reply.get().result_int())};
  for (const auto& field : reply.get().base()) {
    const auto name = field.name_string(), value = field.value();
    answer.headers.emplace_back(in_lower_case({name.data(), name.size()}), std::string(value.data(), value.size()));
  }
  const auto length = reply.content_length();
  ASSIGN_OR_RETURN(const std::int64_t bytes_max, call.admit(answer, length ? static_cast<std::int64_t>(*length) : -1));
  if (bytes_max == 0) return answer;
  if (length && *length > static_cast<std::uint64_t>(bytes_max))  // not checked by the parser
    return Error(Errc::kOutOfRange, "its reply has {} bytes, wanted at most {}", *length, bytes_max);
  reply.body_limit(static_cast<std::uint64_t>(bytes_max));
  std::vector<char> piece(kPieceBytes);
  while (!reply.is_done()) {
    expect_more();
    reply.get().body().data = piece.data();
    reply.get().body().size = piece.size();
    http::read_some(connection, buffer, reply, failed);
    if (failed && failed != http::error::need_buffer) return why();
    const std::string_view come(piece.data(), piece.size() - reply.get().body().size);
    if (!call.on_body)
      answer.body += come;
    else if (!come.empty())
      RETURN_IF_ERROR(call.on_body(come));
  }
  return answer;
}

}  // namespace

Result<HttpAnswer> call_http(const HttpCall& call) {
  return no_throw([&] { return call_or_throw(call); });
}

Result<HttpAnswer> follow_http(HttpCall call,
                               const std::function<Result<std::vector<std::string>>(const HttpUrl&)>& addresses) {
  const auto is_redirection = [](const HttpAnswer& answer) {
    static constexpr int kStatuses[] = {301, 302, 303, 307, 308};
    return std::ranges::find(kStatuses, answer.status) != std::end(kStatuses);
  };
  call.admit = [&, judge = std::move(call.admit)](const HttpAnswer& head, std::int64_t length) {
    return is_redirection(head) ? Result<std::int64_t>(0) : judge(head, length);
  };
  const std::string first = call.url.server();
  for (int redirections = 0;; ++redirections) {
    const auto named = [&](const Error& error) { return Error{error.code, call.url.server() + ": " + error.message}; };
    Result<std::vector<std::string>> places = addresses(call.url);
    if (!places) return named(places.error());
    call.addresses = *std::move(places);
    Result<HttpAnswer> answer = call_http(call);
    if (!answer) return named(answer.error());
    if (!is_redirection(*answer)) return answer;
    if (redirections == kRedirectsMax)
      return named({Errc::kUnsupported, "redirects after {} redirections", redirections});
    const std::string location = answer->header("location");
    if (location.empty()) return named({Errc::kUnsupported, "redirects to nowhere"});
    const Result<HttpUrl> next = parse_http_url(absolute_url(call.url, location));
    if (!next) return named({next.error().code, "redirects to what " + next.error().message});
    if (call.url.tls && !next->tls) return named({Errc::kUnsupported, "redirects from https to http"});
    call.url = *next;
    if (call.url.server() != first)
      std::erase_if(call.headers, [](auto& field) { return field.first == "Authorization"; });
  }
}

}  // namespace outrider
