#include "http-server/dialect.h"

#include <string_view>
#include <utility>

#include "common/base/json_fields.h"

namespace outrider {
namespace {
using Json = nlohmann::json;

/// What whole events of a chat's stream come to.
std::string translate(std::string_view events, StreamTranslator& translator, Json& error) {
  constexpr std::string_view kData = "data: ", kEnd = "\n\n";
  std::string translated;
  while (!events.empty()) {
    const std::string_view event = events.substr(0, events.find(kEnd));
    events.remove_prefix(std::min(events.size(), event.size() + kEnd.size()));
    if (!event.starts_with(kData)) continue;
    const std::string_view data = event.substr(kData.size());
    if (data == "[DONE]") {
      translated += translator.end(std::exchange(error, {}));
      continue;
    }
    const Json chunk = Json::parse(data, nullptr, /*allow_exceptions=*/false);
    if (chunk.contains("error"))
      error = chunk["error"];
    else if (chunk.is_object())
      translated += translator.chunk(chunk);
  }
  return translated;
}

}  // namespace

void copy_same_fields(const Json& request, Json& chat) {
  for (const char* same : {"model",
                           "stream",
                           "temperature",
                           "top_p",
                           "top_k",
                           "min_p",
                           "seed",
                           "presence_penalty",
                           "frequency_penalty",
                           "repetition_penalty",
                           "min_tokens",
                           "logit_bias",
                           "allowed_token_ids",
                           "bad_words",
                           "stop_token_ids",
                           "ignore_eos",
                           "include_stop_str_in_output",
                           "structured_outputs",
                           "truncate_prompt_tokens",
                           "truncation_side",
                           "include_reasoning",
                           "chat_template_kwargs",
                           "speculative",
                           "cache_salt",
                           "timings_per_token",
                           "return_progress"}) {
    if (request.contains(same)) chat[same] = request[same];
  }
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
