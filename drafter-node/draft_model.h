#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/compute/tensor/decode.h"
#include "common/wire/messages/messages.h"

namespace outrider {

/// Converts a tensor of any number of axes.
inline std::vector<float> to_floats(const WireTensor& tensor) {
  const std::size_t block = block_elements(tensor.dtype);
  std::vector<float> floats(tensor.data.bytes().size() / stored_bytes(tensor.dtype, block) * block);
  decode(tensor.dtype, tensor.data.bytes().data(), floats);
  return floats;
}

/// A sequence at a draft model: the committed rows that the model drafts from.
class DraftSequence {
 public:
  virtual ~DraftSequence() = default;
  /// Appends rows, which may begin before its end. @pre check_rows() accepts them for the model's input
  virtual void extend(const KvRows& rows) = 0;
  /// Number of committed rows.
  virtual Position length() const = 0;
  /// Committed rows whose K/V are not computed yet.
  virtual std::int64_t behind() const { return 0; }
  /// Memory of the rows that wait for their K/V.
  virtual std::int64_t waiting_bytes() const { return 0; }
};

/// A position where a draft is wanted: after a sequence's rows and `path`.
struct DraftPoint {
  DraftSequence* sequence;
  std::vector<TokenId> path;     ///< from the token after the rows on; empty: only K/V of the rows are wanted
  std::span<const float> state;  ///< from VisitPoint for the path without its last token, or the target's row
  bool goes_on = true;           ///< this point's state is wanted
  std::int64_t wanted = 1;       ///< number of tokens wanted after the path, this point's included
  /// Chooses the token of a guess with these scores, after the path and `guessed`. Null: the most probable.
  std::function<TokenId(std::span<const TokenId> guessed, std::span<const TokenId> ids, std::span<const float> scores)>
      choose = {};
};
/// Receives the model's output at a point: the scores of `ids`, or of the whole vocabulary in order if `ids` is empty;
/// and the state to continue from, empty if there is none or none is wanted.
/// @return the next token of the path: a model that already knows the output after that token visits the point again.
/// Empty: this pass needs no more of it
using VisitPoint = std::function<std::optional<TokenId>(std::size_t point, std::span<const TokenId> ids,
                                                        std::span<const float> scores, std::span<const float> state)>;

/// Properties of a family of draft models that the engine needs.
struct DraftTraits {
  DraftInput needs = DraftInput::kTargetRows;
  /// Its output after a path depends on the tokens alone, and not on where the round began: it stays valid when the
  /// sequence has reached the path's middle. One step takes one point of such a sequence.
  bool by_tokens_alone = false;
  /// Most drafts on a path, with none made ahead, since a round begins with rows that the target has yet to compute. A
  /// block's longer paths have no scores. 0: unbounded.
  std::int32_t block = 0;
};

/// A draft model. A family is a folder here, and a row in families.cc. Used by one thread.
class DraftModel {
 public:
  virtual ~DraftModel() = default;
  virtual DraftTraits traits() const = 0;
  virtual std::int64_t vocab_size() const = 0;
  virtual std::unique_ptr<DraftSequence> open() const = 0;
  /// Cost of the K/V that it computes for a sequence.
  virtual KvCost kv_cost() const { return {}; }
  /// One forward pass. A point's bits do not depend on the others. A point is not visited, and may be passed again, if
  /// its sequence is still behind or the pass has no room for it.
  /// @param between_steps  called during a long pass, so that a caller's loop can run
  /// @return false if no pass was needed, because all outputs were known
  virtual bool step_each(std::span<const DraftPoint> points, const VisitPoint& visit,
                         const std::function<void()>& between_steps) = 0;
};

}  // namespace outrider
