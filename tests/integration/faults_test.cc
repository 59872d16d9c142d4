// What happens when a process dies, freezes, comes late or comes back. Real processes over TCP.
#include <csignal>
#include <thread>

#include <gtest/gtest.h>

#include "tests/support/cluster_fixtures.h"
#include "tests/support/free_port.h"

namespace outrider {
namespace {

/// Long enough that the story goes on well after a fault in its first tokens.
constexpr std::int64_t kStory = 400;
constexpr std::size_t kMidStory = 40;
constexpr std::int32_t kDraftLength = 4;
/// A verifier's, with which a story of any machine is not over before its fault: kStory takes half a second at least.
const std::vector<std::string> kSlowly = {"--added-verify-us", "4000"};

/// Runs the request; calls `fault` once, when the first kMidStory tokens have come.
Result<Generation> generate_with(Client& client, const Generate& request, const std::function<void()>& fault) {
  std::size_t count = 0;
  bool done = false;
  return client.generate(request, [&](std::span<const TokenId> tokens) {
    count += tokens.size();
    if (!done && count >= kMidStory) {
      done = true;
      fault();
    }
  });
}

std::vector<TokenId> first(const std::vector<TokenId>& tokens, std::int64_t count) {
  return {tokens.begin(), tokens.begin() + std::min<std::ptrdiff_t>(count, std::ssize(tokens))};
}

/// What every faulty story must still be: as decoded plainly and undisturbed.
const std::vector<TokenId>& story() {
  static const std::vector<TokenId> tokens = plain_story(kStory);
  return tokens;
}

/// Asks for short answers until one has drafts in it.
bool drafts_again(Client& client) {
  return eventually([&] {
    const Generation generation = answer(client, story_request(kMidStory, kDraftLength));
    EXPECT_EQ(generation.tokens, first(story(), kMidStory));
    return generation.metrics.drafted_tokens > 0 || testing::Test::HasFailure();
  });
}

TEST(Faults, DrafterKilledInMidStoryCostsNothingButSpeed) {
  Trio trio(true, {}, kSlowly);
  EndlessRun endless(kStory, {"--connect", trio.coordinator->address});
  Program& run = endless.program;
  ASSERT_TRUE(eventually([&] { return run.out().size() > kMidStory; })) << run.err();
  trio.drafter->send(SIGKILL);
  const std::size_t seen = run.out().size();

  EXPECT_EQ(describe(run.wait()), "exit 0");
  const std::string text = nano_text(story());
  EXPECT_LT(seen, text.size()) << "the story was over before the drafter was dead";
  EXPECT_EQ(run.out().substr(0, text.size()), text);
  EXPECT_EQ(run.err(), "");

  // The coordinator says so once, however often it tries to reach the dead one.
  Client client = trio.client(1, 0);
  ASSERT_TRUE(eventually([&] { return trio.status().drafters == 0; }));
  EXPECT_EQ(answer(client, story_request(kMidStory, kDraftLength)).metrics.drafted_tokens, 0);
  ASSERT_EQ(trio.warnings().size(), 1u) << trio.coordinator->program.err();
  EXPECT_NE(trio.warnings()[0].find("drafter"), std::string::npos) << trio.warnings()[0];
}

// Of two drafters of a text the other goes on: no round is without drafts.
TEST(Faults, OfTwoDraftersOneMayDieInMidStory) {
  Trio trio(true, {"--drafters-per-sequence", "2"});
  const std::unique_ptr<Program> first = std::move(trio.drafter);
  trio.start_drafter();
  Client client = trio.client(1, 2);
  const auto told = generate_with(client, story_request(kStory, kDraftLength), [&] { first->send(SIGKILL); });
  ASSERT_TRUE(told) << told.error().message;
  EXPECT_EQ(told->tokens, story());
  ASSERT_TRUE(eventually([&] { return trio.status().drafters == 1; }));
  EXPECT_GT(told->metrics.accepted_tokens, 0);
  EXPECT_TRUE(drafts_again(client));
}

TEST(Faults, DrafterToldToStopInMidStoryLeavesQuietly) {
  Trio trio(true, {}, kSlowly);
  Client client = trio.client(1, 1);
  const auto generation =
      generate_with(client, story_request(kStory, kDraftLength), [&] { trio.drafter->send(SIGTERM); });
  ASSERT_TRUE(generation) << generation.error().message;
  EXPECT_EQ(generation->tokens, story());
  EXPECT_LT(generation->metrics.drafting_rounds, generation->metrics.rounds - 1);
  EXPECT_EQ(describe(trio.drafter->wait()), "exit 0");
}

// Where no other comes in time (failover_test has the others).
TEST(Faults, VerifierKilledInMidStoryEndsItWithAnError) {
  // The connection tells, not silence: nobody is given up for that here.
  Trio trio(true, {"--failover-wait", "0", "--peer-timeout", "600"}, kSlowly);
  Client client = trio.client(1, 1);
  const auto generation =
      generate_with(client, story_request(kStory, kDraftLength), [&] { trio.verifier->send(SIGKILL); });
  ASSERT_FALSE(generation);
  EXPECT_EQ(generation.error().code, Errc::kPeerGone);
  EXPECT_NE(generation.error().message.find("verifier"), std::string::npos) << generation.error().message;
  EXPECT_EQ(trio.status().sessions, 0);

  // Another verifier takes over for what comes next.
  trio.start_verifier();
  Client later = trio.client(1, 1);
  EXPECT_EQ(answer(later, story_request(kMidStory, kDraftLength)).tokens, first(story(), kMidStory));
}

// Ctrl-Z and fg, a paused container, a debugger: nobody was silent while somebody listened.
TEST(Faults, ARunThatWasStoppedGoesOnWhereItWas) {
  constexpr std::int64_t kLong = 2 * kStory;
  const std::string text = nano_text(plain_story(kLong));
  EndlessRun endless(kLong, {});
  Program& run = endless.program;
  ASSERT_TRUE(eventually([&] { return run.out().size() > kMidStory; })) << run.err();
  run.send(SIGSTOP);
  const std::size_t seen = run.out().size();
  std::this_thread::sleep_for(std::chrono::seconds(4));  // longer than the silence of a peer that is gone
  run.send(SIGCONT);

  EXPECT_EQ(describe(run.wait()), "exit 0") << run.err();
  EXPECT_LT(seen, text.size()) << "the story was over before it was stopped";
  EXPECT_EQ(run.out().substr(0, text.size()), text);
  EXPECT_EQ(run.err(), "");
}

TEST(Faults, RunSaysThatTheVerifierDied) {
  Trio trio(true, {"--failover-wait", "0"});
  EndlessRun endless(8000, {"--connect", trio.coordinator->address});
  Program& run = endless.program;
  ASSERT_TRUE(eventually([&] { return run.out().size() > kMidStory; })) << run.err();
  trio.verifier->send(SIGKILL);
  EXPECT_EQ(describe(run.wait()), "exit 1");
  EXPECT_EQ(lines_with(run.err(), {"outrider: ", "verifier"}).size(), 1u) << run.err();
  EXPECT_EQ(lines_with(run.err(), {}).size(), 1u) << run.err();
}

TEST(Faults, FrozenDrafterIsLeftOutAndUsedAgainOnceItThaws) {
  // Or a slow machine's story would outlast the drafter's place.
  Trio trio(true, {"--peer-timeout", "600"}, kSlowly);
  Client client = trio.client(1, 1);
  const auto generation =
      generate_with(client, story_request(kStory, kDraftLength), [&] { trio.drafter->send(SIGSTOP); });
  ASSERT_TRUE(generation) << generation.error().message;
  EXPECT_EQ(generation->tokens, story());
  EXPECT_LT(generation->metrics.drafting_rounds, generation->metrics.rounds - 1);
  EXPECT_EQ(trio.warnings().size(), 1u) << trio.coordinator->program.err();

  trio.drafter->send(SIGCONT);
  EXPECT_TRUE(drafts_again(client)) << trio.coordinator->program.err();
}

TEST(Faults, FrozenDrafterThatWasGivenUpJoinsAgainOnceItThaws) {
  Trio trio;
  Client client = trio.client(1, 1);
  trio.drafter->send(SIGSTOP);
  ASSERT_TRUE(eventually([&] { return trio.status().drafters == 0; }));
  EXPECT_EQ(answer(client, story_request(kMidStory, kDraftLength)).metrics.drafted_tokens, 0);

  trio.drafter->send(SIGCONT);
  EXPECT_TRUE(drafts_again(client)) << trio.coordinator->program.err();
}

TEST(Faults, DrafterThatComesLateIsUsedWithinTheSameRequest) {
  Trio trio(/*with_drafter=*/false);
  Client client = trio.client(1, 0);
  const Generation alone = answer(client, story_request(kMidStory, kDraftLength));
  EXPECT_EQ(alone.tokens, first(story(), kMidStory));
  EXPECT_EQ(alone.metrics.drafted_tokens, 0);

  // The whole context, should the drafter need that long to load; left as soon as drafts are seen:
  // only an accepted draft brings two tokens at once.
  TransportContext context;
  const auto endpoint = Endpoint::connect(context, trio.coordinator->address);
  const SessionId request{1};
  ASSERT_TRUE(endpoint.value()->send("", {.session = request, .body = story_request(8000, kDraftLength)}));
  std::vector<TokenId> tokens;
  bool drafted = false, cancelled = false;
  eventually([&] {
    const auto received = endpoint.value()->receive();
    if (!received) {
      endpoint.value()->wait(std::chrono::milliseconds(20));
      return false;
    }
    if (!received->message) return true;
    if (const auto* more = std::get_if<Tokens>(&received->message->body)) {
      if (tokens.empty()) trio.start_drafter();
      tokens.insert(tokens.end(), more->tokens.begin(), more->tokens.end());
      drafted = drafted || more->tokens.size() > 1;
      if (drafted && std::ssize(tokens) >= kStory && !cancelled) {
        cancelled = true;
        EXPECT_TRUE(endpoint.value()->send("", {.session = request, .body = Cancel{}}));
      }
    }
    return std::holds_alternative<Done>(received->message->body) ||
           std::holds_alternative<Failed>(received->message->body);
  });
  EXPECT_TRUE(drafted) << "no drafts within " << tokens.size() << " tokens";
  EXPECT_EQ(first(tokens, kStory), story());

  EXPECT_GT(answer(client, story_request(kMidStory, kDraftLength)).metrics.drafted_tokens, 0);
}

TEST(Faults, WorkersOutliveTheirCoordinatorAndServeTheNextOne) {
  const std::string address = "tcp://127.0.0.1:" + std::to_string(free_port());
  Trio trio(true, {}, kSlowly, address);
  trio.client(1, 1);
  // One that waits for no other; coordinator_death_test has those that do.
  Client client = Client::connect(trio.context, address, {.failover_wait = Duration::zero()}).value();
  const auto generation =
      generate_with(client, story_request(kStory, kDraftLength), [&] { trio.coordinator->program.send(SIGKILL); });
  ASSERT_FALSE(generation);
  EXPECT_EQ(generation.error().code, Errc::kPeerGone);
  EXPECT_NE(generation.error().message.find(address), std::string::npos) << generation.error().message;
  EXPECT_TRUE(trio.verifier->running());
  EXPECT_TRUE(trio.drafter->running());

  trio.coordinator = std::make_unique<Coordinator>(address);
  ASSERT_EQ(trio.coordinator->address, address);
  Client later = trio.client(1, 1);
  const Generation again = answer(later, story_request(kStory, kDraftLength));
  EXPECT_EQ(again.tokens, story());
  EXPECT_GT(again.metrics.drafted_tokens, 0);
}

TEST(Faults, StoryOfAKilledClientEnds) {
  Trio trio(true, {}, {"--added-verify-us", "100000"});  // by itself the story would end after minutes
  EndlessRun endless(8000, {"--connect", trio.coordinator->address});
  Program& run = endless.program;
  ASSERT_TRUE(eventually([&] { return run.out().size() > kMidStory; })) << run.err();
  EXPECT_EQ(trio.status().sessions, 1);
  run.send(SIGKILL);
  EXPECT_EQ(describe(run.wait()), "signal 9");
  EXPECT_TRUE(eventually([&] { return trio.status().sessions == 0; }, std::chrono::seconds(30)));
}

TEST(Faults, EveryRoleEndsWithExit0WhenToldTo) {
  Trio trio;
  for (Program* program : {trio.drafter.get(), trio.verifier.get(), &trio.coordinator->program}) {
    program->send(SIGTERM);
    EXPECT_EQ(describe(program->wait()), "exit 0") << program->err();
  }
}

TEST(Faults, WorkersWithoutACoordinatorKeepTryingUntilToldToStop) {
  const std::string nobody = "tcp://127.0.0.1:" + std::to_string(free_port());
  Program verifier({"verifier", "--join", nobody}), drafter({"drafter", "--join", nobody});
  for (Program* program : {&verifier, &drafter}) {
    // Loaded, and so at its second or later attempt by the time that it is told.
    ASSERT_TRUE(
        eventually([&] { return !lines_with(program->err(), {"event=loaded"}).empty() || !program->running(); }));
    EXPECT_TRUE(program->running()) << program->err();
    program->send(SIGINT);
    EXPECT_EQ(describe(program->wait()), "exit 0") << program->err();
  }
}

}  // namespace
}  // namespace outrider
