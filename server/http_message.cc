#include "server/http_message.h"

#include <algorithm>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/json_fields.h"
#include "common/base/text.h"
#include "common/base/utf8.h"
#include "common/os/logging.h"

namespace outrider {

std::string error_body(const ApiError& error) {
  const char* type = error.status >= 500   ? "server_error"
                     : error.status == 429 ? "rate_limit_error"
                     : error.status == 401 ? "authentication_error"
                                           : "invalid_request_error";
  nlohmann::json body = {{"message", error.message}, {"type", type}, {"param", nullptr}, {"code", nullptr}};
  if (!error.param.empty()) body["param"] = error.param;
  if (!error.code.empty()) body["code"] = error.code;
  return to_text({{"error", std::move(body)}});
}

HttpReply json_reply(const nlohmann::json& json) { return {.status = 200, .body = to_text(json)}; }

HttpReply error_reply(const ApiError& error) {
  HttpReply reply{.status = error.status, .body = error_body(error), .error = error};
  if (error.status == 429 || error.status == 503)
    reply.headers.emplace_back("Retry-After", std::to_string(error.retry_after_s));
  return reply;
}

ApiError internal_error(std::string_view request_id, std::string_view path, const std::exception& thrown) {
  log_error("event=request_failed request_id={} path={} reason=\"{}\"", request_id, printable(path), thrown.what());
  const auto* system = dynamic_cast<const std::system_error*>(&thrown);
  if (system != nullptr && system->code() == std::errc::resource_unavailable_try_again)
    return {503, "too many threads"};
  return {500, "internal error"};
}

HttpReply answer_with(const HttpHandler& handler, const HttpRequest& request) {
  try {
    return handler(request);
  } catch (const std::exception& thrown) {
    return error_reply(internal_error(request.request_id, request.path, thrown));
  }
}

std::string percent_decoded(std::string_view text) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::uint8_t byte = 0;
    const bool escaped = text[i] == '%' && read_hex(text.substr(i + 1, 2), {&byte, 1});
    decoded += escaped ? static_cast<char>(byte) : text[i];
    if (escaped) i += 2;
  }
  return decoded;
}

namespace {
constexpr std::string_view kData = "data: ", kEnd = "\n\n";  // of an event
}  // namespace

std::string data_event(std::string_view data) { return fmt::format("{}{}{}", kData, data, kEnd); }

std::string named_event(const nlohmann::json& data) {
  return "event: " + data.at("type").get<std::string>() + "\n" + data_event(to_text(data));
}

void each_event(std::string_view events, const std::function<void(std::string_view data)>& on_data) {
  while (!events.empty()) {
    const std::string_view event = events.substr(0, events.find(kEnd));
    events.remove_prefix(std::min(events.size(), event.size() + kEnd.size()));
    if (event.starts_with(kData)) on_data(event.substr(kData.size()));
  }
}

}  // namespace outrider
