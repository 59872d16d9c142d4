// A verifier dies in mid-text, and another goes on with it: real processes over TCP, nano.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "common/os/child.h"
#include "tests/support/cluster_fixtures.h"
#include "tests/support/free_port.h"

namespace outrider {
namespace {

constexpr std::int64_t kTokens = 200;

/// Two verifiers and a drafter, each a process.
class Failover : public testing::Test {
 protected:
  Failover() {
    start_verifier();
    start_verifier();
    client_.emplace(connect_when_joined(context_, coordinator_.address, 2, 1));
  }

  /// Slow enough that a text is not over before what a test does in its middle: 200 tokens take half a second at least.
  Program& start_verifier(const std::vector<std::string>& options = {}, int added_us = 8000) {
    std::vector<std::string> arguments = {"verifier", "--join", coordinator_.address, "--threads", "1",
                                          "--added-verify-us", std::to_string(added_us)};
    arguments.insert(arguments.end(), options.begin(), options.end());
    auto program = std::make_unique<Program>(arguments);
    return *(verifiers_[program->pid()] = std::move(program));
  }
  /// Where a verifier waits for its shards, once it does.
  static std::string shards_address(Program& verifier) {
    std::vector<std::string> lines;
    const auto waits = [&] { return !(lines = lines_with(verifier.err(), {"event=shards_wanted"})).empty(); };
    EXPECT_TRUE(eventually([&] { return waits() || !verifier.running(); }) && !lines.empty()) << verifier.err();
    return lines.empty() ? "" : lines[0].substr(lines[0].find("address=") + 8);
  }
  Status status() { return status_of(context_, coordinator_.address); }
  WorkerStatus only_verifier() {
    for (WorkerStatus& worker : status().workers)
      if (worker.role == Role::kVerifier) return worker;
    return {};
  }
  /// The process that has a text; 0 where none has.
  pid_t busy_verifier() {
    for (const WorkerStatus& worker : status().workers) {
      if (worker.role == Role::kVerifier && worker.sessions > 0)
        return static_cast<pid_t>(std::stol(worker.name.substr(worker.name.rfind('-') + 1)));
    }
    return 0;
  }
  void signal(pid_t pid, int number) {
    ASSERT_TRUE(verifiers_.contains(pid)) << "no verifier has the text";
    verifiers_[pid]->send(number);
  }
  /// Makes two shards that gather over TCP the only verifier. Its passes are slow, so that no text is over before its
  /// fault. @param options  more options of the first shard
  void start_group(int added_verify_us, std::vector<std::string> options = {}) {
    verifiers_.clear();
    ASSERT_TRUE(eventually([&] { return status().verifiers == 0; }));
    options.insert(options.end(), {"--shards", "2", "--listen-shards", "tcp://127.0.0.1:*"});
    sharded_ = &start_verifier(options, added_verify_us);
    shard_.emplace(std::vector<std::string>{"shard", "--join", shards_address(*sharded_), "--threads", "1"});
    ASSERT_TRUE(eventually([&] { return status().verifiers == 1; })) << sharded_->err() << shard_->err();
  }
  /// @param on_round  called with the number of rounds that have come, from 1.
  Generation answer_to(
      const Generate& request, const std::function<void(int rounds)>& on_round = [](int) {}) {
    int rounds = 0;
    auto generation = client_->generate(request, [&](std::span<const TokenId>) { on_round(++rounds); });
    EXPECT_TRUE(generation) << generation.error().message;
    rounds_ = rounds;
    if (!generation) return {};
    // Also those of a text that began at a verifier whose death the coordinator had yet to notice.
    failovers_ += generation->metrics.failovers;
    resume_s_ += to_seconds(Duration(generation->metrics.failover_ns));
    return *generation;
  }
  /// Kills the verifier of the text after so many rounds. The answer must be `wanted`.
  void kill_after(int rounds, const Generate& request, const std::vector<TokenId>& wanted) {
    SCOPED_TRACE(fmt::format("killed after {} rounds", rounds));
    ASSERT_TRUE(eventually([&] { return status().verifiers == 2; }));
    const Generation generation = answer_to(request, [&](int now) {
      if (now != rounds) return;
      const pid_t pid = busy_verifier();
      if (pid == 0) return;  // the rest of the text is on its way to this client
      signal(pid, SIGKILL);
      verifiers_.erase(pid);
      start_verifier();  // loads while the other one goes on
    });
    ASSERT_EQ(generation.tokens, wanted);
    EXPECT_EQ(generation.metrics.inexact_failovers, 0);
  }
  std::vector<Generate> requests() {
    Generate greedy = story_request(kTokens, 4), sampled = greedy;
    sampled.sampling = {.temperature = 1, .top_k = 64, .top_p = 0.95f, .frequency_penalty = 0.3f, .seed = 11};
    return {greedy, sampled};
  }

