#include "verifier-node/batch_window.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <queue>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/random.h"

namespace outrider {
namespace {
using namespace std::chrono_literals;

Duration ms(double value) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double, std::milli>(value));
}

/// Texts that draft for a while after each verdict, and a verifier that does one forward at a time.
struct Scene {
  int texts = 2;
  double forward_ms = 60, row_ms = 0.3;  ///< T(M) = forward_ms + M row_ms
  double draft_ms = 4, rtt_ms = 1;       ///< of a round
  bool one_drafter = false;              ///< it drafts for one text after the other; else each text has its own
  int rows = 5;
};

class Verifying {
 public:
  Verifying(const Scene& scene, bool with_window) : scene_(scene), with_window_(with_window) {}

  /// Rounds a second.
  double run(int rounds) {
    for (int i = 0; i < scene_.texts; ++i) draft(i, TimePoint{ms(1.7 * i)});
    TimePoint now{};
    for (int done = 0; done < rounds;) {
      const auto [at, text] = arrivals_.empty() ? std::pair(TimePoint::max(), -1) : arrivals_.top();
      if (forward_ends_ && *forward_ends_ <= at) {
        now = *forward_ends_;
        done += static_cast<int>(forward_.size());
        end_forward(now);
      } else if (begin_at_ && *begin_at_ < at) {
        now = *begin_at_;
      } else {
        now = at;
        arrivals_.pop();
        queue_.push_back(text);
        window_.returned(SessionId(text), scene_.rows, now);
      }
      begin_forward(now);
      finished_ = now;
    }
    return rounds / to_seconds(finished_ - TimePoint{});
  }

 private:
  void draft(int text, TimePoint now) {
    const double noise = std::max(0.2, 1 + 0.4 * (rng_.uniform() + rng_.uniform() - 1));
    TimePoint& free = drafter_free_[scene_.one_drafter ? 0 : text];
    free = std::max(free, now + ms(scene_.rtt_ms / 2)) + ms(scene_.draft_ms * noise);
    arrivals_.push({free + ms(scene_.rtt_ms / 2), text});
  }
  void end_forward(TimePoint now) {
    forward_ends_.reset();
    window_.forward_ended(std::ssize(forward_) * scene_.rows, now);
    for (const int text : forward_) {
      window_.left(SessionId(text), now);
      draft(text, now);
    }
    forward_.clear();
  }
  void begin_forward(TimePoint now) {
    begin_at_.reset();
    if (forward_ends_ || queue_.empty()) return;
    const std::int64_t rows = std::ssize(queue_) * scene_.rows;
    const Duration wait = with_window_ ? window_.wait(std::ssize(queue_), rows, now) : Duration::zero();
    if (wait > Duration::zero()) {
      begin_at_ = now + wait;
      return;
    }
    forward_ = std::exchange(queue_, {});
    window_.forward_began(now);
    forward_ends_ = now + ms(scene_.forward_ms + scene_.row_ms * static_cast<double>(rows));
  }

  Scene scene_;
  bool with_window_;
  CounterRng rng_{1};
  BatchWindow window_{256};
  std::map<int, TimePoint> drafter_free_;
  using Arrival = std::pair<TimePoint, int>;
  std::priority_queue<Arrival, std::vector<Arrival>, std::greater<>> arrivals_;
  std::vector<int> queue_, forward_;
  TimePoint finished_{};
  std::optional<TimePoint> forward_ends_, begin_at_;
};

double gain(const Scene& scene) { return Verifying(scene, true).run(2000) / Verifying(scene, false).run(2000); }

TEST(BatchWindow, TextsThatDraftBrieflyShareForwardsInsteadOfAlternating) {
  EXPECT_GT(gain({.texts = 2}), 1.7);
  EXPECT_GT(gain({.texts = 4}), 1.6);
  EXPECT_GT(gain({.texts = 8}), 1.5);
  EXPECT_GT(gain({.texts = 4, .one_drafter = true}), 1.4);
}

TEST(BatchWindow, WaitsForNobodyWhoIsAwayLongerThanAForward) {
  EXPECT_GT(gain({.texts = 4, .forward_ms = 2, .draft_ms = 30}), 0.98);
}

TEST(BatchWindow, WhereRowsCostAsMuchAsForwardsNothingIsGainedByWaiting) {
  EXPECT_NEAR(gain({.texts = 8, .forward_ms = 1, .row_ms = 6, .draft_ms = 10}), 1, 0.03);
}

TEST(BatchWindow, NeverCostsMuch) {
  for (const auto& [forward_ms, row_ms] : {std::pair(60.0, 0.3), {60.0, 2.0}, {1.5, 0.1}, {1.0, 6.0}}) {
    for (const auto& [draft_ms, rtt_ms] : {std::pair(4.0, 1.0), {10.0, 20.0}, {30.0, 20.0}, {1.0, 0.2}, {0.3, 0.2}}) {
      for (const int texts : {1, 2, 4, 8}) {
        for (const bool one_drafter : {false, true}) {
          // A drafter that drafts for one text after the other takes the longer the more texts wait for each other.
          EXPECT_GT(gain({texts, forward_ms, row_ms, draft_ms, rtt_ms, one_drafter}), one_drafter ? 0.93 : 0.97)
              << texts << " texts, T(M) " << forward_ms << " + " << row_ms << " M, drafts " << draft_ms << " ms, RTT "
              << rtt_ms << (one_drafter ? ", one drafter" : "");
        }
      }
    }
  }
}

