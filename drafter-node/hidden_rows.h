#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "common/compute/tensor/decode.h"
#include "common/model/checkpoint/model_files.h"
#include "common/model/gemma4/workspace.h"
#include "common/wire/messages/donor_rows.h"
#include "drafter-node/families.h"

namespace outrider {

/// A sequence's hidden rows of the target, as received, until their K/V are computed.
class WaitingRows {
 public:
  void add(const KvRows& rows) { waiting_.push_back(rows); }
  std::int64_t bytes() const {
    std::int64_t bytes = 0;
    for (const KvRows& rows : waiting_) bytes += bytes_of(rows);
    return bytes;
  }
  /// Returns the rows from `from` on, at most `most`, decoded into scratch; none: none waits.
  std::optional<Matrix<float>> take(Position from, std::int64_t most, Buffer& scratch) {
    if (waiting_.empty()) return std::nullopt;
    const DonorDelta& halves = waiting_.front().donors.front();
    const std::int64_t half = halves.key.shape[1] * halves.key.shape[2], skipped = from - halves.first;
    const Matrix<float> rows = scratch.view(std::min(most, halves.key.shape[0] - skipped), 2 * half);
    const auto read = [&](const WireTensor& tensor, std::int64_t row, Matrix<float> to) {
      const std::size_t row_bytes = stored_bytes(tensor.dtype, static_cast<std::size_t>(half));
      decode(tensor.dtype, tensor.data.bytes().data() + static_cast<std::size_t>(skipped + row) * row_bytes,
             to[row].span());
    };
    for (std::int64_t r = 0; r < rows.size(0); ++r) {
      read(halves.key, r, rows.columns(0, half));
      read(halves.value, r, rows.columns(half, half));
    }
    return rows;
  }
  /// Forgets the messages whose rows are all before `end`.
  void drop(Position end) {
    while (!waiting_.empty() && waiting_.front().to <= end) waiting_.pop_front();
  }

 private:
  std::deque<KvRows> waiting_;  ///< the first may have K/V in part
};

/// Loads a model that needs hidden rows of the target.
template <typename Drafter>
Result<LoadedDrafter> load_with_hidden_rows(const DrafterOptions& options) {
  ASSIGN_OR_RETURN(DraftTarget target, open_target(options));
  ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::open(options.draft_model));
  ASSIGN_OR_RETURN(std::unique_ptr<Drafter> drafter,
                   Drafter::load(files, target.config, *target.weights, options.weight_type));
  target.drafter.facts.donors = {hidden_rows_donor(drafter->config().hidden_layers, target.config.hidden_size)};
  target.drafter.model = make_draft_model(std::move(drafter));
  target.drafter.path = options.draft_model.string();
  return std::move(target.drafter);
}

}  // namespace outrider
