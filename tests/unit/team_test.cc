#include "common/compute/kernels/team.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "common/os/host.h"

namespace outrider {
namespace {

/// How often each of [0, count) was done, by the calling thread's team.
std::vector<int> done(std::int64_t count, std::int64_t grain) {
  std::vector<int> times(static_cast<std::size_t>(count));
  team_for(count, grain, [&](std::int64_t i) { ++times[static_cast<std::size_t>(i)]; });
  return times;
}

void sleep_a_little() { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }

class Team : public testing::Test {
 protected:
  void TearDown() override { set_team_size(before_); }
  const int before_ = team_size();
};

TEST_F(Team, DoesEachItemOnceWithEverySize) {
  for (const int size : {1, 2, 3, 8, 1, 5}) {
    set_team_size(size);
    EXPECT_EQ(team_size(), size);
    for (const std::int64_t count : {0, 1, 2, 7, 64, 1000}) {
      for (const std::int64_t grain : {1, 3, 64, 5000})
        EXPECT_EQ(done(count, grain), std::vector<int>(static_cast<std::size_t>(count), 1)) << size << ", " << grain;
    }
  }
}

TEST_F(Team, PiecesAreOfGrainItemsAndInBounds) {
  set_team_size(3);
  std::atomic<int> whole = 0, rest = 0;
  team_run(23, 5, [&](std::int64_t begin, std::int64_t end) {
    EXPECT_EQ(begin % 5, 0);
    if (end - begin == 5) ++whole;
    if (begin == 20 && end == 23) ++rest;
  });
  EXPECT_EQ(whole, 4);
  EXPECT_EQ(rest, 1);
}

// Late workers come into jobs that are not those they were woken for; some of the pauses send them to sleep.
TEST_F(Team, ManyJobsOfEverySizeOneAfterTheOther) {
  set_team_size(4);
  std::vector<std::int64_t> sums(64);
  std::int64_t expected = 0;
  for (std::int64_t job = 0; job < 20'000; ++job) {
    const std::int64_t count = job % 17 + 1;
    team_for(count, job % 3 + 1, [&](std::int64_t i) { sums[static_cast<std::size_t>(i)] += job; });
    expected += count * job;
    if (job % 1000 == 0) sleep_a_little();
  }
  std::int64_t sum = 0;
  for (const std::int64_t value : sums) sum += value;
  EXPECT_EQ(sum, expected);
}

// Each of three pieces waits until the two others have begun: so three threads have one each.
TEST_F(Team, EveryThreadOfItWorks) {
  set_team_size(3);
  for (int job = 0; job < 10; ++job) {
    std::atomic<int> begun = 0;
    team_run(3, 1, [&](std::int64_t, std::int64_t) {
      ++begun;
      while (begun < 3) std::this_thread::yield();
    });
    sleep_a_little();
  }
}

TEST_F(Team, APieceThatHasPiecesDoesThemItself) {
  set_team_size(3);
  std::atomic<int> count = 0;
  team_run(6, 1, [&](std::int64_t, std::int64_t) {
    const std::thread::id self = std::this_thread::get_id();
    team_run(5, 1, [&](std::int64_t begin, std::int64_t end) {
      EXPECT_EQ(std::this_thread::get_id(), self);
      count += static_cast<int>(end - begin);
    });
  });
  EXPECT_EQ(count, 30);
}

// In a forked process there are no workers any more: they are as late as can be.
TEST_F(Team, DoesNotWaitForAWorkerThatHasBegunNothing) {
  set_team_size(4);
  done(100, 1);
  const pid_t child = fork();
  if (child == 0) _exit(done(100, 1) == std::vector<int>(100, 1) ? 0 : 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(Team, DoesNotWaitForAnotherThreadsTeam) {
  set_team_size(2);
  std::atomic<int> begun = 0;
  std::atomic<bool> may_end = false;
  std::thread other([&] {
    set_team_size(2);
    team_run(2, 1, [&](std::int64_t, std::int64_t) {
      ++begun;
      while (!may_end) std::this_thread::yield();
    });
  });
  while (begun == 0) std::this_thread::yield();
  EXPECT_EQ(done(100, 1), std::vector<int>(100, 1));
  may_end = true;
  other.join();
}

/// Of this process's threads, those that do not sleep.
int awake() {
  int count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream stat(task.path() / "stat");
    const std::string line{std::istreambuf_iterator<char>(stat), {}};
    const std::size_t name_end = line.rfind(") ");
    if (name_end != std::string::npos && line[name_end + 2] != 'S') ++count;
  }
  return count;
}

TEST_F(Team, SleepsWhenThereIsNoWork) {
  set_team_size(3);
  done(100, 1);
  for (int look = 0; look < 10'000 && awake() > 1; ++look) sleep_a_little();
  EXPECT_EQ(awake(), 1) << "threads that do not sleep, this one among them";
}

/// How the kernel treats the calling thread: struct sched_attr of its first version.
struct Turns {
  std::uint32_t size = 0, policy = 0;
  std::uint64_t flags = 0;
  std::int32_t nice = 0;
  std::uint32_t priority = 0;
  std::uint64_t slice_ns = 0, deadline = 0, period = 0;
};
Turns turns() {
  Turns turns;
  syscall(SYS_sched_getattr, 0, &turns, sizeof turns, 0);
  return turns;
}

TEST(ShortTurns, AreShorterAndNothingElse) {
  std::thread([] {
    const Turns before = turns();
    if (before.slice_ns == 0) GTEST_SKIP() << "a kernel without slices: Linux has them since 6.12";
    take_short_turns();
    const Turns after = turns();
    EXPECT_EQ(after.slice_ns, 100'000u) << "before: " << before.slice_ns;
    EXPECT_EQ(after.policy, before.policy);
    EXPECT_EQ(after.nice, before.nice);
    std::thread([] { EXPECT_EQ(turns().slice_ns, 100'000u) << "of a thread that one with short turns starts"; }).join();
  }).join();
}

// The team becomes smaller and larger from one job to the next, with workers that are there already.
TEST_F(Team, ChangesItsSizeBetweenJobs) {
  constexpr int kSizes[] = {4, 1, 3, 2, 4, 2};
  std::int64_t expected = 0;
  std::vector<std::int64_t> sums(64);
  for (std::int64_t job = 0; job < 6'000; ++job) {
    set_team_size(kSizes[job / 3 % 6]);
    team_for(64, 1, [&](std::int64_t i) { sums[static_cast<std::size_t>(i)] += job; });
    expected += 64 * job;
    if (job % 500 == 0) sleep_a_little();
  }
  std::int64_t sum = 0;
  for (const std::int64_t value : sums) sum += value;
  EXPECT_EQ(sum, expected);
  set_team_size(4);  // those who slept meanwhile are back
  std::atomic<int> begun = 0;
  team_run(4, 1, [&](std::int64_t, std::int64_t) {
    ++begun;
    while (begun < 4) sleep_a_little();
  });
  EXPECT_EQ(begun, 4);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they end a program without memory themselves
/// Ends this process with 0 if a team does all pieces although no further thread can be started.
[[noreturn]] void work_without_threads() {
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t bytes = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE)) + (4 << 20);  // less than a stack
  const rlimit limit{bytes, bytes};
  setrlimit(RLIMIT_AS, &limit);
  try {
    std::thread([] {}).join();
    std::exit(2);
  } catch (const std::system_error&) {
    set_team_size(3);
    std::exit(done(100, 1) == std::vector<int>(100, 1) ? 0 : 1);
  }
}

// A limit of memory or processes slows a program down, and does not end it.
TEST(TeamDeathTest, WorksWithFewerThreadsWhereNoneCanBeStarted) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(work_without_threads(), testing::ExitedWithCode(0), "");
}
#endif

}  // namespace
}  // namespace outrider
