// `auto` beside plain decoding and fixed lengths for many clients at once, in virtual time: the table of
// docs/policy.md, "Many clients".

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <regex>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/simulation/simulator.h"

namespace outrider::simulation {
namespace {

struct Text {
  const char* name;
  std::vector<double> acceptance, other;
};

/// Clients that ask again as soon as they have their answer.
struct Load {
  Pair pair;
  int clients = 1;
  std::int64_t output = 64;
};

/// Answers that have ended, and tokens of all.
struct Written {
  std::uint64_t answers = 0;
  std::int64_t tokens = 0;
};

Written written(const Simulator& simulator) {
  Written all;
  for (const auto& [number, answer] : simulator.answers()) {
    all.answers += answer.ended();
    all.tokens += std::ssize(answer.tokens);
  }
  return all;
}

/// OUTRIDER_AUTO_SEED, or 1: of delays and of what holds.
std::uint64_t seed() {
  const char* const text = std::getenv("OUTRIDER_AUTO_SEED");
  return text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
}

/// Tokens per second of all clients together, after the first ten answers and two of each.
double rate(const Load& load, DraftPolicy policy, std::int32_t draft_length) {
  using std::chrono::microseconds;
  Simulator simulator(seed(), {.delay_min = microseconds(50), .delay_max = microseconds(150)}, 0, {.pair = load.pair});
  simulator.run_for(std::chrono::milliseconds(100));  // the workers join
  const auto clients = static_cast<std::uint64_t>(load.clients);
  const std::uint64_t warm = std::max<std::uint64_t>(10, 2 * clients),
                      last = warm + std::max(2 * clients, 4000 / static_cast<std::uint64_t>(load.output));
  std::optional<Written> begun;
  TimePoint began{};
  for (std::uint64_t asked = 0;;) {
    const Written now = written(simulator);
    if (!begun && now.answers >= warm) {
      begun = now;
      began = simulator.now();
    }
    if (now.answers >= last || !simulator.violations().empty()) {
      EXPECT_TRUE(simulator.violations().empty()) << simulator.violations().front();
      return begun ? static_cast<double>(now.tokens - begun->tokens) / to_seconds(simulator.now() - began) : 0;
    }
    while (asked < now.answers + clients) {
      ++asked;
      simulator.request(asked, {static_cast<TokenId>(asked % 900)}, load.output, draft_length, {}, {}, policy);
    }
    simulator.run_for(load.pair.pass / 8);
  }
}

std::vector<std::int64_t> outputs(int clients, bool long_ones) {
  if (clients > 16) return {16};
  return clients > 8 || !long_ones ? std::vector<std::int64_t>{16, 64} : std::vector<std::int64_t>{16, 64, 512};
}

// OUTRIDER_AUTO_CELL="E4B easy (2|16) " shows the cells whose names this regular expression finds, and "" all, those of
// 64 clients and of answers of 512 too, which take half of the time. OUTRIDER_AUTO_SEED=2 plays other dice.
TEST(Auto, IsHardlyEverSlowerThanPlainDecodingOrAFixedLength) {
  using std::chrono::microseconds, std::chrono::milliseconds;
  const std::vector<std::pair<const char*, Pair>> pairs = {
      {"nano",
       {.pass = microseconds(1700),
        .further_row = microseconds(100),
        .draft = microseconds(300),
        .further_draft = microseconds(160)}},
      {"E4B",
       {.pass = milliseconds(60),
        .further_row = milliseconds(2),
        .draft = milliseconds(3),
        .further_draft = microseconds(2000)}},
      {"E4B-16",
       {.pass = milliseconds(50),
        .further_row = microseconds(400),
        .draft = milliseconds(1),
        .further_draft = microseconds(650)}},
      {"E4B-12",
       {.pass = milliseconds(48),
        .further_row = microseconds(1100),
        .draft = milliseconds(1),
        .further_draft = microseconds(650)}},
  };
  const std::vector<double> easy = {0.85}, hard = {0.12};
  const std::vector<Text> texts = {{"easy", easy, {}}, {"hard", hard, {}}, {"mixed", easy, hard}};
  const char* wanted = std::getenv("OUTRIDER_AUTO_CELL");
  int cells = 0, good = 0;
  for (const auto& [name, timed] : pairs) {
    for (const Text& text : texts) {
      for (const int clients : {1, 2, 4, 8, 16, 64}) {
        for (const std::int64_t output : outputs(clients, wanted != nullptr)) {
          const std::string cell = fmt::format("{} {} {} clients, answers of {}", name, text.name, clients, output);
          if (wanted == nullptr ? clients > 16 : !std::regex_search(cell, std::regex(wanted))) continue;
          Load load{timed, clients, output};
          load.pair.acceptance = text.acceptance;
          load.pair.other = text.other;
          const double plain = rate(load, DraftPolicy::kFixed, 0), chosen = rate(load, DraftPolicy::kAuto, 16);
          double best = plain;
          std::string lengths;
          for (const int length : {1, 2, 4, 8}) {
            const double fixed = rate(load, DraftPolicy::kFixed, length);
            lengths += fmt::format(" {}: {:.2f}", length, fixed / plain);
            best = std::max(best, fixed);
          }
          std::printf("%s: plain %.1f/s, of it%s, auto %.2f, %.2f of the best\n", cell.c_str(), plain, lengths.c_str(),
                      chosen / plain, chosen / best);
          ++cells;
          good += chosen >= 0.98 * plain && chosen >= 0.95 * best;
          EXPECT_GE(chosen, 0.92 * plain) << cell;
          EXPECT_GE(chosen, 0.8 * best) << cell;
        }
      }
    }
  }
  std::printf("%d of %d cells: at least 0.98 of plain decoding and 0.95 of the best fixed length\n", good, cells);
  if (wanted == nullptr) {
    EXPECT_GE(good, cells * 9 / 10);
  }
}

}  // namespace
}  // namespace outrider::simulation
