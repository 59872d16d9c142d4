// Answers that another verifier verifies again.
#include "coordinator-node/auditor.h"

#include <gtest/gtest.h>

#include "coordinator-node/coordinator_core.h"
#include "tests/unit/protocol_support.h"

namespace outrider {
namespace {

class Audits : public testing::Test {
 protected:
  void join(const std::string& name, const std::string& numeric_class = "zeros") {
    Hello verifier = hello(Role::kVerifier);
    verifier.name = name;
    verifier.numeric_class = numeric_class;
    core_.on_message(name, {.body = verifier}, now_);
  }
  /// Asks for three tokens.
  void ask(Generate request = {.prompt = {1, 2, 3}, .max_tokens = 3, .wait_ms = 1000}) {
    core_.on_message("c", {.session = SessionId{9}, .body = std::move(request)}, now_);
  }
  void verdict(const PeerId& from, std::uint64_t session, std::uint32_t round, TokenId next,
               std::int32_t accepted = 0) {
    const Position base = round == 0 ? 2 : last_base_[session];
    last_base_[session] = base + accepted + 1;
    core_.on_message(
        from,
        {.session = SessionId{session},
         .round = RoundId{round},
         .body = Verdict{.accepted = accepted, .next_token = next, .committed = base + accepted + 1, .kv = {}}},
        now_);
  }
  /// `v` writes 40 41 42.
  void answer() {
    verdict("v", 50, 0, 40);
    verdict("v", 50, 1, 41);
    verdict("v", 50, 2, 42);
  }
  CoordinatorOutput out() { return core_.take_output(); }
  AuditCounts counts() { return core_.status().audits; }

