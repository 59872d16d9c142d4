#include "common/decoding/drafting/draft_table.h"

#include <gtest/gtest.h>

#include "common/base/random.h"

namespace outrider {
namespace {

constexpr std::int32_t kVocabSize = 100'000;

std::span<const std::byte> bytes(const std::string& file) { return std::as_bytes(std::span(file)); }

std::string table_of(const std::vector<std::vector<TokenId>>& texts, int order = kTableOrder, std::size_t first = 0) {
  DraftTableCounts counts(order);
  for (const std::vector<TokenId>& text : texts) counts.add(text, first);
  return counts.file(77);
}

std::vector<TokenId> draft(const std::string& file, const std::vector<TokenId>& history, std::size_t length = 8,
                           std::int32_t vocab_size = kVocabSize) {
  return DraftTable::of(bytes(file)).value().draft(history, length, vocab_size);
}

TEST(DraftTable, GoesOnAsTheAnswersDid) {
  const std::string file = table_of({{1, 2, 3, 4, 5, 6}});
  EXPECT_EQ(draft(file, {9, 1, 2}), (std::vector<TokenId>{3, 4, 5, 6})) << "to the answer's end";
  EXPECT_EQ(draft(file, {9, 1, 2}, 2), (std::vector<TokenId>{3, 4}));
  EXPECT_EQ(draft(file, {9, 1, 2}, 0), (std::vector<TokenId>{}));
  EXPECT_EQ(draft(file, {1, 2, 3, 4, 5, 6}), (std::vector<TokenId>{})) << "nothing followed";
  for (const std::vector<TokenId>& history : {std::vector<TokenId>{}, {2}, {2, 1}})
    EXPECT_EQ(draft(file, history), (std::vector<TokenId>{})) << history.size() << " tokens";
  EXPECT_EQ(DraftTable::of(bytes(file)).value().fingerprint(), 77u);
}

TEST(DraftTable, TheLongestContextThatIsKnownDecides) {
  const std::vector<std::vector<TokenId>> texts = {{1, 2, 3, 7}, {5, 2, 3, 8}, {6, 2, 3, 8}};
  const std::string file = table_of(texts);
  EXPECT_EQ(draft(file, {1, 2, 3}, 1), (std::vector<TokenId>{7}));
  EXPECT_EQ(draft(file, {9, 2, 3}, 1), (std::vector<TokenId>{8})) << "what followed most after two tokens";
  EXPECT_EQ(draft(table_of(texts, 2), {1, 2, 3}, 1), (std::vector<TokenId>{8})) << "no longer context was counted";
}

TEST(DraftTable, DraftsWhatFollowedAtLeastHalfOfTheTime) {
  EXPECT_EQ(draft(table_of({{1, 2, 9}, {1, 2, 5}}), {1, 2}), (std::vector<TokenId>{5})) << "of equals the lowest id";
  EXPECT_EQ(draft(table_of({{1, 2, 9}, {1, 2, 5}, {1, 2, 6}}), {1, 2}), (std::vector<TokenId>{}));
  // More than 16 bits count.
  std::vector<std::vector<TokenId>> texts(200'000, {1, 2, 5});
  texts.resize(390'000, {1, 2, 6});
  EXPECT_EQ(draft(table_of(texts), {1, 2}), (std::vector<TokenId>{5}));
}

TEST(DraftTable, ThePromptIsContextAndIsNotCounted) {
  const std::string file = table_of({{1, 2, 3, 4, 5}}, kTableOrder, 3);
  EXPECT_EQ(draft(file, {1, 2}), (std::vector<TokenId>{}));
  EXPECT_EQ(draft(file, {2, 3}), (std::vector<TokenId>{4, 5}));
}

TEST(DraftTable, DraftsNoTokenThatTheVocabularyHasNot) {
  const std::string file = table_of({{1, 2, 3, 40, 5}});
  EXPECT_EQ(draft(file, {1, 2}, 8, 40), (std::vector<TokenId>{3}));
}

TEST(DraftTable, KnowsEveryContextOfMany) {
  CounterRng random(3);
  std::vector<TokenId> text;
  for (int i = 0; i < 100'000; ++i) text.push_back(static_cast<TokenId>(random.below(kVocabSize)));
  const std::string file = table_of({text}, 3);
  std::size_t known = 0, places = 0;
  for (std::size_t i = 3; i < text.size(); i += 7, ++places)
    known +=
        draft(file, {text.begin() + static_cast<std::ptrdiff_t>(i) - 3, text.begin() + static_cast<std::ptrdiff_t>(i)},
              1) == std::vector<TokenId>{text[i]};
  EXPECT_GE(known, places - places / 1000);
  EXPECT_EQ(file, table_of({text}, 3)) << "the same counts, the same bytes";
}

TEST(DraftTable, RefusesWhatIsNone) {
  const std::string file = table_of({{1, 2, 3, 4}});
  const auto message = [](const std::string& bad) {
    const auto table = DraftTable::of(bytes(bad));
    return table ? "fine" : table.error().message;
  };
  const auto with = [&](std::size_t at, char byte) {
    std::string bad = file;
    bad[at] = byte;
    return bad;
  };
  const std::string size = std::to_string(file.size());
  EXPECT_EQ(message(file), "fine");
  EXPECT_EQ(message(""), "0 bytes, a draft table has at least 32");
  EXPECT_EQ(message(file.substr(0, 31)), "31 bytes, a draft table has at least 32");
  EXPECT_EQ(message(with(0, 'x')), "not a draft table (`outrider bake-table` makes one)");
  EXPECT_EQ(message(with(8, 2)), "a draft table of version 2, wanted 1");
  EXPECT_EQ(message(with(12, 1)), "contexts of 1 tokens, wanted 2 to 8");
  EXPECT_EQ(message(with(12, 9)), "contexts of 9 tokens, wanted 2 to 8");
  for (const char slots : {'\0', '\1', '\3', '\x7f'})
    EXPECT_EQ(message(with(24, slots)),
              "a draft table of " + std::to_string(int{slots}) + " slots in " + size + " bytes: cut short, or damaged");
  EXPECT_TRUE(message(with(31, '\x10')).ends_with("cut short, or damaged"));
  for (std::size_t cut = 32; cut < file.size(); ++cut)
    EXPECT_TRUE(message(file.substr(0, cut)).ends_with("cut short, or damaged")) << cut;
  EXPECT_TRUE(message(file + "x").ends_with("cut short, or damaged"));
}

// A slot that is damaged is a wrong draft at most.
TEST(DraftTable, AnyBytesInItsSlotsDoNoHarm) {
  std::string file = table_of({{1, 2, 3, 4, 5, 6, 7}});
  CounterRng random(4);
  for (int i = 0; i < 2000; ++i) {
    for (int j = 0; j < 20; ++j)
      file[32 + static_cast<std::size_t>(random.below(file.size() - 32))] = static_cast<char>(random.below(256));
    for (const TokenId token : draft(file, {1, 2}, 8, 1000)) {
      ASSERT_GE(token, 0);
      ASSERT_LT(token, 1000);
    }
  }
}

}  // namespace
}  // namespace outrider
