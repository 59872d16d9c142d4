#include "drafter-node/drafter_core.h"

#include <gtest/gtest.h>

#include "tests/unit/protocol_support.h"

namespace outrider {
namespace {

TEST(Pause, OfADrafterIsNotTheSilenceOfItsCoordinator) {
  Loop loop;
  DrafterCore core({}, hello(Role::kDrafter));
  core.on_message({.body = Welcome{1}}, loop.now());
  core.on_message({.session = SessionId{1}, .body = KvChunk{rows(0, 3)}}, loop.now());
  check_worker_pause(core, loop);
}

/// What is sent to the coordinator next, if it is of this type.
template <typename Body>
std::optional<Body> said(const DrafterCore::Output& output) {
  for (const Outgoing& out : output.send)
    if (const auto* body = std::get_if<Body>(&out.message.body)) return *body;
  return std::nullopt;
}

// K/V of tokens are computed while nobody asks; who asks while many are missing is not kept waiting.
TEST(TokenDrafter, CatchesUpBeforeItDrafts) {
  Loop loop;
  Hello hello = token_hello();
  hello.facts.context_max = 200;
  DrafterCore core({}, hello);
  core.on_message({.body = Welcome{1}}, loop.now());
  const SessionId id{1};
  const auto tick = [&] {
    core.on_tick(loop.now());
    return core.take_output();
  };
  core.on_message({.session = id, .body = KvChunk{rows(0, 3)}}, loop.now());
  EXPECT_TRUE(tick().work.empty()) << "rows of the target";
  core.on_message({.session = id, .body = KvChunk{{.from = 0, .to = 90, .tokens = std::vector<TokenId>(90, 1)}}},
                  loop.now());
  DrafterCore::Output output = tick();
  ASSERT_EQ(output.work.size(), 1u);
  EXPECT_EQ(output.pass, (std::vector<DraftTurn>{{id, RoundId{0}, 90}}));
  core.on_turn(output.pass[0], {.more = true, .behind = 58});
  const Message ask{.session = id, .round = RoundId{1}, .base = 90, .body = Draft{.token = 5, .draft_length = 3}};
  core.on_message(ask, loop.now());
  output = tick();
  ASSERT_TRUE(said<NeedKv>(output));
  EXPECT_EQ(said<NeedKv>(output)->have, 90) << "nothing is missing but time";
  ASSERT_EQ(output.pass.size(), 1u) << "and it goes on";
  core.on_turn(output.pass[0], {.more = true, .behind = 26});
  core.on_message({.session = id, .round = RoundId{2}, .base = 90, .body = ask.body}, loop.now());
  output = tick();
  EXPECT_FALSE(said<NeedKv>(output));
  ASSERT_EQ(output.pass, (std::vector<DraftTurn>{{id, RoundId{2}, 90}}));
  core.on_turn(output.pass[0], {.drafts = {{.tokens = {7, 8, 9}}}});
  EXPECT_EQ(said<Candidates>(core.take_output())->tokens, (std::vector<TokenId>{7, 8, 9}));
  // What it cannot do is refused.
  Draft tree{.token = 5, .draft_length = 3, .tree = true}, far{.token = 5, .draft_length = 32};
  core.on_message({.session = id, .round = RoundId{3}, .base = 90, .body = tree}, loop.now());
  EXPECT_TRUE(said<Failed>(tick()));
  core.on_message({.session = id, .body = KvChunk{{.from = 90, .to = 180, .tokens = std::vector<TokenId>(90, 1)}}},
                  loop.now());
  core.on_message({.session = id, .round = RoundId{4}, .base = 180, .body = far}, loop.now());
  EXPECT_NE(said<Failed>(tick())->message.find("context has 200"), std::string::npos);
}

// What its K/V would not fit is refused before it is computed, and what was freed is there again.
TEST(TokenDrafter, RefusesATextThatItHasNoMemoryFor) {
  Loop loop;
  Hello hello = token_hello();
  hello.facts.context_max = 200;
  DrafterCore core({.kv_cost = {.bytes_per_position = 100}, .kv_bytes_max = 3000}, hello);
  core.on_message({.body = Welcome{1}}, loop.now());
  std::uint32_t round = 0;
  const auto ask = [&](std::uint64_t id, Position rows, std::int32_t drafts) {
    const auto send = [&](Position base, Body body) {
      core.on_message({.session = SessionId{id}, .round = RoundId{round}, .base = base, .body = std::move(body)},
                      loop.now());
    };
    const std::vector<TokenId> tokens(static_cast<std::size_t>(rows), 1);
    ++round;
    send(0, KvChunk{{.from = 0, .to = rows, .tokens = tokens}});
    send(rows, Draft{.token = 5, .draft_length = drafts});
    core.on_tick(loop.now());
    DrafterCore::Output output = core.take_output();
    for (const DraftTurn& turn : output.pass) core.on_turn(turn, {.drafts = {{.tokens = {7}}}});
    return output;
  };
  EXPECT_FALSE(ask(1, 15, 3).pass.empty());
  for (const DrafterCore::Output& output : {ask(2, 13, 1), ask(2, 12, 1)}) {
    EXPECT_TRUE(output.pass.empty());
    ASSERT_TRUE(said<Failed>(output));
    EXPECT_EQ(said<Failed>(output)->code, Errc::kUnavailable);
    EXPECT_NE(said<Failed>(output)->message.find("positions need 0.0 MiB of K/V"), std::string::npos);
  }
  core.on_message({.session = SessionId{1}, .body = Free{}}, loop.now());
  EXPECT_FALSE(ask(2, 15, 3).pass.empty()) << "1800 bytes came back";
}

// The loop goes around during a pass, so that heartbeats are in time.
TEST(TokenDrafter, HasOnePassAtATime) {
  Loop loop;
  DrafterCore core({}, token_hello());
  core.on_message({.body = Welcome{1}}, loop.now());
  const auto ask = [&](std::uint64_t session) {
    const auto say = [&](RoundId round, Position base, Body body) {
      core.on_message({.session = SessionId{session}, .round = round, .base = base, .body = std::move(body)},
                      loop.now());
    };
    say(RoundId{0}, 0, KvChunk{{.from = 0, .to = 3, .tokens = {1, 1, 1}}});
    say(RoundId{1}, 3, Draft{.token = 5, .draft_length = 1});
    core.on_tick(loop.now());
    return core.take_output();
  };
  const DrafterCore::Output first = ask(1);
  ASSERT_EQ(first.pass, (std::vector<DraftTurn>{{SessionId{1}, RoundId{1}, 3}}));
  loop.run(core, milliseconds(600));
  const DrafterCore::Output meanwhile = ask(2);
  EXPECT_TRUE(said<Heartbeat>(meanwhile));
  EXPECT_TRUE(meanwhile.work.empty());
  EXPECT_TRUE(meanwhile.pass.empty());
  core.on_turn(first.pass[0], {.drafts = {{.tokens = {7}}}});
  core.on_tick(loop.now());
  EXPECT_EQ(core.take_output().pass, (std::vector<DraftTurn>{{SessionId{2}, RoundId{1}, 3}}));
}

TEST(TokenDrafter, TakesNoHiddenRow) {
  Loop loop;
  DrafterCore core({}, token_hello());
  core.on_message({.body = Welcome{1}}, loop.now());
  core.on_message({.session = SessionId{1}, .body = KvChunk{{.from = 0, .to = 3, .tokens = {1, 1, 1}}}}, loop.now());
  core.on_message({.session = SessionId{1},
                   .round = RoundId{1},
                   .base = 3,
                   .body = Draft{.token = 5, .draft_length = 1, .hidden = zeros({2})}},
                  loop.now());
  core.on_tick(loop.now());
  const DrafterCore::Output output = core.take_output();
  EXPECT_TRUE(output.pass.empty());
  ASSERT_TRUE(said<Failed>(output));
  EXPECT_EQ(said<Failed>(output)->message, "a hidden row, wanted none");
}

// Another session asks for drafts again and again.
TEST(TokenDrafter, CatchesUpBesideABusySession) {
  Loop loop;
  Hello hello = token_hello();
  hello.facts.context_max = 200;
  DrafterCore core({}, hello);
  core.on_message({.body = Welcome{1}}, loop.now());
  const auto add_tokens = [&](std::uint64_t id, Position count) {
    core.on_message({.session = SessionId{id},
                     .body = KvChunk{{.from = 0,
                                      .to = count,
                                      .tokens = std::vector<TokenId>(static_cast<std::size_t>(count), 1)}}},
                    loop.now());
  };
  add_tokens(1, 3);
  add_tokens(2, 100);
  int catch_ups = 0;
  for (std::uint32_t round = 1; round <= 40; ++round) {
    core.on_message(
        {.session = SessionId{1}, .round = RoundId{round}, .base = 3, .body = Draft{.token = 5, .draft_length = 1}},
        loop.now());
    core.on_tick(loop.now());
    for (const DraftTurn& turn : core.take_output().pass) {
      if (turn.session == SessionId{2}) ++catch_ups;
      core.on_turn(turn, {.more = turn.session == SessionId{2}, .behind = turn.session == SessionId{2} ? 68 : 0});
    }
  }
  EXPECT_EQ(catch_ups, 5);
}

// Who asks a drafter that has no time gets none at once, however often; rows wait for a time without requests.
TEST(TokenDrafter, DeclinesWithoutLosingRows) {
  Loop loop;
  DrafterCore core({}, token_hello());
  core.on_message({.body = Welcome{1}}, loop.now());
  const SessionId first{1}, second{2};
  const auto add_tokens = [&](SessionId id, Position from, Position to) {
    const std::vector<TokenId> tokens(static_cast<std::size_t>(to - from), 1);
    core.on_message({.session = id, .body = KvChunk{{.from = from, .to = to, .tokens = tokens}}}, loop.now());
  };
  const auto ask = [&](SessionId id, std::uint32_t round, Position base) {
    core.on_message(
        {.session = id, .round = RoundId{round}, .base = base, .body = Draft{.token = 5, .draft_length = 2}},
        loop.now());
  };
  const auto tick = [&] {
    core.on_tick(loop.now());
    return core.take_output();
  };
  add_tokens(first, 0, 9);
  add_tokens(second, 0, 7);
  ask(first, 1, 9);
  ask(second, 1, 7);
  ASSERT_FALSE(tick().pass.empty());
  EXPECT_TRUE(core.decline());
  DrafterCore::Output output = core.take_output();
  std::vector<Message> answers;
  for (const Outgoing& out : output.send)
    if (std::holds_alternative<Candidates>(out.message.body)) answers.push_back(out.message);
  const auto none = [](SessionId id, Position base) {
    return Message{.session = id, .round = RoundId{1}, .base = base, .body = Candidates{}};
  };
  EXPECT_EQ(answers, (std::vector<Message>{none(first, 9), none(second, 7)}));
  EXPECT_FALSE(core.decline()) << "K/V alone are wanted, which nobody waits for";
  ask(first, 1, 9);  // repeated: the coordinator lacks the answer
  EXPECT_EQ(said<Candidates>(tick()), Candidates{});
  // In the next round it is asked as if nothing had been.
  core.on_turn({first, RoundId{1}, 9}, {.behind = 0});
  core.on_turn({second, RoundId{1}, 7}, {.behind = 0});
  add_tokens(first, 9, 11);
  ask(first, 2, 11);
  output = tick();
  ASSERT_EQ(output.pass, (std::vector<DraftTurn>{{first, RoundId{2}, 11}}));
  EXPECT_EQ(output.work.back().kind, DraftWork::Kind::kDraft);
  core.on_turn(output.pass[0], {.drafts = {{.tokens = {7, 8}}}});
  EXPECT_EQ(said<Candidates>(core.take_output())->tokens, (std::vector<TokenId>{7, 8}));
}

/// Facts and rows of a drafter with hidden rows: 128 bytes a row.
Hello hidden_hello() {
  Hello hello = outrider::hello(Role::kDrafter);
  hello.facts.donors = {{.layer = 7, .num_key_value_heads = 2, .head_dim = 8}};
  hello.facts.kv_dtype = DType::kF32;
  return hello;
}
KvRows hidden_rows(Position from, Position to) {
  return {.from = from,
          .to = to,
          .donors = {{from, zeros({to - from, 2, 8}), zeros({to - from, 2, 8})}},
          .tokens = std::vector<TokenId>(static_cast<std::size_t>(to - from), 1)};
}

// Rows count from when they come until their K/V are computed. Those that find no room are asked for again when the
// ones before them have theirs.
TEST(HiddenRowsDrafter, CountsTheRowsThatWait) {
  Loop loop;
  DrafterCore core({.kv_cost = {.bytes_per_position = 10}, .kv_bytes_max = 20'000}, hidden_hello());
  core.on_message({.body = Welcome{1}}, loop.now());
  const SessionId id{1};
  std::uint32_t round = 0;
  const auto send = [&](KvRows kv) {
    core.on_message({.session = id, .body = KvChunk{std::move(kv)}}, loop.now());
  };
  const auto ask = [&](Position base) {
    core.on_message({.session = id,
                     .round = RoundId{++round},
                     .base = base,
                     .body = Draft{.token = 5, .draft_length = 3, .hidden = zeros({2})}},
                    loop.now());
    core.on_tick(loop.now());
    return core.take_output();
  };
  const auto catch_up = [&](std::int64_t behind) {
    core.on_tick(loop.now());
    const DrafterCore::Output output = core.take_output();
    ASSERT_EQ(output.pass.size(), 1u);
    core.on_turn(output.pass[0], {.more = behind > 0, .behind = behind, .waiting_bytes = behind * 128});
  };
  send(hidden_rows(0, 100));
  EXPECT_EQ(core.kv_bytes(), 100 * 10);
  EXPECT_EQ(core.waiting_bytes(), 100 * 128);
  send(hidden_rows(100, 200));  // would need 2000 + 25,600
  EXPECT_EQ(core.kv_bytes(), 100 * 10);
  EXPECT_EQ(core.waiting_bytes(), 100 * 128);
  DrafterCore::Output output = ask(200);
  ASSERT_TRUE(said<NeedKv>(output));
  EXPECT_EQ(said<NeedKv>(output)->have, 200) << "nothing is sent twice while rows wait";
  ASSERT_EQ(output.pass.size(), 1u);
  core.on_turn(output.pass[0], {.more = true, .behind = 40, .waiting_bytes = 40 * 128});
  EXPECT_EQ(core.kv_bytes(), 203 * 10);
  EXPECT_EQ(core.waiting_bytes(), 40 * 128);
  catch_up(0);
  EXPECT_EQ(core.waiting_bytes(), 0);
  output = ask(200);
  ASSERT_TRUE(said<NeedKv>(output));
  EXPECT_EQ(said<NeedKv>(output)->have, 100);
  send(hidden_rows(100, 200));
  EXPECT_EQ(core.waiting_bytes(), 100 * 128);
  core.on_message({.session = id, .body = Free{}}, loop.now());
  EXPECT_EQ(core.kv_bytes() + core.waiting_bytes(), 0);
}

// The rows of a Draft that was overtaken before its pass would keep their memory, and so keep out all others.
TEST(HiddenRowsDrafter, CatchesUpAfterAnOvertakenDraft) {
  Loop loop;
  DrafterCore core({.kv_cost = {.bytes_per_position = 10}, .kv_bytes_max = 1000}, hidden_hello());
  core.on_message({.body = Welcome{1}}, loop.now());
  const auto send = [&](std::uint32_t round, Position base, Body body) {
    core.on_message({.session = SessionId{1}, .round = RoundId{round}, .base = base, .body = std::move(body)},
                    loop.now());
  };
  const Draft draft{.token = 5, .draft_length = 3, .hidden = zeros({2})};
  send(0, 0, KvChunk{hidden_rows(0, 10)});
  send(1, 10, draft);
  send(0, 0, KvChunk{hidden_rows(10, 14)});  // no room
  send(2, 14, draft);
  core.on_tick(loop.now());
  DrafterCore::Output output = core.take_output();
  ASSERT_EQ(output.pass.size(), 1u);
  EXPECT_EQ(output.work.back().kind, DraftWork::Kind::kAbandon);
  core.on_turn(output.pass[0], {.more = false, .behind = 0, .waiting_bytes = 0});
  EXPECT_EQ(core.waiting_bytes(), 0);
}

TEST(HiddenRowsDrafter, DropsRowsWithoutTheirTokens) {
  Loop loop;
  DrafterCore core({}, hidden_hello());
  core.on_message({.body = Welcome{1}}, loop.now());
  KvRows rows = hidden_rows(0, 3);
  rows.tokens.clear();
  core.on_message({.session = SessionId{1}, .body = KvChunk{rows}}, loop.now());
  core.on_tick(loop.now());
  EXPECT_TRUE(core.take_output().work.empty());
  rows.tokens = {1, 2, hidden_hello().facts.vocab_size};
  core.on_message({.session = SessionId{1}, .body = KvChunk{rows}}, loop.now());
  core.on_tick(loop.now());
  EXPECT_TRUE(core.take_output().work.empty());
  core.on_message({.session = SessionId{1}, .body = KvChunk{hidden_rows(0, 3)}}, loop.now());
  core.on_tick(loop.now());
  EXPECT_EQ(core.take_output().work.size(), 1u);
}

}  // namespace
}  // namespace outrider
