#include "common/policy/bandit.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/check.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

/// An arm longer than the limit is played as far as the limit goes, as long as its source can draft at all.
bool playable(const Arm& arm, const DraftLimits& limits) {
  return arm.length == 0 ? !limits.must_draft || std::max({limits.assistant, limits.ngram, limits.table}) <= 0
                         : limits.of(arm.source) > 0;
}

DraftChoice play(const std::vector<Arm>& arms, std::size_t i, const DraftLimits& limits) {
  return {.source = arms[i].source, .length = std::min(arms[i].length, limits.of(arms[i].source)), .arm = i};
}

/// Marsaglia and Tsang 2000, for shape >= 1.
double gamma_sample(double shape, CounterRng& random) {
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  while (true) {
    // Box and Muller; 1 - u is in (0, 1].
    const double radius = std::sqrt(-2 * std::log(1 - random.uniform())),
                 angle = 2 * std::acos(-1.0) * random.uniform();
    const double x = radius * std::cos(angle), v = 1 + c * x;
    if (v <= 0) continue;
    const double cube = v * v * v;
    if (std::log(1 - random.uniform()) < 0.5 * x * x + d - d * cube + d * std::log(cube)) return d * cube;
  }
}

double beta_sample(double alpha, double beta, CounterRng& random) {
  const double a = gamma_sample(alpha, random), b = gamma_sample(beta, random);
  return a / (a + b);
}

Json arms_json(const std::vector<Arm>& arms) {
  Json list = Json::array();
  for (const Arm& arm : arms) list.push_back({to_string(arm.source), arm.length});
  return list;
}

/// So many of the enum's values, from the first, have arms.
std::size_t sources_of(const std::vector<Arm>& arms) {
  return 1 + static_cast<std::size_t>(std::ranges::max(arms, {}, &Arm::source).source);
}

/// The object of a saved state, or why it is none of this policy's.
Result<Json> parse_state(const std::string& text, const std::vector<Arm>& arms, const char* policy) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || json.value("policy", Json()) != Json(policy)) {
    return Error(Errc::kMalformed, "bandit state: not the JSON of a '{}' policy", policy);
  }
  if (json.value("arms", Json()) != arms_json(arms)) {
    return Error(Errc::kMalformed, "bandit state: arms {}, wanted {}",
                 json.value("arms", Json()).dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 200),
                 arms_json(arms).dump());
  }
  return json;
}

/// rows x columns of finite numbers, none negative. @return what is wrong otherwise.
Result<std::vector<std::vector<double>>> parse_table(const Json& json, const char* key, std::size_t rows,
                                                     std::size_t columns) {
  const Error error{Errc::kMalformed,
                    fmt::format("bandit state: '{}' wanted {} rows of {} numbers from 0 to 1e15", key, rows, columns)};
  const auto it = json.find(key);
  if (it == json.end() || !it->is_array() || it->size() != rows) return error;
  std::vector<std::vector<double>> table;
  for (const Json& row : *it) {
    if (!row.is_array() || row.size() != columns) return error;
    std::vector<double>& numbers = table.emplace_back();
    for (const Json& number : row) {
      if (!number.is_number() || !(number.get<double>() >= 0 && number.get<double>() <= 1e15)) return error;
      numbers.push_back(number.get<double>());
    }
  }
  return table;
}

}  // namespace

std::vector<Arm> default_arms(bool table) {
  std::vector<Arm> arms = {{}};
  for (const int length : {1, 2, 3, 4, 6, 8, 12, 16}) arms.push_back({DraftSource::kAssistant, length});
  for (const DraftSource source : {DraftSource::kNgram, DraftSource::kTable}) {
    if (source == DraftSource::kTable && !table) break;
    for (const int length : {2, 4, 8}) arms.push_back({source, length});
  }
  return arms;
}

// ---- UCB1 ----

Ucb1Length::Ucb1Length(std::vector<Arm> arms, const Options& options)
    : arms_(std::move(arms)), options_(options), stats_(arms_.size()) {
  CHECK(!arms_.empty() && options.discount > 0 && options.discount <= 1, "{} arms, discount {}", arms_.size(),
        options.discount);
}

DraftChoice Ucb1Length::choose(const DraftLimits& limits) {
  double pulls = 0, best_rate = 0;
  for (const Stats& stats : stats_) {
    pulls += stats.pulls;
    if (stats.seconds > 0) best_rate = std::max(best_rate, stats.tokens / stats.seconds);
  }
  double best = -1;
  std::size_t chosen = arms_.size();
  for (std::size_t i = 0; i < arms_.size(); ++i) {
    if (!playable(arms_[i], limits)) continue;
    const Stats& stats = stats_[i];
    double index = std::numeric_limits<double>::max();  // never played
    if (stats.pulls > 1e-9 && stats.seconds > 0) {
      index = stats.tokens / stats.seconds / best_rate +
              options_.exploration * std::sqrt(std::log(std::max(pulls, 1.0)) / stats.pulls);
    }
    if (index <= best) continue;
    best = index;
    chosen = i;
  }
  return chosen == arms_.size() ? DraftChoice{.arm = chosen} : play(arms_, chosen, limits);
}

