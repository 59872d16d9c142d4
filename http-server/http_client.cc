#include "http-server/http_client.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>

#include <fmt/format.h>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>

#include "common/base/ascii.h"

namespace outrider {
namespace {
namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
namespace ssl = asio::ssl;
using asio::ip::tcp;

constexpr Duration kConnectTimeout = std::chrono::seconds(10);
constexpr Duration kLook = std::chrono::milliseconds(100);  ///< for whether the caller still waits
constexpr std::uint32_t kReplyHeadBytesMax = 64 << 10;
constexpr int kLookUpsMax = 64;

std::optional<Error> given_up(TimePoint deadline, const Gone& gone) {
  if (gone()) return Error{Errc::kCancelled, "nobody waits any longer"};
  if (now() > deadline) return Error{Errc::kTimeout, "timed out"};
  return std::nullopt;
}

/// One step after the other, each with looks at whether the caller still waits.
class Steps {
 public:
  Steps(asio::io_context& context, beast::tcp_stream& connection, const HttpCall& call)
      : context_(context), connection_(connection), call_(call) {}
  /// The handler of the next step.
  auto end() {
    return [this](beast::error_code error, auto&&...) { ended_ = error; };
  }
  /// Until that step has ended.
  Result<void> wait(TimePoint deadline) {
    for (context_.restart(); !ended_;) {
      context_.run_for(kLook);
      if (ended_) break;
      if (auto why = given_up(std::min(deadline, call_.deadline), call_.gone)) {
        connection_.close();
        context_.restart();
        context_.run();  // what was begun ends before what it uses
        return *why;
      }
    }
    const beast::error_code error = *std::exchange(ended_, std::nullopt);
    if (error == http::error::body_limit) return Error{Errc::kOutOfRange, "its reply is too long"};
    if (error) return Error{Errc::kIo, error.message()};
    return {};
  }
  Result<void> wait() { return wait(TimePoint::max()); }

 private:
  asio::io_context& context_;
  beast::tcp_stream& connection_;
  const HttpCall& call_;
  std::optional<beast::error_code> ended_;
};

http::request<http::string_body> message_of(const HttpCall& call) {
  http::request<http::string_body> message(http::string_to_verb(call.method), call.target, 11);
  const std::string host = call.host.find(':') == call.host.npos ? call.host : "[" + call.host + "]";
  message.set(http::field::host, call.port == (call.tls ? "443" : "80") ? host : host + ":" + call.port);
  message.set(http::field::connection, "close");
  for (const auto& [name, value] : call.headers) message.set(name, value);
  if (call.method != "GET") {
    message.body() = call.body;
    message.prepare_payload();
  }
  return message;
}

template <typename Stream>
Result<HttpReply> converse(Stream& stream, const HttpCall& call, Steps& steps) {
  const http::request<http::string_body> message = message_of(call);
  http::async_write(stream, message, steps.end());
  RETURN_IF_ERROR(steps.wait());
  beast::flat_buffer buffer;
  http::response_parser<http::string_body> reply;
  reply.header_limit(kReplyHeadBytesMax);
  reply.body_limit(std::uint64_t{1} << 62);  // until the head is there to be judged
  http::async_read_header(stream, buffer, reply, steps.end());
  RETURN_IF_ERROR(steps.wait());
  HttpReply head{.status = static_cast<int>(reply.get().result_int()), .body = "", .content_type = ""};
  for (const auto& field : reply.get().base()) {
    const auto name = field.name_string(), value = field.value();
    head.headers.emplace_back(in_lower_case({name.data(), name.size()}), std::string(value.data(), value.size()));
  }
  const auto length = reply.content_length();
  ASSIGN_OR_RETURN(const std::int64_t bytes_max, call.admit(head, length ? static_cast<std::int64_t>(*length) : -1));
  if (bytes_max == 0) return head;
  if (length && *length > static_cast<std::uint64_t>(bytes_max))  // which the parser has let through
    return Error{Errc::kOutOfRange, fmt::format("its reply has {} bytes, wanted at most {}", *length, bytes_max)};
  reply.body_limit(static_cast<std::uint64_t>(bytes_max));
  http::async_read(stream, buffer, reply, steps.end());
  RETURN_IF_ERROR(steps.wait());
  head.body = std::move(reply.get().body());
  return head;
}

Result<HttpReply> converse_over_tls(beast::tcp_stream& connection, const HttpCall& call, Steps& steps) {
  ssl::context trust(ssl::context::tls_client);
  trust.set_default_verify_paths();
  ssl::stream<beast::tcp_stream&> stream(connection, trust);
  beast::error_code is_name;
  asio::ip::make_address(call.host, is_name);
  if (is_name && SSL_set_tlsext_host_name(stream.native_handle(), call.host.c_str()) != 1)
    return Error{Errc::kIo, "TLS takes no such name"};
  stream.set_verify_mode(ssl::verify_peer);
  stream.set_verify_callback(ssl::host_name_verification(call.host));
  stream.async_handshake(ssl::stream_base::client, steps.end());
  RETURN_IF_ERROR(steps.wait());
  return converse(stream, call, steps);
}

}  // namespace

Result<std::vector<std::string>> addresses_of(const std::string& host, TimePoint deadline, const Gone& gone) {
  // On a thread that is left to itself when its time is over: the system's look-up cannot be called off.
  static std::atomic<int> under_way = 0;
  using Found = Result<std::vector<std::string>>;
  const std::shared_ptr<void> place(nullptr, [](void*) { --under_way; });
  if (++under_way > kLookUpsMax) return Error{Errc::kUnavailable, "too many names are being looked up"};
  auto promise = std::make_shared<std::promise<Found>>();
  std::future<Found> found = promise->get_future();
  try {
    std::thread([promise, place, host] {
      asio::io_context context;
      beast::error_code unknown;
      std::vector<std::string> addresses;
      for (const auto& entry : tcp::resolver(context).resolve(host, "", unknown))
        addresses.push_back(entry.endpoint().address().to_string());
      promise->set_value(unknown || addresses.empty() ? Found(Error{Errc::kNotFound, unknown.message()})
                                                      : Found(std::move(addresses)));
    }).detach();
  } catch (const std::system_error& error) {
    return Error{Errc::kUnavailable, error.what()};
  }
  while (found.wait_for(kLook) != std::future_status::ready) {
    if (auto why = given_up(deadline, gone)) return *why;
  }
  return found.get();
}

Result<HttpReply> call_http(const HttpCall& call) {
  asio::io_context context;
  beast::tcp_stream connection(context);
  Steps steps(context, connection, call);
  std::vector<tcp::endpoint> places;
  for (const std::string& address : call.addresses)
    places.emplace_back(asio::ip::make_address(address), static_cast<std::uint16_t>(std::stoi(call.port)));
  connection.async_connect(places, steps.end());
  RETURN_IF_ERROR(steps.wait(now() + kConnectTimeout));
  return call.tls ? converse_over_tls(connection, call, steps) : converse(connection, call, steps);
}

}  // namespace outrider
