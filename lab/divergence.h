#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/ids.h"

namespace outrider {

/// The distance between a model's predictions of a text's tokens and those of another, the base. The definitions are
/// those of llama.cpp's `llama-perplexity --kl-divergence` (tools/perplexity/perplexity.cpp), which stores the base's
/// log-probabilities in 16 bits; here all are double.
struct Divergence {
  std::int64_t tokens = 0, same_top = 0;    ///< same_top: both find the same token most probable
  double surprise = 0, base_surprise = 0;   ///< sums of -log p of the next token
  double squared_error = 0;                 ///< of the logits, relative to the base's
  double squared_size = 0;                  ///< of the base's logits around their mean
  double squared_delta_p = 0;               ///< of the probability of the next token, relative to the base's
  std::vector<double> kl_divergences = {};  ///< per token: sum of p_base (log p_base - log p), in nats

  /// Adds one row's predictions of the next token. @param base, logits  [vocab_size] softcapped
  void add(std::span<const float> base, std::span<const float> logits, TokenId next);
  void add(const Divergence& other);

  // @pre tokens > 0
  double perplexity() const;
  double base_perplexity() const;
  double percent_above() const { return 100 * (perplexity() / base_perplexity() - 1); }
  double mean_kl_divergence() const;
  /// Returns the value that a share `p` of the tokens is below.
  double kl_divergence_quantile(double p) const;
  double rms_delta_p_percent() const;
  double same_top_percent() const { return 100 * static_cast<double>(same_top) / static_cast<double>(tokens); }
  /// Returns the root mean square error of the logits over the deviation of the base's.
  double logit_error() const;
};

}  // namespace outrider
