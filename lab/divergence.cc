#include "lab/divergence.h"

#include <cmath>
#include <numeric>

#include "common/compute/kernels/ops.h"
#include "lab/statistics.h"

namespace outrider {
namespace {

/// Returns the log of the sum of their exponentials: a logit minus this is its log-probability.
double log_sum(std::span<const float> logits) {
  const double largest = logits[static_cast<std::size_t>(argmax(logits))];
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - largest);
  return largest + std::log(sum);
}

}  // namespace

void Divergence::add(std::span<const float> base, std::span<const float> logits, TokenId next) {
  const double base_sum = log_sum(base), sum = log_sum(logits);
  double total = 0, squares = 0, divergence = 0;
  for (std::size_t i = 0; i < base.size(); ++i) {
    const double x = base[i], error = logits[i] - x, log_p = x - base_sum;
    total += x, squares += x * x, squared_error += error * error;
    divergence += std::exp(log_p) * (log_p - (logits[i] - sum));
  }
  squared_size += squares - total * total / static_cast<double>(base.size());
  kl_divergences.push_back(divergence);
  const double log_p = logits[static_cast<std::size_t>(next)] - sum;
  const double base_log_p = base[static_cast<std::size_t>(next)] - base_sum;
  surprise -= log_p, base_surprise -= base_log_p;
  squared_delta_p += std::pow(std::exp(log_p) - std::exp(base_log_p), 2);
  same_top += argmax(base) == argmax(logits) ? 1 : 0;
  ++tokens;
}

void Divergence::add(const Divergence& other) {
  tokens += other.tokens, same_top += other.same_top;
  surprise += other.surprise, base_surprise += other.base_surprise;
  squared_error += other.squared_error, squared_size += other.squared_size;
  squared_delta_p += other.squared_delta_p;
  kl_divergences.insert(kl_divergences.end(), other.kl_divergences.begin(), other.kl_divergences.end());
}

double Divergence::perplexity() const { return std::exp(surprise / static_cast<double>(tokens)); }
double Divergence::base_perplexity() const { return std::exp(base_surprise / static_cast<double>(tokens)); }

double Divergence::mean_kl_divergence() const {
  return std::accumulate(kl_divergences.begin(), kl_divergences.end(), 0.0) / static_cast<double>(tokens);
}

double Divergence::kl_divergence_quantile(double p) const { return quantile(kl_divergences, p); }

double Divergence::rms_delta_p_percent() const {
  return 100 * std::sqrt(squared_delta_p / static_cast<double>(tokens));
}

double Divergence::logit_error() const { return std::sqrt(squared_error / squared_size); }

}  // namespace outrider
