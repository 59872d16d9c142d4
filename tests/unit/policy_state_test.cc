#include "coordinator-node/policy_state.h"

#include <fstream>
#include <iterator>

#include <gtest/gtest.h>

#include "tests/support/temporary_dir.h"

namespace outrider {
namespace {

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// One more round for UCB1 to know of.
void learn(Policies& policies) {
  const CostModel costs;
  BatchGoodput batch;
  const auto policy = policies.make(DraftPolicy::kUcb1, 0, costs, batch);
  const DraftChoice choice = policy->choose({.assistant = 16});
  RoundOutcome outcome{.source = choice.source, .arm = choice.arm, .drafted = choice.length};
  outcome.verify_s = outcome.round_s = 1;
  policy->observe(outcome);
}

TEST(PolicyState, IsSavedOnceAMinuteAndLoadedByTheNext) {
  const TemporaryDir dir;
  const TimePoint start{std::chrono::seconds(100)};
  Policies policies(1);
  auto state = PolicyState::open(dir / "state.json", policies, start);
  ASSERT_TRUE(state) << state.error().message;
  const std::string nothing = policies.save();
  EXPECT_EQ(read(dir / "state.json"), nothing);
  learn(policies);
  ASSERT_NE(policies.save(), nothing);
  state->save_when_due(policies, start + std::chrono::seconds(59));
  EXPECT_EQ(read(dir / "state.json"), nothing);
  state->save_when_due(policies, start + std::chrono::seconds(60));
  EXPECT_EQ(read(dir / "state.json"), policies.save());

  Policies next(2);
  ASSERT_TRUE(PolicyState::open(dir / "state.json", next, start));
  EXPECT_EQ(next.save(), policies.save());
}

TEST(PolicyState, SaysAtTheStartThatItCannotWrite) {
  const TemporaryDir dir;
  Policies policies(1);
  const auto state = PolicyState::open(dir / "none" / "state.json", policies, {});
  ASSERT_FALSE(state);
  EXPECT_EQ(state.error().code, Errc::kNotFound);  // the folder
  EXPECT_NE(state.error().message.find("none/state.json"), std::string::npos) << state.error().message;
}

TEST(PolicyState, WhatIsTornBeforeItsLastBracketIsNotRead) {
  Policies policies(1);
  learn(policies);
  const std::string whole = policies.save();
  for (std::size_t length = 1; length < whole.size(); ++length) {
    Policies next(2);
    EXPECT_EQ(next.load(whole.substr(0, length)).has_value(), length > whole.rfind(']')) << length << " bytes";
  }
}

// A machine that lost its power may leave a file without its bytes; its coordinator starts all the same.
TEST(PolicyState, AnEmptyFileIsNone) {
  const TemporaryDir dir;
  const auto file = dir.write("state.json", "");
  Policies policies(1);
  const auto state = PolicyState::open(file, policies, {});
  ASSERT_TRUE(state) << state.error().message;
  EXPECT_EQ(read(file), policies.save());
}

TEST(PolicyState, LeavesAFileOfSomethingElseAlone) {
  const TemporaryDir dir;
  const auto file = dir.write("notes.txt", "my notes");
  Policies policies(1);
  const auto state = PolicyState::open(file, policies, {});
  ASSERT_FALSE(state);
  EXPECT_EQ(state.error().code, Errc::kMalformed);
  EXPECT_EQ(read(file), "my notes");
}

}  // namespace
}  // namespace outrider
