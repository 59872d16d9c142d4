#include "common/report/report.h"

#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace outrider {
namespace {

double ratio(std::int64_t a, std::int64_t b) { return b == 0 ? 0 : static_cast<double>(a) / static_cast<double>(b); }
double mean_ms(std::int64_t total_ns, std::int64_t count) { return ratio(total_ns, count) / 1e6; }

/// Collects the fields of a RequestMetrics.
struct Counts {
  nlohmann::json object = nlohmann::json::object();
  void operator()(std::string_view name, std::int64_t value, auto&&...) {
    if (name.ends_with("_ns"))
      object[std::string(name.substr(0, name.size() - 3)) + "_ms"] = static_cast<double>(value) / 1e6;
    else
      object[std::string(name)] = value;
  }
  void operator()(std::string_view name, const std::vector<std::int64_t>& values, auto&&...) {
    object[std::string(name)] = values;
  }
};

}  // namespace

double tokens_per_second(const Generation& generation) {
  const auto decoded = static_cast<std::int64_t>(generation.tokens.size()) - 1;
  return decoded <= 0 ? 0 : 1e9 * ratio(decoded, generation.metrics.decode_ns);
}

nlohmann::json counts_json(const RequestMetrics& metrics) {
  Counts counts;
  RequestMetrics::fields(counts, metrics);
  return counts.object;
}

nlohmann::json metrics_json(const Generation& generation) {
  const RequestMetrics& m = generation.metrics;
  nlohmann::json object = counts_json(m);
  object.update({{"speculative_tok_per_sec", tokens_per_second(generation)},
                 {"draft_tokens_per_batch", ratio(m.drafted_tokens, m.drafting_rounds)},
                 {"target_verify_ms", mean_ms(m.verify_ns, m.rounds)},
                 {"assistant_draft_ms", mean_ms(m.draft_ns, m.assistant_rounds())},
                 {"wire_bytes_to_drafter_per_token",
                  ratio(m.wire_bytes_to_drafter, static_cast<std::int64_t>(generation.tokens.size()))}});
  return object;
}

std::string metrics_text(const Generation& generation, std::optional<double> backbone_only_tok_per_sec) {
  const RequestMetrics& m = generation.metrics;
  std::string text;
  const auto line = [&](const char* name, const std::string& value) {
    text += fmt::format("{:<26} {}\n", name, value);
  };
  if (m.drafting_rounds == 0) {  // it was decoded plainly: there is nothing to say of drafts
    line("backbone_only_tok_per_sec", fmt::format("{:.1f}", tokens_per_second(generation)));
    line("target_verify_ms", fmt::format("{:.2f}", mean_ms(m.verify_ns, m.rounds)));
    line("rounds", fmt::format("{} for {} tokens", m.rounds, generation.tokens.size()));
    return text;
  }
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
