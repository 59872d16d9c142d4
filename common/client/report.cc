#include "common/client/report.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "common/base/text.h"

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

std::string metrics_text(const Generation& generation, std::optional<double> plain_tok_per_sec) {
  const RequestMetrics& m = generation.metrics;
  const auto tokens = static_cast<std::int64_t>(generation.tokens.size());
  const double own_rate = tokens_per_second(generation);
  std::string text;
  const auto line = [&](const char* name, const std::string& value) { text += fmt::format("{:<22}{}\n", name, value); };
  const auto rate = [](double tok_per_sec) { return fmt::format("{:.1f} tokens per second", tok_per_sec); };
  const bool drafted = m.drafting_rounds > 0;
  if (plain_tok_per_sec) line("without drafts", rate(*plain_tok_per_sec));
  line(drafted || plain_tok_per_sec ? "with drafts" : "without drafts",
       rate(own_rate) + (plain_tok_per_sec && *plain_tok_per_sec > 0
                             ? fmt::format(", {:.2f} times plain", own_rate / *plain_tok_per_sec)
                             : ""));
  if (drafted) {
    line("accepted drafts", fmt::format("{} of {} ({:.0f} %), {:.1f} drafted a round", m.accepted_tokens,
                                        m.drafted_tokens, 100 * ratio(m.accepted_tokens, m.drafted_tokens),
                                        ratio(m.drafted_tokens, m.drafting_rounds)));
    std::vector<std::string> shares;
    for (std::size_t i = 0; i < m.accepted_per_position.size(); ++i)
      shares.push_back(fmt::format("{:.0f}", 100 * ratio(m.accepted_per_position[i], m.drafted_per_position[i])));
    if (!shares.empty()) line("  by position, %", fmt::format("{}", fmt::join(shares, " ")));
  }
  line("rounds", fmt::format("{} for {} tokens", m.rounds, tokens));
  line("verifying", fmt::format("{:.2f} ms a round", mean_ms(m.verify_ns, m.rounds)));
  if (drafted) {
    line("drafting", fmt::format("{:.2f} ms a round with a drafter", mean_ms(m.draft_ns, m.assistant_rounds())));
    line("sent to the drafter",
         fmt::format("{} bytes in rounds ({:.0f} a token), {} for the prompt", m.wire_bytes_to_drafter,
                     ratio(m.wire_bytes_to_drafter, tokens), m.wire_bytes_to_drafter_prompt));
  }
  return text;
}

std::string summary_text(const Generation& generation, std::optional<double> plain_tok_per_sec) {
  const RequestMetrics& m = generation.metrics;
  const double rate = tokens_per_second(generation);
  if (rate == 0) return counted(generation.tokens.size(), "token");
  std::string text = fmt::format("{:.1f} tok/s", rate);
  if (plain_tok_per_sec && *plain_tok_per_sec > 0)
    text += fmt::format(" ({:.2f} times plain)", rate / *plain_tok_per_sec);
  if (m.drafted_tokens == 0) return text + ", no drafts";
  return text + fmt::format(", {} of {} drafts accepted ({:.0f} %), {} rounds for {} tokens", m.accepted_tokens,
                            m.drafted_tokens, 100 * ratio(m.accepted_tokens, m.drafted_tokens), m.rounds,
                            generation.tokens.size());
}

namespace {

/// Returns the explanation of why_left_out() for an answer without any drafts.
std::string why_none(std::span<const RoundOutcome> rounds, std::optional<bool> drafter_there) {
  const auto late = std::ranges::count_if(rounds, [](const RoundOutcome& round) { return round.drafting_s() > 0; });
  if (late > 0) return fmt::format("no drafts came in time: {} of {} rounds asked for some", late, rounds.size());
  if (drafter_there == false) return "no drafts were made: no drafter was there to make them";
  if (rounds.size() < 8) return "no drafts were tried: the answer has " + counted(rounds.size(), "round");
  return fmt::format("no drafts were made: {}a trial would have taken more time than may be lost",
                     drafter_there ? "" : "no drafter was there to make them, or ");
}

}  // namespace

std::string why_left_out(std::span<const RoundOutcome> rounds, std::string_view isa,
                         std::optional<bool> drafter_there) {
  struct Sums {
    double rounds = 0, rows = 0, tokens = 0, drafted = 0, verify_s = 0, round_s = 0;
  } plain, drafting;
  for (const RoundOutcome& round : rounds) {
    Sums& sums = round.drafted == 0 ? plain : drafting;
    sums.rounds += 1;
    sums.rows += std::max(round.batch_rows, round.drafted + 1);
    sums.tokens += round.accepted + 1;
    sums.drafted += round.drafted;
    sums.verify_s += round.verify_s;
    sums.round_s += round.round_s;
  }
  if (2 * plain.rounds <= static_cast<double>(rounds.size())) return "";
  if (drafting.rounds == 0) return why_none(rounds, drafter_there);
  const auto mean = [](double sum, const Sums& of) { return sum / of.rounds; };
  const auto times = [&](double Sums::*sum) { return mean(drafting.*sum, drafting) / mean(plain.*sum, plain); };
  const double took = times(&Sums::round_s), brought = mean(drafting.tokens, drafting);
  const std::string what = fmt::format("drafts were left out of {:.0f} of {} rounds", plain.rounds, rounds.size());
  if (took < brought)
    return fmt::format("{}, where they were not likely to hold: of those made {:.0f} of {:.0f} did", what,
                       drafting.tokens - drafting.rounds, drafting.drafted);
  return fmt::format(
      "{}: here{} a pass of {:.0f} rows takes {:.1f} times as long as one of {:.0f}, so that a round with drafts takes "
      "{:.1f} times as long as a plain one and brings {:.1f} tokens",
      what, isa.empty() ? "" : fmt::format(" ({})", isa), mean(drafting.rows, drafting), times(&Sums::verify_s),
      mean(plain.rows, plain), took, brought);
}

}  // namespace outrider
