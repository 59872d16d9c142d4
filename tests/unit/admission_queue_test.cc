#include "coordinator-node/admission_queue.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace outrider {
namespace {

/// Requests over HTTP: each has a peer of its own, and comes on behalf of a client.
class LineTest : public testing::Test {
 protected:
  /// `count` more requests of a client, of one text each.
  void ask(const std::string& client, int count = 1) {
    for (int i = 0; i < count; ++i) EXPECT_TRUE(enter(client, fmt::format("peer {}", clients_.size())));
  }
  Result<void> enter(const std::string& client, const PeerId& peer) {
    const SessionId id{clients_.size()};
    Result<void> taken = line_.enter(id, peer, client, 10);
    clients_.push_back(client);
    return taken;
  }
  /// Lets in who is next; he has his first token at once.
  SessionId let_in() {
    const SessionId id = line_.next().value();
    line_.admit(id);
    line_.started(id);
    return id;
  }
  const std::string& client(SessionId id) const { return clients_.at(value(id)); }
  /// Lets in whoever may start, and says whose the texts are.
  std::string all_that_may() {
    std::string clients;
    while (line_.next()) clients += client(let_in());
    return clients;
  }
  void limit(AdmissionConfig config) { line_ = AdmissionQueue(config); }

  AdmissionQueue line_{{}};
  std::vector<std::string> clients_;
};

TEST_F(LineTest, WhoAsksOnceDoesNotWaitForFiftyOfAnother) {
  limit({.open_max = 1});
  ask("greedy");
  SessionId open = let_in();
  ask("greedy", 49);
  ask("modest");
  ask("other");
  std::vector<std::string> order;
  for (int i = 0; i < 51; ++i) {
    EXPECT_EQ(line_.next(), std::nullopt);
    line_.leave(open);
    open = let_in();
    order.push_back(client(open));
  }
  order.resize(5);
  EXPECT_EQ(order, (std::vector<std::string>{"greedy", "modest", "other", "greedy", "greedy"}));
}

TEST_F(LineTest, TheClientWithTheFewestAtWorkIsNext) {
  limit({.open_max = 3});
  for (const char* client : {"a", "a", "b"}) ask(client);
  const SessionId a = let_in(), b = let_in(), second_a = let_in();
  EXPECT_EQ(client(a) + client(b) + client(second_a), "aba");
  ask("a", 2);
  ask("b");
  ask("c");
  line_.leave(b);  // a 2, b 0, c 0
  EXPECT_EQ(all_that_may(), "b") << "which came before c";
  line_.leave(a);  // a 1, b 1, c 0
  EXPECT_EQ(all_that_may(), "c");
  line_.leave(second_a);
  EXPECT_EQ(all_that_may(), "a");
  EXPECT_EQ(line_.waiting(), 1u);
}

TEST_F(LineTest, AClientHasFewAtWorkWithoutATokenAndItsOthersFollowWithIt) {
  ask("a", AdmissionQueue::kStartingMax + 4);
  for (std::uint64_t i = 0; i < AdmissionQueue::kStartingMax; ++i) line_.admit(SessionId{i});
  EXPECT_EQ(line_.next(), std::nullopt);
  ask("b");
  EXPECT_EQ(client(let_in()), "b");
  const SessionId first{0}, second{1};
  line_.started(first);
  line_.started(first);
  line_.admit(line_.next().value());
  EXPECT_EQ(line_.next(), std::nullopt) << "one token is one place";
  line_.leave(first);
  EXPECT_EQ(line_.next(), std::nullopt) << "it had its token before";
  line_.leave(second);
  EXPECT_NE(line_.next(), std::nullopt) << "and this one will not have any";
}

TEST_F(LineTest, IsSharedByTheClientsOfAFrontEnd) {
  limit({.open_max = 1, .waiting_max = 8});
  ask("a");
  const SessionId open = let_in();
  ask("a", 4);
  const Result<void> fifth = enter("a", "another peer");
  ASSERT_FALSE(fifth);
  EXPECT_EQ(fifth.error().code, Errc::kUnavailable);
  EXPECT_EQ(fifth.error().message,
            "4 requests are waiting, 4 of them this client's; of 8 places the rest is for others");
  ask("b", 2);
  line_.leave(open);
  std::string order;
  for (int i = 0; i < 6; ++i) {
    const SessionId next = let_in();
    order += client(next);
    line_.leave(next);
  }
  EXPECT_EQ(order, "ababaa");
}

TEST_F(LineTest, FourteenHundredRequestsOfOneLeaveRoomForOthers) {
  limit({.open_max = 2});
  int taken = 0;
  for (int i = 0; i < 1400; ++i) taken += enter("", "greedy").has_value();
  EXPECT_EQ(taken, 512);
  for (int i = 0; i < 200; ++i) EXPECT_TRUE(enter("", fmt::format("stranger {}", i))) << i;
  let_in();  // of greedy, who came first
  EXPECT_EQ(value(line_.next().value()), 1400u) << "the first stranger is next all the same";
}

TEST_F(LineTest, PromptsThatWaitAreSharedToo) {
  limit({.open_max = 1, .waiting_bytes_max = 100});
  int taken = 0;
  for (int i = 0; i < 10; ++i) taken += enter("greedy", fmt::format("{}", i)).has_value();
  EXPECT_EQ(taken, 5);
  EXPECT_EQ(line_.waiting(), 5u) << "who is refused takes nothing";
  EXPECT_TRUE(enter("stranger", "another"));
}

// A prompt of this queue has 10 bytes. Pictures grow when they are encoded.
TEST_F(LineTest, NobodyIsLetInWhileThePromptsOfThoseInsideAreTooLarge) {
  limit({.open_bytes_max = 25});
  ask("a", 5);
  EXPECT_EQ(all_that_may(), "aaa");
  line_.leave(SessionId{0});
  const SessionId fourth = let_in();
  line_.leave(SessionId{1});
  line_.resize(fourth, 40);
  EXPECT_TRUE(line_.is_full());
  EXPECT_EQ(line_.next(), std::nullopt);
  line_.resize(SessionId{4}, 40);
  line_.leave(fourth);
  EXPECT_EQ(all_that_may(), "a") << "what waits does not count";
  line_.leave(SessionId{2});
  line_.leave(SessionId{4});
  EXPECT_FALSE(line_.is_full());
}

TEST_F(LineTest, WhoGoesAwayLeavesIt) {
  limit({.open_max = 1});
  ask("a");
  const SessionId open = let_in();
  ask("b");
  line_.leave(SessionId{1});
  EXPECT_EQ(line_.waiting(), 0u);
  line_.leave(open);
  EXPECT_EQ(line_.next(), std::nullopt);
  ask("a");
  EXPECT_EQ(all_that_may(), "a");
}

TEST_F(LineTest, WhoIsNextStaysNextUntilHeIsLetIn) {
  ask("a");
  ask("b", 3);
  const SessionId large = line_.next().value();
  EXPECT_EQ(client(large), "a");
  ask("c", 3);
  EXPECT_EQ(line_.next(), large) << "however many come after it";
}

}  // namespace
}  // namespace outrider
