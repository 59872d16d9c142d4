// Workers that are well, and are not heard for longer than silence may last: behind a slow link, on a busy machine.
#include <algorithm>
#include <csignal>
#include <fstream>
#include <sstream>
#include <thread>

#include <gtest/gtest.h>

#include "lab/link_emulator.h"
#include "tests/support/cluster_fixtures.h"

namespace outrider {
namespace {

TEST(SlowLink, AVerifierWhoseRowsAreOnTheirWayIsAliveAndTheTextGoesOnWithoutThem) {
  Coordinator coordinator;
  const auto link = LinkEmulator::start(coordinator.address).value();
  Program verifier({"verifier", "--join", link->address(), "--threads", "1"});
  Program drafter({"drafter", "--join", coordinator.address});
  TransportContext context;
  Client client = connect_when_joined(context, coordinator.address, 1, 1);
  const NanoGolden golden = nano_goldens()[0];
  // Some 1.5 kB a row: 50 rows take longer than the 3 s of silence after which a worker counts as gone.
  Generate request = request_for(golden, 4);
  request.cache_scope = "with rows";
  while (request.prompt.size() < 50) request.prompt.insert(request.prompt.begin() + 1, golden.prompt_ids[1]);
  request.max_tokens = 12;
  Generate plain = request;
  plain.draft_length = 0;
  const std::vector<TokenId> text = answer(client, plain).tokens;
  link->set({.bandwidth_mbit = 0.1});
  request.cache_scope = "other rows";
  const Generation slow = answer(client, request);
  EXPECT_EQ(slow.tokens, text);
  EXPECT_EQ(slow.metrics.failovers, 0);
  // The next one is decoded plainly: no more rows come, and a modem's rate is enough.
  link->set({.bandwidth_mbit = 0.056});
  request.cache_scope = "no rows";
  const Generation next = answer(client, request);
  EXPECT_EQ(next.tokens, text);
  EXPECT_EQ(next.metrics.wire_bytes_to_drafter + next.metrics.wire_bytes_to_drafter_prompt, 0);
  EXPECT_EQ(status_of(context, coordinator.address).verifiers, 1);
  const auto said = lines_with(coordinator.program.err(), {" warning: "});
  ASSERT_EQ(said.size(), 1u) << testing::PrintToString(said);
  EXPECT_NE(said[0].find("K/V rows take more than"), std::string::npos) << said[0];
}

// Every role behind a modem of its own, and whoever asks too (docs/protocol.md, "Handshake").
TEST(SlowLink, EveryRoleWorksAtTheRateOfAModem) {
  Coordinator coordinator;
  std::vector<std::unique_ptr<LinkEmulator>> links;
  const auto slowly = [&] {
    links.push_back(LinkEmulator::start(coordinator.address).value());
    links.back()->set({.bandwidth_mbit = 0.056});
    return links.back()->address();
  };
  Program verifier({"verifier", "--no-towers", "--threads", "1", "--join", slowly()});
  Program drafter({"drafter", "--join", slowly()}), encoder({"encoder", "--join", slowly()});
  const auto joined = [&](const Status& status) {
    return status.verifiers == 1 && status.drafters == 1 && status.encoders == 1;
  };
  TransportContext context;
  ASSERT_TRUE(eventually([&] { return joined(status_of(context, coordinator.address)); }));
  // Whoever waits for workers, as launch and batch do, and then wants an answer.
  Client client = connect_when_joined(context, slowly(), 1, 1);
  const NanoGolden golden = nano_goldens()[0];
  Generate request = request_for(golden, 4);
  request.max_tokens = 8;
  const Generation generation = answer(client, request);
  EXPECT_TRUE(std::ranges::equal(generation.tokens, std::span(golden.greedy).first(generation.tokens.size())));
  EXPECT_EQ(generation.metrics.failovers, 0);
  const Result<Status> status = client.status();
  ASSERT_TRUE(status) << status.error().message;
  EXPECT_TRUE(joined(*status)) << "somebody was given up";

  EXPECT_EQ(coordinator.program.err().find("has not been heard"), std::string::npos) << coordinator.program.err();
}

/// This process's child that runs as a verifier.
pid_t verifier_child() {
  std::ifstream file("/proc/self/task/" + std::to_string(getpid()) + "/children");
  for (pid_t child = 0; file >> child;) {
    std::ostringstream words;
    words << std::ifstream("/proc/" + std::to_string(child) + "/cmdline").rdbuf();
    if (words.str().find(std::string("\0verifier\0", 10)) != std::string::npos) return child;
  }
  return 0;
}

TEST(OwnCluster, WaitsForItsWorkersAsLongAsTheyLive) {
  TransportContext context;
  const auto cluster =
      start_processes({.pair = nano_pair(), .drafters = 0, .processes = true, .program = OUTRIDER_PROGRAM}).value();
  Client client = Client::connect(context, cluster->address(), {.own = true}).value();
  ASSERT_TRUE(client.wait_for_workers(1, 0, [&] { return cluster->check(); }));
  const Generate request = request_for(nano_goldens()[0], 0);
  const std::vector<TokenId> wanted = answer(client, request).tokens;
  const pid_t verifier = verifier_child();
  ASSERT_GT(verifier, 0);
  int rounds = 0;
  const auto generation = client.generate(request, [&](std::span<const TokenId>) {
    if (++rounds != 3) return;
    kill(verifier, SIGSTOP);  // as a machine does that has others to run
    std::this_thread::sleep_for(std::chrono::milliseconds(4500));
    kill(verifier, SIGCONT);
  });
  ASSERT_TRUE(generation) << generation.error().message;
  EXPECT_EQ(generation->tokens, wanted);
  EXPECT_EQ(generation->metrics.failovers, 0);
  // But not longer.
  rounds = 0;
  const auto lost = client.generate(request, [&](std::span<const TokenId>) {
    if (++rounds == 3) kill(verifier, SIGKILL);
  });
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().code, Errc::kPeerGone) << lost.error().message;
  EXPECT_FALSE(cluster->check());
}

}  // namespace
}  // namespace outrider
