// Divergence of two models' predictions, on distributions whose figures are known in closed form.
#include <cmath>

#include <gtest/gtest.h>

#include "lab/divergence.h"

namespace outrider {
namespace {

/// Logits of these probabilities: their logs, moved by what a softmax does not see.
std::vector<float> logits_of(const std::vector<double>& probabilities, double moved) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p) + moved));
  return logits;
}

TEST(Divergence, IsWhatLlamaPerplexityCallsByTheseNames) {
  const std::vector<double> base = {0.5, 0.25, 0.25}, other = {0.25, 0.5, 0.25};
  Divergence differs, all;
  differs.add(logits_of(base, 7), logits_of(other, -3), 0);
  all.add(logits_of(base, 7), logits_of(base, 100), 1);
  all.add(differs);
  EXPECT_EQ(all.tokens, 2);
  // Of the first token 0.5 ln 2 + 0.25 ln 0.5, of the second none.
  const double first = 0.25 * std::log(2), float_error = 1e-5;  // of logits near 100
  EXPECT_NEAR(differs.mean_kl_divergence(), first, float_error);
  EXPECT_NEAR(all.mean_kl_divergence(), first / 2, float_error);
  EXPECT_NEAR(all.kl_divergence_quantile(0.999), 0.999 * first, float_error);
  EXPECT_NEAR(all.rms_delta_p_percent(), 100 * 0.25 / std::sqrt(2), 100 * float_error);
  EXPECT_EQ(all.same_top_percent(), 50);
  EXPECT_NEAR(all.perplexity(), 4, 4 * float_error);
  EXPECT_NEAR(all.base_perplexity(), std::pow(2, 1.5), 4 * float_error);
}

}  // namespace
}  // namespace outrider
