#include <gtest/gtest.h>

#include "tests/support/cluster_fixtures.h"

namespace outrider {
namespace {

struct Placement {
  const char* name;
  bool processes;
};
void PrintTo(const Placement& placement, std::ostream* out) { *out << placement.name; }

class GoldenTokens : public testing::TestWithParam<Placement> {};

// One cluster serves every prompt and draft length, so this also shows that nothing of one request
// is left for the next.
TEST_P(GoldenTokens, EqualHuggingFaceGreedyForEveryDraftLength) {
  const std::vector<NanoGolden> goldens = nano_goldens();
  TransportContext context;
  const ClusterOptions options{.pair = nano_pair(), .weight_type = WeightType::kF32, .program = OUTRIDER_PROGRAM};
  const auto cluster = GetParam().processes ? start_processes(options) : start_threads(context, options);
  ASSERT_TRUE(cluster) << cluster.error().message;
  Client client = connect_when_joined(context, **cluster);

  for (const int draft_length : {0, 1, 2, 4, 8}) {
    RequestMetrics sums;
    for (const NanoGolden& golden : goldens) {
      SCOPED_TRACE(testing::Message() << "draft length " << draft_length << ", prompt: " << golden.prompt);
      Generate request = request_for(golden, draft_length);
      request.draft_ahead = 0;  // how many drafts are made ahead is a matter of time
      const Generation generation = answer(client, request);
      EXPECT_EQ(generation.tokens, golden.greedy);
      EXPECT_EQ(nano_text(generation.tokens), golden.text);
      EXPECT_EQ(generation.reason, golden.greedy.size() < 96 ? FinishReason::kStop : FinishReason::kLength);
      sums.accepted_tokens += generation.metrics.accepted_tokens;
      sums.drafting_rounds += generation.metrics.drafting_rounds;
    }
    if (draft_length == 0) {
      EXPECT_EQ(sums.drafting_rounds, 0);
    }
    if (draft_length == 4 && goldens.size() == 24) {
      // A correct drafter reaches 1.94 (tests/goldens/README.md).
      EXPECT_GE(static_cast<double>(sums.accepted_tokens), 1.90 * static_cast<double>(sums.drafting_rounds))
          << sums.accepted_tokens << " accepted in " << sums.drafting_rounds << " drafting rounds";
    }
  }
}
INSTANTIATE_TEST_SUITE_P(EachPlacement, GoldenTokens,
                         testing::Values(Placement{"one_process", false}, Placement{"three_processes", true}),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

}  // namespace
}  // namespace outrider