/// Rounds of one text.
struct OneText {
  /// A forward pass over `all_rows`, of which the text has `rows`, and its absence after that.
  void round(std::int64_t all_rows, Duration forward, std::int64_t rows, Duration away) {
    window.forward_began(now);
    now += forward;
    window.forward_ended(all_rows, now);
    window.left(SessionId{1}, now);
    now += away;
    window.returned(SessionId{1}, rows, now);
  }
  /// How long it is waited for with so many rows, once it has been away for `already`.
  Duration wait(std::int64_t rows, Duration already = Duration::zero()) { return window.wait(1, rows, now + already); }
  void leave() { window.left(SessionId{1}, now); }

  BatchWindow window{256};
  TimePoint now{1s};
};

/// Two halves of eight texts take turns, each away for `away` while the other's forward runs. @return how long the half
/// that is there waits for the other, whose verdicts have just gone out. T(20) = 70 ms, T(40) = 92 ms.
Duration wait_of_halves(Duration away) {
  BatchWindow window{256};
  TimePoint now{1s};
  const auto half = [&](std::uint64_t first, auto&& act) {
    for (std::uint64_t i = 0; i < 4; ++i) act(SessionId{first + i});
  };
  for (int round = 0; round < 20; ++round) {
    for (const auto& [rows, took] : {std::pair(20, 70ms), {40, 92ms}}) {
      window.forward_began(now);
      window.forward_ended(rows, now += took);
    }
    for (const std::uint64_t first : {1, 5}) {
      half(first, [&](SessionId id) { window.left(id, now); });
      half(first, [&](SessionId id) { window.returned(id, 5, now + away); });
      now += 70ms;
    }
  }
  half(5, [&](SessionId id) { window.left(id, now); });
  return window.wait(4, 20, now);
}

// Those who are there would have to wait for the others' forward next.
TEST(BatchWindow, LetsTwoHalvesMeetThatTakeTurns) {
  EXPECT_GT(wait_of_halves(20ms), 15ms);
  EXPECT_EQ(wait_of_halves(60ms), Duration::zero());
}

// One round with drafts among many without says nothing of how soon a text is back without.
TEST(BatchWindow, ExpectsRoundsWithDraftsAndWithoutEachInTheirTime) {
  OneText text;
  for (int i = 0; i < 20; ++i) text.round(4, 60ms, 1, 4ms);
  text.round(4, 60ms, 5, 40ms);
  text.round(4, 60ms, 1, 4ms);
  text.leave();
  EXPECT_GT(text.wait(1), 3ms);
  EXPECT_LT(text.wait(1), 6ms);
}

TEST(BatchWindow, ExpectsANewTextLikeTheOthers) {
  OneText text;
  for (int i = 0; i < 20; ++i) text.round(5, 60ms, 5, 4ms);
  text.window.left(SessionId{2}, text.now);
  EXPECT_GT(text.wait(5), 3ms);
  EXPECT_LT(text.wait(5), 6ms);
}

// Drafts take 40 ms, and 80 ms beside a forward: a verifier that waits has them after 40 ms.
TEST(BatchWindow, ExpectsDraftsSoonerWhileNoForwardTakesTheirCores) {
  OneText text;
  for (int i = 0; i < 20; ++i) {
    text.round(5, 100ms, 5, 40ms);
    text.leave();
    text.window.forward_began(text.now);
    text.now += 80ms;
    text.window.returned(SessionId{1}, 5, text.now);
    text.now += 20ms;
    text.window.forward_ended(5, text.now);
  }
  text.leave();
  EXPECT_GT(text.wait(5), 35ms);
  EXPECT_LT(text.wait(5), 60ms);
  // Half of the drafts are made when 40 ms of a forward have passed.
  text.window.forward_began(text.now);
  text.now += 40ms;
  text.window.forward_ended(5, text.now);
  EXPECT_GT(text.wait(5), 15ms);
  EXPECT_LT(text.wait(5), 35ms);
}

// However regular a text was: what comes at the very moment when nobody waits any longer comes too late.
TEST(BatchWindow, WaitsALittleLongerThanForTheMomentItself) {
  OneText text;
  for (int i = 0; i < 100; ++i) text.round(1, 2ms, 1, 100us);
  text.leave();
  EXPECT_GT(text.wait(1), 100us);
}

TEST(BatchWindow, GivesUpOnATextThatIsLaterThanEver) {
  OneText text;
  for (int i = 0; i < 50; ++i) text.round(5, 60ms, 5, i % 2 == 0 ? 4ms : 6ms);
  text.leave();
  EXPECT_GT(text.wait(5), 4ms);
  EXPECT_LT(text.wait(5), 8ms);
  EXPECT_GT(text.wait(5, 8ms), Duration::zero());
  EXPECT_EQ(text.wait(5, 12ms), Duration::zero());
  text.window.forget(SessionId{1});
  EXPECT_EQ(text.wait(5), Duration::zero());
}

}  // namespace
}  // namespace outrider