void Ucb1Length::observe(const RoundOutcome& outcome) {
  if (outcome.arm >= arms_.size()) return;  // none could be played
  for (Stats& stats : stats_) {
    stats.pulls *= options_.discount;
    stats.tokens *= options_.discount;
    stats.seconds *= options_.discount;
  }
  Stats& stats = stats_[outcome.arm];
  stats.pulls += 1;
  stats.tokens += outcome.accepted + 1;
  stats.seconds += outcome.round_s;
}

std::string Ucb1Length::save() const {
  Json rows = Json::array();
  for (const Stats& stats : stats_) rows.push_back({stats.pulls, stats.tokens, stats.seconds});
  return Json{{"policy", "ucb1"}, {"arms", arms_json(arms_)}, {"stats", rows}}.dump();
}

Result<void> Ucb1Length::load(const std::string& json) {
  ASSIGN_OR_RETURN(const Json state, parse_state(json, arms_, "ucb1"));
  ASSIGN_OR_RETURN(const auto table, parse_table(state, "stats", arms_.size(), 3));
  for (std::size_t i = 0; i < table.size(); ++i) stats_[i] = {table[i][0], table[i][1], table[i][2]};
  return {};
}

// ---- Thompson ----

Thompson::Thompson(std::vector<Arm> arms, std::uint64_t seed, double discount)
    : arms_(std::move(arms)), seed_(seed), discount_(discount) {
  CHECK(!arms_.empty() && discount > 0 && discount <= 1, "{} arms, discount {}", arms_.size(), discount);
}

DraftChoice Thompson::choose(const DraftLimits& limits, const CostModel& costs) {
  if (!costs.knows_plain() && !limits.must_draft) return {};
  CounterRng random(mix64(seed_ + ++draws_));
  std::array<std::array<double, kDraftLengthMax + 1>, kDraftSources> tau;  // by drafts
  for (std::size_t s = 0; s < kDraftSources; ++s) {
    double survives = 1;
    tau[s][0] = 1;
    for (std::size_t i = 0; i < kDraftLengthMax; ++i) {
      survives *= beta_sample(1 + positions_[s][i].held, 1 + positions_[s][i].missed, random);
      tau[s][i + 1] = tau[s][i] + survives;
    }
  }
  DraftChoice best;
  double best_rate = -1;
  for (std::size_t i = 0; i < arms_.size(); ++i) {
    if (!playable(arms_[i], limits)) continue;
    const DraftChoice choice = play(arms_, i, limits);
    const double emitted = tau[static_cast<std::size_t>(choice.source)][static_cast<std::size_t>(choice.length)];
    const double rate = choice.length == 0
                            ? 1 / std::max(costs.plain_s(), 1e-12)
                            : tokens_per_second(emitted, costs.terms(choice.source, choice.length, emitted));
    if (rate <= best_rate) continue;
    best_rate = rate;
    best = choice;
  }
  return best;
}

void Thompson::observe(const RoundOutcome& outcome) {
  for (auto& source : positions_) {
    for (Beta& beta : source) {
      beta.held *= discount_;
      beta.missed *= discount_;
    }
  }
  auto& positions = positions_[static_cast<std::size_t>(outcome.source)];
  for (int i = 0; i < std::min({outcome.drafted, outcome.accepted + 1, kDraftLengthMax}); ++i) {
    Beta& beta = positions[static_cast<std::size_t>(i)];
    (i < outcome.accepted ? beta.held : beta.missed) += 1;
  }
}

std::string Thompson::save() const {
  Json rows = Json::array();
  for (std::size_t s = 0; s < sources_of(arms_); ++s) {
    for (const Beta& beta : positions_[s]) rows.push_back({beta.held, beta.missed});
  }
  return Json{
      {"policy", "thompson"}, {"arms", arms_json(arms_)}, {"positions", rows}, {"seed", seed_}, {"draws", draws_}}
      .dump();
}

Result<void> Thompson::load(const std::string& json) {
  ASSIGN_OR_RETURN(const Json state, parse_state(json, arms_, "thompson"));
  ASSIGN_OR_RETURN(const auto table, parse_table(state, "positions", sources_of(arms_) * kDraftLengthMax, 2));
  const Json seed = state.value("seed", Json()), draws = state.value("draws", Json());
  if (!seed.is_number_unsigned() || !draws.is_number_unsigned()) {
    return Error{Errc::kMalformed, "bandit state: 'seed' and 'draws' wanted whole numbers from 0"};
  }
  for (std::size_t i = 0; i < table.size(); ++i)
    positions_[i / kDraftLengthMax][i % kDraftLengthMax] = {table[i][0], table[i][1]};
  seed_ = seed.get<std::uint64_t>();
  draws_ = draws.get<std::uint64_t>();
  return {};
}

}  // namespace outrider
