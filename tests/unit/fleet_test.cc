// Which worker gets a text.
#include "coordinator-node/fleet.h"

#include <numeric>

#include <gtest/gtest.h>

#include "coordinator-node/given_prompts.h"
#include "coordinator-node/place.h"
#include "tests/unit/protocol_support.h"

namespace outrider {
namespace {

std::vector<TokenId> numbered_tokens(std::size_t count, TokenId first = 0) {
  std::vector<TokenId> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

TEST(GivenPromptsTest, KnowBeginningsOfTheirScopeAlone) {
  GivenPrompts given;
  given.add(hash_prefixes(numbered_tokens(100), "one"));
  std::vector<TokenId> other = numbered_tokens(200);
  EXPECT_EQ(given.common(hash_prefixes(other, "one")), 96) << "whole steps of 32";
  other[40] = 7;
  EXPECT_EQ(given.common(hash_prefixes(other, "one")), 32);
  EXPECT_EQ(given.common(hash_prefixes(numbered_tokens(100), "two")), 0);
  EXPECT_EQ(given.common(hash_prefixes(numbered_tokens(100, 1), "one")), 0);
  EXPECT_EQ(given.common({}), 0);
}

TEST(GivenPromptsTest, ForgetTheOldest) {
  GivenPrompts given;
  given.add(hash_prefixes(numbered_tokens(64), ""));
  given.add(hash_prefixes(numbered_tokens(500'000, 1000), ""));
  EXPECT_EQ(given.common(hash_prefixes(numbered_tokens(64), "")), 64);
  given.add(hash_prefixes(numbered_tokens(1'000'000, 2000), ""));
  EXPECT_EQ(given.common(hash_prefixes(numbered_tokens(64), "")), 0);
}

class FleetChoice : public testing::Test {
 protected:
  FleetChoice() {
    for (const char* name : {"a", "b"}) {
      Hello verifier = hello(Role::kVerifier);
      verifier.name = name;
      fleet_.join(name, verifier, {});
    }
  }
  PeerId chosen() const {
    return fleet_.choose_verifier(10, {.prompt = std::ssize(prompt_), .prefixes = prefixes_}).value().verifier;
  }
  void takes(const PeerId& verifier, double forward_s) {
    fleet_.at(verifier).costs[0].observe({.verify_s = forward_s, .batch_rows = 1, .round_s = forward_s}, 0);
  }

  Fleet fleet_{1};
  const std::vector<TokenId> prompt_ = numbered_tokens(1024);
  const std::vector<std::uint64_t> prefixes_ = hash_prefixes(prompt_, "");
};

TEST_F(FleetChoice, OfVerifiersIsThatWithTheFewestTexts) {
  fleet_.at("a").sessions = 1;
  EXPECT_EQ(chosen(), "b");
  fleet_.at("b").sessions = 2;
  EXPECT_EQ(chosen(), "a");
}

TEST_F(FleetChoice, OfVerifiersIsThatWhichHadThePromptUnlessItHasMuchToDo) {
  fleet_.at("b").given.add(prefixes_);
  EXPECT_EQ(chosen(), "b");
  fleet_.at("b").sessions = 1;
  EXPECT_EQ(chosen(), "b") << "1,024 rows weigh as two texts";
  fleet_.at("b").sessions = 3;
  EXPECT_EQ(chosen(), "a");
}

TEST_F(FleetChoice, OfVerifiersGivesASlowOneFewerTexts) {
  takes("a", 0.3);
  EXPECT_EQ(chosen(), "a") << "of the other nothing is known";
  takes("b", 0.1);
  int given_to_b = 0;
  for (int texts = 0; texts < 40; ++texts) {
    const PeerId verifier = chosen();
    ++fleet_.at(verifier).sessions;
    given_to_b += verifier == "b";
  }
  EXPECT_NEAR(given_to_b, 30, 1);
}

TEST_F(FleetChoice, OfDraftersIsTheNearerOneUnlessItHasMuchToDo) {
  for (const char* name : {"far", "near"}) {
    Hello drafter = hello(Role::kDrafter);
    drafter.name = name;
    fleet_.join(name, drafter, {});
  }
  fleet_.at("far").measure(milliseconds(40));
  fleet_.at("near").measure(milliseconds(1));
  EXPECT_EQ(fleet_.choose_drafter(), "near");
  fleet_.at("near").sessions = 1;
  EXPECT_EQ(fleet_.choose_drafter(), "near");
  fleet_.at("near").sessions = 3;
  EXPECT_EQ(fleet_.choose_drafter(), "far");
}

// Assistants and whole models: both are tried, the faster kind gets what it has room for, the other is tried again.
TEST_F(FleetChoice, OfKindsOfDraftersIsThatWithMoreTokensASecond) {
  Hello assistant = hello(Role::kDrafter), whole = token_hello();
  assistant.name = "assistant", whole.name = "whole";
  fleet_.join("assistant", assistant, {});
  fleet_.join("whole", whole, {});
  const auto rounds = [&](DraftInput needs, int count, int tokens) {
    for (int i = 0; i < count; ++i) fleet_.speeds.count(needs, tokens, 0.1);
  };
  rounds(DraftInput::kTargetRows, 100, 3);
  EXPECT_EQ(fleet_.choose_drafter(), "whole") << "nobody has tried it";
  rounds(DraftInput::kTokens, 100, 4);
  EXPECT_EQ(fleet_.choose_drafter(), "whole");
  fleet_.at("whole").sessions = 1;
  EXPECT_EQ(fleet_.choose_drafter(), "assistant") << "twice the sequences are not worth a third more tokens";
  fleet_.at("whole").sessions = 0;
  rounds(DraftInput::kTokens, 100, 2);
  EXPECT_EQ(fleet_.choose_drafter(), "assistant") << "it has become slow";
  rounds(DraftInput::kTargetRows, 3000, 3);
  EXPECT_EQ(fleet_.choose_drafter(), "whole") << "it may have become fast";
  EXPECT_EQ(fleet_.choose_drafter({.no_tokens = true}), "assistant");
  EXPECT_EQ(fleet_.choose_drafter({.no_rows = true}), "whole");
  EXPECT_EQ(fleet_.choose_drafter({.no_rows = true, .positions = 21}), "") << "its context has 20";
}

TEST_F(FleetChoice, OfDraftersWithKvOfTheirOwnIsOneWithMemoryForTheText) {
  Hello whole = token_hello();
  whole.capacity = {.kv_cost = {.bytes_per_position = 100}, .kv_bytes_max = 3000};
  fleet_.join("whole", whole, {});
  EXPECT_EQ(fleet_.choose_drafter({.in_all = 15}), "whole");
  {
    Place place(fleet_, "whole");
    place.set_aside(fleet_.at("whole").kv_of(15));
    EXPECT_EQ(fleet_.choose_drafter({.in_all = 16}), "") << "1500 of 3000 bytes are left";
    EXPECT_EQ(fleet_.choose_drafter({.in_all = 15}), "whole");
    Status status;
    fleet_.describe(status);
    const auto seen = std::ranges::find(status.workers, Role::kDrafter, &WorkerStatus::role);
    EXPECT_EQ(seen->kv_bytes, 1500);
    EXPECT_EQ(seen->kv_bytes_max, 3000);
  }
  EXPECT_EQ(fleet_.choose_drafter({.in_all = 1000}), "whole") << "its context has 20, and no more are ever sent";
}

}  // namespace
}  // namespace outrider
