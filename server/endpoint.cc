#include "server/endpoint.h"

#include <cstdint>
#include <utility>

#include <fmt/format.h>

#include "common/base/json_fields.h"
#include "common/http/http_client.h"

namespace outrider {

Result<HttpHandler> open_endpoint(const std::string& option, const std::string& url, const std::string& api_key,
                                  bool known) {
  const Result<HttpUrl> parsed = parse_http_url(url);
  if (!parsed || parsed->tls || (parsed->target != "/" && parsed->target != "/v1" && parsed->target != "/v1/"))
    return Error(Errc::kInvalidArgument, "{} is '{}', wanted http://HOST:PORT/v1", option, url);
  HttpCall to_server{
      .url = *parsed, .addresses = {}, .admit = [](const HttpAnswer&, std::int64_t) -> Result<std::int64_t> {
        constexpr std::int64_t kReplyBytesMax = 256 << 20;
        return kReplyBytesMax;
      }};
  if (!api_key.empty()) to_server.headers.emplace_back("Authorization", "Bearer " + api_key);
  if (known) {
    auto addresses = addresses_of(parsed->host, TimePoint::max(), [] { return false; });
    if (!addresses) return Error(addresses.error().code, "{} is '{}': {}", option, url, addresses.error().message);
    to_server.addresses = *std::move(addresses);
  }
  return HttpHandler([to_server](const HttpRequest& request) -> HttpReply {
    HttpCall call = to_server;
    call.url.target = request.path;
    call.method = request.method;
    call.body = request.body;
    call.gone = request.gone;
    if (request.method != "GET") call.headers.emplace_back("Content-Type", "application/json");
    const auto no_reply = [&](const Error& why) {
      const std::string text = fmt::format("http://{}:{}: {}", call.url.host, call.url.port, why.message);
      return HttpReply{.status = 0, .body = to_text({{"error", {{"message", text}}}})};
    };
    if (call.addresses.empty()) {
      auto addresses = addresses_of(call.url.host, TimePoint::max(), call.gone);
      if (!addresses) return no_reply(addresses.error());
      call.addresses = *std::move(addresses);
    }
    Result<HttpAnswer> reply = call_http(call);
    if (!reply) return no_reply(reply.error());
    return {.status = reply->status, .body = std::move(reply->body)};
  });
}

}  // namespace outrider
