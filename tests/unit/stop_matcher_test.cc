#include "common/model/tokenizer/stop_matcher.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "common/base/random.h"

namespace outrider {
namespace {

using Stops = std::vector<std::string>;

StopMatcher matcher(Stops stops) { return StopMatcher::create(std::move(stops)).value(); }

/// The text that a matcher shows of these pieces, ended with finish().
std::string shown(StopMatcher matcher, const std::vector<std::string>& pieces) {
  std::string text;
  for (const std::string& piece : pieces) text += matcher.push(piece);
  return text + matcher.finish();
}

/// The definition: the stop string that is complete first, the longest of those.
std::string cut(const std::string& text, const Stops& stops) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::size_t longest = 0;
    for (const std::string& stop : stops) {
      if (end >= stop.size() && text.compare(end - stop.size(), stop.size(), stop) == 0) {
        longest = std::max(longest, stop.size());
      }
    }
    if (longest > 0) return text.substr(0, end - longest);
  }
  return text;
}

TEST(StopMatcher, EndsTheTextBeforeAStopThatSpansPieces) {
  StopMatcher stops = matcher({"\n\nUser:"});
  EXPECT_EQ(stops.push("one\n"), "one");
  EXPECT_EQ(stops.push("two\n"), "\ntwo");
  EXPECT_EQ(stops.push("\nUs"), "");
  EXPECT_FALSE(stops.stopped());
  EXPECT_EQ(stops.push("er: three"), "");
  EXPECT_TRUE(stops.stopped());
  EXPECT_EQ(stops.push("four"), "");
  EXPECT_EQ(stops.finish(), "");
}

TEST(StopMatcher, HeldBackTextComesOutAtTheEnd) {
  StopMatcher stops = matcher({"stop"});
  EXPECT_EQ(stops.push("don't sto"), "don't ");
  EXPECT_EQ(stops.finish(), "sto");
  EXPECT_EQ(stops.push("p"), "p") << "another text";
}

TEST(StopMatcher, NothingIsHeldBackWithoutStops) { EXPECT_EQ(matcher({}).push("text"), "text"); }

TEST(StopMatcher, TheFirstCompleteStopWinsThenTheLongest) {
  EXPECT_EQ(shown(matcher({"abcd", "c"}), {"xabcd"}), "xab");
  EXPECT_EQ(shown(matcher({"c", "bc"}), {"xabcd"}), "xa");
}

TEST(StopMatcher, CutsNoCharacter) {
  // "é" and "è" share their first byte; the matcher may not show it alone.
  StopMatcher stops = matcher({"é!"});
  EXPECT_EQ(stops.push("caf"), "caf");
  EXPECT_EQ(stops.push("é"), "");
  EXPECT_EQ(stops.push("è"), "éè");
  EXPECT_EQ(stops.push("é!"), "");
  EXPECT_TRUE(stops.stopped());
}

// What lets drafts come in windows of any length.
TEST(StopMatcher, PiecesDoNotChangeTheText) {
  CounterRng rng(11);
  int stopped = 0;
  for (int round = 0; round < 5000; ++round) {
    const auto word = [&](std::uint64_t least, std::uint64_t most) {
      std::string text(least + rng.below(most - least + 1), ' ');
      for (char& c : text) c = static_cast<char>('a' + rng.below(2));  // two letters: many borders
      return text;
    };
    Stops stops;
    for (std::uint64_t i = 0; i <= rng.below(3); ++i) stops.push_back(word(3, 9));
    const std::string text = word(0, 60), expected = cut(text, stops);
    StopMatcher whole = matcher(stops);
    std::string prefix;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t length = 1 + rng.below(7);
      prefix += whole.push(text.substr(at, length));
      at += length;
      ASSERT_EQ(prefix, expected.substr(0, prefix.size())) << "shown too early in " << text;
    }
    EXPECT_EQ(whole.stopped(), expected != text);
    stopped += whole.stopped();
    ASSERT_EQ(prefix + whole.finish(), expected) << text;
  }
  EXPECT_GT(stopped, 1000);
  EXPECT_LT(stopped, 4500);
}

TEST(StopMatcher, RefusesWhatCanNotBeAStop) {
  for (const auto& [stops, message] : std::vector<std::pair<Stops, std::string>>{
           {{"a", ""}, "a stop string of 0 bytes, wanted 1 to 1024"},
           {{std::string(1025, 'a')}, "a stop string of 1025 bytes, wanted 1 to 1024"},
           {{"\xC3"}, "a stop string is not UTF-8"},
           {Stops(65, "a"), "65 stop strings, wanted at most 64"}}) {
    const Result<StopMatcher> result = StopMatcher::create(stops);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, Errc::kInvalidArgument);
    EXPECT_EQ(result.error().message, message);
  }
}

TEST(StopMatcher, TheStopMayBelongToTheText) {
  StopMatcher matcher = StopMatcher::create({"END"}, /*keep_stop=*/true).value();
  EXPECT_EQ(matcher.push("a E"), "a ");
  EXPECT_EQ(matcher.push("ND b"), "END");
  EXPECT_TRUE(matcher.stopped());
}

}  // namespace
}  // namespace outrider