  TransportContext context_;
  Coordinator coordinator_;
  std::map<pid_t, std::unique_ptr<Program>> verifiers_;
  Program* sharded_ = nullptr;    ///< of start_group(): the first shard
  std::optional<Program> shard_;  ///< and the other
  Program drafter_{{"drafter", "--join", coordinator_.address}};
  std::optional<Client> client_;
  int rounds_ = 0;              ///< of the last answer
  std::int64_t failovers_ = 0;  ///< of all answers, as their metrics count them
  double resume_s_ = 0;
};

TEST_F(Failover, AKilledVerifierChangesNoToken) {
  for (const Generate& request : requests()) {
    const std::vector<TokenId> wanted = answer_to(request).tokens;
    ASSERT_EQ(std::ssize(wanted), kTokens);
    for (const int rounds : {1, 2, 7, rounds_ / 2, rounds_ - 2}) kill_after(rounds, request, wanted);
    if (HasFailure()) return;
  }
  EXPECT_GE(failovers_, 8);
  const Status after = status();
  EXPECT_EQ(after.failovers.exact, failovers_);
  EXPECT_EQ(after.failovers.failed, 0);
  EXPECT_EQ(after.sessions, 0);
  std::printf("%lld failovers, %.0f ms each from the missing to the resumed text\n", static_cast<long long>(failovers_),
              1e3 * resume_s_ / static_cast<double>(failovers_));
}

/// The processes that one has started.
std::vector<ProcessId> children_of(pid_t pid) {
  std::vector<ProcessId> children;
  for (const auto& thread : std::filesystem::directory_iterator(fmt::format("/proc/{}/task", pid))) {
    std::ifstream file(thread.path() / "children");
    for (pid_t child; file >> child;) children.push_back(identify(child));
  }
  return children;
}

// A verifier of three processes ends with any one of them, a whole one goes on with its text, and nothing of it stays.
TEST_F(Failover, AKilledShardChangesNoTokenAndLeavesNoOrphan) {
  const Generate request = requests()[1];
  const std::vector<TokenId> wanted = answer_to(request).tokens;
  for (const bool shard_dies : {true, false}) {
    verifiers_.clear();
    ASSERT_TRUE(eventually([&] { return status().verifiers == 0; }));
    Program& sharded = start_verifier({"--shards", "3"});
    ASSERT_TRUE(eventually([&] { return status().verifiers == 1; })) << sharded.err();
    EXPECT_EQ(only_verifier().shards, 3);
    EXPECT_FALSE(only_verifier().shards_over_tcp);
    const std::vector<ProcessId> shards = children_of(sharded.pid());
    ASSERT_EQ(shards.size(), 2u);
    for (const ProcessId& shard : shards) shard.signal(SIGTERM);  // as who stops a service does: that is the verifier's
    const Generation generation = answer_to(request, [&](int rounds) {
      if (rounds != 9) return;
      kill(shard_dies ? shards[1].pid : sharded.pid(), SIGKILL);
      start_verifier();
    });
    EXPECT_EQ(generation.tokens, wanted);
    EXPECT_EQ(generation.metrics.failovers, 1);
    EXPECT_EQ(describe(sharded.wait()), shard_dies ? "exit 1" : "signal 9");
    if (shard_dies) {
      EXPECT_EQ(lines_with(sharded.err(), {"shard 2 of 3 has ended with status 137"}).size(), 1u) << sharded.err();
    }
    EXPECT_TRUE(eventually([&] { return !shards[0].alive() && !shards[1].alive(); }));
  }
}

// The other shard is a process that has joined over TCP, as one of another host. 40 tokens; with OUTRIDER_EACH_ROUND=1
// (ctest -L slow) 200.
TEST_F(Failover, AShardOfAnotherHostMayBeKilledAtEachRound) {
  Generate request = requests()[1];
  if (std::getenv("OUTRIDER_EACH_ROUND") == nullptr) request.max_tokens = 40;
  const std::vector<TokenId> wanted = answer_to(request).tokens;
  const int all = rounds_;
  failovers_ = 0;
  for (int killed = 1; killed < all - 1; ++killed) {
    SCOPED_TRACE(fmt::format("killed after {} of {} rounds", killed, all));
    ASSERT_NO_FATAL_FAILURE(start_group(50'000));
    const Generation generation = answer_to(request, [&](int rounds) {
      if (rounds != killed) return;
      shard_->send(SIGKILL);
      start_verifier();
    });
    ASSERT_EQ(generation.tokens, wanted);
    ASSERT_EQ(describe(sharded_->wait()), "exit 1");
    EXPECT_EQ(lines_with(sharded_->err(), {"shard 1 of 2 is gone: "}).size(), 1u) << sharded_->err();
  }
  EXPECT_GE(failovers_, (all - 2) / 2) << "others were over before";
  std::printf("%lld failovers of %d kills\n", static_cast<long long>(failovers_), all - 2);
}

// A verifier that is killed and started again finds its shard again, which has held on to nothing.
TEST_F(Failover, AShardComesBackToItsVerifier) {
  const Generate request = requests()[1];
  const std::vector<TokenId> wanted = answer_to(request).tokens;
  verifiers_.clear();
  std::optional<Program> shard;
  const std::string address = fmt::format("tcp://127.0.0.1:{}", free_port());
  for (int start = 0; start < 3; ++start) {
    ASSERT_TRUE(eventually([&] { return status().verifiers == 0; }));
    Program& sharded = start_verifier({"--shards", "2", "--listen-shards", address});
    if (start == 0) shard.emplace(std::vector<std::string>{"shard", "--join", address, "--threads", "1"});
    ASSERT_TRUE(eventually([&] { return status().verifiers == 1; })) << sharded.err() << shard->err();
    EXPECT_EQ(only_verifier().shards, 2);
    EXPECT_TRUE(only_verifier().shards_over_tcp);
    EXPECT_EQ(answer_to(request).tokens, wanted);
    sharded.send(start == 0 ? SIGKILL : SIGTERM);
    EXPECT_EQ(describe(sharded.wait()), start == 0 ? "signal 9" : "exit 0");
  }
  shard->send(SIGTERM);
  EXPECT_EQ(describe(shard->wait()), "exit 0");
}

// As after the loss of a host: the service starts its verifier anew, and those who are left suffice.
TEST_F(Failover, AGroupBeginsAnewWithoutALostShard) {
  const Generate request = requests()[1];
  const std::vector<TokenId> wanted = answer_to(request).tokens;
  verifiers_.clear();
  const std::string address = fmt::format("tcp://127.0.0.1:{}", free_port());
  const std::vector<std::string> shard = {"shard", "--join", address, "--threads", "1"};
  Program first(shard), second(shard);
  for (const int count : {3, 2, 1}) {
    ASSERT_TRUE(eventually([&] { return status().verifiers == 0; }));
    Program& sharded = start_verifier(
        {"--shards", "3", "--min-shards", "1", "--listen-shards", address, "--peer-timeout", "1"});
    ASSERT_TRUE(eventually([&] { return status().verifiers == 1; })) << sharded.err();
    EXPECT_EQ(only_verifier().shards, count);
    EXPECT_EQ(answer_to(request).tokens, wanted);
    if (count == 1) break;
    (count == 3 ? first : second).send(SIGKILL);
    EXPECT_EQ(describe(sharded.wait()), "exit 1");
  }
}

// As when a job or a service of several hosts is stopped: all are told at once. The only verifier ends its text,
// slowly, and its shard waits for that.
TEST_F(Failover, ThoseThatAreStoppedTogetherEndTheText) {
  Generate request = requests()[1];
  request.max_tokens = 12;
  const std::vector<TokenId> wanted = answer_to(request).tokens;
  ASSERT_NO_FATAL_FAILURE(start_group(250'000, {"--drain-wait", "600"}));
  const Generation generation = answer_to(request, [&](int rounds) {
    if (rounds != 1) return;
    shard_->send(SIGTERM);
    sharded_->send(SIGTERM);
  });
  EXPECT_EQ(generation.tokens, wanted);
  EXPECT_EQ(describe(sharded_->wait()), "exit 0") << sharded_->err();
  EXPECT_EQ(describe(shard_->wait()), "exit 0") << shard_->err();
}

// SIGSTOP: the shard's connection stays, its verifier waits for it and sends no heartbeats.
TEST_F(Failover, AFrozenShardChangesNoToken) {
  const Generate request = requests()[1];
  const std::vector<TokenId> wanted = answer_to(request).tokens;
  for (const bool comes_back : {true, false}) {
    ASSERT_NO_FATAL_FAILURE(start_group(50'000, {"--drain-wait", "0"}));
    const Generation generation = answer_to(request, [&](int rounds) {
      if (rounds != 10) return;
      shard_->send(SIGSTOP);
      start_verifier();
    });
    EXPECT_EQ(generation.tokens, wanted);
    EXPECT_EQ(generation.metrics.failovers, 1);
    EXPECT_EQ(generation.metrics.inexact_failovers, 0);
    EXPECT_EQ(only_verifier().shards, 1) << "the group is not in the books";
    if (!comes_back) {
      sharded_->send(SIGTERM);
      EXPECT_EQ(describe(sharded_->wait()), "exit 1");
      EXPECT_EQ(lines_with(sharded_->err(), {"told to stop 3 s ago, but a shard says nothing"}).size(), 1u)
          << sharded_->err();
    }
    shard_->send(SIGCONT);
    if (comes_back) {
      EXPECT_TRUE(eventually([&] { return status().verifiers == 2; })) << sharded_->err();
      EXPECT_EQ(answer_to(request).tokens, wanted);
    }
    shard_->send(SIGTERM);
    EXPECT_EQ(describe(shard_->wait()), "exit 0");
  }
}

// A shard of another pair is refused before it loads, and its verifier waits on; one that computes other bits ends the
// group before a token.
TEST_F(Failover, AShardThatDoesNotFitIsRefused) {
  const std::vector<std::string> options = {"--shards", "2", "--listen-shards", "tcp://127.0.0.1:*"};
  Program& waiting = start_verifier(options);
  Program stranger({"shard", "--join", shards_address(waiting), "--model",
                    (source_dir() / "tests/goldens/e4b").string(), "--threads", "1"});
  EXPECT_EQ(describe(stranger.wait()), "exit 1");
  const std::vector<std::string> refusal = {"the verifier refuses this shard: the shard's weights are ", ", wanted "};
  EXPECT_EQ(lines_with(stranger.err(), refusal).size(), 1u) << stranger.err();
  EXPECT_EQ(lines_with(waiting.err(), {"event=shard_refused", "the shard's weights are "}).size(), 1u) << waiting.err();
  Program shard({"shard", "--join", shards_address(waiting), "--threads", "1"});
  EXPECT_TRUE(eventually([&] { return status().verifiers == 3; })) << waiting.err();

  const char* const variable = std::getenv("OUTRIDER_ISA");
  const std::string isa = variable == nullptr ? "" : variable;
  if (isa == "scalar") GTEST_SKIP() << "every shard here is scalar";
  Program& group = start_verifier(options);
  setenv("OUTRIDER_ISA", "scalar", 1);
  Program scalar({"shard", "--join", shards_address(group), "--threads", "1"});
  isa.empty() ? unsetenv("OUTRIDER_ISA") : setenv("OUTRIDER_ISA", isa.c_str(), 1);
  for (Program* const program : {&group, &scalar}) {
    EXPECT_EQ(describe(program->wait()), "exit 1");
    EXPECT_EQ(lines_with(program->err(), {"shard 1 of 2 computes other bits: it is 'bf16 scalar (", "', wanted 'bf16 "})
                  .size(),
              1u)
        << program->err();
  }
  EXPECT_EQ(status().verifiers, 3);
}

// SIGSTOP: nothing closes, 3 s of silence tell.
TEST_F(Failover, AFrozenVerifierChangesNoToken) {
  const Generate request = requests()[1];
  const std::vector<TokenId> wanted = answer_to(request).tokens;
  pid_t frozen = 0;
  const Generation generation = answer_to(request, [&](int rounds) {
    if (rounds == 10) signal(frozen = busy_verifier(), SIGSTOP);
  });
  EXPECT_EQ(generation.tokens, wanted);
  EXPECT_EQ(generation.metrics.failovers, 1);
  signal(frozen, SIGCONT);
  EXPECT_TRUE(eventually([&] { return status().verifiers == 2; })) << "it comes back";
  EXPECT_EQ(answer_to(request).tokens, wanted);
}

TEST_F(Failover, AVerifierThatIsToldToStopHandsItsTextOver) {
  const Generate request = requests()[1];
  const std::vector<TokenId> wanted = answer_to(request).tokens;
  pid_t stopped = 0;
  const Generation generation = answer_to(request, [&](int rounds) {
    if (rounds == 10) signal(stopped = busy_verifier(), SIGTERM);
  });
  EXPECT_EQ(generation.tokens, wanted);
  EXPECT_EQ(generation.metrics.failovers, 1);
  EXPECT_EQ(describe(verifiers_[stopped]->wait()), "exit 0");
  EXPECT_TRUE(lines_with(coordinator_.program.err(), {" warning: ", "verifier"}).empty()) << coordinator_.program.err();
}

// The rows of two types have the same form, but not the same bits.
TEST(InexactFailover, IsForThoseWhoAllowIt) {
  for (const bool allowed : {true, false}) {
    // By itself the text would take half a minute: the other verifier has joined long before.
    Trio trio(false,
              allowed ? std::vector<std::string>{"--failover-wait", "1", "--allow-inexact-failover"}
                      : std::vector<std::string>{"--failover-wait", "1"},
              {"--added-verify-us", "150000"});
    std::optional<Program> int8;  // which comes once the text has begun elsewhere
    Client client = trio.client(1, 0);
    const auto generation = client.generate(story_request(kTokens, 0), [&](std::span<const TokenId>) {
      if (int8) return;
      int8.emplace(std::vector<std::string>{"verifier", "--join", trio.coordinator->address, "--threads", "1",
                                            "--dtype", "int8"});
      ASSERT_TRUE(eventually([&] { return trio.status().verifiers == 2; }));
      trio.verifier->send(SIGKILL);
    });
    if (allowed) {
      ASSERT_TRUE(generation) << generation.error().message;
      EXPECT_EQ(std::ssize(generation->tokens), kTokens);
      EXPECT_EQ(generation->metrics.inexact_failovers, 1);
    } else {
      ASSERT_FALSE(generation);
      EXPECT_EQ(generation.error().code, Errc::kPeerGone);
      EXPECT_NE(generation.error().message.find("none that would give the same bytes joined within 1."),
                std::string::npos)
          << generation.error().message;
    }
  }
}

TEST_F(Failover, ACoordinatorThatIsToldToStopSaysSo) {
  bool stopped = false;
  Client client = Client::connect(context_, coordinator_.address, {.failover_wait = Duration::zero()})
                      .value();  // waits for no other
  const auto generation = client.generate(story_request(8000, 4), [&](std::span<const TokenId>) {
    if (!std::exchange(stopped, true)) coordinator_.program.send(SIGTERM);
  });
  ASSERT_FALSE(generation);
  EXPECT_EQ(generation.error().message, "the coordinator is stopping") << "it had to be missed";
}

// Takes minutes (ctest -L slow): at each single round of the answer.
TEST_F(Failover, AVerifierMayBeKilledAtEachRound) {
  if (std::getenv("OUTRIDER_EACH_ROUND") == nullptr) GTEST_SKIP() << "OUTRIDER_EACH_ROUND=1 runs it";
  for (const Generate& request : requests()) {
    const std::vector<TokenId> wanted = answer_to(request).tokens;
    const int all = rounds_;
    for (int rounds = 1; rounds < all && !HasFailure(); ++rounds) kill_after(rounds, request, wanted);
  }
  std::printf("%lld failovers, %.0f ms each from the missing to the resumed text\n", static_cast<long long>(failovers_),
              1e3 * resume_s_ / static_cast<double>(failovers_));
}

}  // namespace
}  // namespace outrider
