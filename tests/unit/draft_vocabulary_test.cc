// Which tokens an assistant with a dense head scores.
#include "common/model/gemma4/draft_vocabulary.h"

#include <gtest/gtest.h>

#include <numeric>

namespace outrider {
namespace {

std::vector<TokenId> range(TokenId begin, TokenId end) {
  std::vector<TokenId> tokens(static_cast<std::size_t>(end - begin));
  std::iota(tokens.begin(), tokens.end(), begin);
  return tokens;
}
std::vector<TokenId> ids_of(const DraftVocabulary& vocabulary) {
  return {vocabulary.ids().begin(), vocabulary.ids().end()};
}
/// Takes an answer of this many tokens, all of them `token`.
void repeat(DraftVocabulary& vocabulary, TokenId token, std::size_t count) {
  vocabulary.learn(std::vector<TokenId>(count, token), /*answer=*/true);
}

TEST(DraftVocabulary, BeginsWithTheLowestIdsAndDoesNotSufficeBeforeItHasBeenTried) {
  DraftVocabulary vocabulary(4, 1000);
  EXPECT_EQ(ids_of(vocabulary), range(0, 4));
  EXPECT_FALSE(vocabulary.suffices());
  repeat(vocabulary, 1, 100);
  EXPECT_FALSE(vocabulary.suffices());
  repeat(vocabulary, 1, 200);
  EXPECT_TRUE(vocabulary.suffices());
}

TEST(DraftVocabulary, SufficesWhileOneTokenInFiftyIsMissed) {
  for (const auto& [every, suffices] : {std::pair(70, true), {35, false}}) {
    DraftVocabulary vocabulary(500, 10000);
    for (int i = 0; i < 4000; ++i) repeat(vocabulary, i % every == 0 ? 1000 + i : 1, 1);
    EXPECT_EQ(vocabulary.suffices(), suffices) << every;
  }
}

TEST(DraftVocabulary, PromptsTeachTokensButMissNone) {
  DraftVocabulary vocabulary(200, 1000);
  repeat(vocabulary, 1, 300);
  vocabulary.learn(range(500, 900), /*answer=*/false);
  EXPECT_TRUE(vocabulary.suffices());
  repeat(vocabulary, 1, 1);
  EXPECT_TRUE(vocabulary.suffices());
  for (const TokenId token : range(701, 900)) EXPECT_TRUE(std::ranges::binary_search(vocabulary.ids(), token));
  vocabulary.learn(range(300, 400), /*answer=*/true);
  EXPECT_FALSE(vocabulary.suffices());
}

TEST(DraftVocabulary, KeepsTheTokensThatWereUsedLast) {
  DraftVocabulary vocabulary(3, 1000);
  const std::int64_t version = vocabulary.version();
  vocabulary.learn(std::vector<TokenId>{7, 8, 9, 7, 10}, true);
  EXPECT_EQ(vocabulary.version(), version) << "too early";
  repeat(vocabulary, 10, 300);
  EXPECT_GT(vocabulary.version(), version);
  EXPECT_EQ(ids_of(vocabulary), (std::vector<TokenId>{7, 9, 10}));
  const std::int64_t next = vocabulary.version();
  repeat(vocabulary, 9, 300);
  EXPECT_EQ(vocabulary.version(), next) << "nothing new was learned";
}

TEST(DraftVocabulary, LearnsOtherTextsWhileItDoesNotSuffice) {
  DraftVocabulary vocabulary(100, 1000);
  for (int i = 0; i < 3; ++i) vocabulary.learn(range(500, 560), /*answer=*/true);
  EXPECT_FALSE(vocabulary.suffices());
  for (int i = 0; i < 20; ++i) vocabulary.learn(range(500, 560), /*answer=*/true);
  EXPECT_TRUE(vocabulary.suffices());
}

TEST(DraftVocabulary, GoesOnFromAnEarlierOnesText) {
  DraftVocabulary earlier(3, 1000);
  earlier.learn(std::vector<TokenId>{7, 8, 9}, false);
  EXPECT_EQ(earlier.to_text(), "0.04\n7\n8\n9\n");
  repeat(earlier, 8, 2000);
  DraftVocabulary next(4, 1000);
  ASSERT_TRUE(next.restore(earlier.to_text()).has_value());
  EXPECT_TRUE(next.suffices());
  EXPECT_EQ(ids_of(next), (std::vector<TokenId>{0, 7, 8, 9}));
  DraftVocabulary smaller(2, 1000);
  ASSERT_TRUE(smaller.restore(earlier.to_text()).has_value());
  EXPECT_EQ(ids_of(smaller), (std::vector<TokenId>{7, 8})) << "the lowest ids";
  for (const char* wrong : {"", "2\n7\n", "-1\n", "nan\n", "x\n7", "0.01\n7\nseven\n", "0.01\n1000\n", "0.01\n-1\n",
                            "0.01\n\n"}) {
    const auto refused = next.restore(wrong);
    ASSERT_FALSE(refused.has_value()) << wrong;
    EXPECT_EQ(refused.error().code, Errc::kMalformed);
    EXPECT_EQ(ids_of(next), (std::vector<TokenId>{0, 7, 8, 9}));
  }
}

}  // namespace
}  // namespace outrider
