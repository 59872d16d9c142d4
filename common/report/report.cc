#include "common/report/report.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace outrider {
namespace {

double ratio(std::int64_t a, std::int64_t b) { return b == 0 ? 0 : static_cast<double>(a) / static_cast<double>(b); }
double mean_ms(std::int64_t total_ns, std::int64_t count) { return ratio(total_ns, count) / 1e6; }

}  // namespace

double tokens_per_second(const Generation& generation) {
  const auto decoded = static_cast<std::int64_t>(generation.tokens.size()) - 1;
  return decoded <= 0 ? 0 : 1e9 * ratio(decoded, generation.metrics.decode_ns);
}

nlohmann::json metrics_json(const Generation& generation) {
  const RequestMetrics& m = generation.metrics;
  return {{"speculative_tok_per_sec", tokens_per_second(generation)},
          {"draft_tokens_per_batch", ratio(m.drafted_tokens, m.drafting_rounds)},
          {"drafted_tokens", m.drafted_tokens},
          {"accepted_tokens", m.accepted_tokens},
          {"target_verify_ms", mean_ms(m.verify_ns, m.rounds)},
          {"assistant_draft_ms", mean_ms(m.draft_ns, m.assistant_rounds())},
          {"drafted_per_position", m.drafted_per_position},
          {"accepted_per_position", m.accepted_per_position},
          {"rounds", m.rounds},
          {"drafting_rounds", m.drafting_rounds},
          {"prefill_ms", static_cast<double>(m.prefill_ns) / 1e6},
          {"wire_bytes_to_drafter", m.wire_bytes_to_drafter},
          {"wire_bytes_to_drafter_per_token",
           ratio(m.wire_bytes_to_drafter, static_cast<std::int64_t>(generation.tokens.size()))},
          {"wire_bytes_to_drafter_prompt", m.wire_bytes_to_drafter_prompt},
          {"wire_bytes_to_verifier", m.wire_bytes_to_verifier},
          {"cached_prompt_tokens", m.cached_prompt_tokens}};
}

std::string metrics_text(const Generation& generation, std::optional<double> backbone_only_tok_per_sec) {
  const RequestMetrics& m = generation.metrics;
  std::string text;
  const auto line = [&](const char* name, const std::string& value) {
    text += fmt::format("{:<26} {}\n", name, value);
  };
  if (backbone_only_tok_per_sec) line("backbone_only_tok_per_sec", fmt::format("{:.1f}", *backbone_only_tok_per_sec));
  line("speculative_tok_per_sec", fmt::format("{:.1f}", tokens_per_second(generation)));
  line("draft_tokens_per_batch", fmt::format("{:.2f}", ratio(m.drafted_tokens, m.drafting_rounds)));
  line("accepted/drafted_tokens",
       fmt::format("{}/{} ({:.2f})", m.accepted_tokens, m.drafted_tokens, ratio(m.accepted_tokens, m.drafted_tokens)));
  line("target_verify_ms", fmt::format("{:.2f}", mean_ms(m.verify_ns, m.rounds)));
  line("assistant_draft_ms", fmt::format("{:.2f}", mean_ms(m.draft_ns, m.assistant_rounds())));
  std::string acceptance;
  for (std::size_t i = 0; i < m.accepted_per_position.size(); ++i) {
    acceptance +=
        fmt::format("{}{:.2f}", i == 0 ? "" : " ", ratio(m.accepted_per_position[i], m.drafted_per_position[i]));
  }
  line("accepted_per_position", acceptance.empty() ? "-" : acceptance);
  line("rounds", fmt::format("{} for {} tokens", m.rounds, generation.tokens.size()));
  line("wire_bytes_to_drafter",
       fmt::format("{} in rounds ({:.0f} a token), {} for the prompt", m.wire_bytes_to_drafter,
                   ratio(m.wire_bytes_to_drafter, static_cast<std::int64_t>(generation.tokens.size())),
                   m.wire_bytes_to_drafter_prompt));
  return text;
}

}  // namespace outrider
