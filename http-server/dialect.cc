#include "http-server/dialect.h"

#include <algorithm>
#include <utility>

#include "common/base/json_fields.h"

namespace outrider {
namespace {
using Json = nlohmann::json;

/// What whole events of a chat's stream come to.
std::string translate(std::string_view events, StreamTranslator& translator, Json& error) {
  std::string translated;
  each_event(events, [&](std::string_view data) {
    if (data == "[DONE]") return void(translated += translator.end(std::exchange(error, {})));
    const Json chunk = Json::parse(data, nullptr, /*allow_exceptions=*/false);
    if (chunk.contains("error"))
      error = chunk["error"];
    else if (chunk.is_object())
      translated += translator.chunk(chunk);
  });
  return translated;
}

}  // namespace

ApiResult<Json> chat_of(const Json& request, std::initializer_list<std::string_view> own) {
  for (const char* name : {"n", "logprobs", "prompt_logprobs", "return_token_ids", "verbose"}) {
    const Json& value = member(request, name);
    if (!value.is_null() && value != false && !(name == std::string_view("n") && value == 1))
      return ApiError{.message = std::string(name) + " is only for chat completions", .param = name};
  }
  Json chat = Json::object();
  for (const auto& [name, value] : request.items())
    if (std::ranges::find(own, name) == own.end()) chat[name] = value;
  return chat;
}

std::string named_event(const Json& data) {
  return "event: " + data.at("type").get<std::string>() + "\ndata: " + to_text(data) + "\n\n";
}

HttpReply translated(HttpReply reply, std::shared_ptr<StreamTranslator> translator) {
  reply.next = [chat = std::move(reply.next), translator, error = Json()]() mutable -> std::optional<std::string> {
    const std::optional<std::string> piece = chat();
    if (!piece) return std::nullopt;
    return translate(*piece, *translator, error);
  };
  return reply;
}

}  // namespace outrider
