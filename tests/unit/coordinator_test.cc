#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/decoding/drafting/draft_table.h"
#include "common/wire/messages/membership.h"
#include "coordinator-node/coordinator_core.h"
#include "tests/unit/protocol_support.h"

namespace outrider {
namespace {

/// A coordinator whose output can be asked for kind by kind.
class HeardCoordinator : public CoordinatorCore {
 public:
  using CoordinatorCore::CoordinatorCore;
  std::vector<Outgoing> take_outgoing() { return std::exchange(heard().send, {}); }
  std::vector<Notice> take_notices() { return std::exchange(heard().notices, {}); }
  std::vector<Rejection> take_rejections() { return std::exchange(heard().rejections, {}); }
  std::optional<TimePoint> next_deadline() { return heard().due; }

 private:
  CoordinatorOutput& heard() {
    CoordinatorOutput more = take_output();
    std::ranges::move(more.send, std::back_inserter(heard_.send));
    std::ranges::move(more.notices, std::back_inserter(heard_.notices));
    std::ranges::move(more.rejections, std::back_inserter(heard_.rejections));
    heard_.due = more.due;
    return heard_;
  }
  CoordinatorOutput heard_;
};

/// Another coordinator in its place. A coordinator is not moved: its sessions refer to it.
void restart(HeardCoordinator& core, const CoordinatorConfig& config) {
  std::destroy_at(&core);
  std::construct_at(&core, config);
}

// ---- pauses ----

TEST(Pause, OfTheCoordinatorIsNotTheSilenceOfItsWorkers) {
  Loop loop;
  HeardCoordinator core({.instance = 50, .failover = {.limit = 0}});
  core.on_message("v", {.body = hello(Role::kVerifier)}, loop.now());
  core.on_message("d", {.body = hello(Role::kDrafter)}, loop.now());
  core.on_message("c",
                  {.session = SessionId{9}, .body = Generate{.prompt = {1, 2, 3}, .max_tokens = 10, .draft_length = 2}},
                  loop.now());
  core.on_message("v",
                  {.session = SessionId{50},
                   .body = Verdict{.next_token = 40, .committed = 3, .hidden = zeros({2}), .kv = rows(0, 3)}},
                  loop.now());
  loop.run(core, milliseconds(60));
  core.take_notices();
  core.take_outgoing();

  loop.pause(seconds(4));
  loop.run(core, milliseconds(20));
  EXPECT_EQ(core.status().verifiers, 1);
  EXPECT_EQ(core.status().drafters, 1);
  EXPECT_EQ(core.status().sessions, 1);
  EXPECT_EQ(find<Verify>(core.take_outgoing(), "v"), nullptr) << "the drafter was not waited for";
  EXPECT_TRUE(core.take_notices().empty());

  // Who is silent while it looks is gone as ever.
  loop.run(core, milliseconds(3100));
  EXPECT_EQ(core.status().verifiers, 0);
  EXPECT_EQ(core.status().drafters, 0);
  EXPECT_NE(find<Failed>(core.take_outgoing(), "c"), nullptr);
}

// ---- coordinator ----

class Coordinator : public testing::Test {
 protected:
  /// A text fails with its verifier: how it goes on is played in tests/protocol/failover.txt.
  Coordinator() : core_({.instance = 50, .failover = {.limit = 0}}) {}
  void join(const PeerId& peer, Role role) { core_.on_message(peer, {.body = hello(role)}, now_); }
  void generate(std::int64_t max_tokens, std::int32_t draft_length, std::vector<TokenId> prompt = {1, 2, 3},
                std::vector<TokenId> stop = {}) {
    core_.on_message("c",
                     {.session = SessionId{9},
                      .body = Generate{.prompt = std::move(prompt),
                                       .max_tokens = max_tokens,
                                       .draft_length = draft_length,
                                       .stop_ids = std::move(stop),
                                       .wait_ms = 1000}},
                     now_);
  }
  void verdict(std::uint32_t round, std::int32_t accepted, TokenId next, Position committed, bool kv_from_start = false,
               Position from = 0) {
    core_.on_message("v",
                     {.session = SessionId{50},
                      .round = RoundId{round},
                      .body = Verdict{.accepted = accepted,
                                      .next_token = next,
                                      .committed = committed,
                                      .hidden = zeros({2}),
                                      .kv = rows(kv_from_start ? 0 : from, committed)}},
                     now_);
  }
  /// A verifier "v", a drafter "d" and a text whose first token is there: "d" is asked for two drafts.
  void begin_drafting() {
    join("v", Role::kVerifier);
    join("d", Role::kDrafter);
    generate(10, 2);
    verdict(0, 0, 40, 3);
  }
  std::vector<Outgoing> sent() { return core_.take_outgoing(); }
  HeardCoordinator core_;
  TimePoint now_{seconds(100)};
};

// It would compute K/V of them, on the verifier's cores perhaps.
TEST_F(Coordinator, ADrafterThatNeedsTokensGetsNoneWhileNoDraftsAreWanted) {
  join("v", Role::kVerifier);
  core_.on_message("t", {.body = token_hello()}, now_);
  core_.on_message("c",
                   {.session = SessionId{9},
                    .body = Generate{.prompt = {1, 2, 3},
                                     .max_tokens = 10,
                                     .draft_length = 8,
                                     .wait_ms = 1000,
                                     .policy = DraftPolicy::kAuto}},
                   now_);
  EXPECT_NE(find<KvChunk>(sent(), "t"), nullptr) << "nobody knows yet whether drafts will be wanted";
  // `auto` begins with plain rounds.
  for (std::uint32_t round = 0; round < 2; ++round) {
    core_.on_message("v",
                     {.session = SessionId{50},
                      .round = RoundId{round},
                      .body = Verdict{.next_token = 40, .committed = 3 + static_cast<Position>(round)}},
                     now_);
    const std::vector<Outgoing> out = sent();
    EXPECT_NE(find<Verify>(out, "v"), nullptr);
    EXPECT_EQ(find<Draft>(out, "t"), nullptr);
    EXPECT_EQ(find<KvChunk>(out, "t"), nullptr);
  }
}

TEST_F(Coordinator, DraftsFromTheTextItselfWithoutADrafterWhereThatPays) {
  join("v", Role::kVerifier);
  // Every token follows from the one before, so that the text repeats itself after five.
  core_.on_message("c",
                   {.session = SessionId{9},
                    .body = Generate{.prompt = {1, 2, 3, 4, 5, 1, 2},
                                     .max_tokens = 12,
                                     .draft_length = 16,
                                     .wait_ms = 1000,
                                     .policy = DraftPolicy::kAuto,
                                     .report_rounds = true}},
                   now_);
  const auto follows = [](TokenId token) { return token % 5 + 1; };
  sent();
  verdict(0, 0, 3, 7);
  std::size_t drafted = 0, rounds = 0;
  for (std::uint32_t round = 1; core_.status().sessions > 0; ++round) {
    Message message;
    const auto out = sent();
    const Verify* verify = find<Verify>(out, "v", &message);
    ASSERT_NE(verify, nullptr) << "round " << round;
    EXPECT_EQ(verify->kv_from, std::nullopt);
    const auto drafts = static_cast<std::int32_t>(verify->tokens.size()) - 1;
    for (std::size_t i = 1; i < verify->tokens.size(); ++i)
      EXPECT_EQ(verify->tokens[i], follows(verify->tokens[i - 1]));
    drafted += static_cast<std::size_t>(drafts);
    now_ += milliseconds(10 + drafts);  // a row costs little
    core_.on_message("v",
                     {.session = SessionId{50},
                      .round = RoundId{round},
                      .body = Verdict{.accepted = drafts,
                                      .next_token = follows(verify->tokens.back()),
                                      .committed = message.base + drafts + 1,
                                      .kv = {},
                                      .verify_ns = 10'000'000}},
                     now_);
    ++rounds;
  }
  EXPECT_GT(drafted, 0u) << "the policy measures plain rounds first, then tries";
  EXPECT_LT(rounds, 11u);
}

// Of the model's own answers where there are some, and else the assistant's.
TEST_F(Coordinator, DraftsFromATableOfTheVerifiersModel) {
  // Every token follows from the one before; of those above 10 no answer had any.
  DraftTableCounts counts(kTableOrder);
  counts.add(std::vector<TokenId>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 0);
  const std::string file = counts.file(7);
  const DraftTable table = DraftTable::of(std::as_bytes(std::span(file))).value();
  for (const std::uint64_t fingerprint : {7u, 8u}) {
    SCOPED_TRACE(fingerprint);
    restart(core_, {.instance = 50, .table = &table});
    Hello verifier = hello(Role::kVerifier);
    verifier.facts.backbone_fingerprint = fingerprint;
    core_.on_message("v", {.body = verifier}, now_);
    const auto notices = core_.take_notices();
    const bool refused = std::ranges::any_of(notices, [](const Notice& notice) {
      return notice.warning && notice.text.starts_with("the draft table is not used for ");
    });
    EXPECT_EQ(refused, fingerprint == 8);
    core_.on_message("c",
                     {.session = SessionId{9},
                      .body = Generate{.prompt = {1, 2},
                                       .max_tokens = 30,
                                       .draft_length = 16,
                                       .wait_ms = 1000,
                                       .report_rounds = true,
                                       .added = {.table = true}}},
                     now_);
    sent();
    verdict(0, 0, 3, 2);
    std::int64_t drafted = 0;
    auto out = sent();
    for (std::uint32_t round = 1; core_.status().sessions > 0; ++round) {
      Message message;
      const Verify* verify = find<Verify>(out, "v", &message);
      ASSERT_NE(verify, nullptr) << "round " << round;
      const auto drafts = static_cast<std::int32_t>(verify->tokens.size()) - 1;
      for (std::size_t i = 1; i < verify->tokens.size(); ++i) EXPECT_EQ(verify->tokens[i], verify->tokens[i - 1] + 1);
      drafted += drafts;
      now_ += milliseconds(10);
      core_.on_message("v",
                       {.session = SessionId{50},
                        .round = RoundId{round},
                        .body = Verdict{.accepted = drafts,
                                        .next_token = verify->tokens.back() + 1,
                                        .committed = message.base + drafts + 1,
                                        .kv = {},
                                        .verify_ns = 10'000'000}},
                       now_);
      out = sent();
    }
    ASSERT_NE(find<Done>(out, "c"), nullptr);
    const RequestMetrics& metrics = find<Done>(out, "c")->metrics;
    EXPECT_EQ(metrics.table.drafted_tokens, drafted);
    EXPECT_EQ(metrics.table.accepted_tokens, drafted);
    EXPECT_EQ(metrics.table.rounds > 0, fingerprint == 7);
    EXPECT_EQ(metrics.table.rounds, metrics.drafting_rounds);
  }
}

/// A text whose tokens count up, under `auto`, with a verifier "v" and a drafter "d" who know that.
class CountingText : public Coordinator {
 protected:
  /// @param round_trip  of the heartbeats of "d"
  void begin(const SamplingParams& sampling, const DraftTable& table, Duration round_trip = milliseconds(5)) {
    draws_ = sampling.rule == SamplingRule::kRejection;
    restart(core_, {.instance = 50, .table = &table});
    for (const Role role : {Role::kVerifier, Role::kDrafter}) {
      Hello worker = hello(role);
      worker.facts.backbone_fingerprint = table.fingerprint();
      worker.facts.vocab_size = 2000;
      worker.facts.context_max = 2000;
      core_.on_message(role == Role::kVerifier ? "v" : "d", {.body = worker}, now_);
    }
    core_.on_message("d", {.body = Heartbeat{(now_ - round_trip).time_since_epoch().count()}}, now_);
    core_.on_message("c",
                     {.session = SessionId{9},
                      .body = Generate{.prompt = {1, 2, 3},
                                       .max_tokens = 600,
                                       .draft_length = 16,
                                       .wait_ms = 1000,
                                       .sampling = sampling,
                                       .policy = DraftPolicy::kAuto}},
                     now_);
    sent();
    verdict(0, 0, 4, 3, /*kv_from_start=*/true);
  }
  /// "d" answers what it was sent, if anything: 3 drafts at most, and ahead for the case that they hold and nothing
  /// behind them. @return the round's drafts of "d".
  std::vector<TokenId> draft(std::vector<Outgoing>& out) {
    Message message;
    const Draft* asked = find<Draft>(out, "d", &message);
    if (asked == nullptr) return {};
    const auto tell = [&](std::vector<TokenId> after, int drafts) {
      Candidates candidates;
      candidates.draft_ns = 1'000'000;
      candidates.after = std::move(after);
      const TokenId first = asked->token + 1 + static_cast<TokenId>(candidates.after.size());
      for (TokenId token = first; token < first + drafts; ++token) {
        candidates.tokens.push_back(token);
        if (draws_) candidates.q.push_back({.ids = {token}, .weights = {1}});
      }
      core_.on_message(
          "d", {.session = message.session, .round = message.round, .base = message.base, .body = candidates}, now_);
      return candidates.tokens;
    };
    std::vector<TokenId> chain = asked->known;
    if (chain.empty()) {
      now_ += milliseconds(5);
      chain = tell({}, std::min(asked->draft_length, 3));
    }
    std::vector<TokenId> after = chain;
    after.push_back(chain.back() + 1);
    if (asked->ahead > 0) tell(std::move(after), 3);
    drafts_ahead_ = asked->ahead > 0;
    std::ranges::move(sent(), std::back_inserter(out));
    return chain;
  }
  /// "v" answers: all hold.
  void verify(const Message& message, const Verify& asked) {
    now_ += milliseconds(10);
    const auto drafts = static_cast<std::int32_t>(asked.tokens.size()) - 1;
    const Position end = message.base + drafts + 1;
    core_.on_message("v",
                     {.session = message.session,
                      .round = message.round,
                      .body = Verdict{.accepted = drafts,
                                      .next_token = asked.tokens.back() + 1,
                                      .committed = end,
                                      .hidden = zeros({2}),
                                      .kv = rows(asked.kv_from.value_or(end), end),
                                      .verify_ns = 10'000'000}},
                     now_);
  }
  bool draws_ = false, drafts_ahead_ = false;
};

/// A draft table of stretches of eight, of which the first two are the drafter's to tell.
std::string table_of_stretches() {
  DraftTableCounts counts(kTableOrder);
  for (TokenId first = 0; first < 1000; first += 10) {
    std::vector<TokenId> stretch(8);
    std::iota(stretch.begin(), stretch.end(), first);
    counts.add(stretch, 0);
  }
  return counts.file(7);
}

// `auto` lets what is looked up go on behind the assistant's drafts. Under `rejection` each is certain of itself; under
// `typical`, where drafts have a say in the text, nothing is added by measured times. Drafting ahead goes on.
TEST_F(CountingText, HasWhatIsLookedUpBehindTheDraftersDrafts) {
  const std::string file = table_of_stretches();
  const DraftTable table = DraftTable::of(std::as_bytes(std::span(file))).value();
  for (const SamplingRule rule : {SamplingRule::kMatch, SamplingRule::kRejection, SamplingRule::kTypical}) {
    SCOPED_TRACE(to_string(rule));
    begin({.temperature = 1, .rule = rule}, table);
    std::int64_t extended = 0, extended_ahead = 0, behind = 0, table_alone = 0;
    auto out = sent();
    while (core_.status().sessions > 0) {
      const auto chain = std::ssize(draft(out));
      Message message;
      const Verify* asked = find<Verify>(out, "v", &message);
      ASSERT_NE(asked, nullptr);
      for (std::size_t i = 1; i < asked->tokens.size(); ++i) ASSERT_EQ(asked->tokens[i], asked->tokens[i - 1] + 1);
      const std::int64_t drafts = std::ssize(asked->tokens) - 1, more = chain > 0 ? drafts - chain : 0;
      if (chain == 0) table_alone += drafts;
      behind += more;
      extended += more > 0;
      extended_ahead += more > 0 && drafts_ahead_;
      if (draws_ && more > 0) {
        ASSERT_EQ(std::ssize(asked->q), drafts);
        EXPECT_EQ(asked->q.back().probability(asked->tokens.back()), 1);
      }
      verify(message, *asked);
      out = sent();
    }
    ASSERT_NE(find<Done>(out, "c"), nullptr);
    const RequestMetrics& metrics = find<Done>(out, "c")->metrics;
    if (rule == SamplingRule::kTypical) {
      EXPECT_EQ(behind, 0);
    } else {
      EXPECT_GT(extended, 5);
      EXPECT_EQ(extended_ahead > 0, rule == SamplingRule::kMatch);
    }
    EXPECT_EQ(metrics.table.drafted_tokens, behind + table_alone);
    EXPECT_EQ(metrics.table.accepted_tokens, behind + table_alone);
    EXPECT_LT(metrics.table.rounds, metrics.drafting_rounds);
  }
}

// What is looked up behind the drafts has no policy to ask any more: the costs that it went by were the verifier's.
TEST_F(CountingText, WhoseVerifierIsLostWhileItsDrafterDraftsGoesOnAtAnother) {
  const std::string file = table_of_stretches();
  const DraftTable table = DraftTable::of(std::as_bytes(std::span(file))).value();
  begin({}, table);
  auto out = sent();
  Message message;
  const auto drafter_is_awaited = [&] {
    const Draft* asked = find<Draft>(out, "d");
    if (asked == nullptr || asked->tree || !asked->known.empty()) return false;
    const TokenId last = asked->token + std::min(asked->draft_length, 3);
    return last % 10 > 1 && last % 10 < 6;  // the table knows what follows
  };
  for (int rounds = 0; !drafter_is_awaited(); ++rounds) {
    ASSERT_LT(rounds, 100);
    draft(out);
    const Verify* asked = find<Verify>(out, "v", &message);
    ASSERT_NE(asked, nullptr);
    verify(message, *asked);
    out = sent();
  }
  core_.on_peer_gone("v", now_);
  EXPECT_FALSE(draft(out).empty());
  Hello other = hello(Role::kVerifier);
  other.facts = core_.fleet().workers().at("d").hello.facts;
  core_.on_message("w", {.body = other}, now_);
  EXPECT_NE(find<Prefill>(sent(), "w"), nullptr);
}

// However long its drafts are waited for: a drafter that is near shares the verifier's cores, and its waits are those
// of a busy machine.
TEST_F(CountingText, IsDraftedAheadOnlyByAFarDrafter) {
  DraftTableCounts counts(kTableOrder);
  counts.add(std::vector<TokenId>{1990, 1991, 1992, 1993, 1994}, 0);  // which the text does not come to
  const std::string file = counts.file(7);
  const DraftTable table = DraftTable::of(std::as_bytes(std::span(file))).value();
  for (const Duration round_trip : {Duration(std::chrono::microseconds(300)), Duration(milliseconds(5))}) {
    begin({}, table, round_trip);
    std::int64_t rounds = 0, ahead = 0;
    auto out = sent();
    for (; core_.status().sessions > 0; ++rounds) {
      draft(out);
      ahead += drafts_ahead_;
      Message message;
      const Verify* asked = find<Verify>(out, "v", &message);
      ASSERT_NE(asked, nullptr);
      verify(message, *asked);
      out = sent();
    }
    EXPECT_EQ(ahead > 0, round_trip > milliseconds(1)) << ahead << " of " << rounds << " rounds";
  }
}

TEST_F(Coordinator, EachVerifierHasItsOwnCosts) {
  // The drafts of the text itself always hold. Beside the last token a row costs nothing on "v", and three passes on
  // "w".
  const auto pass = [](const PeerId& peer, std::int64_t drafts) {
    return milliseconds(peer == "v" ? 10 : 10 + 30 * drafts);
  };
  Hello verifier = hello(Role::kVerifier);
  verifier.facts.context_max = 1000;
  for (const char* peer : {"v", "w"}) core_.on_message(peer, {.body = verifier}, now_);
  for (const std::uint64_t number : {1, 2}) {
    core_.on_message("c",
                     {.session = SessionId{number},
                      .body = Generate{.prompt = {1, 2, 3, 4, 5, 1, 2},
                                       .max_tokens = 300,
                                       .draft_length = 16,
                                       .wait_ms = 1000,
                                       .policy = DraftPolicy::kAuto}},
                     now_);
  }
  struct Rounds {
    int all = 0, drafting = 0;
    TimePoint now{seconds(100)};  ///< they work at the same time
  };
  std::map<PeerId, Rounds> rounds;
  while (core_.status().sessions > 0) {
    const auto out = sent();
    for (const Outgoing& request : out) {
      const auto* verify = std::get_if<Verify>(&request.message.body);
      if (verify == nullptr && !std::holds_alternative<Prefill>(request.message.body)) continue;
      const std::int64_t drafts = verify == nullptr ? 0 : std::ssize(verify->tokens) - 1;
      Rounds& seen = rounds[request.to];
      seen.all += verify != nullptr;
      seen.drafting += drafts > 0;
      seen.now += pass(request.to, drafts);
      const TokenId last = verify == nullptr ? 2 : verify->tokens.back();
      core_.on_message(request.to,
                       {.session = request.message.session,
                        .round = request.message.round,
                        .body = Verdict{.accepted = static_cast<std::int32_t>(drafts),
                                        .next_token = last % 5 + 1,
                                        .committed = verify == nullptr ? 7 : request.message.base + drafts + 1,
                                        .kv = {},
                                        .verify_ns = Duration(pass(request.to, drafts)).count()}},
                       seen.now);
    }
  }
  EXPECT_LT(rounds["v"].all, 80) << "300 tokens; 107 where both verifiers teach one model";
  EXPECT_GT(rounds["v"].drafting, 3 * rounds["v"].all / 4);
  EXPECT_GT(rounds["w"].all, 200);
  EXPECT_LT(rounds["w"].drafting, rounds["w"].all / 10);
}

TEST_F(Coordinator, ReportsARoundToWhoAsked) {
  join("v", Role::kVerifier);
  join("d", Role::kDrafter);
  core_.on_message(
      "c",
      {.session = SessionId{9},
       .body =
           Generate{.prompt = {1, 2, 3}, .max_tokens = 10, .draft_length = 2, .wait_ms = 1000, .report_rounds = true}},
      now_);
  verdict(0, 0, 40, 3);
  EXPECT_FALSE(find<Tokens>(sent(), "c")->round) << "the first token is the prompt's";
  now_ += milliseconds(7);
  core_.on_message("d", {.session = SessionId{50}, .round = RoundId{1}, .body = Candidates{{41, 42}, 5'000'000}}, now_);
  now_ += milliseconds(20);
  verdict(1, 1, 43, 5, false, 3);
  const auto out = sent();
  const auto& round = find<Tokens>(out, "c")->round;
  ASSERT_TRUE(round);
  EXPECT_EQ(round->draft_length, 2);
  EXPECT_EQ(round->drafts, (std::vector<TokenId>{41, 42}));
  EXPECT_EQ(round->outcome.drafted, 2);
  EXPECT_EQ(round->outcome.accepted, 1);
  EXPECT_DOUBLE_EQ(round->outcome.draft_s, 0.005);
  EXPECT_DOUBLE_EQ(round->outcome.draft_wire_s, 0.002);
  EXPECT_DOUBLE_EQ(round->outcome.round_s, 0.027);
  EXPECT_EQ(round->drafter, "d") << "with its first drafts";
}

TEST_F(Coordinator, GoesOnWithoutDraftsThatAreNotWorthTheWait) {
  join("v", Role::kVerifier);
  join("d", Role::kDrafter);
  core_.on_message("c",
                   {.session = SessionId{9},
                    .body = Generate{.prompt = {1, 2, 3},
                                     .max_tokens = 15,
                                     .draft_length = 4,
                                     .wait_ms = 1000,
                                     .policy = DraftPolicy::kAuto}},
                   now_);
  verdict(0, 0, 40, 3);
  Position committed = 3;
  std::uint32_t round = 1;
  const auto plain_round = [&] {
    Message message;
    const Verify* verify = find<Verify>(sent(), "v", &message);
    ASSERT_NE(verify, nullptr);
    now_ += milliseconds(10);
    Verdict verdict{.next_token = static_cast<TokenId>(60 + round), .committed = ++committed, .verify_ns = 10'000'000};
    if (verify->kv_from) {
      verdict.hidden = zeros({2});
      verdict.kv = rows(*verify->kv_from, committed);
    }
    core_.on_message("v", {.session = SessionId{50}, .round = RoundId{round++}, .body = std::move(verdict)}, now_);
  };
  std::optional<TimePoint> deadline;
  for (int i = 0; i < 8 && !deadline; ++i) {
    plain_round();
    deadline = core_.next_deadline();
  }
  ASSERT_TRUE(deadline) << "it drafts once it knows what plain rounds cost";
  EXPECT_GT(*deadline, now_);
  sent();
  now_ = *deadline;
  core_.on_tick(now_);
  const auto out = sent();
  ASSERT_NE(find<Verify>(out, "v"), nullptr);
  EXPECT_EQ(find<Verify>(out, "v")->tokens.size(), 1u);
  EXPECT_EQ(core_.next_deadline(), std::nullopt);
}

// A drafter that is late with a tree is as late as one with a chain: what drafts cost is at least that wait.
TEST(LateDrafter, TeachesTheSameWaitWhateverItWasAskedFor) {
  for (const DraftPolicy policy : {DraftPolicy::kFixed, DraftPolicy::kTree}) {
    SCOPED_TRACE(to_string(policy));
    TimePoint now{seconds(100)};
    HeardCoordinator core({.instance = 50});
    core.on_message("v", {.body = hello(Role::kVerifier)}, now);
    core.on_message("d", {.body = hello(Role::kDrafter)}, now);
    const Generate request{.prompt = {1, 2, 3}, .max_tokens = 10, .draft_length = 4, .wait_ms = 1000, .policy = policy};
    core.on_message("c", {.session = SessionId{9}, .body = request}, now);
    Verdict verdict{.next_token = 40, .committed = 3, .hidden = zeros({2}), .kv = rows(0, 3)};
    core.on_message("v", {.session = SessionId{50}, .body = verdict}, now);
    ASSERT_NE(find<Draft>(core.take_outgoing(), "d"), nullptr);
    now += milliseconds(600);
    core.on_tick(now);
    ASSERT_NE(find<Verify>(core.take_outgoing(), "v"), nullptr);
    now += milliseconds(10);
    verdict = {.next_token = 41, .committed = 4, .verify_ns = 10'000'000};
    core.on_message("v", {.session = SessionId{50}, .round = RoundId{1}, .body = verdict}, now);
    const Estimates& costs = core.fleet().workers().at("v").costs_with(DraftInput::kTargetRows);
    EXPECT_NEAR(round_terms(costs, DraftSource::kAssistant, 4, 1).drafting_s(), 0.6, 0.01);
    EXPECT_EQ(costs.plain_s.value(), 0) << "it was no plain round";
  }
}

// What a drafter with K/V of its own computes instead of drafts is no cost of drafts.
TEST(LateDrafter, TeachesNothingWhileItCatchesUp) {
  for (const Hello& drafter : {hello(Role::kDrafter), token_hello()}) {
    SCOPED_TRACE(drafter.name);
    TimePoint now{seconds(100)};
    HeardCoordinator core({.instance = 50});
    core.on_message("v", {.body = hello(Role::kVerifier)}, now);
    core.on_message("d", {.body = drafter}, now);
    const Generate request{.prompt = {1, 2, 3}, .max_tokens = 10, .draft_length = 4, .wait_ms = 1000};
    core.on_message("c", {.session = SessionId{9}, .body = request}, now);
    Verdict verdict{.next_token = 40, .committed = 3, .hidden = zeros({2}), .kv = rows(0, 3)};
    core.on_message("v", {.session = SessionId{50}, .body = verdict}, now);
    Message message;
    ASSERT_NE(find<Draft>(core.take_outgoing(), "d", &message), nullptr);
    now += milliseconds(100);
    message.body = NeedKv{.have = 3};
    core.on_message("d", message, now);
    ASSERT_NE(find<Verify>(core.take_outgoing(), "v"), nullptr);
    now += milliseconds(10);
    verdict = {.next_token = 41, .committed = 4, .verify_ns = 10'000'000};
    core.on_message("v", {.session = SessionId{50}, .round = RoundId{1}, .body = verdict}, now);
    const Estimates& costs = core.fleet().workers().at("v").costs_with(drafter.needs);
    EXPECT_NEAR(round_terms(costs, DraftSource::kAssistant, 4, 1).drafting_s(),
                drafter.needs == DraftInput::kTokens ? 0 : 0.1, 0.01);
  }
}

TEST_F(Coordinator, SilentDrafterCostsOneWarningAndNoText) {
  begin_drafting();
  sent();
  core_.take_notices();
  now_ += milliseconds(600);
  core_.on_message("v", {.body = Heartbeat{}}, now_);
  core_.on_tick(now_);
  Message message;
  auto out = sent();
  const Verify* verify = find<Verify>(out, "v", &message);
  ASSERT_NE(verify, nullptr);
  EXPECT_EQ(verify->tokens, std::vector<TokenId>{40});
  now_ += seconds(3);
  core_.on_message("v", {.body = Heartbeat{}}, now_);
  core_.on_tick(now_);
  int warnings = 0;
  for (const Notice& notice : core_.take_notices()) warnings += notice.warning;
  EXPECT_EQ(warnings, 1);
  EXPECT_EQ(core_.status().drafters, 0);
}

// What an autoscaler of drafters follows: a drafter more would have helped.
TEST_F(Coordinator, CountsDraftsThatWereWantedAndNotMade) {
  join("v", Role::kVerifier);
  generate(10, 2);
  using Counts = std::pair<std::int64_t, std::int64_t>;
  const auto counts = [&] { return Counts(core_.status().drafts_made, core_.status().drafts_missed); };
  verdict(0, 0, 40, 3);
  EXPECT_EQ(counts(), Counts(0, 1)) << "there is no drafter";
  join("d", Role::kDrafter);
  verdict(1, 0, 41, 4);
  Message draft;
  ASSERT_NE(find<Draft>(sent(), "d", &draft), nullptr);
  core_.on_message("d", {.session = SessionId{50}, .round = draft.round, .body = Candidates{{41, 42}, 5}}, now_);
  EXPECT_EQ(counts(), Counts(1, 1));
  verdict(2, 2, 43, 7, false, 4);
  ASSERT_NE(find<Draft>(sent(), "d"), nullptr);
  now_ += milliseconds(600);
  core_.on_message("v", {.body = Heartbeat{}}, now_);
  core_.on_tick(now_);
  EXPECT_EQ(counts(), Counts(1, 2)) << "it was late";
  core_.on_message("d", {.body = Heartbeat{}}, now_);
  verdict(3, 0, 44, 8, false, 7);
  ASSERT_NE(find<Draft>(sent(), "d", &draft), nullptr);
  core_.on_message("d", {.session = SessionId{50}, .round = draft.round, .body = Candidates{}}, now_);
  EXPECT_EQ(counts(), Counts(1, 3)) << "it declined";
}

TEST_F(Coordinator, CountsNoMissedDraftsThatNoDrafterCouldMakeOrNobodyWanted) {
  join("v", Role::kVerifier);
  generate(10, 0);
  verdict(0, 0, 40, 3);
  EXPECT_EQ(core_.status().drafts_missed, 0) << "drafts were not asked for";
  core_.on_message("c", {.session = SessionId{9}, .body = Cancel{}}, now_);
  Hello narrow = token_hello();
  narrow.facts.context_max = 2;
  core_.on_message("t", {.body = narrow}, now_);
  generate(10, 2);
  core_.on_message("v",
                   {.session = SessionId{51},
                    .body = Verdict{.next_token = 40, .committed = 3, .hidden = zeros({2}), .kv = rows(0, 3)}},
                   now_);
  ASSERT_NE(find<Verify>(sent(), "v"), nullptr);
  EXPECT_EQ(core_.status().drafts_missed, 0) << "another one of that context would not help";
}

// Though another's drafts are used.
TEST_F(Coordinator, AnUnsoundAnswerIsHeldAgainstItsDrafter) {
  restart(core_, {.instance = 50, .drafters_per_sequence = 2});
  join("e", Role::kDrafter);
  begin_drafting();
  Message message;
  ASSERT_NE(find<Draft>(sent(), "d", &message), nullptr);
  message.body = Candidates{.tokens = {4711}};
  core_.on_message("d", message, now_);
  message.body = Candidates{.tokens = {41}};
  core_.on_message("e", message, now_);
  ASSERT_NE(find<Verify>(sent(), "v"), nullptr);
  EXPECT_LT(core_.fleet().workers().at("d").reputation.yield(), 0.5);
  EXPECT_EQ(core_.fleet().workers().at("e").reputation.yield(), 0.5);
}

// Or its sequences would go on at a verifier of other bits, or a drafter of other tokens.
TEST_F(Coordinator, AWorkerThatIntroducesItselfAsSomethingElseIsAnother) {
  const Hello first = hello(Role::kVerifier);
  std::vector<Hello> others(5, first);
  others[0].role = Role::kEncoder;
  others[1].facts.context_max = 21;
  others[2].numeric_class = "ones";
  others[3].encoding_class = "soft-ones";
  others[4].needs = DraftInput::kTokens;
  for (const Hello& other : others) {
    restart(core_, {.instance = 50});
    for (const Hello& said : {first, first, other}) core_.on_message("v", {.body = said}, now_);
    const auto says_so = [](const Notice& notice) { return notice.text.find("something else") != std::string::npos; };
    EXPECT_EQ(std::ranges::count_if(core_.take_notices(), says_so), 1) << &other - others.data();
  }
}

// Such a drafter would compute the trunk of a tree anew for each step of a branch.
TEST_F(Coordinator, ADrafterThatNeedsTokensIsAskedForNoTree) {
  join("v", Role::kVerifier);
  core_.on_message("t", {.body = token_hello()}, now_);
  core_.on_message("c",
                   {.session = SessionId{9},
                    .body = Generate{.prompt = {1, 2, 3},
                                     .max_tokens = 10,
                                     .draft_length = 3,
                                     .wait_ms = 1000,
                                     .policy = DraftPolicy::kTree}},
                   now_);
  verdict(0, 0, 40, 3);
  const auto out = sent();
  ASSERT_NE(find<Draft>(out, "t"), nullptr);
  EXPECT_FALSE(find<Draft>(out, "t")->tree);
}

// `worth` comes from measured times, which must not decide a text.
TEST_F(Coordinator, TreesOnWhichTheTextDependsAreNotCutByTime) {
  for (const SamplingRule rule : {SamplingRule::kMatch, SamplingRule::kRejection, SamplingRule::kTypical}) {
    restart(core_, {.instance = 50});
    join("v", Role::kVerifier);
    join("d", Role::kDrafter);
    core_.on_message("c",
                     {.session = SessionId{9},
                      .body = Generate{.prompt = {1, 2, 3},
                                       .max_tokens = 17,
                                       .draft_length = 3,
                                       .wait_ms = 1000,
                                       .sampling = {.temperature = 1, .rule = rule},
                                       .policy = DraftPolicy::kTree}},
                     now_);
    verdict(0, 0, 40, 3);
    double worth = 0;
    Message message;
    for (std::uint32_t round = 1; round < 10; ++round) {
      const auto asked = sent();
      ASSERT_NE(find<Draft>(asked, "d", &message), nullptr);
      worth = std::max(worth, std::get<Draft>(message.body).worth);
      message.body = Candidates{.tokens = {41, 42, 43}, .draft_ns = 3'000'000, .depths = {1, 2, 1}};
      core_.on_message("d", message, now_ += milliseconds(3));
      now_ += milliseconds(10);
      const Position end = 3 + static_cast<Position>(round);
      core_.on_message("v",
                       {.session = SessionId{50},
                        .round = RoundId{round},
                        .body = Verdict{.next_token = 44,
                                        .committed = end,
                                        .hidden = zeros({2}),
                                        .kv = rows(end - 1, end),
                                        .verify_ns = 10'000'000}},
                       now_);
    }
    EXPECT_EQ(worth > 0, rule == SamplingRule::kMatch) << to_string(rule) << " " << worth;
  }
}

// As over a link that is too long: its answers come, all of them for rounds that are over.
TEST_F(Coordinator, ADrafterThatIsAlwaysLateIsAskedEverMoreRarely) {
  for (const Role role : {Role::kVerifier, Role::kDrafter}) {
    Hello worker = hello(role);
    worker.facts.context_max = 100'000;
    core_.on_message(worker.name, {.body = worker}, now_);
  }
  generate(100'000, 2);
  core_.take_notices();
  verdict(0, 0, 40, 3);
  std::uint32_t round = 1;
  Position committed = 3;
  std::deque<std::pair<TimePoint, RoundId>> asked;
  std::vector<double> asked_at;
  const auto run = [&](Duration duration, Duration late) {
    for (const TimePoint end = now_ + duration; now_ < end; now_ += milliseconds(10)) {
      for (const Outgoing& out : sent()) {
        if (std::holds_alternative<Draft>(out.message.body)) {
          asked.emplace_back(now_, out.message.round);
          asked_at.push_back(to_seconds(now_.time_since_epoch()) - 100);
        } else if (const auto* verify = std::get_if<Verify>(&out.message.body)) {
          const Position from = verify->kv_from.value_or(committed);
          verdict(round++, 0, 40, ++committed, false, from);
        }
      }
      while (!asked.empty() && now_ - asked.front().first >= late) {
        core_.on_message(
            "d", {.session = SessionId{50}, .round = asked.front().second, .body = Candidates{{41, 42}, 5}}, now_);
        asked.pop_front();
      }
      for (const PeerId peer : {"v", "d"}) core_.on_message(peer, {.body = Heartbeat{}}, now_);
      core_.on_tick(now_);
    }
  };
  run(seconds(60), milliseconds(700));
  ASSERT_LE(asked_at.size(), 8u) << "120 if it were asked whenever it is heard";
  ASSERT_GE(asked_at.size(), 6u);
  for (std::size_t i = 3; i < asked_at.size(); ++i)
    EXPECT_GT(asked_at[i] - asked_at[i - 1], 1.5 * (asked_at[i - 1] - asked_at[i - 2]));
  EXPECT_EQ(core_.take_notices().size(), 1u);
  run(seconds(10), milliseconds(50));  // asked again after 6 of them
  EXPECT_GT(asked_at.size(), 40u) << "one answer in time, and all is as before";
}

TEST_F(Coordinator, GivesADrafterNoMoreSessionsThanItTakes) {
  join("v", Role::kVerifier);
  Hello drafter = hello(Role::kDrafter);
  drafter.capacity.sessions_max = 2;
  core_.on_message("d", {.body = drafter}, now_);
  const auto ask = [&](std::uint64_t number) {
    core_.on_message(
        "c",
        {.session = SessionId{number},
         .body = Generate{.prompt = {1, 2, 3}, .max_tokens = 9, .draft_length = 2, .stop_ids = {}, .wait_ms = 1000}},
        now_);
    const auto out = sent();
    return find<Prefill>(out, "v")->kv_from.has_value();
  };
  EXPECT_TRUE(ask(1));
  EXPECT_TRUE(ask(2));
  EXPECT_FALSE(ask(3)) << "it writes without drafts";
  core_.on_message("c", {.session = SessionId{1}, .body = Cancel{}}, now_);
  sent();
  EXPECT_TRUE(ask(4));
}

TEST_F(Coordinator, AVerifierIsToldWhatTheDrafterWantsItsRowsRoundedTo) {
  join("v", Role::kVerifier);
  const auto prefill_of = [&](std::uint64_t number) {
    core_.on_message(
        "c", {.session = SessionId{number}, .body = Generate{.prompt = {1, 2, 3}, .max_tokens = 9, .draft_length = 2}},
        now_);
    const auto out = sent();
    return *find<Prefill>(out, "v");
  };
  EXPECT_EQ(prefill_of(8).wire, WireForm::kExact) << "there is no drafter";
  Hello drafter = hello(Role::kDrafter);
  drafter.wire = WireForm::kInt4;
  core_.on_message("d", {.body = drafter}, now_);
  EXPECT_EQ(prefill_of(9).wire, WireForm::kInt4);
  core_.on_message("v",
                   {.session = SessionId{51},
                    .body = Verdict{.next_token = 40, .committed = 3, .hidden = zeros({2}), .kv = rows(0, 3)}},
                   now_);
  core_.on_message("d", {.session = SessionId{51}, .round = RoundId{1}, .base = 3, .body = Candidates{.tokens = {41}}},
                   now_);
  const auto out = sent();
  ASSERT_NE(find<Verify>(out, "v"), nullptr);
  EXPECT_EQ(find<Verify>(out, "v")->wire, WireForm::kInt4);
}

// Over a link on which a byte takes 10 us: rows are rounded as soon as that shows, but where drafts have a say.
TEST_F(Coordinator, ADrafterThatLeavesItToUsGetsRoundedRowsOverAThinLink) {
  join("v", Role::kVerifier);
  Hello drafter = hello(Role::kDrafter);
  drafter.wire = WireForm::kAuto;
  drafter.facts.context_max = 1000;
  core_.on_message("d", {.body = drafter}, now_);
  const auto begin = [&](SessionId text, const SamplingParams& sampling) {
    Generate request{.prompt = {1, 2, 3}, .max_tokens = 15, .draft_length = 2, .wait_ms = 1000, .sampling = sampling};
    core_.on_message("c", {.session = text, .body = request}, now_);
    const auto out = sent();
    return find<Prefill>(out, "v")->wire;
  };
  std::uint64_t text = 50;
  const auto write = [&](const SamplingParams& sampling) {
    const WireForm form = begin(SessionId{text}, sampling);
    Position base = 3;
    std::uint32_t round = 0;
    const auto judge = [&](std::int32_t accepted) {
      const Position committed = round == 0 ? base : base + accepted + 1;
      core_.on_message("v",
                       {.session = SessionId{text},
                        .round = RoundId{round},
                        .body = Verdict{.accepted = accepted,
                                        .next_token = 40,
                                        .committed = committed,
                                        .hidden = zeros({2}),
                                        .kv = rows(round == 0 ? 0 : base, committed)}},
                       now_);
      base = committed;
      ++round;
    };
    judge(0);
    for (std::int32_t accepted = 2; base < 14; accepted = 2 - accepted) {
      std::size_t bytes = 0;
      for (const Outgoing& out : sent()) {
        const auto* chunk = std::get_if<KvChunk>(&out.message.body);
        const bool counts = chunk != nullptr || std::holds_alternative<Draft>(out.message.body);
        const auto size = chunk != nullptr ? static_cast<std::size_t>(1000 * (chunk->kv.to - chunk->kv.from)) : 500u;
        core_.on_sent(out.message, size);
        if (counts) bytes += size;
      }
      now_ += std::chrono::microseconds(10 * bytes);
      core_.on_message("d",
                       {.session = SessionId{text},
                        .round = RoundId{round},
                        .base = base,
                        .body = Candidates{.tokens = {41, 42}, .q = {}}},
                       now_);
      now_ += milliseconds(100);
      judge(accepted);
    }
    core_.on_message("c", {.session = SessionId{text}, .body = Cancel{}}, now_);
    sent();
    ++text;
    return form;
  };
  EXPECT_EQ(write({}), WireForm::kExact) << "nothing is known yet";
  for (int i = 0; i < 8; ++i) write({});
  EXPECT_EQ(write({}), WireForm::kInt8);
  EXPECT_EQ(write({.temperature = 1}), WireForm::kInt8) << "match";
  EXPECT_EQ(write({.temperature = 1, .rule = SamplingRule::kRejection}), WireForm::kExact);
  EXPECT_EQ(write({.temperature = 1, .rule = SamplingRule::kTypical}), WireForm::kExact);
  EXPECT_EQ(write({}), WireForm::kInt8);
}

// Where drafts have a say in the text it must be known whose they are.
TEST_F(Coordinator, ADrafterWithoutAKeyOnAnotherMachineDraftsNoTextThatDependsOnIt) {
  const SamplingParams match{.temperature = 1}, rejection{.temperature = 1, .rule = SamplingRule::kRejection},
      typical{.temperature = 1, .rule = SamplingRule::kTypical};
  std::uint64_t text = 50;
  /// Who is asked for the second token of a text.
  const auto drafter_of = [&](const SamplingParams& sampling) -> PeerId {
    core_.on_message("c",
                     {.session = SessionId{text},
                      .body = Generate{.prompt = {1, 2}, .max_tokens = 9, .draft_length = 2, .sampling = sampling}},
                     now_);
    core_.on_message("v",
                     {.session = SessionId{text},
                      .body = Verdict{.next_token = 40, .committed = 2, .hidden = zeros({2}), .kv = rows(0, 2)}},
                     now_);
    const auto out = sent();
    core_.on_message("c", {.session = SessionId{text++}, .body = Cancel{}}, now_);
    for (const PeerId peer : {"stranger", "known"})
      if (find<Draft>(out, peer) != nullptr) return peer;
    EXPECT_NE(find<Verify>(out, "v"), nullptr) << "it goes on plainly";
    return "";
  };
  join("v", Role::kVerifier);
  Hello stranger = hello(Role::kDrafter);
  stranger.unproven = true;
  core_.on_message("stranger", {.body = stranger}, now_);
  const auto warned = [&] {
    return std::ranges::count_if(core_.take_notices(), [](const Notice& notice) {
      return notice.warning && notice.text.find("has no key") != std::string::npos;
    });
  };
  EXPECT_EQ(warned(), 1);
  EXPECT_EQ(drafter_of({}), "stranger");
  EXPECT_EQ(drafter_of(match), "stranger");
  EXPECT_EQ(drafter_of(rejection), "");
  EXPECT_EQ(drafter_of(typical), "");
  EXPECT_EQ(warned(), 0) << "said once";
  join("known", Role::kDrafter);
  EXPECT_EQ(drafter_of(rejection), "known");
  EXPECT_EQ(drafter_of(typical), "known");
}

TEST_F(Coordinator, BytesOfALongMessageAreASignOfLife) {
  join("v", Role::kVerifier);
  join("d", Role::kDrafter);
  generate(10, 2);
  EXPECT_TRUE(find<Prefill>(sent(), "v")->kv_from.has_value());
  int asked = 0;
  bool spared = false;
  for (int i = 0; i < 300; ++i) {  // 30 s
    now_ += milliseconds(100);
    core_.on_arriving("v", now_);
    core_.on_message("d", {.body = Heartbeat{}}, now_);
    core_.on_tick(now_);
    const auto out = sent();
    EXPECT_EQ(find<Failed>(out, "c"), nullptr);
    if (const Prefill* again = find<Prefill>(out, "v")) {
      ++asked, spared = !again->kv_from;
      EXPECT_GE(i, 20) << "2 s are no long time for rows";
    }
  }
  EXPECT_EQ(asked, 1) << "the answer is on its way: asking again would only lengthen it";
  EXPECT_TRUE(spared) << "the drafter's rows are what takes so long";
  core_.on_message("t", {.body = token_hello()}, now_);
  verdict(0, 0, 40, 3);
  const auto out = sent();
  EXPECT_EQ(find<Tokens>(out, "c")->tokens, std::vector<TokenId>{40});
  EXPECT_EQ(find<Draft>(out, "d"), nullptr);
  EXPECT_NE(find<Draft>(out, "t"), nullptr) << "a drafter that needs no rows takes over";
  core_.on_peer_gone("t", now_);
  const auto plain = sent();
  ASSERT_NE(find<Verify>(plain, "v"), nullptr);
  EXPECT_EQ(find<Verify>(plain, "v")->kv_from, std::nullopt);
  // The next text does without them at once.
  core_.on_message(
      "c", {.session = SessionId{10}, .body = Generate{.prompt = {1, 2}, .max_tokens = 9, .draft_length = 2}}, now_);
  EXPECT_EQ(find<Prefill>(sent(), "v")->kv_from, std::nullopt);
  // The first does so to its end: its rows have become more.
  now_ += std::chrono::minutes(2);
  verdict(1, 0, 41, 4);
  const auto later = sent();
  EXPECT_EQ(find<Draft>(later, "d"), nullptr);
  ASSERT_NE(find<Verify>(later, "v"), nullptr);
  EXPECT_EQ(find<Verify>(later, "v")->kv_from, std::nullopt);
  // A message that never ends keeps nobody alive for ever.
  for (int i = 0; i < 700; ++i) {
    now_ += seconds(1);
    core_.on_arriving("v", now_);
    core_.on_tick(now_);
  }
  EXPECT_EQ(core_.status().verifiers, 0);
}

TEST(Failover, AnAnswerThatMovedIsNotAudited) {
  for (const bool moved : {false, true}) {
    SCOPED_TRACE(moved);
    HeardCoordinator core({.instance = 50, .audit = {.share = 1}});
    const TimePoint now{seconds(1)};
    for (const PeerId verifier : {"v", "w"}) {
      Hello body = hello(Role::kVerifier);
      body.name = verifier;
      core.on_message(verifier, {.body = body}, now);
    }
    core.on_message("c", {.session = SessionId{9}, .body = Generate{.prompt = {1, 2, 3}, .max_tokens = 2}}, now);
    const auto say = [&](const PeerId& verifier, std::uint32_t round, Position base) {
      core.on_message(verifier,
                      {.session = SessionId{50},
                       .round = RoundId{round},
                       .base = base,
                       .body = Verdict{.next_token = 40, .committed = base == 0 ? 3 : base + 1, .kv = {}}},
                      now);
    };
    say("v", 0, 0);
    if (moved) {
      core.on_peer_gone("v", now);
      Hello body = hello(Role::kVerifier);
      body.name = "x";
      core.on_message("x", {.body = body}, now);
    }
    core.take_outgoing();
    if (moved) say("w", 2, 0);
    say(moved ? "w" : "v", moved ? 3 : 1, 3);
    const auto out = core.take_outgoing();
    ASSERT_NE(find<Done>(out, "c"), nullptr);
    EXPECT_EQ(find<Done>(out, "c")->metrics.failovers, moved ? 1 : 0);
    EXPECT_EQ(find<Prefill>(out, moved ? "x" : "w") != nullptr, !moved);
  }
}

// A prompt's pictures over a modem, say.
TEST_F(Coordinator, ARequestThatIsStillLeavingIsNotRepeated) {
  join("v", Role::kVerifier);
  generate(10, 0);
  ASSERT_NE(find<Prefill>(sent(), "v"), nullptr);
  const auto repeats = [&](int ticks, bool leaving) {
    int asked = 0;
    for (int i = 0; i < ticks; ++i) {
      now_ += milliseconds(100);
      core_.on_message("v", {.body = Heartbeat{}}, now_);
      if (leaving) core_.on_leaving("v", now_);
      core_.on_tick(now_);
      const auto out = sent();
      EXPECT_EQ(find<Failed>(out, "c"), nullptr);
      asked += find<Prefill>(out, "v") != nullptr;
    }
    return asked;
  };
  EXPECT_EQ(repeats(600, true), 0) << "it cannot have been answered";
  EXPECT_EQ(repeats(15, false), 0) << "it has just gone";
  EXPECT_EQ(repeats(20, false), 1);
}

// Long messages of other sequences may follow each other for ever.
TEST_F(Coordinator, ALostRequestIsRepeatedOverABusyConnection) {
  join("v", Role::kVerifier);
  generate(10, 0);
  verdict(0, 0, 40, 3);
  ASSERT_NE(find<Verify>(sent(), "v"), nullptr);
  for (const bool arriving : {false, true}) {
    int asked = 0;
    for (int i = 0; i < 1200; ++i) {  // two minutes
      now_ += milliseconds(100);
      core_.on_message("v", {.body = Heartbeat{}}, now_);
      arriving ? core_.on_arriving("v", now_) : core_.on_leaving("v", now_);
      core_.on_tick(now_);
      asked += find<Verify>(sent(), "v") != nullptr;
    }
    EXPECT_GE(asked, 1);
    EXPECT_LE(asked, 2);
  }
}

// A prompt of a minute is not sent thirty times.
TEST_F(Coordinator, ARequestInWorkIsRepeatedLessAndLessOften) {
  join("v", Role::kVerifier);
  generate(10, 0);
  int sends = 0;
  for (int i = 0; i < 600; ++i) {
    core_.on_message("v", {.body = Heartbeat{}}, now_);
    core_.on_tick(now_);
    Message message;
    const auto out = sent();
    EXPECT_EQ(find<Failed>(out, "c"), nullptr);
    if (find<Prefill>(out, "v", &message) != nullptr) {
      ++sends;
      core_.on_message("v", {.session = message.session, .round = message.round, .body = Heartbeat{}}, now_);
    }
    now_ += milliseconds(100);
  }
  EXPECT_GE(sends, 5);
  EXPECT_LE(sends, 7) << "after 4, 8, 16, 16 seconds";
}

TEST(Failover, OneVerifierThatIsSilentAndBackIsNotCountedAgainAndAgain) {
  HeardCoordinator core({.instance = 50, .failover = {.limit = 2}});
  TimePoint now{seconds(1)};
  core.on_message("v", {.body = hello(Role::kVerifier)}, now);
  core.on_message("c", {.session = SessionId{9}, .body = Generate{.prompt = {1, 2, 3}, .max_tokens = 10}}, now);
  const auto be_silent = [&] {
    now += milliseconds(3100);
    core.on_tick(now);
    core.on_message("v", {.body = hello(Role::kVerifier)}, now);
    core.on_tick(now);
    const auto out = core.take_outgoing();
    return find<Failed>(out, "c") == nullptr && find<Prefill>(out, "v") != nullptr;
  };
  int times = 0;
  while (times < 50 && be_silent()) ++times;
  EXPECT_GE(times, 5);
  EXPECT_LT(times, 50) << "but a text that silences whoever has it must end";
}

TEST(Failover, WaitsForAVerifierWithTheMemory) {
  HeardCoordinator core({.instance = 50});
  const TimePoint now{seconds(100)};
  const auto join = [&](const PeerId& peer, std::int64_t bytes) {
    Hello verifier = hello(Role::kVerifier);
    verifier.capacity = {.kv_cost = {.bytes_per_position = 100}, .kv_bytes_max = bytes};
    core.on_message(peer, {.body = verifier}, now);
  };
  join("large", 3000);
  join("small", 1000);
  core.on_message("c", {.session = SessionId{9}, .body = Generate{.prompt = {1}, .max_tokens = 20}}, now);
  core.on_message("large", {.session = SessionId{50}, .body = Verdict{.next_token = 40, .committed = 1, .kv = {}}},
                  now);
  core.on_peer_gone("large", now);
  core.on_tick(now);
  const auto out = core.take_outgoing();
  EXPECT_EQ(find<Prefill>(out, "small"), nullptr) << "it would refuse";
  EXPECT_EQ(find<Failed>(out, "c"), nullptr);
  join("again", 3000);
  EXPECT_NE(find<Prefill>(core.take_outgoing(), "again"), nullptr);
}

// Rows beyond the sequence's tokens would put its drafters ahead of it: the next verifier would be asked for K/V rows
// from a position that it does not have, and refuse the whole sequence.
TEST(Failover, AVerifierWhoseRowsAreBeyondTheSequenceIsBroken) {
  const Message chunk{.session = SessionId{50}, .body = KvChunk{rows(0, 12)}},
      verdict{.session = SessionId{50},
              .body = Verdict{.next_token = 40, .committed = 3, .hidden = zeros({2}), .kv = rows(0, 12)}};
  for (const Message& broken : {chunk, verdict}) {
    HeardCoordinator core({.instance = 50, .failover = {.limit = 1}});
    const TimePoint now{seconds(1)};
    core.on_message("v", {.body = hello(Role::kVerifier)}, now);
    core.on_message("d", {.body = hello(Role::kDrafter)}, now);
    const Generate request{.prompt = {1, 2, 3}, .max_tokens = 10, .draft_length = 2};
    core.on_message("c", {.session = SessionId{9}, .body = request}, now);
    core.take_outgoing();
    core.on_message("w", {.body = hello(Role::kVerifier)}, now);
    core.on_message("v", broken, now);
    const auto out = core.take_outgoing();
    EXPECT_EQ(find<KvChunk>(out, "d"), nullptr);
    EXPECT_EQ(find<Failed>(out, "c"), nullptr);
    const Prefill* again = find<Prefill>(out, "w");
    ASSERT_NE(again, nullptr);
    EXPECT_EQ(again->kv_from, Position{0});
  }
}

// Hosts, processes and paths are for the log.
TEST(Failover, ErrorsNameNoWorkersToClients) {
  const std::string secret = "verifier-host-4711";
  Hello named = hello(Role::kVerifier);
  named.name = secret;
  const auto failure = [&](const std::function<void(HeardCoordinator&, TimePoint&)>& happens) {
    HeardCoordinator core({.instance = 50, .failover = {.limit = 0}});
    TimePoint now{seconds(1)};
    core.on_message("v", {.body = named}, now);
    core.on_message("c", {.session = SessionId{9}, .body = Generate{.prompt = {1, 2, 3}, .max_tokens = 10}}, now);
    core.take_outgoing();
    core.take_notices();
    happens(core, now);
    core.on_tick(now);
    const auto out = core.take_outgoing();
    const Failed* failed = find<Failed>(out, "c");
    EXPECT_NE(failed, nullptr);
    const auto notices = core.take_notices();
    const bool logged = std::ranges::any_of(
        notices, [&](const Notice& notice) { return notice.text.find(secret) != std::string::npos; });
    return std::pair(failed == nullptr ? "" : failed->message, logged);
  };
  const auto says = [](Body body) {
    return [body = std::move(body)](HeardCoordinator& core, TimePoint& now) {
      core.on_message("v", {.session = SessionId{50}, .body = body}, now);
    };
  };
  for (const auto& happens : std::vector<std::function<void(HeardCoordinator&, TimePoint&)>>{
           [](HeardCoordinator&core, TimePoint&now) { core.on_peer_gone("v", now); },
           [](HeardCoordinator&, TimePoint&now) { now += milliseconds(3100); },
           [](HeardCoordinator&core, TimePoint&now) { core.on_malformed("v", SessionId{50}, now); },
           says(Verdict{.accepted = 3}),
           says(Failed{Errc::kIo, "/models/secret: " + secret}),
           says(Failed{Errc::kMalformed, secret + ": the logit is nan"}),
       }) {
    const auto [message, logged] = failure(happens);
    EXPECT_FALSE(message.empty());
    EXPECT_EQ(message.find(secret), std::string::npos) << message;
    EXPECT_EQ(message.find("secret"), std::string::npos) << message;
    EXPECT_TRUE(logged) << message;
  }
  // What the client can mend is said as it is.
  EXPECT_EQ(failure(says(Failed{Errc::kUnsupported, "no such grammar"})).first, "no such grammar");
}

TEST_F(Coordinator, SaysTheSameRefusalOfAPeerOnceAMinute) {
  join("v", Role::kVerifier);
  core_.take_notices();
  const auto said = [&](const PeerId& peer, std::int32_t hidden_size) {
    Hello other = hello(Role::kDrafter);
    other.facts.hidden_size = hidden_size;
    core_.on_message(peer, {.body = other}, now_);
    const auto out = sent();
    EXPECT_NE(find<Refuse>(out, peer), nullptr) << "it is told each time";
    return core_.take_notices().size();
  };
  EXPECT_EQ(said("d", 3), 1u);
  now_ += seconds(59);
  EXPECT_EQ(said("d", 3), 0u);
  EXPECT_EQ(said("e", 3), 1u) << "another peer";
  EXPECT_EQ(said("d", 4), 1u) << "another reason";
  EXPECT_EQ(said("d", 3) + said("d", 4) + said("d", 3), 0u) << "in turns";
  std::size_t all = 0;
  for (std::int32_t size = 5; size < 1000; ++size) all += said("d", size);
  EXPECT_LT(all, 20u) << "however many reasons there are";
  now_ += seconds(61);
  EXPECT_EQ(said("d", 4), 1u);
}

TEST_F(Coordinator, WhoAsksForTheStatusWithoutEndIsAnsweredOnceATick) {
  for (int i = 0; i < 100; ++i) core_.on_message("c", {.body = StatusRequest{}}, now_);
  core_.on_message("another", {.body = StatusRequest{}}, now_);
  EXPECT_TRUE(sent().empty());
  core_.on_tick(now_);
  const auto out = sent();
  EXPECT_EQ(std::ranges::count_if(out, [](const Outgoing& one) { return one.to == "c"; }), 1);
  EXPECT_NE(find<Status>(out, "another"), nullptr);
  core_.on_tick(now_);
  EXPECT_EQ(find<Status>(sent(), "c"), nullptr);
}

// So that the transport can cut off who says much that is not (Endpoint::count_useless_message).
TEST_F(Coordinator, KnowsWhatWasOfNoUse) {
  const auto of_use = [&](const PeerId& from, Body body, std::uint64_t session = 0, std::uint32_t round = 0) {
    return core_.on_message(from, {.session = SessionId{session}, .round = RoundId{round}, .body = std::move(body)},
                            now_);
  };
  const Generate request{.prompt = {1, 2, 3}, .max_tokens = 10, .draft_length = 2, .stop_ids = {}};
  EXPECT_FALSE(of_use("v", Heartbeat{})) << "of somebody who has not joined";
  EXPECT_TRUE(of_use("v", hello(Role::kVerifier)));
  EXPECT_TRUE(of_use("d", hello(Role::kDrafter)));
  EXPECT_FALSE(of_use("d", hello(Role::kDrafter))) << "again";
  Hello other = hello(Role::kDrafter);
  other.facts.hidden_size += 1;
  EXPECT_FALSE(of_use("e", other)) << "does not fit";
  EXPECT_FALSE(of_use("v", Heartbeat{}));

  EXPECT_TRUE(of_use("c", request, 9));
  EXPECT_FALSE(of_use("c", request, 9)) << "again";
  EXPECT_FALSE(of_use("c", Generate{.prompt = {-1}, .stop_ids = {}}, 10)) << "cannot be done";
  EXPECT_FALSE(of_use("c", Step{}, 9)) << "nobody waits for it";
  EXPECT_FALSE(of_use("c", Step{}, 11)) << "of no session";
  EXPECT_FALSE(of_use("c", Cancel{}, 11)) << "of no session";
  EXPECT_FALSE(of_use("c", StatusRequest{}));

  const Verdict verdict{.next_token = 40, .committed = 3, .hidden = zeros({2}), .kv = rows(0, 3)};
  EXPECT_FALSE(of_use("v", verdict, 77)) << "of no session";
  EXPECT_TRUE(of_use("v", verdict, 50));
  EXPECT_FALSE(of_use("d", verdict, 50, 1)) << "makes no sense";
  EXPECT_TRUE(of_use("d", Candidates{.tokens = {41, 42}}, 50, 1));
  EXPECT_TRUE(of_use("d", Drain{}));
  EXPECT_FALSE(of_use("d", Drain{})) << "again";
  EXPECT_TRUE(of_use("c", Cancel{}, 9));
}

TEST_F(Coordinator, KnowsEachWorkersRoundTrip) {
  join("v", Role::kVerifier);
  join("d", Role::kDrafter);
  Membership membership({}, hello(Role::kVerifier), {});
  membership.on_message({.body = Welcome{50}}, now_);
  const auto round_trip = [&](milliseconds time) {
    now_ += seconds(1);
    core_.on_message("d", {.body = Heartbeat{}}, now_);
    core_.on_tick(now_);
    const auto out = sent();
    EXPECT_EQ(membership.on_message({.body = *find<Heartbeat>(out, "v")}, now_), Membership::Event::kDealtWith);
    now_ += time;
    core_.on_message("v", membership.take_output().send.at(0).message, now_);
    return std::chrono::duration_cast<milliseconds>(Duration(core_.status().workers.at(1).rtt_ns));
  };
  EXPECT_EQ(core_.status().workers.at(1).rtt_ns, 0);
  EXPECT_EQ(round_trip(milliseconds(10)), milliseconds(10));
  EXPECT_EQ(round_trip(milliseconds(90)), milliseconds(11)) << "one late answer says little";
  EXPECT_EQ(round_trip(milliseconds(5)), milliseconds(5)) << "an early one is the way's";
  core_.on_message("v", {.body = Heartbeat{std::numeric_limits<std::int64_t>::max()}}, now_);  // from the future
  core_.on_message("v", {.body = Heartbeat{1}}, now_);                                         // from long ago
  const Status status = core_.status();
  EXPECT_EQ(milliseconds(status.workers.at(1).rtt_ns / 1'000'000), milliseconds(5));
  EXPECT_EQ(status.workers.at(0).role, Role::kDrafter);
  EXPECT_EQ(status.workers.at(0).name, "d");
  EXPECT_EQ(status.workers.at(0).rtt_ns, 0);
}

TEST_F(Coordinator, NoTwoWorkersHaveOneNameInItsStatus) {
  for (const char* peer : {"v", "d", "e", "f"}) join(peer, peer[0] == 'v' ? Role::kVerifier : Role::kDrafter);
  std::vector<std::string> names;
  for (const WorkerStatus& worker : core_.status().workers) names.push_back(worker.name);
  EXPECT_EQ(names, (std::vector<std::string>{"d", "d#2", "d#3", "v"}));
  core_.on_peer_gone("d", now_);
  core_.on_peer_gone("e", now_);
  EXPECT_EQ(core_.status().workers.at(0).name, "d");
}

// ---- admission ----

/// A coordinator whose verifier takes `sessions` at once and has 3000 bytes for K/V, 100 for each position.
class Admission : public testing::Test {
 protected:
  void join(std::int64_t sessions) {
    Hello verifier = hello(Role::kVerifier);
    verifier.capacity = {.sessions_max = sessions, .kv_cost = {.bytes_per_position = 100}, .kv_bytes_max = 3000};
    core_.on_message("v", {.body = verifier}, now_);
  }
  void ask(const PeerId& client, std::uint64_t number, std::int64_t max_tokens = 5) {
    core_.on_message(
        client,
        {.session = SessionId{number},
         .body =
             Generate{
                 .prompt = {static_cast<TokenId>(number)}, .max_tokens = max_tokens, .stop_ids = {}, .wait_ms = 1000}},
        now_);
  }
  void cancel(const PeerId& client, std::uint64_t number) {
    core_.on_message(client, {.session = SessionId{number}, .body = Cancel{}}, now_);
    core_.on_tick(now_);
  }
  /// First prompt tokens, which are the clients' numbers, of the prompts that the verifier has been given since.
  std::vector<TokenId> started() {
    std::vector<TokenId> numbers;
    for (const Outgoing& out : core_.take_outgoing()) {
      if (const auto* prefill = std::get_if<Prefill>(&out.message.body)) numbers.push_back(prefill->tokens.front());
    }
    return numbers;
  }
  HeardCoordinator core_{{.instance = 50, .queue = {.waiting_max = 5}}};
  TimePoint now_{seconds(100)};
};

TEST_F(Admission, ClientsThatWaitTakeTurns) {
  join(1);
  for (const std::uint64_t number : {10, 11, 12, 13}) ask("a", number);
  ask("b", 20);
  ask("c", 30);
  EXPECT_EQ(started(), std::vector<TokenId>{10});
  EXPECT_EQ(core_.status().waiting, 5);
  std::vector<TokenId> order;
  for (const auto& [client, number] :
       std::vector<std::pair<PeerId, std::uint64_t>>{{"a", 10}, {"a", 11}, {"b", 20}, {"c", 30}, {"a", 12}}) {
    cancel(client, number);
    for (const TokenId next : started()) order.push_back(next);
  }
  EXPECT_EQ(order, (std::vector<TokenId>{11, 20, 30, 12, 13}));
  EXPECT_EQ(core_.status().waiting, 0);
}

TEST_F(Admission, WhatDoesNotFitNowWaitsAndIsNotOvertaken) {
  join(10);
  ask("a", 10, 17);  // 17 positions
  ask("b", 20, 15);  // 15: 32 in all
  ask("c", 30, 2);   // would fit
  EXPECT_EQ(started(), std::vector<TokenId>{10});
  const Status status = core_.status();
  EXPECT_EQ(status.waiting, 2);
  EXPECT_EQ(status.workers.at(0).kv_bytes, 1700);
  EXPECT_EQ(status.workers.at(0).kv_bytes_max, 3000);
  now_ += milliseconds(1500);  // longer than wait_ms, which is for a verifier to join
  core_.on_message("v", {.body = Heartbeat{}}, now_);
  core_.on_tick(now_);
  EXPECT_EQ(core_.status().waiting, 2);
  cancel("a", 10);
  EXPECT_EQ(started(), (std::vector<TokenId>{20, 30}));
  EXPECT_EQ(core_.status().workers.at(0).kv_bytes, 1700);
}

TEST_F(Admission, WhatWaitsForOneVerifierDoesNotHoldUpWhatAnotherTakes) {
  join(10);
  Hello small = hello(Role::kVerifier);
  small.capacity = {.kv_cost = {.bytes_per_position = 100}, .kv_bytes_max = 1000};
  ask("a", 10, 20);  // at the larger one, of which 1000 bytes are left
  core_.on_message("s", {.body = small}, now_);
  ask("b", 20, 15);  // for the larger one
  ask("c", 30, 9);
  ask("d", 40, 9);  // for either
  ask("e", 50, 1);
  std::map<TokenId, PeerId> at;
  for (const Outgoing& out : core_.take_outgoing())
    if (const auto* prefill = std::get_if<Prefill>(&out.message.body)) at[prefill->tokens[0]] = out.to;
  EXPECT_EQ(at, (std::map<TokenId, PeerId>{{10, "v"}, {30, "s"}})) << "the fifth would overtake at both";
  cancel("c", 30);
  EXPECT_EQ(started(), (std::vector<TokenId>{40, 50}));
  cancel("a", 10);
  EXPECT_EQ(started(), std::vector<TokenId>{20});
}

TEST_F(Admission, WhatWaitsForAnEncoderDoesNotHoldUpWhatNeedsNone) {
  const auto show = [&](const PeerId& client, std::uint64_t number) {
    Generate generate{.prompt = {1, 1, 1, 1}, .max_tokens = 5, .wait_ms = 1000};
    generate.media = {{.first = 1, .content = zeros({4})}};
    core_.on_message(client, {.session = SessionId{number}, .body = std::move(generate)}, now_);
  };
  Hello verifier = hello(Role::kVerifier), encoder = hello(Role::kEncoder);
  verifier.no_towers = true;
  encoder.capacity.sessions_max = 1;
  core_.on_message("v", {.body = verifier}, now_);
  core_.on_message("e", {.body = encoder}, now_);
  show("a", 10);
  show("b", 20);
  EXPECT_TRUE(started().empty());
  ask("c", 30);
  EXPECT_EQ(started(), std::vector<TokenId>{30});
  // A verifier with towers that has more to do is better than one whose encoder is full.
  Hello towers = hello(Role::kVerifier);
  core_.on_message("t", {.body = towers}, now_);
  core_.on_tick(now_);
  EXPECT_NE(find<Prefill>(core_.take_outgoing(), "t"), nullptr) << "it comes in time for the second";
  for (const std::uint64_t number : {40, 41, 42}) ask("d", number);
  cancel("c", 30);
  core_.take_outgoing();
  show("f", 60);
  EXPECT_NE(find<Prefill>(core_.take_outgoing(), "t"), nullptr);
}

TEST_F(Admission, WhatNeverFitsIsForTheVerifierToRefuse) {
  Hello verifier = hello(Role::kVerifier);
  verifier.capacity = {.kv_cost = {.bytes_per_position = 1000}, .kv_bytes_max = 3000};
  core_.on_message("v", {.body = verifier}, now_);
  ask("a", 10, 4);
  EXPECT_EQ(started(), std::vector<TokenId>{10});
  core_.on_message("v", {.session = SessionId{50}, .body = Failed{Errc::kOutOfRange, "too long"}}, now_);
  EXPECT_NE(find<Failed>(core_.take_outgoing(), "a"), nullptr);
  EXPECT_EQ(core_.status().workers.at(0).kv_bytes, 0);
}

TEST_F(Admission, AnAnswerOfWhateverLengthIsAsLongAsTheRoomiestVerifierAllows) {
  const auto start = [&](std::int64_t number, std::size_t prompt, bool shorten) {
    core_.on_message("a",
                     {.session = SessionId{static_cast<std::uint64_t>(number)},
                      .body = Generate{.prompt = std::vector<TokenId>(prompt, 1),
                                       .max_tokens = 50,
                                       .stop_ids = {},
                                       .wait_ms = 1000,
                                       .shorten = shorten}},
                     now_);
    Position positions = 0;
    PeerId verifier;
    for (const Outgoing& out : core_.take_outgoing()) {
      if (const auto* prefill = std::get_if<Prefill>(&out.message.body))
        positions = prefill->positions_max, verifier = out.to;
    }
    return std::pair(verifier, positions);
  };
  Hello small = hello(Role::kVerifier);
  small.facts.context_max = 100;
  Hello large = small;
  small.capacity = {.sessions_max = 9, .kv_cost = {.bytes_per_position = 100}, .kv_bytes_max = 1000};
  large.capacity = {.sessions_max = 9, .kv_cost = {.bytes_per_position = 100}, .kv_bytes_max = 2000};
  core_.on_message("small", {.body = small}, now_);
  EXPECT_EQ(start(10, 4, true), std::pair(PeerId("small"), Position{10}))
      << "4 of the prompt, and 7 of the answer, the last of which needs none";
  core_.on_message("large", {.body = large}, now_);
  EXPECT_EQ(start(11, 4, true), std::pair(PeerId("large"), Position{20}));
  EXPECT_EQ(start(12, 4, false).second, 53) << "for the verifier to refuse";
  EXPECT_EQ(start(13, 21, true).second, 70) << "likewise: not even the prompt fits";
}

TEST_F(Admission, MediaNeedAVerifiersMemoryToo) {
  for (const auto& [name, bytes] : {std::pair("1", 1000), {"2", 2000}}) {
    Hello verifier = hello(Role::kVerifier);
    verifier.capacity = {.kv_cost = {.bytes_per_position = 100}, .kv_bytes_max = bytes};
    core_.on_message(name, {.body = verifier}, now_);
  }
  const auto verifier_of = [&](std::uint64_t number, std::vector<WireMedium> media) {
    Generate generate{.prompt = {1, 1, 1, 1}, .max_tokens = 7, .stop_ids = {}, .wait_ms = 1000};
    generate.media = std::move(media);
    core_.on_message("a", {.session = SessionId{number}, .body = std::move(generate)}, now_);
    for (const Outgoing& out : core_.take_outgoing())
      if (std::holds_alternative<Prefill>(out.message.body)) return out.to;
    return PeerId();
  };
  EXPECT_EQ(verifier_of(10, {{.first = 1, .content = zeros({4})}}), "2") << "10 positions alone fill the first one";
  EXPECT_EQ(verifier_of(11, {}), "1");
}

// Soft tokens are mostly larger than the pixels. Their verifier would refuse the prompt, while others take what room
// there is.
TEST_F(Admission, SoftTokensNeedAVerifiersMemoryInPlaceOfThePixels) {
  Hello verifier = hello(Role::kVerifier);
  verifier.capacity = {.kv_cost = {.bytes_per_position = 100}, .kv_bytes_max = 5000};
  core_.on_message("v", {.body = verifier}, now_);
  core_.on_message("e", {.body = hello(Role::kEncoder)}, now_);
  Generate generate{.prompt = {1, 1, 1, 1}, .max_tokens = 7, .stop_ids = {}, .wait_ms = 1000};
  generate.media = {{.first = 1, .content = zeros({4})}};
  core_.on_message("a", {.session = SessionId{10}, .body = std::move(generate)}, now_);
  const auto reserved = [&] { return core_.fleet().workers().at("v").kv_bytes; };
  EXPECT_EQ(reserved(), 10 * 100 + 4 * 4);
  core_.on_message("e", {.session = SessionId{50}, .base = 1, .body = Encoded{{.first = 1, .content = zeros({3, 2})}}},
                   now_);
  EXPECT_NE(find<Prefill>(core_.take_outgoing(), "v"), nullptr);
  EXPECT_EQ(reserved(), 10 * 100 + 6 * 4);
}

// The verifier's own towers make them of the pixels, where there are some.
TEST_F(Admission, SoftTokensTooLargeToBeSentAreLeftToTheVerifier) {
  const WireTensor large = zeros({(16 << 20) + 1, 2});  // 128 MiB and a row
  for (const bool no_towers : {false, true}) {
    restart(core_, {.instance = 50});
    Hello verifier = hello(Role::kVerifier);
    verifier.no_towers = no_towers;
    if (no_towers) verifier.encoding_class.clear();
    core_.on_message("v", {.body = verifier}, now_);
    core_.on_message("e", {.body = hello(Role::kEncoder)}, now_);
    Generate generate{.prompt = {1, 1, 1, 1}, .max_tokens = 7, .stop_ids = {}, .wait_ms = 1000};
    generate.media = {{.first = 1, .content = zeros({4})}};
    core_.on_message("a", {.session = SessionId{10}, .body = std::move(generate)}, now_);
    core_.on_message("e", {.session = SessionId{50}, .base = 1, .body = Encoded{{.first = 1, .content = large}}}, now_);
    const auto out = core_.take_outgoing();
    const Prefill* prefill = find<Prefill>(out, "v");
    const Failed* failed = find<Failed>(out, "a");
    ASSERT_EQ(prefill != nullptr, !no_towers);
    ASSERT_EQ(failed != nullptr, no_towers);
    if (prefill != nullptr) {
      EXPECT_EQ(prefill->media[0].content.shape, std::vector<std::int64_t>{4});
    }
    if (failed != nullptr) {
      EXPECT_EQ(failed->code, Errc::kUnsupported);
      EXPECT_NE(failed->message.find("become 134217736 bytes of soft tokens, wanted at most 134217728"),
                std::string::npos)
          << failed->message;
    }
  }
}

TEST_F(Admission, AnAnswerOfWhateverLengthLeavesRoomForItsMedia) {
  Hello verifier = hello(Role::kVerifier);
  verifier.capacity = {.kv_cost = {.bytes_per_position = 100}, .kv_bytes_max = 1500};
  core_.on_message("v", {.body = verifier}, now_);
  core_.on_message("e", {.body = hello(Role::kEncoder)}, now_);
  Generate generate{.prompt = {1, 1, 1, 1}, .max_tokens = 50, .stop_ids = {}, .wait_ms = 1000, .shorten = true};
  generate.media = {{.first = 1, .content = zeros({4})}};
  core_.on_message("a", {.session = SessionId{10}, .body = std::move(generate)}, now_);
  EXPECT_EQ(core_.fleet().workers().at("v").kv_bytes, 14 * 100 + 4 * 4);
  core_.on_message("e", {.session = SessionId{50}, .base = 1, .body = Encoded{{.first = 1, .content = zeros({60, 2})}}},
                   now_);
  const auto out = core_.take_outgoing();
  ASSERT_NE(find<Prefill>(out, "v"), nullptr);
  EXPECT_EQ(find<Prefill>(out, "v")->positions_max, 10) << "480 bytes are the soft tokens'";
  core_.on_message("v", {.session = SessionId{50}, .body = Verdict{.next_token = 40, .committed = 4, .kv = {}}}, now_);
  const auto answer = core_.take_outgoing();
  ASSERT_NE(find<Tokens>(answer, "a"), nullptr);
  EXPECT_EQ(find<Tokens>(answer, "a")->max_tokens, 7);
}

TEST_F(Admission, AnAnswerOfWhateverLengthIsNotShortenedForAVerifierThatIsFull) {
  const auto join_with = [&](const PeerId& peer, std::int64_t bytes) {
    Hello verifier = hello(Role::kVerifier);
    verifier.capacity = {.sessions_max = 1, .kv_cost = {.bytes_per_position = 100}, .kv_bytes_max = bytes};
    core_.on_message(peer, {.body = verifier}, now_);
  };
  join_with("small", 1000);
  ask("a", 10);
  core_.on_message("b",
                   {.session = SessionId{20},
                    .body = Generate{.prompt = {1}, .max_tokens = 50, .wait_ms = 1000, .shorten = true}},
                   now_);
  core_.take_outgoing();
  join_with("large", 1500);
  const auto out = core_.take_outgoing();
  ASSERT_NE(find<Prefill>(out, "large"), nullptr);
  EXPECT_EQ(find<Prefill>(out, "large")->positions_max, 15);
}

TEST_F(Admission, AVerifierWhoseBooksDifferIsAskedAgain) {
  join(10);
  ask("a", 10);
  EXPECT_EQ(started(), std::vector<TokenId>{10});
  core_.on_message("v", {.session = SessionId{50}, .body = Failed{Errc::kUnavailable, "not now"}}, now_);
  EXPECT_EQ(find<Failed>(core_.take_outgoing(), "a"), nullptr);
  now_ += milliseconds(4100);
  core_.on_message("v", {.body = Heartbeat{}}, now_);
  core_.on_tick(now_);
  EXPECT_EQ(started(), std::vector<TokenId>{10});
}

TEST_F(Admission, TheQueueIsBoundedAndSharedByClient) {
  join(1);
  for (std::uint64_t number = 10; number < 17; ++number) ask("a", number);
  ask("b", 20);
  Message message;
  const auto out = core_.take_outgoing();
  const Failed* failed = find<Failed>(out, "a", &message);
  ASSERT_NE(failed, nullptr);
  EXPECT_EQ(message.session, SessionId{14});
  EXPECT_EQ(failed->code, Errc::kUnavailable);
  EXPECT_EQ(failed->message, "3 requests are waiting, 3 of them this client's; of 5 places the rest is for others");
  EXPECT_EQ(find<Failed>(out, "b"), nullptr) << "who finds room";
}

// A text whose verifier died needs room at the other one, where a smaller one would find it first.
TEST(Failover, IsNotOvertakenByTextsThatComeLater) {
  HeardCoordinator core({.instance = 50});
  const TimePoint now{seconds(100)};
  Hello verifier = hello(Role::kVerifier);
  verifier.facts.context_max = 1000;
  verifier.capacity = {.sessions_max = 9, .kv_cost = {.bytes_per_position = 100}, .kv_bytes_max = 3000};
  for (const char* peer : {"v", "w"}) core.on_message(peer, {.body = verifier}, now);
  const auto ask = [&](std::uint64_t number, std::int64_t positions) {
    core.on_message(
        "c",
        {.session = SessionId{number},
         .body = Generate{.prompt = {static_cast<TokenId>(number)}, .max_tokens = positions, .wait_ms = 1000}},
        now);
  };
  const auto started = [&] {  // at "w"
    std::vector<TokenId> first;
    for (const Outgoing& out : core.take_outgoing()) {
      if (const auto* prefill = std::get_if<Prefill>(&out.message.body); prefill != nullptr && out.to == "w")
        first.push_back(prefill->tokens[0]);
    }
    return first;
  };
  ask(1, 25);  // at "v"
  ask(2, 10);
  EXPECT_EQ(started(), std::vector<TokenId>{2});
  core.on_peer_gone("v", now);
  ask(3, 5);
  core.on_tick(now);
  EXPECT_TRUE(started().empty()) << "there is room for the third, but the first waits for more";
  core.on_message("c", {.session = SessionId{2}, .body = Cancel{}}, now);
  core.on_tick(now);
  EXPECT_EQ(started(), (std::vector<TokenId>{1, 3}));
}

TEST(Failover, HoldsUpNoTextsThatWantOtherVerifiers) {
  HeardCoordinator core({.instance = 50});
  const TimePoint now{seconds(100)};
  const auto join = [&](const PeerId& peer, const std::string& numeric_class) {
    Hello verifier = hello(Role::kVerifier);
    verifier.numeric_class = numeric_class;
    verifier.capacity.sessions_max = 1;
    core.on_message(peer, {.body = verifier}, now);
  };
  const auto ask = [&](std::uint64_t number) {
    core.on_message(
        "c", {.session = SessionId{number}, .body = Generate{.prompt = {1}, .max_tokens = 5, .wait_ms = 1000}}, now);
  };
  join("v", "one");
  ask(1);
  core.on_message("v", {.session = SessionId{50}, .body = Verdict{.next_token = 40, .committed = 1, .kv = {}}}, now);
  join("w", "one");
  ask(2);
  join("x", "other");
  core.on_peer_gone("v", now);
  core.take_outgoing();
  ask(3);
  EXPECT_NE(find<Prefill>(core.take_outgoing(), "x"), nullptr) << "the first waits for room at w";
}

// Without a verifier nobody knows how long a prompt may be.
TEST(Waiting, TheirPromptsAreBoundedToo) {
  HeardCoordinator core({.queue = {.waiting_bytes_max = 4000}});
  const auto ask = [&](std::uint64_t number) {
    core.on_message(
        "c",
        {.session = SessionId{number},
         .body = Generate{.prompt = std::vector<TokenId>(600, 1), .max_tokens = 5, .stop_ids = {}, .wait_ms = 1000}},
        TimePoint{seconds(100)});
    const auto out = core.take_outgoing();
    const Failed* failed = find<Failed>(out, "c");
    return failed == nullptr ? "" : failed->message;
  };
  EXPECT_EQ(ask(1), "");
  EXPECT_EQ(ask(2), "prompts of 2400 bytes are waiting, this one has 2400; of 4000 the rest is for others");
  core.on_message("c", {.session = SessionId{1}, .body = Cancel{}}, TimePoint{seconds(100)});
  core.take_outgoing();
  EXPECT_EQ(ask(4), "");
}

// For a verifier's successor the coordinator keeps the pictures of each text that runs.
TEST(Waiting, NoneStartsWhileThePicturesOfThoseThatRunAreTooLarge) {
  HeardCoordinator core({.instance = 50, .queue = {.open_bytes_max = 5000}});
  const TimePoint now{seconds(100)};
  core.on_message("v", {.body = hello(Role::kVerifier)}, now);
  const auto pixels = std::make_shared<const std::vector<std::byte>>(48 * 48 * 3);
  const auto ask = [&](std::uint64_t number) {
    Generate generate{.prompt = {1, 2, 3}, .max_tokens = 5};
    generate.media = {
        {.first = 1, .content = {.dtype = DType::kU8, .shape = {48, 48, 3}, .data = SharedBytes(pixels, *pixels)}}};
    core.on_message("c", {.session = SessionId{number}, .body = std::move(generate)}, now);
    return find<Prefill>(core.take_outgoing(), "v") != nullptr;
  };
  EXPECT_TRUE(ask(1));
  EXPECT_FALSE(ask(2));
  EXPECT_EQ(core.status().waiting, 1);
  core.on_message("c", {.session = SessionId{1}, .body = Cancel{}}, now);
  core.on_tick(now);
  EXPECT_NE(find<Prefill>(core.take_outgoing(), "v"), nullptr);
  EXPECT_EQ(core.status().waiting, 0);
}

// ---- drafter ----

// A client that takes the steps itself: the coordinator does nothing by itself between them.
class Stepwise : public Coordinator {
 protected:
  Stepwise() {
    join("v", Role::kVerifier);
    join("d", Role::kDrafter);
    core_.on_message("c",
                     {.session = SessionId{9},
                      .body = Generate{.prompt = {1, 2, 3},
                                       .max_tokens = 1000,
                                       .draft_length = 1,
                                       .stop_ids = {},
                                       .wait_ms = 1000,
                                       .stepwise = true}},
                     now_);
    verdict(0, 0, 40, 3);
  }
  /// Nothing happens but what keeps the workers' connections alive.
  void rest(int for_seconds) {
    for (int i = 0; i < for_seconds; ++i) {
      now_ += seconds(1);
      for (const char* peer : {"v", "d", "u"}) core_.on_message(peer, {.body = Heartbeat{}}, now_);
      core_.on_tick(now_);
    }
  }
  void step(Step step) { core_.on_message("c", {.session = SessionId{9}, .body = std::move(step)}, now_); }
};

TEST_F(Stepwise, ARestingSessionIsKeptAliveAndFailsWithItsVerifier) {
  sent();
  rest(40);
  const auto out = sent();
  EXPECT_EQ(find<Prefill>(out, "v"), nullptr) << "it may have pictures";
  Message message;
  ASSERT_NE(find<Verify>(out, "v", &message), nullptr);
  EXPECT_EQ(message.round, RoundId{}) << "which the verifier has answered";
  // What a client that does not read finds later must fit its queue.
  EXPECT_EQ(std::count_if(out.begin(), out.end(), [](const Outgoing& o) { return o.to == "c"; }), 1);
  verdict(0, 0, 40, 3);  // its answer is late by a round
  EXPECT_EQ(find<Tokens>(sent(), "c"), nullptr);
  core_.on_peer_gone("v", now_);
  ASSERT_NE(find<Failed>(sent(), "c"), nullptr);
}

TEST_F(Stepwise, AskingForDraftsAgainAndAgainKeepsTheVerifierAwakeToo) {
  core_.on_peer_gone("d", now_);
  sent();
  int repeated = 0;
  for (int i = 0; i < 12; ++i) {
    rest(10);
    step({.draft_length = 3, .drafts = {}});
    repeated += find<Verify>(sent(), "v") != nullptr;
  }
  EXPECT_GE(repeated, 3);  // in 120 s, after which a verifier forgets
}

TEST_F(Stepwise, WhoTakesNoStepLosesHisPlaceOnceSomebodyWaitsForIt) {
  Hello full = hello(Role::kVerifier);
  full.capacity.sessions_max = 1;
  core_.on_peer_gone("v", now_);
  core_.on_message("v", {.body = full}, now_);
  sent();
  const auto ask = [&](const PeerId& client, bool stepwise) {
    core_.on_message(
        client,
        {.session = SessionId{9},
         .body = Generate{.prompt = {1, 2, 3}, .max_tokens = 5, .stop_ids = {}, .wait_ms = 1000, .stepwise = stepwise}},
        now_);
  };
  ask("c", true);
  const auto answer = [&](std::uint32_t round, TokenId token, Position committed) {
    core_.on_message("v",
                     {.session = SessionId{51},
                      .round = RoundId{round},
                      .body = Verdict{.accepted = 0,
                                      .next_token = token,
                                      .committed = committed,
                                      .hidden = zeros({2}),
                                      .kv = rows(0, committed)}},
                     now_);
  };
  answer(0, 40, 3);
  rest(60);
  EXPECT_EQ(find<Failed>(sent(), "c"), nullptr) << "while nobody wants it";
  step({});
  answer(1, 41, 4);
  sent();
  ask("modest", false);
  rest(9);
  EXPECT_EQ(find<Prefill>(sent(), "v"), nullptr);
  rest(3);
  const auto out = sent();
  ASSERT_NE(find<Failed>(out, "c"), nullptr);
  EXPECT_EQ(find<Failed>(out, "c")->code, Errc::kUnavailable);
  EXPECT_NE(find<Prefill>(out, "v"), nullptr) << "of the one who waited";
}

TEST_F(Stepwise, WhoTakesNoStepLosesHisPlaceToASequenceWhoseVerifierDied) {
  restart(core_, {.instance = 50});  // a sequence may lose verifiers
  Hello full = hello(Role::kVerifier);
  full.capacity.sessions_max = 1;
  const auto ask = [&](const PeerId& client, bool stepwise) {
    core_.on_message(
        client,
        {.session = SessionId{9},
         .body = Generate{.prompt = {1, 2, 3}, .max_tokens = 5, .stop_ids = {}, .wait_ms = 1000, .stepwise = stepwise}},
        now_);
  };
  const auto first_token = [&](const PeerId& verifier, std::uint64_t session) {
    core_.on_message(
        verifier,
        {.session = SessionId{session}, .body = Verdict{.next_token = 40, .committed = 3, .kv = rows(0, 3)}}, now_);
  };
  core_.on_message("v", {.body = full}, now_);
  ask("c", true);
  first_token("v", 50);
  core_.on_message("w", {.body = full}, now_);
  ask("modest", false);
  first_token("w", 51);
  core_.on_peer_gone("w", now_);
  sent();
  rest(9);
  EXPECT_EQ(find<Prefill>(sent(), "v"), nullptr);
  rest(3);
  const auto out = sent();
  ASSERT_NE(find<Failed>(out, "c"), nullptr);
  EXPECT_EQ(find<Failed>(out, "c")->code, Errc::kUnavailable);
  ASSERT_NE(find<Prefill>(out, "v"), nullptr) << "of the one whose verifier died";
  EXPECT_EQ(find<Failed>(out, "modest"), nullptr);
}

/// An idle stepwise session of "c" has the only place at "v". A sequence of another class waits for a place elsewhere.
struct IdleBesideAnotherClass : Stepwise {
  void SetUp() override {
    restart(core_, {.instance = 50});
    const auto join = [&](const PeerId& peer, const std::string& numeric_class) {
      Hello full = hello(Role::kVerifier);
      full.name = peer;
      full.numeric_class = numeric_class;
      full.capacity.sessions_max = 1;
      core_.on_message(peer, {.body = full}, now_);
    };
    std::uint64_t session = 50;
    const auto answered = [&](const PeerId& client, const PeerId& verifier, bool stepwise = false) {
      core_.on_message(
          client,
          {.session = SessionId{9},
           .body =
               Generate{.prompt = {1, 2, 3}, .max_tokens = 5, .stop_ids = {}, .wait_ms = 1000, .stepwise = stepwise}},
          now_);
      core_.on_message(
          verifier,
          {.session = SessionId{session++}, .body = Verdict{.next_token = 40, .committed = 3, .kv = rows(0, 3)}}, now_);
    };
    join("v", "zeros");
    answered("c", "v", /*stepwise=*/true);
    join("u", "ones");
    answered("other", "u");
    join("w", "ones");
    answered("modest", "w");
    core_.on_peer_gone("w", now_);
    sent();
    rest(12);
  }
};

TEST_F(IdleBesideAnotherClass, KeepsAPlaceThatIsOfNoUseToWhoWaits) {
  EXPECT_EQ(find<Failed>(sent(), "c"), nullptr) << "one of another class waits";
  core_.on_peer_gone("v", now_);
  rest(12);
  EXPECT_EQ(find<Failed>(sent(), "c"), nullptr) << "it has no place";
}

// Also if that one is not the first who waits, and its answer of open length would need more than the memory there.
TEST_F(IdleBesideAnotherClass, MakesWayForWhoeverCanHaveItsPlace) {
  core_.on_message("third",
                   {.session = SessionId{9},
                    .body = Generate{.prompt = {1}, .max_tokens = 1'000'000, .stop_ids = {}, .shorten = true}},
                   now_);
  rest(1);
  EXPECT_NE(find<Failed>(sent(), "c"), nullptr);
}

// ---- rejections ----

Distribution distribution(const std::vector<std::pair<TokenId, float>>& weights) {
  Distribution result;
  for (const auto& [id, weight] : weights) result.add(id, weight);
  return result;
}

TEST(Rejection, ComparesBothTokensByTheDraftersDistribution) {
  const Distribution q = distribution({{3, 0.25f}, {5, 1}, {6, 0.25f}, {7, 0.5f}, {9, 0}});
  const auto compared = [&](TokenId draft, TokenId target) {
    Rejection rejection{.draft = draft, .target = target};
    compare(rejection, q);
    return rejection;
  };
  EXPECT_EQ(compared(5, 7).rank, 1);
  EXPECT_DOUBLE_EQ(*compared(5, 7).margin, std::log(2.0));
  EXPECT_EQ(compared(5, 3).rank, 2) << "of two equals the lower id";
  EXPECT_EQ(compared(5, 6).rank, 3);
  EXPECT_EQ(compared(7, 5).rank, 0) << "drawn, though not the likeliest";
  EXPECT_DOUBLE_EQ(*compared(7, 5).margin, -std::log(2.0));
  for (const TokenId absent : {4, 9, 99}) {
    EXPECT_EQ(compared(5, absent).rank, std::nullopt);
    EXPECT_EQ(compared(5, absent).margin, std::nullopt);
    EXPECT_EQ(compared(absent, 7).rank, 1);
    EXPECT_EQ(compared(absent, 7).margin, std::nullopt);
  }
}

class Rejections : public Coordinator {
 protected:
  void start(CoordinatorConfig config, const Generate& request) {
    config.instance = 50;
    restart(core_, config);
    join("v", Role::kVerifier);
    join("d", Role::kDrafter);
    core_.on_message("c", {.session = SessionId{9}, .body = request}, now_);
    verdict(0, 0, 40, 3);
  }
  void candidates(std::uint32_t round, std::vector<TokenId> tokens, std::vector<Distribution> q) {
    core_.on_message("d",
                     {.session = SessionId{50},
                      .round = RoundId{round},
                      .body = Candidates{.tokens = std::move(tokens), .q = std::move(q)}},
                     now_);
  }
  const Generate request_{.prompt = {1, 2, 3}, .max_tokens = 12, .draft_length = 3, .wait_ms = 1000};
  const std::vector<Distribution> q_ = {distribution({{41, 1}, {42, 0.5f}}),
                                        distribution({{42, 1}, {77, 0.25f}, {78, 0.5f}}), distribution({{43, 1}})};
};

TEST_F(Rejections, SayWhichDraftWasLostAndHowFarOffItWas) {
  start({.want_rejections = true}, request_);
  auto out = sent();
  ASSERT_NE(find<Draft>(out, "d"), nullptr);
  EXPECT_TRUE(find<Draft>(out, "d")->want_q);
  candidates(1, {41, 42, 43}, q_);
  out = sent();
  ASSERT_NE(find<Verify>(out, "v"), nullptr);
  EXPECT_TRUE(find<Verify>(out, "v")->q.empty()) << "drafts must match";
  EXPECT_TRUE(core_.take_rejections().empty());
  verdict(1, 1, 77, 5, false, 3);
  std::vector<Rejection> lost = core_.take_rejections();
  ASSERT_EQ(lost.size(), 1u);
  ASSERT_TRUE(lost[0].margin);
  EXPECT_DOUBLE_EQ(*std::exchange(lost[0].margin, {}), std::log(4.0));
  EXPECT_EQ(
      lost[0],
      (Rejection{
          .session = SessionId{50}, .round = RoundId{1}, .base = 3, .slot = 1, .draft = 42, .target = 77, .rank = 2}));
  candidates(2, {44, 45}, {});  // an older drafter, say
  verdict(2, 0, 46, 6, false, 5);
  EXPECT_EQ(core_.take_rejections(),
            (std::vector<Rejection>{
                {.session = SessionId{50}, .round = RoundId{2}, .base = 5, .slot = 0, .draft = 44, .target = 46}}));
  candidates(3, {47}, {distribution({{47, 1}})});
  verdict(3, 1, 48, 8, false, 6);
  EXPECT_TRUE(core_.take_rejections().empty()) << "every draft held";
}

TEST_F(Rejections, AreNotCollectedUnlessWanted) {
  start({}, request_);
  EXPECT_FALSE(find<Draft>(sent(), "d")->want_q);
  candidates(1, {41, 42, 43}, q_);
  EXPECT_TRUE(find<Verify>(sent(), "v")->q.empty());
  verdict(1, 1, 77, 5, false, 3);
  EXPECT_TRUE(core_.take_rejections().empty());
}

TEST_F(Rejections, UnderTheRuleRejectionTheVerifierGetsTheDistributionsAsEver) {
  Generate request = request_;
  request.sampling = {.temperature = 1, .rule = SamplingRule::kRejection};
  start({.want_rejections = true}, request);
  sent();
  candidates(1, {41, 42, 43}, q_);
  EXPECT_EQ(find<Verify>(sent(), "v")->q, q_);
  verdict(1, 0, 42, 4, false, 3);
  const auto rejections = core_.take_rejections();
  ASSERT_EQ(rejections.size(), 1u);
  EXPECT_EQ(rejections[0].slot, 0);
  EXPECT_EQ(rejections[0].rank, 1);
}

TEST_F(Rejections, OfTheTextsOwnDraftsHaveNoRank) {
  Generate request = request_;
  request.prompt = {1, 2, 3, 4, 5, 1, 2};
  request.added.ngram = true;
  restart(core_, {.instance = 50, .want_rejections = true});
  join("v", Role::kVerifier);
  core_.on_message("c", {.session = SessionId{9}, .body = request}, now_);
  verdict(0, 0, 3, 7);
  std::vector<Rejection> rejections;
  for (std::uint32_t round = 1; core_.status().sessions > 0 && rejections.empty(); ++round) {
    Message message;
    const auto out = sent();
    const Verify* verify = find<Verify>(out, "v", &message);
    ASSERT_NE(verify, nullptr);
    now_ += milliseconds(10);
    // Plain rounds go on as the text did, so that there is something to draft from; drafts are lost.
    const TokenId next = verify->tokens.size() == 1 ? verify->tokens[0] % 5 + 1 : 90;
    core_.on_message("v",
                     {.session = SessionId{50},
                      .round = RoundId{round},
                      .body = Verdict{.next_token = next, .committed = message.base + 1, .kv = {}}},
                     now_);
    rejections = core_.take_rejections();
  }
  ASSERT_EQ(rejections.size(), 1u);
  EXPECT_EQ(rejections[0].source, DraftSource::kNgram);
  EXPECT_EQ(rejections[0].target, 90);
  EXPECT_EQ(rejections[0].rank, std::nullopt);
  EXPECT_EQ(rejections[0].margin, std::nullopt);
}

TEST_F(Stepwise, ASessionThatNobodyWantsEndsAfterAnHour) {
  rest(3600);
  step({});
  verdict(1, 0, 41, 4);
  EXPECT_NE(find<Tokens>(sent(), "c"), nullptr);
  rest(3600);
  EXPECT_EQ(find<Failed>(sent(), "c"), nullptr);
  rest(60);
  const auto out = sent();
  ASSERT_NE(find<Failed>(out, "c"), nullptr);
  EXPECT_EQ(find<Failed>(out, "c")->code, Errc::kTimeout);
  EXPECT_NE(find<Free>(out, "v"), nullptr);
}

}  // namespace
}  // namespace outrider
