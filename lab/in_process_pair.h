#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/model/gemma4/assistant.h"
#include "common/model/gemma4/backbone.h"
#include "verifier-node/verifier_core.h"

namespace outrider {

/// The rows of a prompt that one forward takes, and the most rows that any takes, as in a verifier.
inline const std::int64_t kPrefillChunk = VerifierConfig().prefill_chunk, kRowsMax = VerifierConfig().rows_max;

/// A prompt in pieces of kPrefillChunk rows, which are parts of `prompt`. What sees both ways is not parted: pieces
/// before it are shorter, its own may be longer.
std::vector<std::span<const TokenId>> prefill_chunks(std::span<const TokenId> prompt,
                                                     std::span<const SoftRows> soft = {});

/// The stretches of a long text that are each a text of its own, as llama.cpp's `llama-perplexity` cuts them: of <bos>
/// and the text kTextWindow tokens at a time, <bos> in place of each first one. A shorter rest is left out.
inline constexpr std::int64_t kTextWindow = 512;
std::vector<std::vector<TokenId>> text_windows(TokenId bos, std::span<const TokenId> text);

/// One text of a pair whose models are in this process: prefill, draft, verify, keep. The caller's thread does all of
/// it, greedily; there is no protocol between the models.
class InProcessPair {
 public:
  /// @param backbone  outlives this object, as `assistant` does
  /// @param assistant  null: nothing is drafted, and no replica of the donors' rows is kept
  explicit InProcessPair(Backbone& backbone, Assistant* assistant = nullptr);

  /// Appends rows to the text. @return outputs of the last `output_rows` rows, valid until the next forward.
  const Backbone::Output& forward(std::span<const TokenId> rows, std::int64_t output_rows, const Trace& trace = {},
                                  std::span<const SoftRows> soft = {});
  /// Appends a prompt, in chunks. Then token() is what the backbone says after it. @pre prompt is not empty
  /// @param soft  of its rows; those that see both ways fit a forward of the backbone
  void prefill(std::span<const TokenId> prompt, const Trace& trace = {}, std::span<const SoftRows> soft = {});
  /// At most `count` drafts after token(); one of `stop_ids` ends them. @pre prefill() or keep() came last
  std::vector<TokenId> draft(std::int64_t count, std::span<const TokenId> stop_ids = {});
  /// Appends token() and its drafts; every row has an output.
  const Backbone::Output& verify(std::span<const TokenId> drafts, const Trace& trace = {});
  /// The text goes on with `next` after output row `row` of the last forward; the rows after that one are dropped, and
  /// the replica follows.
  void keep(std::int64_t row, TokenId next);
  /// Drops the rows from `length` on, of the backbone alone.
  void truncate(Position length) { cache_.truncate(length); }

  /// A round gives the drafts that were kept and the backbone's token after them.
  struct Round {
    std::vector<TokenId> tokens;
    std::int64_t drafted = 0, accepted = 0;
  };
  /// draft, verify and keep, by the greedy rule. A draft length of 0 is a plain step.
  Round round(std::int64_t draft_length, std::span<const TokenId> stop_ids = {});

  Position length() const { return cache_.length(); }
  TokenId token() const { return token_; }                      ///< the last one, whose row is still to come
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
