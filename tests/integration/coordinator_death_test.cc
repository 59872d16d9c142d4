// The coordinator dies in mid-text, and its clients go on with the next one: real processes over TCP, nano.
#include <csignal>
#include <cstdio>
#include <future>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/cluster_fixtures.h"
#include "tests/support/free_port.h"
#include "tests/support/http_client.h"

namespace outrider {
namespace {

constexpr std::int64_t kTokens = 200;

std::string local_address() { return fmt::format("tcp://127.0.0.1:{}", free_port()); }

/// A verifier and a drafter that join either of two addresses. A coordinator listens at the first.
class CoordinatorDeath : public testing::Test {
 protected:
  CoordinatorDeath() {
    EXPECT_TRUE(eventually([&] { return has_workers(first_); }));
  }

  bool has_workers(const std::string& address) {
    const Status status = status_of(context_, address);
    return status.verifiers == 1 && status.drafters == 1;
  }
  void kill_coordinator() {
    coordinator_->program.send(SIGKILL);
    coordinator_->program.wait();
  }
  void restart_coordinator() {
    kill_coordinator();
    coordinator_ = std::make_unique<Coordinator>(first_);
  }
  static std::vector<Generate> requests() {
    Generate greedy = story_request(kTokens, 4), sampled = greedy;
    sampled.sampling = {.temperature = 1, .top_k = 64, .top_p = 0.95f, .frequency_penalty = 0.3f, .seed = 11};
    Generate formed = greedy;  // one that begins anew with its heading, unless the next coordinator's workers read on
    formed.stop_ids = {1, 106};
    formed.sampling.grammar = R"(root ::= "Title: " [a-z ,]{1000} "#")";
    return {greedy, sampled, formed};
  }
  /// @param after  what happens after so many rounds
  Generation answer_to(const Generate& request, int rounds, const std::function<void()>& after) {
    Client client = Client::connect(context_, both_).value();
    int round = 0;
    const auto generation = client.generate(request, [&](std::span<const TokenId>) {
      if (++round == rounds) after();
    });
    EXPECT_TRUE(generation) << generation.error().message;
    rounds_ = round;
    return generation ? *generation : Generation();
  }

  TransportContext context_;
  const std::string first_ = local_address(), second_ = local_address(), both_ = first_ + "," + second_;
  std::unique_ptr<Coordinator> coordinator_ = std::make_unique<Coordinator>(first_);
  /// Slow enough that a text is not over before its coordinator is, on a machine of any speed.
  Program verifier_{{"verifier", "--join", both_, "--threads", "1", "--added-verify-us", "8000"}},
      drafter_{{"drafter", "--join", both_}};
  int rounds_ = 0;  ///< of the last answer
};

TEST_F(CoordinatorDeath, ChangesNoTokenAndComputesNoPromptAgain) {
  for (const Generate& request : requests()) {
    const std::vector<TokenId> wanted = answer_to(request, 0, [] {}).tokens;
    ASSERT_EQ(std::ssize(wanted), kTokens);
    double resume_s = 0;
    for (const int rounds : {1, 7, rounds_ / 2}) {
      SCOPED_TRACE(fmt::format("killed after {} rounds", rounds));
      const Generation generation = answer_to(request, rounds, [&] { restart_coordinator(); });
      ASSERT_EQ(generation.tokens, wanted);
      EXPECT_EQ(generation.metrics.resumes, 1);
      EXPECT_GT(generation.metrics.cached_prompt_tokens, 0) << "the verifier has kept its rows";
      resume_s += to_seconds(Duration(generation.metrics.resume_ns));
    }
    std::printf("%.0f ms each from the last token of one coordinator to the first of the next\n", 1e3 * resume_s / 3);
    EXPECT_EQ(status_of(context_, first_).failovers.resumed, 1) << "each knows of its own";
  }
}

TEST_F(CoordinatorDeath, AStandbyGoesOnWhereTheFirstWasKilledOrIsFrozen) {
  const Coordinator standby(second_);
  const Generate request = requests()[1];
  const std::vector<TokenId> wanted = answer_to(request, 0, [] {}).tokens;
  const Generation generation = answer_to(request, 10, [&] { coordinator_->program.send(SIGSTOP); });
  EXPECT_EQ(generation.tokens, wanted);
  EXPECT_EQ(generation.metrics.resumes, 1);
  EXPECT_GT(generation.metrics.cached_prompt_tokens, 0);
  EXPECT_TRUE(has_workers(second_));
  kill_coordinator();
}

TEST_F(CoordinatorDeath, OneThatIsToldToStopHandsItsTextsOver) {
  const Coordinator standby(second_);
  const Generate request = requests()[0];
  const std::vector<TokenId> wanted = answer_to(request, 0, [] {}).tokens;
  const Generation generation = answer_to(request, 10, [&] { coordinator_->program.send(SIGTERM); });
  EXPECT_EQ(generation.tokens, wanted);
  EXPECT_EQ(describe(coordinator_->program.wait()), "exit 0");
  EXPECT_TRUE(lines_with(coordinator_->program.err(), {" warning: "}).empty()) << coordinator_->program.err();
}

TEST_F(CoordinatorDeath, ANewClientFindsTheWorkersThatStayedAtTheStandby) {
  const Coordinator standby(second_);
  const Generate request = requests()[0];
  const std::vector<TokenId> wanted = answer_to(request, 0, [] {}).tokens;
  kill_coordinator();
  EXPECT_TRUE(eventually([&] { return has_workers(second_); }));
  coordinator_ = std::make_unique<Coordinator>(first_);
  EXPECT_EQ(answer_to(request, 0, [] {}).tokens, wanted);
  EXPECT_EQ(status_of(context_, first_).verifiers, 0) << "they have not moved";
}

/// What a stream says, and nothing of who says it when.
std::string text_of(const std::vector<Json>& events) {
  std::string text;
  for (const Json& event : events) {
    for (const Json& choice : event.at("choices")) text += choice.value("text", "");
  }
  return text;
}

/// What `run` has printed, but for its measurements.
std::string text_of(const Program& run) {
  const std::string out = run.out();
  return out.substr(0, out.find("\nseed "));
}

TEST_F(CoordinatorDeath, NeitherAStreamOverHttpNorAPrintedTextShowsIt) {
  Serve serve({"--connect", first_});
  const std::vector<std::string> sampled = {"--connect", first_, "--temperature", "1", "--seed", "5"};
  EndlessRun printed(600, sampled);
  EXPECT_EQ(describe(printed.program.wait()), "exit 0");
  for (const double temperature : {0.0, 1.0}) {
    const Json wanted = {{"prompt", endless_story().prompt_ids}, {"max_tokens", 400}, {"ignore_eos", true},
                         {"temperature", temperature},           {"seed", 3},         {"stream", true}};
    const auto stream = [&](const std::function<void(Connection&)>& meanwhile) {
      Connection connection(serve.port);
      connection.send("POST", "/v1/completions", wanted.dump());
      meanwhile(connection);
      return text_of(events_of(connection.response()));
    };
    const std::string undisturbed = stream([](Connection&) {});
    EXPECT_GT(undisturbed.size(), 400u);
    EndlessRun again(600, sampled);
    EXPECT_TRUE(eventually([&] { return !again.program.out().empty(); }));
    EXPECT_EQ(stream([&](Connection& connection) {
                ASSERT_TRUE(connection.wait_for("data: "));
                restart_coordinator();
              }),
              undisturbed);
    EXPECT_EQ(describe(again.program.wait()), "exit 0");
    EXPECT_EQ(text_of(again.program), text_of(printed.program));
  }
}

}  // namespace
}  // namespace outrider
