#include "common/model/gemma4/generation_config.h"

#include <limits>
#include <utility>

#include "common/base/json_fields.h"

namespace outrider {
namespace {
using nlohmann::json;

/// Returns the token ids under one key, an array or a single one; empty if the key is absent.
std::vector<TokenId> read_token_ids(const JsonFields& fields, const char* key) {
  std::vector<TokenId> ids;
  const json* const value = fields.find(key);
  if (value == nullptr) return ids;
  for (const json& id : value->is_array() ? *value : json::array({*value})) {
    if (id.is_number_unsigned() && std::in_range<TokenId>(id.get<std::uint64_t>())) {
      ids.push_back(id.get<TokenId>());
    } else {
      fields.fail(Errc::kMalformed, key, id, "a token id, or an array of some");
    }
  }
  return ids;
}

/// Returns one object's eos_token_id; empty if it has none.
std::vector<TokenId> read_eos_token_ids(const JsonFields& fields) {
  constexpr const char* kKey = "eos_token_id";
  if (fields.find(kKey) != nullptr && fields.find(kKey)->empty()) fields.wrong(kKey, "a token id, or an array of some");
  return read_token_ids(fields, kKey);
}

/// Reads the keys that only generation_config.json has.
void read_advice(const JsonFields& fields, GenerationConfig& config) {
  config.suppress_tokens = read_token_ids(fields, "suppress_tokens");
  const auto number = [&](const char* key, double low, double high) -> std::optional<float> {
    if (fields.find(key) == nullptr) return std::nullopt;
    return static_cast<float>(fields.number(key, {}, low, high));
  };
  config.temperature = number("temperature", 0, 100);
  config.top_p = number("top_p", 1e-6, 1);
  if (fields.find("top_k") != nullptr) {
    constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
    config.top_k = static_cast<std::int32_t>(fields.integer("top_k", {}, 0, kMax));
  }
}

}  // namespace

Result<GenerationConfig> load_generation_config(const ModelFiles& files) {
  GenerationConfig config;
  for (const bool generation : {true, false}) {
    ASSIGN_OR_RETURN(const auto text, generation ? files.generation_config_json() : files.config_json());
    if (!text) continue;
    const auto read = [&](const JsonFields& fields, FirstError&) {
      if (generation) read_advice(fields, config);
      const std::vector<TokenId> ids = read_eos_token_ids(fields);  // first, as in transformers
      return ids.empty() ? read_eos_token_ids(fields.object("text_config")) : ids;
    };
    ASSIGN_OR_RETURN(config.eos_token_ids, read_json_object(text->text, text->name, read));
    if (!config.eos_token_ids.empty()) return config;
  }
  config.eos_token_ids = {1};
  return config;
}

}  // namespace outrider
