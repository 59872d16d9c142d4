#include "http-server/refused_fields.h"

#include <limits>

#include <fmt/format.h>

namespace outrider {
namespace {
using Json = nlohmann::json;

constexpr auto kOthers = {
    // OpenAI's
    "functions", "function_call", "audio", "suffix", "moderation", "conversation", "context_management",
    // Anthropic's
    "container", "mcp_servers", "compaction", "thread",
    // vLLM's
    "guided_json", "guided_regex", "guided_choice", "guided_grammar", "use_beam_search", "chat_template", "documents",
    "prompt_embeds", "kv_transfer_params", "ec_transfer_params", "logits_processors", "mm_processor_kwargs",
    "media_io_kwargs", "repetition_detection", "watermarking", "return_prompt_text", "return_weight_versions",
    "previous_input_messages",
    // llama.cpp's
    "samplers", "image_data", "grammar_lazy", "n_probs", "return_progress", "reasoning_budget_message"};

/// How long a thought may be: 0 would be none at all, and only what is below it no limit.
constexpr auto kThoughtLimits = {"thinking_token_budget", "thinking_budget_tokens", "reasoning_budget_tokens"};

bool asks_for_nothing(const Json& value) { return value.empty() || value == false || value == 0 || value == ""; }

}  // namespace

const std::vector<std::pair<const char*, Json>>& foreign_samplers() {
  static const std::vector<std::pair<const char*, Json>> kSamplers = {
      {"typical_p", 1},        {"mirostat", 0},         {"dry_multiplier", 0},          {"xtc_probability", 0},
      {"dynatemp_range", 0},   {"n_indent", 0},         {"t_max_predict_ms", -1},       {"top_n_sigma", -1},
      {"adaptive_target", -1}, {"lora", Json::array()}, {"post_sampling_probs", false}, {"min_keep", 0}};
  return kSamplers;
}

void refuse_unsupported(const JsonFields& fields) {
  for (const auto& [name, neutral] : foreign_samplers()) {
    const Json* value = fields.find(name);
    if (value == nullptr || *value == neutral) continue;
    const bool off = neutral.is_number() && neutral <= 0 && value->is_number() && *value <= 0;
    if (!off) fields.refuse(name, fmt::format("is {}, only {} is supported", show(*value), show(neutral)));
  }
  for (const char* name : kOthers) {
    const Json* value = fields.find(name);
    if (value != nullptr && !asks_for_nothing(*value)) fields.refuse(name, "is not supported");
  }
  for (const char* name : kThoughtLimits) {
    const Json* value = fields.find(name);
    if (value != nullptr && !(value->is_number() && *value < 0)) fields.refuse(name, "is not supported");
  }
  // Asked for by its presence.
  if (fields.find("web_search_options") != nullptr) fields.refuse("web_search_options", "is not supported");
  if (fields.integer("best_of", 1, 1, std::numeric_limits<std::int32_t>::max()) != 1)
    fields.refuse("best_of", "is not supported");
  for (const char* name : {"skip_special_tokens", "parse_tool_calls"})
    if (!fields.boolean(name, true)) fields.refuse(name, "cannot be switched off");
  fields.choice("reasoning_format", "auto", {"auto", "deepseek"});
  if (const Json* modalities = fields.find("modalities"))
    for (const Json& modality : *modalities)
      if (modality != "text") fields.refuse("modalities", fmt::format("has {}, wanted only text", show(modality)));
}

}  // namespace outrider
