#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"

namespace outrider {

/// Default of `--draft-vocabulary`. Figures: docs/lab/drafter.md.
inline constexpr std::int64_t kDraftVocabularySize = 32768;

/// The tokens that a dense draft head scores: those that texts used last. A head of 262,144 rows takes half of a draft
/// step, and texts use few of its tokens (FR-Spec, arXiv 2502.14856, which counts them beforehand). A token that is
/// left out is never drafted, which lowers the acceptance rate but changes no answer.
class DraftVocabulary {
 public:
  /// Without any text, the lowest ids count as used last: a tokenizer made by merging has its frequent tokens first.
  /// @param size  number of tokens, 1 to vocab_size
  DraftVocabulary(std::int64_t size, std::int64_t vocab_size);

  /// Takes tokens of a text; ids() may change. @pre each is below vocab_size
  /// @param answer  the target chose the tokens, so that those left out count as missed
  void learn(std::span<const TokenId> tokens, bool answer);
  /// Returns true if few enough of the target's last tokens were missed. Else the whole vocabulary is to be scored.
  bool suffices() const { return missed_ <= kMissedMost; }
  /// Ascending.
  std::span<const TokenId> ids() const { return ids_; }
  /// Changes whenever ids() change; never 0.
  std::int64_t version() const { return version_; }

  /// Number of learned tokens, restored ones included.
  std::int64_t learned() const { return clock_; }
  /// Returns the missed share and ids(), up to date, one a line. Ascending ids tell nothing of the texts' order.
  std::string to_text();
  /// Begins with what an earlier to_text() returned. @return kMalformed, with nothing changed
  Result<void> restore(std::string_view text);

 private:
  /// Largest share of the target's tokens that may be missed. The loss of acceptance is smaller, since rare tokens are
  /// drafted right less often.
  static constexpr double kMissedMost = 0.02;
  /// Tokens of answers after which half of the weight of `missed_` is from later ones.
  static constexpr double kHalfLife = 256;
  /// Tokens between two changes of ids(): copying the rows takes up to 0.1 s (docs/lab/drafter.md).
  static constexpr std::int64_t kRenewal = 128;

  void select();

  std::int64_t size_;
  std::vector<std::int64_t> last_use_;  ///< by token; greater: later
  std::int64_t clock_ = 0;
  std::vector<TokenId> ids_ = {};
  std::vector<bool> chosen_;  ///< by token: it is in ids_
  std::int64_t version_ = 0;
  std::int64_t selected_at_ = 0;     ///< clock_ at the last change
  bool stale_ = false;               ///< a token that is not in ids_ was learned
  double missed_ = 2 * kMissedMost;  ///< share of the target's tokens, the last ones weighing most
};

}  // namespace outrider
