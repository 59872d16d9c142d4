#include "server/endpoint.h"

#include <cstdint>
#include <utility>

#include <fmt/format.h>

namespace outrider {
namespace {

constexpr std::int64_t kReplyBytesMax = 256 << 20;

}  // namespace

Result<std::shared_ptr<const HttpEndpoint>> HttpEndpoint::open(const std::string& option, const std::string& url,
                                                               std::string api_key) {
  const Result<HttpUrl> parsed = parse_http_url(url);
  if (!parsed || parsed->tls || (parsed->target != "/" && parsed->target != "/v1" && parsed->target != "/v1/"))
    return Error(Errc::kInvalidArgument, "{} is '{}', wanted http://HOST:PORT/v1", option, url);
  return std::shared_ptr<const HttpEndpoint>(new HttpEndpoint(*parsed, std::move(api_key)));
}

Result<std::shared_ptr<const HttpEndpoint>> HttpEndpoint::open_known(const std::string& option,
                                                                     const std::string& url) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const HttpEndpoint> by_name, open(option, url, ""));
  auto endpoint = std::make_shared<HttpEndpoint>(*by_name);
  auto addresses = addresses_of(endpoint->url_.host, TimePoint::max(), [] { return false; });
  if (!addresses) return Error(addresses.error().code, "{} is '{}': {}", option, url, addresses.error().message);
  endpoint->addresses_ = *std::move(addresses);
  return std::shared_ptr<const HttpEndpoint>(std::move(endpoint));
}

HttpReply HttpEndpoint::answer(const HttpRequest& request) const {
  const auto no_reply = [&](const Error& why) {
    return HttpReply{
        .status = 0,
        .body = fmt::format(R"({{"error":{{"message":"http://{}:{}: {}"}}}})", url_.host, url_.port, why.message)};
  };
  HttpCall call{.url = url_,
                .addresses = addresses_,
                .method = request.method,
                .body = request.body,
                .gone = request.gone,
                .admit = [](const HttpAnswer&, std::int64_t) -> Result<std::int64_t> { return kReplyBytesMax; }};
  call.url.target = request.path;
  if (call.addresses.empty()) {
    auto addresses = addresses_of(url_.host, TimePoint::max(), request.gone);
    if (!addresses) return no_reply(addresses.error());
    call.addresses = *std::move(addresses);
  }
  if (!api_key_.empty()) call.headers.emplace_back("Authorization", "Bearer " + api_key_);
  if (request.method != "GET") call.headers.emplace_back("Content-Type", "application/json");
  Result<HttpAnswer> reply = call_http(call);
  if (!reply) return no_reply(reply.error());
  return {.status = reply->status, .body = std::move(reply->body)};
}

}  // namespace outrider
