#include "common/model/tokenizer/chat_format.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/json_fields.h"

namespace outrider {
namespace {

bool has_per_layer_embeddings(const nlohmann::json& config) {
  const nlohmann::json& size =
      member(config.contains("text_config") ? config["text_config"] : config, "hidden_size_per_layer_input");
  return size.is_number() && size != 0;
}

}  // namespace

std::optional<ChatFormat> recognise_chat_template(std::string_view jinja) {
  const auto has = [&](std::string_view part) { return jinja.find(part) != jinja.npos; };
  if (!has("<|turn>") || !has("<|tool_call>call:")) return std::nullopt;
  ChatFormat format;
  // Each later revision introduced one of the first three variables; the first revision has only `tool_responses`.
  if (has("continues_into_next")) {
    format.revision = ChatFormat::Revision::kRefreshed;
  } else if (has("continue_same_model_turn")) {
    format.revision = ChatFormat::Revision::kStandard;
  } else if (has("last_user_message")) {
    format.revision = ChatFormat::Revision::kInterleaved;
  } else if (has("tool_responses")) {
    format.revision = ChatFormat::Revision::kFirst;
  } else {
    return std::nullopt;
  }
  format.primes_empty_thought = has(R"(<|channel>thought\n<channel|>)");  // "\n" is spelled out in Jinja
  format.sets_media_apart = has(R"(\n\n<|image|>)");
  return format;
}

Result<ChatFormat> load_chat_format(const ModelFiles& files) {
  ASSIGN_OR_RETURN(const std::optional<ModelText> jinja, files.chat_template());
  if (jinja) {
    if (const auto format = recognise_chat_template(jinja->text)) return *format;
  }
  ASSIGN_OR_RETURN(const std::optional<ModelText> text, files.config_json());
  bool small = true;
  if (text) {
    ASSIGN_OR_RETURN(const nlohmann::json config, parse_json_object(text->text, text->name));
    small = has_per_layer_embeddings(config);
  }
  ChatFormat guess;
  guess.primes_empty_thought = !small;
  if (jinja) {
    guess.warning = fmt::format(
        "{}: a chat template that Outrider does not know; its prompts are written as Gemma 4's {} models' are",
        jinja->name, small ? "small" : "large");
  }
  return guess;
}

}  // namespace outrider
