// What a verifier says that has no memory for a text.
#include <gtest/gtest.h>

#include "tests/support/cluster_fixtures.h"

namespace outrider {
namespace {

TEST(MemoryLimit, RefusesWithWhatIsMissingAndTheVerifierGoesOn) {
  Coordinator coordinator;
  Program verifier({"verifier", "--memory", "2", "--join", coordinator.address});
  TransportContext context;
  Client client = connect_when_joined(context, coordinator.address, 1, 0);
  const auto generate = [&](const Generate& request) {
    return client.generate(request, [](std::span<const TokenId>) {});
  };
  const Generate small = story_request(20, 0);
  const Result<Generation> first = generate(small);
  ASSERT_TRUE(first) << first.error().message;

  Generate large = small;
  large.prompt.resize(3000, large.prompt.back());
  const Result<Generation> refused = generate(large);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::kUnsupported) << "kOutOfRange: longer than the context";
  // 1 KiB a position in the full layer; 3.5 KiB for each of the last 385 in the sliding ones.
  EXPECT_NE(refused.error().message.find(
                "3019 positions need 4.3 MiB of K/V and media, 2.0 MiB are left of this verifier's 2.0 MiB: 2.3 "
                "MiB are missing"),
            std::string::npos)
      << refused.error().message;
  large = small;
  large.max_tokens = 8000;
  EXPECT_FALSE(generate(large)) << "the answer counts, before the prompt is computed";

  EXPECT_EQ(generate(small)->tokens, first->tokens);
  EXPECT_TRUE(verifier.running());
}

}  // namespace
}  // namespace outrider
