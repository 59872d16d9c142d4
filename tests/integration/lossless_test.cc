#include <array>
#include <map>
#include <string>
#include <string_view>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/model/gemma4/config.h"
#include "common/model/gemma4/weights.h"
#include "tests/support/cluster_fixtures.h"
#include "tests/support/model_at.h"

namespace outrider {
namespace {

/// A cluster, and what one of its weight type answers without drafts.
class Lossless : public NanoCluster, public testing::WithParamInterface<WeightType> {
 protected:
  Lossless() : NanoCluster({.pair = nano_pair(), .weight_type = GetParam()}) {
    if (!plain().empty()) return;
    Client client = connect();
    for (const NanoGolden& golden : goldens_) plain().push_back(answer(client, request(golden, 0)).tokens);
  }

  /// Rounded weights may answer longer than the golden does.
  static Generate request(const NanoGolden& golden, std::int32_t draft_length) {
    Generate request = request_for(golden, draft_length);
    request.max_tokens = 96;
    return request;
  }

  /// Plain answers, decoded once for all tests of a type.
  static std::vector<std::vector<TokenId>>& plain() {
    static std::map<WeightType, std::vector<std::vector<TokenId>>> answers;
    return answers[GetParam()];
  }
};

/// What the drafter must be told of a token at the least: its donor K/V rows.
double donor_bytes_per_token(const PairFacts& facts) {
  double bytes = 0;
  for (const DonorFacts& donor : facts.donors) {
    bytes += 2.0 * donor.num_key_value_heads * donor.head_dim * static_cast<double>(size_bytes(facts.kv_dtype));
  }
  return bytes;
}

// Rows of a forward pass do not depend on the rows beside them (docs/numerics.md), so this holds
// for lossy weights too: not close, equal.
TEST_P(Lossless, SpeculativeTokensEqualPlainOnes) {
  const auto config = load_text_config(model_at(nano_pair().backbone));
  ASSERT_TRUE(config) << config.error().message;
  const auto weights = open_weights(model_at(nano_pair().backbone), GetParam());
  ASSERT_TRUE(weights) << weights.error().message;
  const PairFacts facts = pair_facts(*config, **weights);
  Client client = connect();

  for (std::size_t turn = 0; turn < 4; ++turn) {
    const int draft_length = 1 << turn;
    SCOPED_TRACE(testing::Message() << "draft length " << draft_length);
    double tokens = 0, rounds = 0, bytes = 0;
    // Each prompt has two of the four lengths.
    for (std::size_t i = turn % 2; i < goldens_.size(); i += 2) {
      const Generation generation = answer(client, request(goldens_[i], draft_length));
      EXPECT_EQ(generation.tokens, plain()[i]) << goldens_[i].prompt;
      tokens += static_cast<double>(generation.tokens.size());
      rounds += static_cast<double>(generation.metrics.rounds);
      bytes += static_cast<double>(generation.metrics.wire_bytes_to_drafter);
    }
    // A round costs one hidden row, a token its K/V; a fifth on top is for headers.
    const double hidden = static_cast<double>(facts.hidden_size) * static_cast<double>(size_bytes(facts.hidden_dtype));
    const double needed = hidden / (tokens / rounds) + donor_bytes_per_token(facts);
    EXPECT_LE(bytes / tokens, 1.2 * needed)
        << tokens / rounds << " tokens per round; needed " << needed << " bytes per token";
    RecordProperty("wire_bytes_per_token_over_needed_at_" + std::to_string(draft_length),
                   std::to_string(bytes / tokens / needed));
  }
}

// Whoever chooses the length and the source of the drafts.
TEST_P(Lossless, PoliciesDoNotChangeTheText) {
  Client client = connect();
  std::int64_t ngram = 0;
  for (const DraftPolicy policy : {DraftPolicy::kAuto, DraftPolicy::kFixed, DraftPolicy::kTree}) {
    for (std::size_t i = 0; i < goldens_.size(); i += 2) {
      Generate wanted = request(goldens_[i], kChosenLengthMax);
      wanted.policy = policy;
      wanted.added.ngram = policy != DraftPolicy::kAuto;
      const Generation generation = answer(client, wanted);
      EXPECT_EQ(generation.tokens, plain()[i]) << goldens_[i].prompt << ", policy " << static_cast<int>(policy);
      ngram += generation.metrics.ngram.accepted_tokens;
    }
  }
  EXPECT_GT(ngram, 0) << "the text so far was a source, too";
}

// Where a forward pass takes long beside rows and drafts, as a large backbone's does.
TEST_P(Lossless, TreesThatAutoTakesDoNotChangeTheText) {
  TransportContext context;
  const auto cluster = start_threads(
      context, {.pair = nano_pair(), .weight_type = GetParam(), .verifier = {.added_verify_us = {100'000}}});
  ASSERT_TRUE(cluster) << cluster.error().message;
  Client client = connect_when_joined(context, **cluster);
  int trees = 0;
  for (const std::size_t i : {0, 1}) {
    Generate wanted = request(goldens_[i], kChosenLengthMax);
    wanted.policy = DraftPolicy::kAuto;
    wanted.report_rounds = true;
    const auto count = [&](const RoundReport& round) { trees += int{!round.depths.empty()}; };
    const auto answer = client.generate(
        wanted, [](std::span<const TokenId>) {}, [] { return false; }, count);
    ASSERT_TRUE(answer) << answer.error().message;
    EXPECT_EQ(answer->tokens, plain()[i]) << goldens_[i].prompt;
  }
  EXPECT_GT(trees, 0);
}

// How much of a tree is worth its rows is a matter of measured time, so it may keep less than a chain here;
// docs/lab/trees.md has what it keeps otherwise.
TEST_P(Lossless, TreesDoNotChangeTheText) {
  Client client = connect();
  for (const int drafts : {2, 15}) {
    std::int64_t rounds = 0, tokens = 0;
    for (std::size_t i = 0; i < goldens_.size(); i += 2) {
      Generate wanted = request(goldens_[i], drafts);
      wanted.policy = DraftPolicy::kTree;
      const Generation generation = answer(client, wanted);
      EXPECT_EQ(generation.tokens, plain()[i]) << goldens_[i].prompt << ", trees of " << drafts;
      rounds += generation.metrics.rounds;
      tokens += std::ssize(generation.tokens);
    }
    EXPECT_LT(rounds, tokens) << "trees of " << drafts;
  }
}

// What is looked up goes on where the drafter ends, or stands beside its drafts.
TEST_P(Lossless, AddedSourcesDoNotChangeTheText) {
  Client client = connect();
  std::int64_t ngram = 0, drafted = 0, drafted_alone = 0;
  for (std::size_t i = 0; i < goldens_.size(); i += 2) {
    Generate wanted = request(goldens_[i], i % 4 == 0 ? 4 : 8);
    if (i % 3 == 0) wanted.policy = DraftPolicy::kTree;
    wanted.draft_ahead = 0;
    drafted_alone += answer(client, wanted).metrics.drafted_tokens;
    wanted.draft_ahead.reset();
    wanted.added = {.ngram = true, .table = true};
    const Generation generation = answer(client, wanted);
    EXPECT_EQ(generation.tokens, plain()[i]) << goldens_[i].prompt;
    ngram += generation.metrics.ngram.accepted_tokens;
    drafted += generation.metrics.drafted_tokens - generation.metrics.ngram.drafted_tokens;
  }
  EXPECT_GT(ngram, 0) << "the text so far was a source, too";
  EXPECT_GT(drafted, drafted_alone / 2) << "and so was the drafter";
}

// The drafter sits beside the verifier here, so it drafts ahead only where a request wants it.
TEST_P(Lossless, DraftsMadeAheadDoNotChangeTheText) {
  Client client = connect();
  std::int64_t ahead = 0, drafting = 0;
  for (std::size_t i = 0; i < goldens_.size(); i += 3) {
    Generate wanted = request(goldens_[i], std::array{2, 4, 8}[i / 3 % 3]);
    wanted.draft_ahead = i % 2 == 0 ? kDraftAheadMax : 1;
    const Generation generation = answer(client, wanted);
    EXPECT_EQ(generation.tokens, plain()[i]) << goldens_[i].prompt;
    ahead += generation.metrics.ahead_rounds;
    drafting += generation.metrics.drafting_rounds;
  }
  EXPECT_GT(ahead, drafting / 10) << "the drafter goes on as the target does";
}

// Their rows share forward passes.
TEST_P(Lossless, SessionsSideBySideGetTheTokensTheyGetAlone) {
  constexpr std::size_t kClients = 4;
  std::vector<std::vector<TokenId>> side_by_side(goldens_.size() / 2);
  {
    std::vector<std::jthread> clients;
    for (std::size_t first = 0; first < kClients; ++first) {
      clients.emplace_back([this, first, &side_by_side] {
        Client client = connect();
        for (std::size_t i = first; i < side_by_side.size(); i += kClients) {
          const std::int32_t draft_length = std::array{4, 0, 8, 2}[(i / kClients + first) % 4];
          side_by_side[i] = answer(client, request(goldens_[i], draft_length)).tokens;
        }
      });
    }
  }
  for (std::size_t i = 0; i < side_by_side.size(); ++i) EXPECT_EQ(side_by_side[i], plain()[i]) << goldens_[i].prompt;
}

/// Nothing of the verifier's is rounded, whatever the drafter gets: chains, trees, drafts made ahead, drawn texts.
class LosslessWire : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(EachForm, LosslessWire, testing::Values("exact", "int8", "int4"),
                         [](const auto& param_info) { return std::string(param_info.param); });

TEST_P(LosslessWire, NoTextDependsOnWhatItsRowsAreRoundedTo) {
  TransportContext context;
  const auto cluster = start_threads(context, {.pair = nano_pair(), .drafter = {.wire = GetParam()}});
  ASSERT_TRUE(cluster) << cluster.error().message;
  Client client = connect_when_joined(context, **cluster);
  const std::vector<NanoGolden> goldens = nano_goldens();
  double tokens = 0, rounds = 0, bytes = 0, prompt_bytes = 0, prompt_tokens = 0, drafted = 0, accepted = 0;
  for (std::size_t i = 0; i < goldens.size(); i += 2) {
    Generate plain = request_for(goldens[i], 0);
    plain.max_tokens = 64;
    if (i % 4 == 2) plain.sampling = {.temperature = 1, .seed = i};
    const std::vector<TokenId> text = answer(client, plain).tokens;
    for (const int way : {0, 1, 2}) {
      Generate wanted = plain;
      wanted.draft_length = way == 1 ? 15 : 4;
      if (way == 1) wanted.policy = DraftPolicy::kTree;
      wanted.draft_ahead = way == 2 ? kDraftAheadMax : 0;
      wanted.cache_scope = std::to_string(way);  // so that each computes and sends its prompt
      const Generation generation = answer(client, wanted);
      EXPECT_EQ(generation.tokens, text) << goldens[i].prompt << ", way " << way;
      if (way != 0) continue;
      tokens += static_cast<double>(generation.tokens.size());
      rounds += static_cast<double>(generation.metrics.rounds);
      bytes += static_cast<double>(generation.metrics.wire_bytes_to_drafter);
      prompt_bytes += static_cast<double>(generation.metrics.wire_bytes_to_drafter_prompt);
      prompt_tokens += static_cast<double>(wanted.prompt.size());
      drafted += static_cast<double>(generation.metrics.drafted_tokens);
      accepted += static_cast<double>(generation.metrics.accepted_tokens);
    }
  }
  // Nano's donors have 2 heads of 64 and of 128, its hidden row has 384 numbers.
  const double number = std::string_view(GetParam()) == "exact"  ? 2
                        : std::string_view(GetParam()) == "int8" ? 34.0 / 32
                                                                 : 18.0 / 32;
  const double row = 2 * (2 * 64 + 2 * 128) * number, needed = 384 * number / (tokens / rounds) + row;
  EXPECT_GE(bytes / tokens, 0.9 * needed) << "the last round's rows are not needed";
  EXPECT_LE(bytes / rounds, 384 * number + row * (tokens / rounds) + 700) << "the headers of two messages of a round";
  EXPECT_LE(prompt_bytes / prompt_tokens, row + 40) << "headers of a prompt's chunks";
  RecordProperty("wire_bytes_per_token", std::to_string(bytes / tokens));
  RecordProperty("acceptance", std::to_string(accepted / drafted));
}

// Drafts must not reach past the last position, nor end the answer early.
TEST(LosslessContext, AnswersFillASmallContextWithAndWithoutDrafts) {
  constexpr Position kContext = 100;
  PairCopy pair(source_dir() / "models/nano");
  nlohmann::json config = nlohmann::json::parse(pair.read("backbone/config.json"));
  config["text_config"]["max_position_embeddings"] = kContext;
  pair.write("backbone/config.json", config.dump());
  TransportContext context;
  const auto cluster = start_threads(context, {.pair = pair_paths(pair.dir()).value()});
  ASSERT_TRUE(cluster) << cluster.error().message;
  Client client = connect_when_joined(context, **cluster);

  const Generation plain = answer(client, story_request(1000, 0));
  EXPECT_EQ(plain.reason, FinishReason::kLength);
  // The last token needs no K/V, so it may stand one beyond.
  EXPECT_EQ(std::ssize(endless_story().prompt_ids) + std::ssize(plain.tokens), kContext + 1);
  for (const int draft_length : {1, 4, 8, 32}) {
    const Generation drafted = answer(client, story_request(1000, draft_length));
    EXPECT_EQ(drafted.tokens, plain.tokens) << "draft length " << draft_length;
    EXPECT_EQ(drafted.reason, FinishReason::kLength);
  }
}

INSTANTIATE_TEST_SUITE_P(EachType, Lossless,
                         testing::Values(WeightType::kBf16, WeightType::kInt8, WeightType::kInt4, WeightType::kQ4),
                         [](const auto& param_info) { return std::string(to_string(param_info.param)); });

}  // namespace
}  // namespace outrider
