#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/model/gemma4/assistant.h"
#include "common/model/gemma4/backbone.h"
#include "verifier-node/verifier_core.h"

namespace outrider {

/// Most rows of a forward, as in a verifier.
inline const std::int64_t kRowsMax = VerifierConfig().rows_max;

/// Splits a prompt into pieces of kRowsMax rows, which are views of `prompt`. Bidirectional soft tokens are not
/// split: pieces before them are shorter, their own may be longer.
std::vector<std::span<const TokenId>> prefill_chunks(std::span<const TokenId> prompt,
                                                     std::span<const SoftRows> soft = {});

/// Splits a long text into sequences like llama.cpp's `llama-perplexity`: <bos> and the text, kTextWindow tokens at a
/// time, with <bos> in place of each first one. A shorter rest is dropped.
inline constexpr std::int64_t kTextWindow = 512;
std::vector<std::vector<TokenId>> text_windows(TokenId bos, std::span<const TokenId> text);

/// One sequence of a pair whose models are in this process: prefill, draft, verify, keep. The caller's thread does
/// everything, greedily; there is no protocol between the models.
class InProcessPair {
 public:
  /// @param backbone  outlives this object, like `assistant`
  /// @param assistant  null: nothing is drafted, and no replica of the donors' rows is kept
  explicit InProcessPair(Backbone& backbone, Assistant* assistant = nullptr);

  /// Appends rows to the sequence. @return outputs of the last `output_rows` rows, valid until the next forward
  const Backbone::Output& forward(std::span<const TokenId> rows, std::int64_t output_rows, const Trace& trace = {},
                                  std::span<const SoftRows> soft = {});
  /// Appends a prompt, in chunks. token() is then the backbone's choice after it.
  /// @pre prompt is not empty
  /// @param soft  of its rows; bidirectional ones fit a forward of the backbone
  void prefill(std::span<const TokenId> prompt, const Trace& trace = {}, std::span<const SoftRows> soft = {});
  /// Returns at most `count` drafts after token(); one of `stop_ids` ends them. @pre prefill() or keep() came last
  std::vector<TokenId> draft(std::int64_t count, std::span<const TokenId> stop_ids = {});
  /// Appends token() and its drafts; every row has an output.
  const Backbone::Output& verify(std::span<const TokenId> drafts, const Trace& trace = {});
  /// Continues the sequence with `next` after output row `row` of the last forward; drops the rows after that one, and
  /// updates the replica.
  void keep(std::int64_t row, TokenId next);
  /// Drops the rows from `length` on, of the backbone alone.
  void truncate(Position length) { cache_.truncate(length); }

  /// Result of a round: the accepted drafts and the backbone's token after them.
  struct Round {
    std::vector<TokenId> tokens;
    std::int64_t drafted = 0, accepted = 0;
  };
  /// Runs draft, verify and keep, by the greedy rule. A draft length of 0 is a plain step.
  Round round(std::int64_t draft_length, std::span<const TokenId> stop_ids = {});

  Position length() const { return cache_.length(); }
  TokenId token() const { return token_; }                      ///< the last one, whose row is still to be computed
  const std::vector<float>& hidden() const { return hidden_; }  ///< [hidden_size] the row that predicted it
  KvCache& cache() { return cache_; }
  DonorReplica& replica() { return *replica_; }  ///< @pre there is an assistant

 private:
  void follow();

  Backbone& backbone_;
  Assistant* assistant_;
  KvCache cache_;
  std::optional<DonorReplica> replica_;
  std::optional<Backbone::Output> output_;
  std::vector<TokenId> rows_;
  TokenId token_ = 0;
  std::vector<float> hidden_;
};

}  // namespace outrider