  CoordinatorCore core_{{.instance = 50, .audit = {.share = 1}}};
  TimePoint now_{seconds(100)};
  std::map<std::uint64_t, Position> last_base_;
};

TEST_F(Audits, TheOtherVerifierIsGivenTheAnswerAsDrafts) {
  join("v");
  join("w");
  ask();
  answer();
  const auto sent = out().send;
  ASSERT_NE(find<Prefill>(sent, "w"), nullptr);
  EXPECT_EQ(find<Prefill>(sent, "w")->tokens, (std::vector<TokenId>{1, 2, 3}));
  verdict("w", 51, 0, 40);
  const auto verify = out().send;
  ASSERT_NE(find<Verify>(verify, "w"), nullptr);
  EXPECT_EQ(find<Verify>(verify, "w")->tokens, (std::vector<TokenId>{40, 41}));
  verdict("w", 51, 1, 42, 1);
  EXPECT_EQ(counts(), (AuditCounts{.same = 1, .tokens = 3}));
  EXPECT_EQ(core_.status().sessions, 0);
  for (const Outgoing& word : out().send) EXPECT_NE(word.to, "") << "said to nobody";
}

// Each attempt copies the prompt and the answer.
TEST_F(Audits, ThatWaitForRoomAreNotTriedWithEveryMessage) {
  join("v");
  Hello full = hello(Role::kVerifier);
  full.name = "w";
  full.capacity.sessions_max = 1;
  core_.on_message("w", {.body = full}, now_);
  core_.on_tick(now_);
  ask();
  core_.on_message("other", {.session = SessionId{1}, .body = Generate{.prompt = {1}, .max_tokens = 3}}, now_);
  answer();
  out();
  core_.on_message("other", {.session = SessionId{1}, .body = Cancel{}}, now_);
  core_.on_message("v", {.body = Heartbeat{}}, now_);
  EXPECT_EQ(find<Prefill>(out().send, "w"), nullptr);
  core_.on_tick(now_ + LinkConfig().heartbeat_interval);
  EXPECT_NE(find<Prefill>(out().send, "w"), nullptr);
}

TEST_F(Audits, GiveWayToThoseWhoWait) {
  Hello full = hello(Role::kVerifier), small = full;
  full.name = "v", small.name = "w";
  full.capacity.sessions_max = 1;
  small.capacity = {.kv_cost = {.bytes_per_position = 100}, .kv_bytes_max = 1000};
  core_.on_message("v", {.body = full}, now_);
  ask();
  core_.on_message("w", {.body = small}, now_);
  // Too long for w.
  const Generate long_one{.prompt = {1}, .max_tokens = 15, .wait_ms = 1000};
  core_.on_message("other", {.session = SessionId{1}, .body = long_one}, now_);
  ASSERT_EQ(core_.status().waiting, 1);
  answer();
  EXPECT_EQ(find<Prefill>(out().send, "w"), nullptr);
  for (int beats = 0; beats < 2; ++beats) core_.on_tick(now_ += LinkConfig().heartbeat_interval);
  const auto later = out().send;
  EXPECT_NE(find<Prefill>(later, "v"), nullptr);
  EXPECT_NE(find<Prefill>(later, "w"), nullptr);
}

TEST_F(Audits, ADifferenceNamesBothVerifiers) {
  join("v");
  join("w");
  ask();
  answer();
  verdict("w", 51, 0, 40);
  verdict("w", 51, 1, 77);
  const CoordinatorOutput output = out();
  EXPECT_EQ(output.notices.back().text,
            "audit: token 2 of an answer of 3 is 41 by verifier v and 77 by verifier w, both of class 'zeros'; one of "
            "them is wrong");
  EXPECT_EQ(counts(), (AuditCounts{.different = 1}));
  EXPECT_NE(find<Free>(output.send, "w"), nullptr);
  EXPECT_EQ(core_.status().sessions, 0);
}

TEST_F(Audits, WantAVerifierOfTheClassAndSayOnceThatThereIsNone) {
  join("v");
  join("w", "another");
  ask();
  answer();
  EXPECT_EQ(out().notices.back().text,
            "audit: there is no other verifier of class 'zeros' than v to verify its answers again");
  EXPECT_EQ(counts(), (AuditCounts{.skipped = 1}));
  ask();
  verdict("v", 51, 0, 40);
  verdict("v", 51, 1, 41);
  verdict("v", 51, 2, 42);
  EXPECT_TRUE(out().notices.empty());
  EXPECT_EQ(counts(), (AuditCounts{.skipped = 2}));
}

TEST_F(Audits, EndWithTheirVerifierAndHoldUpNobody) {
  join("v");
  join("w");
  ask();
  answer();
  out();
  core_.on_peer_gone("w", now_);
  EXPECT_EQ(counts(), (AuditCounts{.skipped = 1}));
  EXPECT_EQ(core_.status().sessions, 0);
  ask();
  EXPECT_NE(find<Prefill>(out().send, "v"), nullptr);
}

TEST_F(Audits, LeaveOutTextsThatDraftsHaveASayIn) {
  join("v");
  join("w");
  ask({.prompt = {1, 2, 3},
       .max_tokens = 3,
       .wait_ms = 1000,
       .sampling = {.temperature = 1, .rule = SamplingRule::kRejection}});
  answer();
  EXPECT_EQ(find<Prefill>(out().send, "w"), nullptr);
  EXPECT_EQ(counts(), AuditCounts{});
}

TEST(Auditor, TakesItsShareAndBoundsWhatWaits) {
  Auditor auditor({.share = 0.25, .seed = 5});
  int wanted = 0;
  for (int i = 0; i < 10'000; ++i) wanted += auditor.wants();
  EXPECT_NEAR(wanted, 2500, 150);
  for (int i = 0; i < 20; ++i) auditor.add({});
  EXPECT_EQ(auditor.counts().skipped, 4);

  Auditor small({.share = 1, .media_bytes_max = 20});
  const auto with_sound = [](std::int64_t samples) {
    Audit audit;
    audit.request.media.push_back({.first = 1, .content = zeros({samples})});
    return audit;
  };
  for (const std::int64_t samples : {4, 2, 1}) small.add(with_sound(samples));
  EXPECT_EQ(small.counts().skipped, 1) << "8 bytes beside 16 are too many, 4 are not";
}

}  // namespace
}  // namespace outrider
