#include "common/wire/transport/worker_loop.h"

#include <functional>
#include <memory>
#include <new>
#include <utility>

#include <gtest/gtest.h>

namespace outrider {
namespace {

/// Of a worker that a coordinator has in its books.
class JoinedCore {
 public:
  JoinedCore() { membership_.on_message({.body = Welcome{}}, now()); }

  struct Output : CoreOutput {
    bool work = false;
  };
  void on_message(Message message, TimePoint now) { membership_.on_message(message, now); }
  void on_tick(TimePoint now) {
    membership_.on_tick(now);
    ++ticks;
  }
  void on_arriving(TimePoint now) { membership_.on_arriving(now); }
  void drain() { ++drains; }
  Output take_output() { return {membership_.take_output(), std::exchange(work, false)}; }
  const Membership& membership() const { return membership_; }
  std::size_t session_count() const { return sessions; }

  bool work = true;
  int ticks = 0, drains = 0;
  std::size_t sessions = 1;

 private:
  Membership membership_{LinkConfig{}, Hello{.role = Role::kEncoder, .name = "encoder", .facts = {}}, Capacity{}};
};

class WorkerLoopTest : public testing::Test {
 protected:
  TransportContext context_;
  std::unique_ptr<Endpoint> coordinator_ = Endpoint::bind(context_, "inproc://worker-loop").value();
  std::unique_ptr<Endpoint> endpoint_ = Endpoint::connect(context_, "inproc://worker-loop").value();
  JoinedCore core_;
  WorkerLoop<JoinedCore> loop_{core_, *endpoint_, WorkerOptions{}};
  std::stop_source stop_;
  bool asked_ = false;  ///< for work

  Result<void> run(Duration drain_wait, const std::function<bool()>& work) {
    return loop_.run(
        stop_.get_token(), drain_wait, [&](const JoinedCore::Output& output) { asked_ = asked_ || output.work; },
        [&] { return std::exchange(asked_, false) && work(); });
  }
};

TEST_F(WorkerLoopTest, WhatIsHereComesToItsEndAfterAStop) {
  stop_.request_stop();
  int done = 0;
  const Result<void> ended = run(std::chrono::hours(1), [&] {
    core_.sessions = ++done < 3;
    core_.work = true;
    return true;
  });
  EXPECT_TRUE(ended);
  EXPECT_EQ(done, 3);
  EXPECT_EQ(core_.drains, 1) << "the coordinator is told once";
}

TEST_F(WorkerLoopTest, NothingBeginsAfterAStopWithoutAWait) {
  stop_.request_stop();
  EXPECT_TRUE(run(Duration::zero(), [&] { return ADD_FAILURE(), true; }));
  EXPECT_EQ(core_.drains, 1);
}

// The coordinator did not know this worker any more.
TEST_F(WorkerLoopTest, ADrainOutlivesItsConnection) {
  stop_.request_stop();
  bool asked = false, is_back = false;
  const Result<void> ended = run(std::chrono::hours(1), [&] {
    core_.work = true;
    while (const auto received = coordinator_->receive()) {
      const bool introduces = std::holds_alternative<Hello>(received->message.value().body);
      if (!introduces && std::exchange(asked, true)) continue;
      EXPECT_TRUE(coordinator_->send(received->from, {.body = introduces ? Body(Welcome{1}) : Body(WhoAreYou{})}));
      is_back = introduces;
    }
    if (is_back && core_.membership().joined()) core_.sessions = 0;
    return true;
  });
  EXPECT_TRUE(ended);
  EXPECT_TRUE(is_back);
  EXPECT_TRUE(core_.membership().joined());
}

TEST_F(WorkerLoopTest, AnEngineThatThrowsEndsTheLoopAndIsNamed) {
  const Result<void> ended = run(Duration::zero(), []() -> bool { throw std::bad_alloc(); });
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().message, "the engine stopped: std::bad_alloc");
}

TEST_F(WorkerLoopTest, TicksGoOnBetweenTheStepsOfLongWork) {
  const Result<void> ended = run(Duration::zero(), [&] {
    const int before = core_.ticks;
    while (core_.ticks < before + 2) loop_.between_steps();
    stop_.request_stop();
    return true;
  });
  EXPECT_TRUE(ended);
}

}  // namespace
}  // namespace outrider
