// K/V that are already there: a conversation that goes on, a start that all share, choices of one prompt.
#include <thread>

#include <gtest/gtest.h>

#include "tests/support/cluster_fixtures.h"

namespace outrider {
namespace {

class PrefixCache : public NanoCluster {
 protected:
  Generation ask(const Generate& request) {
    Client client = connect();
    return answer(client, request);
  }
  static Generate request(std::vector<TokenId> prompt) {
    return {.prompt = std::move(prompt),
            .max_tokens = 40,
            .draft_length = 4,
            .stop_ids = {},
            .wait_ms = 0,
            .draft_ahead = 0};  // how many drafts are made ahead is a matter of time
  }
  /// `times` stories, one after the other: with the window of 128 and 256 rows to spare, four are longer than a ring.
  static std::vector<TokenId> stories(int times) {
    std::vector<TokenId> tokens;
    for (const NanoGolden& golden : nano_goldens()) {
      if (times-- == 0) break;
      tokens.insert(tokens.end(), golden.prompt_ids.begin(), golden.prompt_ids.end());
      tokens.insert(tokens.end(), golden.greedy.begin(), golden.greedy.end());
    }
    return tokens;
  }
  static std::vector<TokenId> joined(std::vector<TokenId> a, const std::vector<TokenId>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }

};

TEST_F(PrefixCache, AConversationComputesOnlyWhatIsNew) {
  const Generate first = request(stories(6));
  const Generation answered = ask(first);
  EXPECT_EQ(answered.metrics.cached_prompt_tokens, 0);
  const Generate second = request(joined(joined(first.prompt, answered.tokens), nano_goldens()[0].prompt_ids));
  const Generation goes_on = ask(second);
  EXPECT_GE(goes_on.metrics.cached_prompt_tokens, std::ssize(first.prompt) + std::ssize(answered.tokens) - 1);
  EXPECT_GT(goes_on.metrics.accepted_tokens, 0) << "the drafter has the rows too";
  restart({.pair = nano_pair()});
  const Generation anew = ask(second);
  EXPECT_EQ(anew.metrics.cached_prompt_tokens, 0);
  EXPECT_EQ(goes_on.tokens, anew.tokens);
  EXPECT_EQ(goes_on.metrics.accepted_per_position, anew.metrics.accepted_per_position) << "the same rows";
}

TEST_F(PrefixCache, AnInstructionThatTwoRequestsSharedIsThereForTheThird) {
  const std::vector<TokenId> system = stories(6);
  std::vector<Generation> answers;
  for (const std::size_t i : {1, 2, 3})
    answers.push_back(
        ask(request(joined(system, joined(stories(5), nano_goldens()[i % nano_goldens().size()].prompt_ids)))));
  EXPECT_GE(answers[2].metrics.cached_prompt_tokens, std::ssize(system));
  restart({.pair = nano_pair()});
  EXPECT_EQ(
      ask(request(joined(system, joined(stories(5), nano_goldens()[3 % nano_goldens().size()].prompt_ids)))).tokens,
      answers[2].tokens);
}

TEST_F(PrefixCache, ChoicesAtTheSameTimeComputeTheirPromptOnce) {
  constexpr int kChoices = 6;
  const Generate wanted = request(stories(6));
  std::vector<Generation> answers(kChoices);
  {
    std::vector<std::jthread> clients;
    for (Generation& each : answers) clients.emplace_back([&] { each = ask(wanted); });
  }
  std::int64_t computed = 0;
  for (const Generation& each : answers) {
    EXPECT_EQ(each.tokens, answers[0].tokens);
    computed += std::ssize(wanted.prompt) - each.metrics.cached_prompt_tokens;
  }
  EXPECT_LE(computed, std::ssize(wanted.prompt) + kChoices * 256) << "rows";
}

}  // namespace
}  // namespace outrider
