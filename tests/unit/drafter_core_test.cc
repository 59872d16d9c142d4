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

}  // namespace
}  // namespace outrider
