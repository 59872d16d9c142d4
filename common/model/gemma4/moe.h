#pragma once

#include <string>
#include <vector>

#include "common/model/gemma4/config.h"
#include "common/model/gemma4/trace.h"
#include "common/model/gemma4/weights.h"
#include "common/model/gemma4/workspace.h"

namespace outrider {

/// One of a row's experts.
struct ExpertChoice {
  std::int64_t row, expert;
  float weight;
};

/// Chooses each row's experts (gemma4.md 3.8). Always in float32, whatever the other weights' type: two experts may be
/// nearly equally probable, and choosing the other one is more than a rounding error.
class Router {
 public:
  /// @param weights  under "...layers.<i>.router."
  static Result<Router> load(const WeightReader& weights, const TextConfig& model);

  /// @param x  [T, hidden_size] the residual stream itself, without a norm
  /// @return top_k choices per row, row after row; the most probable first, the lower id among equals. A row's weights
  /// sum to one before per_expert_scale.
  std::vector<ExpertChoice> choose(Matrix<const float> x, Workspace& workspace, const Trace& trace = {}) const;

  std::size_t weight_bytes() const { return proj_.weight_bytes(); }

 private:
  float eps_ = 0;
  std::int64_t top_k_ = 0;
  std::vector<float> scale_, per_expert_scale_;
  Linear proj_;
};

/// The expert MLPs of one layer: GeGLU like the dense one, narrower.
class Experts {
 public:
  /// @param weights  under "...layers.<i>.experts."
  static Result<Experts> load(const WeightReader& weights, const TextConfig& model);

  /// out[r] := sum over r's choices of weight * expert(x[r]). Rows with the same expert share its GEMMs. A row's
  /// experts are added in ascending id, as in the reference: an order that depends on the row alone, so that its bits
  /// do not depend on the rest of the batch (docs/numerics.md).
  /// @param x, out  [T, hidden_size], not overlapping
  void forward(Matrix<const float> x, std::vector<ExpertChoice> choices, Matrix<float> out, Workspace& workspace) const;

  /// Bytes of one expert.
  std::size_t expert_bytes() const { return gate_up_[0].weight_bytes() + down_[0].weight_bytes(); }

 private:
  Shards* shards_ = nullptr;
  Columns inner_own_, hidden_own_;  ///< this shard's columns of each expert
  std::int64_t inner_ = 0;
  std::vector<Linear> gate_up_, down_;  ///< by expert; gate's rows before up's: this shard's
};

/// The experts of a mixture-of-experts layer, besides its dense MLP (gemma4.md 3.3 step 2).
class Moe {
 public:
  /// @param weights  under "...layers.<i>."
  static Result<Moe> load(const WeightReader& weights, const TextConfig& model);

  /// h := norm_1(h) + norm_2(experts(norm_pre_2(x))). The router reads x itself.
  /// @param x [T, hidden_size] the residual stream.
  /// @param h [T, hidden_size] the dense MLP's output.
  void add_to(Matrix<const float> x, Matrix<float> h, Workspace& workspace, const Trace& trace = {}) const;

  /// Bytes read by a forward of one row: the router and top_k experts.
  std::size_t weight_bytes() const;

 private:
  float eps_ = 0;
  std::int64_t top_k_ = 0;
  std::vector<float> post_feedforward_norm_1_, pre_feedforward_norm_2_, post_feedforward_norm_2_;
  Router router_;
  Experts experts_;
};

}  // namespace outrider
