#include "http-server/endpoint.h"

#include <cstdint>
#include <optional>
#include <regex>
#include <utility>

#include <fmt/format.h>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>

#include "common/base/time.h"

namespace outrider {
namespace {
namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;

constexpr Duration kConnectTimeout = std::chrono::seconds(10);
constexpr Duration kLook = std::chrono::milliseconds(100);  ///< for whether the caller still waits
constexpr std::uint64_t kReplyBytesMax = 256u << 20;

HttpReply nobody(const std::string& host, const std::string& port, const std::string& why) {
  return {.status = 0, .body = fmt::format(R"({{"error":{{"message":"http://{}:{}: {}"}}}})", host, port, why)};
}

}  // namespace

Result<std::shared_ptr<const HttpEndpoint>> HttpEndpoint::open(const std::string& option, const std::string& url,
                                                               std::string api_key) {
  static const std::regex kUrl(R"(http://(\[[0-9a-fA-F:]+\]|[^/:\[\]]+)(:(\d{1,5}))?(/v1)?/?)");
  std::smatch parts;
  if (!std::regex_match(url, parts, kUrl) || (parts[3].matched && std::stoi(parts[3]) > 65535))
    return Error{Errc::kInvalidArgument, fmt::format("{} is '{}', wanted http://HOST:PORT/v1", option, url)};
  std::string host = parts[1];
  if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
  return std::shared_ptr<const HttpEndpoint>(
      new HttpEndpoint(std::move(host), parts[3].matched ? parts[3].str() : "80", std::move(api_key)));
}

Result<std::shared_ptr<const HttpEndpoint>> HttpEndpoint::open_known(const std::string& option,
                                                                     const std::string& url) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const HttpEndpoint> by_name, open(option, url, ""));
  auto endpoint = std::make_shared<HttpEndpoint>(*by_name);
  asio::io_context context;
  asio::ip::tcp::resolver resolver(context);
  beast::error_code unknown;
  for (const auto& found : resolver.resolve(endpoint->host_, endpoint->port_, unknown))
    endpoint->addresses_.push_back(found.endpoint().address().to_string());
  if (unknown) return Error{Errc::kNotFound, fmt::format("{} is '{}': {}", option, url, unknown.message())};
  return std::shared_ptr<const HttpEndpoint>(std::move(endpoint));
}

HttpReply HttpEndpoint::answer(const HttpRequest& request) const {
  asio::io_context context;
  beast::tcp_stream stream(context);
  // One step after the other, each with looks at whether the caller still waits.
  std::optional<beast::error_code> ended;
  const auto end = [&](beast::error_code error, auto&&...) { ended = error; };
  const auto wait = [&](TimePoint deadline) -> std::string {
    context.restart();
    while (!ended) {
      context.run_for(kLook);
      if (ended) break;
      if (request.gone()) return "nobody waits any longer";
      if (now() > deadline) return "timed out";
    }
    const beast::error_code error = *std::exchange(ended, std::nullopt);
    return error ? error.message() : "";
  };
  std::vector<asio::ip::tcp::endpoint> places;
  for (const std::string& address : addresses_)
    places.emplace_back(asio::ip::make_address(address), static_cast<std::uint16_t>(std::stoi(port_)));
  if (places.empty()) {
    asio::ip::tcp::resolver resolver(context);
    beast::error_code unknown;
    for (const auto& found : resolver.resolve(host_, port_, unknown)) places.push_back(found.endpoint());
    if (unknown) return nobody(host_, port_, unknown.message());
  }
  stream.async_connect(places, end);
  if (const std::string why = wait(now() + kConnectTimeout); !why.empty()) {
    stream.close();
    context.run_for(kLook);
    return nobody(host_, port_, why);
  }
  http::request<http::string_body> message(http::string_to_verb(request.method), request.path, 11);
  message.set(http::field::host, host_);
  message.set(http::field::connection, "close");
  if (!api_key_.empty()) message.set(http::field::authorization, "Bearer " + api_key_);
  if (request.method != "GET") {
    message.set(http::field::content_type, "application/json");
    message.body() = request.body;
    message.prepare_payload();
  }
  beast::flat_buffer buffer;
  http::response_parser<http::string_body> reply;
  reply.body_limit(kReplyBytesMax);
  std::string why;
  http::async_write(stream, message, end);
  why = wait(TimePoint::max());
  if (why.empty()) {
    http::async_read(stream, buffer, reply, end);
    why = wait(TimePoint::max());
  }
  if (!why.empty()) {
    stream.close();
    context.run_for(kLook);  // what was begun ends before what it uses
    return nobody(host_, port_, why);
  }
  return {.status = reply.get().result_int() > 0 ? static_cast<int>(reply.get().result_int()) : 0,
          .body = std::move(reply.get().body())};
}

}  // namespace outrider
