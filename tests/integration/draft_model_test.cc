// Draft models as users start them: nano drafts for nano, in the same bits or in others; drafters with hidden rows.
#include <csignal>

#include <gtest/gtest.h>

#include "tests/support/cluster_fixtures.h"

namespace outrider {
namespace {

ClusterOptions with_draft_model(std::optional<WeightType> type, int drafters = 1, double verify_us = 0) {
  return {.pair = nano_pair(),
          .drafter_weight_type = type,
          .drafters = drafters,
          .verifier = {.added_verify_us = {verify_us}},
          .drafter = {.draft_model = nano_pair().backbone}};
}

class DraftModel : public NanoCluster {
 protected:
  DraftModel() : NanoCluster(with_draft_model(std::nullopt)) {}

  /// Answers of the golden prompts, a few tokens each.
  std::vector<Generation> answers(const SamplingParams& sampling, std::int32_t length, std::int32_t ahead = 0) {
    Client client = connect();
    std::vector<Generation> all;
    for (std::size_t i = 0; i < goldens_.size(); i += 6) {
      Generate request = request_for(goldens_[i], length);
      request.max_tokens = 60;
      request.sampling = sampling;
      if (length > 0) request.draft_ahead = ahead;
      all.push_back(answer(client, request));
    }
    return all;
  }
};

struct Sums {
  std::int64_t drafted = 0, accepted = 0, ahead = 0, bytes = 0, tokens = 0;
};

Sums expect_same(const std::vector<Generation>& plain, const std::vector<Generation>& drafted) {
  Sums sums;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    EXPECT_EQ(drafted[i].tokens, plain[i].tokens) << "text " << i;
    const RequestMetrics& metrics = drafted[i].metrics;
    sums.drafted += metrics.drafted_tokens;
    sums.accepted += metrics.accepted_tokens;
    sums.ahead += metrics.ahead_rounds;
    sums.bytes += metrics.wire_bytes_to_drafter;
    sums.tokens += std::ssize(drafted[i].tokens);
  }
  return sums;
}

// A row, a position or a step's state that is one off would make its drafts wrong.
TEST_F(DraftModel, ATrainedEagle3DrafterIsMostlyRight) {
  ClusterOptions options = with_draft_model(std::nullopt);
  options.drafter.draft_model = source_dir() / "models/nano-eagle3";
  for (const SamplingParams& sampling : {SamplingParams{}, SamplingParams{.temperature = 0.9f, .seed = 5}}) {
    restart(options);
    const Sums sums = expect_same(answers(sampling, 0), answers(sampling, 4));
    EXPECT_GT(sums.accepted, sums.drafted / 2) << "of " << sums.drafted;
  }
}

// The same weights in the same type have the same bits, at whatever batch and after whatever prefix: no draft is wrong.
TEST_F(DraftModel, OfTheTargetsOwnBitsIsNeverWrong) {
  for (const SamplingParams& sampling : {SamplingParams{}, SamplingParams{.temperature = 0.9f, .seed = 5}}) {
    restart(with_draft_model(std::nullopt));
    const std::vector<Generation> plain = answers(sampling, 0);
    const auto ahead_rounds = [&](std::int32_t ahead) {
      const Sums sums = expect_same(plain, answers(sampling, 4, ahead));
      EXPECT_GT(sums.accepted, 60);
      // Behind the last token that was wanted drafts may be left over; all others hold.
      EXPECT_GE(sums.accepted, sums.drafted - 8) << "temperature " << sampling.temperature;
      EXPECT_LT(sums.bytes / sums.tokens, 200) << "bytes a token to the drafter";
      return sums.ahead;
    };
    EXPECT_EQ(ahead_rounds(0), 0);
    // A pass takes longer than drafts do: some that are made ahead come in time, on a busy machine after several goes.
    restart(with_draft_model(std::nullopt, 1, 150'000));
    EXPECT_TRUE(eventually([&] { return ahead_rounds(8) > 0 || HasFailure(); }));
  }
}

TEST_F(DraftModel, OfOtherBitsLeavesTheTextAsItIs) {
  restart(with_draft_model(WeightType::kInt4));
  std::int64_t lost = 0;
  for (const SamplingParams& sampling : {SamplingParams{}, SamplingParams{.temperature = 1, .seed = 6}}) {
    const std::vector<Generation> plain = answers(sampling, 0);
    for (const std::int32_t length : {1, 8}) {
      const Sums sums = expect_same(plain, answers(sampling, length, length == 8 ? 8 : 0));
      EXPECT_GT(sums.accepted, sums.drafted / 3);
      lost += sums.drafted - sums.accepted;
    }
  }
  EXPECT_GT(lost, 8) << "its bits are not others";
  const std::vector<Generation> rejected = answers({.temperature = 1, .seed = 7, .rule = SamplingRule::kRejection}, 4);
  for (const Generation& generation : rejected) EXPECT_GT(generation.metrics.accepted_tokens, 0);
}

/// Kills a drafter in the middle of a story. @param of_verifier, of_drafter  options of the programs
void kill_in_mid_story(const std::vector<std::string>& of_verifier, const std::vector<std::string>& of_drafter) {
  Trio trio(/*with_drafter=*/false, {}, of_verifier);
  std::vector<std::string> command = {"drafter", "--join", trio.coordinator->address, "--threads", "1"};
  command.insert(command.end(), of_drafter.begin(), of_drafter.end());
  trio.drafter = std::make_unique<Program>(command);
  Client client = trio.client(1, 1);
  constexpr std::int64_t kStory = 200;
  bool killed = false;
  const auto told = client.generate(story_request(kStory, 4), [&](std::span<const TokenId>) {
    if (!std::exchange(killed, true)) trio.drafter->send(SIGKILL);
  });
  ASSERT_TRUE(told) << told.error().message;
  EXPECT_EQ(told->tokens, plain_story(kStory));
}

TEST(DraftModelProcess, MayDieInMidStory) {
  const std::string nano = nano_pair().backbone.string(),
                    block = (source_dir() / "tests/goldens/deepspec/nano").string();
  kill_in_mid_story({}, {"--draft-model", nano, "--dtype", "int4"});
  kill_in_mid_story({"--hidden-rows-for", block}, {"--model", nano, "--draft-model", block});
}

TEST(DraftModelProcess, OfAnotherTokenizerIsRefusedByName) {
  PairCopy other(nano_pair().backbone.parent_path());
  std::string tokenizer = other.read("backbone/tokenizer.json");
  for (std::size_t at = 0; (at = tokenizer.find("<unused12>", at)) != std::string::npos;)
    tokenizer.replace(at, 10, "<another12>");
  other.write("backbone/tokenizer.json", tokenizer);
  Trio trio(/*with_drafter=*/false);
  Program drafter({"drafter", "--join", trio.coordinator->address, "--draft-model", (other.dir() / "backbone").string(),
                   "--exit-when-refused"});
  EXPECT_EQ(describe(drafter.wait()), "exit 1");
  EXPECT_NE(drafter.err().find("tokenizer fingerprint: verifier has "), std::string::npos) << drafter.err();
}

}  // namespace
}  // namespace outrider
