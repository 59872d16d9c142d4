// The phases of a session (coordinator-node/session/phases.h), and the page that shows them.
#include "coordinator-node/session/phases.h"

#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "common/os/files.h"

namespace outrider {
namespace {

std::string table() {
  std::string text = "| from | to | when |\n|---|---|---|\n";
  for (const Transition& t : kTransitions)
    text += fmt::format("| {} | {} | {} |\n", to_string(t.from), to_string(t.to), t.when);
  return text;
}

TEST(Phases, AreWhatThePageSays) {
  const std::string page = read_text(OUTRIDER_SOURCE_DIR "/docs/protocol.md").value();
  EXPECT_NE(page.find(table()), std::string::npos) << "docs/protocol.md, wanted this table:\n" << table();
}

TEST(Phases, FollowOneAnotherToTheEndAndNoFurther) {
  for (std::size_t i = 0; i <= static_cast<std::size_t>(Phase::kEnded); ++i) {
    const auto phase = static_cast<Phase>(i);
    EXPECT_EQ(may_follow(phase, Phase::kEnded), phase != Phase::kEnded) << to_string(phase);
    EXPECT_FALSE(may_follow(Phase::kEnded, phase)) << to_string(phase);
    EXPECT_FALSE(may_follow(phase, Phase::kWaiting)) << to_string(phase);
  }
}

}  // namespace
}  // namespace outrider
