#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/model/block_drafter/rows_drafter.h"

namespace outrider {

/// An EAGLE-3 drafter (arXiv 2503.01840; Eagle3DraftModel of speculators): one step a draft. Row p joins `fc` of the
/// target's hidden rows at position p with the embedding of the token at p + 1, and says what stands at p + 2. Behind
/// the target's rows a step joins the step's own hidden state before it with a draft. One pass at a time.
class Eagle3Drafter final : public RowsDrafter {
 public:
  /// @param backbone  the target: its embedding table and head are used if the checkpoint has none
  static Result<std::unique_ptr<Eagle3Drafter>> load(const ModelFiles& files, const TextConfig& backbone,
                                                     const WeightSource& backbone_weights, WeightType type);

  /// @param rows  of the target's hidden states, [rows, target_row()], at most kRowsMax
  /// @param hidden  fc of them, [rows, hidden_size]
  void join(Matrix<const float> rows, Matrix<float> hidden);
  /// Appends positions to a sequence.
  /// @param hidden  join() of the target's rows there, at most kRowsMax
  /// @param next  the token behind each position
  void add_rows(KvCache& text, Matrix<const float> hidden, std::span<const TokenId> next);

  /// A step behind a sequence's positions and drafts.
  struct Step {
    KvCache* text;  ///< the positions before the last one of the target's rows; unchanged after the pass
    TokenId token;  ///< the last one of the path
    std::span<const float> state;  ///< join() of the target's last row, or the state of the step before
  };
  /// Runs one pass: scores of each step, [steps, draft_vocab_size], valid until the next pass. The bits of a step do
  /// not depend on the others. @pre at most kRowsMax steps
  Matrix<const float> step(std::span<const Step> steps);
  /// The state behind the i-th step of the last pass: its hidden state, then the K and V of it and of the steps before
  /// it, by step and layer. So no cache holds a draft, and the branches of a tree need no cache of their own.
  std::span<const float> state(std::size_t i) const { return states_[i]; }

 private:
  Eagle3Drafter() = default;
  Result<void> load_norms(const WeightReader& weights);
  /// Returns the input of layer l's attention. In the first layer x becomes the residual.
  Matrix<float> attention_input(std::size_t l, std::span<const TokenId> tokens, Matrix<float> x);
  /// Attends from a step's row, over its text, the steps before it and itself. @param kv  its own K and V
  void attend_step(std::size_t l, const Step& step, Matrix<const float> q, std::span<const float> kv,
                   Matrix<float> mixed);
  /// Number of steps in a state.
  std::int64_t depth(std::span<const float> state) const;
  /// Numbers of a step's K and V in all layers.
  std::int64_t step_size() const { return std::ssize(layers_) * 2 * kv_size(); }

  std::vector<float> hidden_norm_;
  std::vector<float> fc_norm_;  ///< of fc's input, [target_row()]; empty: none
  std::vector<std::vector<float>> states_;
  struct {
    Buffer rows, x, joined, normed, scores;
  } scratch_;
};

}  // namespace outrider
