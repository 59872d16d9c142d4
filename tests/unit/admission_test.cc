#include "http-server/admission.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace outrider {
namespace {
using Place = std::unique_ptr<Admission::Place>;

bool stays() { return false; }
bool leaves() { return true; }

/// Requests that wait, each on a thread of its own, as a server's do.
class Line {
 public:
  explicit Line(Admission& admission) : admission_(admission) {}

  /// Returns once `count` more wait.
  void add(const std::string& client, int count) {
    const int waiting = admission_.waiting() + count;
    for (int i = 0; i < count; ++i) {
      threads_.emplace_back([this, client] {
        Result<Place> place = admission_.enter(client, stays);
        const std::lock_guard lock(mutex_);
        let_in_.emplace_back(client, place ? std::move(*place) : nullptr);
        changed_.notify_one();
      });
    }
    while (admission_.waiting() < waiting) std::this_thread::yield();
  }
  /// The next that is let in.
  std::pair<std::string, Place> next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !let_in_.empty(); });
    auto first = std::move(let_in_.front());
    let_in_.pop_front();
    return first;
  }

 private:
  Admission& admission_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<std::string, Place>> let_in_;
  std::vector<std::jthread> threads_;
};

TEST(Admission, WhoAsksOnceDoesNotWaitForFiftyOfAnother) {
  Admission admission(1, 64);
  Line line(admission);
  Place first = admission.enter("greedy", stays).value();
  line.add("greedy", 49);
  line.add("modest", 1);
  line.add("other", 1);
  first.reset();
  std::vector<std::string> order;
  for (int i = 0; i < 51; ++i) order.push_back(line.next().first);
  order.resize(5);
  EXPECT_EQ(order, (std::vector<std::string>{"greedy", "modest", "other", "greedy", "greedy"}));
}

TEST(Admission, TheClientWithTheFewestInIsNext) {
  Admission admission(3, 64);
  Line line(admission);
  std::vector<Place> in;
  for (const char* client : {"a", "a", "b"}) in.push_back(admission.enter(client, stays).value());
  line.add("a", 2);
  line.add("b", 1);
  line.add("c", 1);
  in[2].reset();  // a 2, b 0, c 0
  const auto [third, b] = line.next();
  EXPECT_EQ(third, "b") << "which came before c";
  in[0].reset();  // a 1, b 1, c 0
  const auto [fourth, c] = line.next();
  EXPECT_EQ(fourth, "c");
  in[1].reset();
  const auto [fifth, a] = line.next();
  EXPECT_EQ(fifth, "a");
  EXPECT_EQ(admission.open(), 3);
  EXPECT_EQ(admission.waiting(), 1);
  in.clear();
}

TEST(Admission, AClientHasFewInWithoutATokenAndItsOthersFollowWithIt) {
  Admission admission(100, 64);
  std::vector<Place> in;
  for (int i = 0; i < Admission::kStartingMax; ++i) in.push_back(admission.enter("a", stays).value());
  EXPECT_FALSE(admission.enter("a", leaves)) << "no room, and it does not wait";
  in.push_back(admission.enter("b", stays).value());
  in[0]->started();
  in[0]->started();
  EXPECT_TRUE(admission.enter("a", stays)) << "and is gone again without a token";
  in.push_back(admission.enter("a", stays).value());
  EXPECT_EQ(admission.enter("a", leaves).error().code, Errc::kCancelled);
  in[1].reset();
  in.push_back(admission.enter("a", stays).value());
  EXPECT_EQ(admission.open(), Admission::kStartingMax + 2);
}

TEST(Admission, ALineIsBoundedForEachClient) {
  Admission admission(1, 2);
  Line line(admission);
  Place first = admission.enter("a", stays).value();
  line.add("a", 2);
  const Result<Place> third = admission.enter("a", stays);
  ASSERT_FALSE(third);
  EXPECT_EQ(third.error().code, Errc::kUnavailable);
  line.add("b", 2);
  first.reset();
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(line.next().second);
}

TEST(Admission, WhoGoesAwayLeavesTheLine) {
  Admission admission(1, 64);
  Place first = admission.enter("a", stays).value();
  EXPECT_EQ(admission.enter("b", leaves).error().code, Errc::kCancelled);
  EXPECT_EQ(admission.waiting(), 0);
  first.reset();
  EXPECT_TRUE(admission.enter("a", stays));
}

}  // namespace
}  // namespace outrider
