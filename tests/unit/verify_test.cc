#include "common/decoding/sampling/sampler.h"

#include <vector>

#include <gtest/gtest.h>

namespace outrider {
namespace {

constexpr std::int64_t kVocab = 37;

/// Logits whose largest value in row i is at choices[i].
std::vector<float> logits_that_choose(const std::vector<TokenId>& choices) {
  std::vector<float> logits(choices.size() * kVocab);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = -1.0f - static_cast<float>(i % 5);
  for (std::size_t row = 0; row < choices.size(); ++row)
    logits[row * kVocab + static_cast<std::size_t>(choices[row])] = 2.5f;
  return logits;
}

VerifyOutcome verify(const std::vector<float>& logits, const std::vector<TokenId>& drafts) {
  std::vector<TokenId> tokens = {3};  // the last emitted token
  tokens.insert(tokens.end(), drafts.begin(), drafts.end());
  SamplingScratch scratch;
  return Sampler({}, {}, 0).verify({logits.data(), {std::ssize(tokens), kVocab}}, tokens, scratch).value();
}

TEST(VerifyGreedy, EveryDraftThatIsTheTargetsChoiceIsKeptAndABonusAdded) {
  const VerifyOutcome outcome = verify(logits_that_choose({4, 36, 0, 9, 11}), {4, 36, 0, 9});
  EXPECT_EQ(outcome.accepted, 4);
  EXPECT_EQ(outcome.next_token, 11);
}

TEST(VerifyGreedy, TheFirstDisagreementEndsThePrefixAndIsReplaced) {
  const std::vector<TokenId> choices = {4, 36, 0, 9, 11};
  for (std::size_t wrong = 0; wrong < 4; ++wrong) {
    std::vector<TokenId> drafts(choices.begin(), choices.end() - 1);
    drafts[wrong] = 20;  // what follows agrees again and must not count
    const VerifyOutcome outcome = verify(logits_that_choose(choices), drafts);
    EXPECT_EQ(outcome.accepted, static_cast<std::int32_t>(wrong));
    EXPECT_EQ(outcome.next_token, choices[wrong]);
  }
}

TEST(VerifyGreedy, WithoutDraftsTheOneRowGivesTheNextToken) {
  const VerifyOutcome outcome = verify(logits_that_choose({30}), {});
  EXPECT_EQ(outcome.accepted, 0);
  EXPECT_EQ(outcome.next_token, 30);
}

TEST(VerifyGreedy, AmongEqualLogitsOnlyTheLowestIdIsTheTargetsChoice) {
  std::vector<float> logits = logits_that_choose({7, 8});
  logits[21] = logits[7];  // row 0: ids 7 and 21 are equal
  EXPECT_EQ(verify(logits, {7}).accepted, 1);
  const VerifyOutcome outcome = verify(logits, {21});
  EXPECT_EQ(outcome.accepted, 0);
  EXPECT_EQ(outcome.next_token, 7);
}

TEST(VerifyGreedy, EqualEverywhereMeansTokenZero) {
  const std::vector<float> logits(2 * kVocab, -3.0f);
  EXPECT_EQ(verify(logits, {0}).accepted, 1);
  EXPECT_EQ(verify(logits, {1}).next_token, 0);
}

TEST(VerifyGreedy, ADraftOutsideTheVocabularyIsRejected) {
  // Peers' tokens are checked before they come here; this only must not read out of bounds.
  EXPECT_EQ(verify(logits_that_choose({5, 6}), {1000000}).accepted, 0);
  EXPECT_EQ(verify(logits_that_choose({5, 6}), {-1}).accepted, 0);
}

}  // namespace
}  // namespace outrider
