// Answers in which some tokens may not come, on the nano pair: whatever drafts, the text is that of plain decoding
// under the same masks, and drafts are masked too. And what the model thinks of a prompt's tokens.
#include <algorithm>
#include <iterator>

#include <gtest/gtest.h>

#include "tests/support/cluster_fixtures.h"

namespace outrider {
namespace {

using MaskedText = NanoCluster;

/// A request whose own text would be another: some of its words are bad, one of two tokens; and only the tokens of the
/// first texts are allowed.
Generate masked(const std::vector<NanoGolden>& goldens, std::uint64_t seed, std::int32_t draft_length) {
  const NanoGolden& golden = goldens[seed % goldens.size()];
  Generate request = request_for(golden, draft_length);
  request.max_tokens = 64;
  std::vector<TokenId>& allowed = request.sampling.allowed_tokens;
  for (std::size_t i = 0; i < 6; ++i) std::ranges::copy(goldens[i].greedy, std::back_inserter(allowed));
  request.sampling.bad_words = {{{golden.greedy[3]}}, {{golden.greedy[6], golden.greedy[7]}}};
  if (seed > 0) request.sampling.temperature = 0.8f, request.sampling.seed = seed;
  return request;
}

void expect_masked(const Generate& request, const std::vector<TokenId>& tokens) {
  const SamplingParams& sampling = request.sampling;
  for (const TokenId token : tokens)
    EXPECT_NE(std::ranges::find(sampling.allowed_tokens, token), sampling.allowed_tokens.end());
  for (const TokenWord& word : sampling.bad_words)
    EXPECT_TRUE(std::ranges::search(tokens, word.tokens).empty()) << "a bad word of " << word.tokens.size();
}

TEST_F(MaskedText, IsThatOfPlainDecodingAndItsDraftsHold) {
  Client client = connect();
  std::int64_t accepted = 0, drafted = 0, ahead = 0;
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    const Generate without_drafts = masked(goldens_, seed, 0);
    const Generation plain = answer(client, without_drafts);
    expect_masked(without_drafts, plain.tokens);
    EXPECT_NE(plain.tokens, answer(client, request_for(goldens_[seed], 0)).tokens) << "nothing was masked";
    for (const std::int32_t draft_length : {1, 5}) {
      const Generation speculative = answer(client, masked(goldens_, seed, draft_length));
      EXPECT_EQ(speculative.tokens, plain.tokens) << "seed " << seed << ", draft length " << draft_length;
      accepted += speculative.metrics.accepted_tokens;
      drafted += speculative.metrics.drafted_tokens;
    }
    Generate tree = masked(goldens_, seed, 8), early = masked(goldens_, seed, 3);
    tree.policy = DraftPolicy::kTree;
    EXPECT_EQ(answer(client, tree).tokens, plain.tokens) << "seed " << seed;
    early.draft_ahead = 2;
    const Generation pipelined = answer(client, early);
    EXPECT_EQ(pipelined.tokens, plain.tokens) << "seed " << seed;
    ahead += pipelined.metrics.ahead_rounds;
  }
  std::printf("%lld of %lld drafts accepted, %lld rounds of drafts made ahead\n", static_cast<long long>(accepted),
              static_cast<long long>(drafted), static_cast<long long>(ahead));
  EXPECT_GT(accepted * 4, drafted) << "drafts do not know the masks";
}

TEST_F(MaskedText, HoldsUnderTheRulesWhoseTextDependsOnDrafts) {
  Client client = connect();
  for (const SamplingRule rule : {SamplingRule::kRejection, SamplingRule::kTypical}) {
    for (const DraftPolicy policy : {DraftPolicy::kFixed, DraftPolicy::kTree}) {
      Generate request = masked(goldens_, 1, 4);
      request.policy = policy;
      request.sampling.rule = rule;
      const Generation generation = answer(client, request);
      expect_masked(request, generation.tokens);
      EXPECT_GT(generation.metrics.accepted_tokens, 2) << to_string(rule) << ", " << to_string(policy);
    }
  }
}

TEST_F(MaskedText, APromptIsScoredAsTheSameTokensOfAnAnswerAre) {
  Client client = connect();
  Generate request = request_for(goldens_[0], 4);
  request.max_tokens = 40;
  request.sampling.logprobs = 3;
  const Generation answered = answer(client, request);
  ASSERT_GE(answered.tokens.size(), 10u);
  Generate whole = request;
  const auto prompt = whole.prompt.size();
  whole.prompt.insert(whole.prompt.end(), answered.tokens.begin(), answered.tokens.end());
  whole.sampling.prompt_logprobs = 3;
  whole.max_tokens = 2;
  std::vector<std::vector<TokenLogprobs>> scores(2);
  std::size_t longest = 0;
  bool early = false;
  const auto both = client.generate_all(
      {whole, whole},
      {.on_tokens = [&](std::size_t index,
                        std::span<const TokenId>) { early = early || scores[index].size() + 1 < whole.prompt.size(); },
       .on_prompt_scores =
           [&](std::size_t index, std::span<const TokenLogprobs> piece) {
             scores[index].insert(scores[index].end(), piece.begin(), piece.end());
             longest = std::max(longest, piece.size());
           }});
  ASSERT_TRUE(both) << both.error().message;
  EXPECT_FALSE(early) << "the answer came before its prompt's scores";
  EXPECT_LE(longest, 32u);
  ASSERT_EQ(scores[0].size() + 1, whole.prompt.size());
  EXPECT_EQ(scores[0], scores[1]) << "two at once share passes";
  for (std::size_t i = 0; i < answered.tokens.size(); ++i)
    EXPECT_EQ(scores[0][prompt + i - 1], answered.logprobs[i]) << "the same bits, at token " << i;
  whole.sampling.prompt_logprobs.reset();
  EXPECT_EQ(answer(client, whole).tokens, (*both)[0].tokens) << "to be scored changes nothing";
}

}  // namespace
}  // namespace outrider
