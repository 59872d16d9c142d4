#include "server/refused_fields.h"

#include <algorithm>
#include <limits>
#include <span>

#include <fmt/format.h>

#include "common/base/edit_distance.h"
#include "common/base/text.h"

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
    "previous_input_messages", "enable_response_messages",
    // llama.cpp's
    "samplers", "image_data", "grammar_lazy", "n_probs", "return_progress", "reasoning_budget_message"};

/// Supported fields, besides the sampling parameters.
constexpr std::string_view kRead =
    "model messages prompt max_tokens max_completion_tokens n_predict repeat_penalty repeat_last_n logit_bias seed "
    "stop stop_token_ids ignore_eos include_stop_str_in_output echo add_special_tokens truncate_prompt_tokens "
    "truncation_side continue_final_message add_generation_prompt n stream stream_options return_token_ids "
    "return_tokens_as_token_ids logprobs top_logprobs logprob_token_ids prompt_logprobs allowed_token_ids bad_words "
    "verbose timings_per_token include_reasoning tools tool_choice parallel_tool_calls response_format "
    "structured_outputs json_schema grammar cache_salt reasoning_effort reasoning thinking chat_template_kwargs "
    "enable_thinking speculative best_of modalities web_search_options skip_special_tokens parse_tool_calls "
    "reasoning_format";

/// Fields that are accepted without effect.
constexpr std::string_view kIdle =
    "user metadata safety_identifier session_id request_id user_profile_id workspace_id diagnostics store "
    "service_tier speed inference_geo priority billing_policy access_programs background_options fallbacks "
    "fallback_credit_token prediction prompt_cache_key prompt_cache_options prompt_cache_retention cache_control "
    "cache_prompt n_cache_reuse id_slot backend_sampling verbosity length_penalty early_stopping "
    "guided_decoding_backend spaces_between_special_tokens vllm_xargs return_token_offsets mm_payload "
    "return_mm_kwargs routed_experts_prompt_start stream_interval sse_ping_interval n_keep n_discard t_max_prompt_ms "
    "dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breakers mirostat_tau mirostat_eta xtc_threshold "
    "dynatemp_exponent adaptive_decay chat_format chat_parser generation_prompt preserved_tokens grammar_triggers "
    "reasoning_control reasoning_in_content thinking_forced_open";

/// Returns the fields of one API only.
std::string_view own_fields(std::string_view path) {
  if (path == "/v1/responses") {
    return "input instructions max_output_tokens text include previous_response_id background truncation image "
           "max_tool_calls";
  }
  if (path == "/v1/messages")
    return "system stop_sequences output_config output_format anthropic_version anthropic_beta";
  if (path == "/completion") return "n_cmpl return_tokens response_fields";
  return "";
}

/// Limits of a thought. 0 allows no thought at all; only a negative number is no limit.
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

std::vector<UnknownField> unknown_fields(const Json& request, std::vector<std::string> known, std::string_view path) {
  for (const std::string_view words : {kRead, kIdle, own_fields(path)}) {
    for (std::size_t begin = 0; begin < words.size();) {
      const std::size_t end = std::min(words.find(' ', begin), words.size());
      known.emplace_back(words.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  for (const auto& names : {std::span(kOthers), std::span(kThoughtLimits)})
    known.insert(known.end(), names.begin(), names.end());
  for (const auto& [name, neutral] : foreign_samplers()) known.emplace_back(name);
  std::ranges::sort(known);
  std::vector<UnknownField> unknown;
  for (const auto& [name, value] : request.items()) {
    if (std::ranges::binary_search(known, name) || name.starts_with("speculative.")) continue;  // llama.cpp's
    if (unknown.size() == kUnknownFieldsMax) break;
    // A name longer than any known name has no neighbour.
    unknown.push_back({name, name.size() > kWordMax
                                 ? "is no known field"
                                 : fmt::format("is no known field; the nearest is {}", nearest_of(known, name))});
  }
  return unknown;
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
  // Requested by its presence.
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
