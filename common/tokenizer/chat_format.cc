#include "common/tokenizer/chat_format.h"

#include <fstream>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/checkpoint/gguf.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

// Published templates have 20 KB, tokenizer_config.json 1 MB with all added tokens.
constexpr std::uintmax_t kFileBytesMax = 16u << 20;

/// @return nullopt where there is no such file.
Result<std::optional<std::string>> read_if_there(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::optional<std::string>();
  const auto bytes = std::filesystem::file_size(path, error);
  if (error) return Error{Errc::kIo, fmt::format("{}: {}", path.string(), error.message())};
  if (bytes > kFileBytesMax) {
    return Error{Errc::kMalformed, fmt::format("{}: {} bytes, want at most {}", path.string(), bytes, kFileBytesMax)};
  }
  std::string text(bytes, '\0');
  std::ifstream file(path, std::ios::binary);
  if (!file.read(text.data(), static_cast<std::streamsize>(text.size()))) {
    return Error{Errc::kIo, fmt::format("{}: can not be read, want {} bytes", path.string(), bytes)};
  }
  return std::optional(std::move(text));
}

/// @return null where there is no such file.
Result<Json> read_object_if_there(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(const std::optional<std::string> text, read_if_there(path));
  if (!text) return Json();
  Json object = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return Error{Errc::kMalformed, fmt::format("{}: not a JSON object", path.string())};
  return object;
}

/// The template of tokenizer_config.json: one text, or a list of named ones.
std::string template_of(const Json& tokenizer_config) {
  if (!tokenizer_config.is_object()) return {};
  const auto found = tokenizer_config.find("chat_template");
  if (found == tokenizer_config.end()) return {};
  if (const auto* text = found->get_ptr<const std::string*>()) return *text;
  if (!found->is_array()) return {};
  for (const Json& entry : *found) {
    if (!entry.is_object() || !entry.contains("name") || entry["name"] != "default" || !entry.contains("template"))
      continue;
    if (const auto* text = entry["template"].get_ptr<const std::string*>()) return *text;
  }
  return {};
}

bool has_per_layer_embeddings(const Json& config) {
  const Json* const text = config.contains("text_config") ? &config["text_config"] : &config;
  if (!text->is_object() || !text->contains("hidden_size_per_layer_input")) return false;
  const Json& size = (*text)["hidden_size_per_layer_input"];
  return size.is_number() && size != 0;
}

/// @param unknown  where a template is that was not recognised; empty if there is none.
ChatFormat guessed(bool small, const std::string& unknown) {
  ChatFormat guess;
  guess.primes_empty_thought = !small;
  if (!unknown.empty()) {
    guess.warning = fmt::format(
        "{}: a chat template that Outrider does not know; its prompts are written as Gemma 4's {} models' are", unknown,
        small ? "small" : "large");
  }
  return guess;
}

}  // namespace

std::optional<ChatFormat> recognise_chat_template(std::string_view jinja) {
  const auto has = [&](std::string_view part) { return jinja.find(part) != jinja.npos; };
  if (!has("<|turn>") || !has("<|tool_call>call:")) return std::nullopt;
  ChatFormat format;
  // These variables exist for what is new in each revision.
  if (has("continues_into_next")) {
    format.revision = ChatFormat::Revision::kRefreshed;
  } else if (has("continue_same_model_turn")) {
    format.revision = ChatFormat::Revision::kStandard;
  } else if (has("last_user_message")) {
    format.revision = ChatFormat::Revision::kInterleaved;
  } else {
    return std::nullopt;
  }
  format.primes_empty_thought = has(R"(<|channel>thought\n<channel|>)");  // "\n" is spelled out in Jinja
  return format;
}

namespace {

Result<ChatFormat> gguf_chat_format(const std::filesystem::path& file) {
  ASSIGN_OR_RETURN(const GgufModel model, GgufModel::open(file));
  ASSIGN_OR_RETURN(const auto jinja, model.metadata.find<std::string_view>("tokenizer.chat_template"));
  if (const auto format = recognise_chat_template(jinja.value_or(std::string_view()))) return *format;
  ASSIGN_OR_RETURN(const auto ple, model.metadata.find<std::int64_t>("gemma4.embedding_length_per_layer_input"));
  return guessed(ple.value_or(0) > 0, jinja ? file.string() + ": tokenizer.chat_template" : "");
}

}  // namespace

Result<ChatFormat> load_chat_format(const std::filesystem::path& dir) {
  ASSIGN_OR_RETURN(const auto gguf, find_gguf(dir));
  if (gguf) return gguf_chat_format(*gguf);
  const std::filesystem::path jinja_path = dir / "chat_template.jinja";
  const std::filesystem::path config_path = dir / "tokenizer_config.json";
  ASSIGN_OR_RETURN(std::optional<std::string> jinja, read_if_there(jinja_path));
  const bool own_file = jinja.has_value();
  if (!own_file) {
    ASSIGN_OR_RETURN(const Json tokenizer_config, read_object_if_there(config_path));
    jinja = template_of(tokenizer_config);
  }
  if (const auto format = recognise_chat_template(*jinja)) return *format;

  ASSIGN_OR_RETURN(const Json config, read_object_if_there(dir / "config.json"));
  const bool small = !config.is_object() || has_per_layer_embeddings(config);
  return guessed(small, own_file ? jinja_path.string() : jinja->empty() ? "" : config_path.string());
}

}  // namespace outrider
