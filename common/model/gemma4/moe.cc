#include "common/model/gemma4/moe.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/compute/kernels/ops.h"
#include "common/compute/kernels/team.h"

namespace outrider {
namespace {

// Rows per piece of a team's work, some 3 us each: copies of 2,816 floats, and choices among 128 experts.
constexpr std::int64_t kCopiesPerPiece = 4, kChoicesPerPiece = 2;

void softmax_in_place(std::span<float> z) {
  const float largest = *std::max_element(z.begin(), z.end());
  float sum = 0;
  for (float& value : z) sum += value = std::exp(value - largest);
  for (float& value : z) value /= sum;
}

}  // namespace

// ---- router ----

Result<Router> Router::load(const WeightReader& weights, const TextConfig& model) {
  Router router;
  router.eps_ = model.rms_norm_eps;
  router.top_k_ = model.top_k_experts;
  ASSIGN_OR_RETURN(router.scale_, weights.vector("scale", model.hidden_size));
  ASSIGN_OR_RETURN(router.per_expert_scale_, weights.vector("per_expert_scale", model.num_experts));
  ASSIGN_OR_RETURN(router.proj_, weights.as(WeightType::kF32).linear(model.hidden_size, {{"proj", model.num_experts}}));
  return router;
}

std::vector<ExpertChoice> Router::choose(Matrix<const float> x, Workspace& workspace, const Trace& trace) const {
  const std::int64_t count = x.size(0), hidden = x.size(1), experts = proj_.out_features();
  const Matrix<float> input = workspace.router_input.view(count, hidden);
  rms_norm(x, scale_, eps_, input);
  scale_in_place(input, static_cast<float>(1.0 / std::sqrt(static_cast<double>(hidden))));
  const Matrix<float> probabilities = workspace.router_probabilities.view(count, experts);
  proj_.forward(input, probabilities);

  std::vector<ExpertChoice> choices(static_cast<std::size_t>(count * top_k_));
  team_for(count, kChoicesPerPiece, [&](std::int64_t r) {
    const Vector<float> p = probabilities[r];
    softmax_in_place(p.span());
    std::vector<std::int64_t> order(static_cast<std::size_t>(experts));
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + top_k_, order.end(),
                      [&](std::int64_t a, std::int64_t b) { return p[a] > p[b] || (p[a] == p[b] && a < b); });
    float sum = 0;
    for (std::int64_t k = 0; k < top_k_; ++k) sum += p[order[static_cast<std::size_t>(k)]];
    for (std::int64_t k = 0; k < top_k_; ++k) {
      const std::int64_t e = order[static_cast<std::size_t>(k)];
      choices[static_cast<std::size_t>(r * top_k_ + k)] = {
          r, e, p[e] / sum * per_expert_scale_[static_cast<std::size_t>(e)]};
    }
  });

  if (trace) {
    trace.note("input", input);
    trace.note("probabilities", probabilities);
    Tensor chosen(count, top_k_), weights(count, top_k_);
    for (std::size_t i = 0; i < choices.size(); ++i) {
      chosen.view().data()[i] = static_cast<float>(choices[i].expert);
      weights.view().data()[i] = choices[i].weight;
    }
    trace.note("chosen", chosen.view());
    trace.note("weights", weights.view());
  }
  return choices;
}

// ---- experts ----

Result<Experts> Experts::load(const WeightReader& weights, const TextConfig& model) {
  Experts experts;
  const std::int64_t count = model.num_experts, hidden = model.hidden_size, inner = model.moe_intermediate_size;
  const std::vector<WeightReader::Part> gate_and_up = {{"gate_proj", inner}, {"up_proj", inner}};
  experts.shards_ = weights.shards();
  experts.inner_ = inner;
  experts.inner_own_ = place_of(experts.shards_).share(inner);
  experts.hidden_own_ = place_of(experts.shards_).share(hidden);
  const Columns gate_up[] = {experts.inner_own_, {inner + experts.inner_own_.begin, experts.inner_own_.count}};
  const bool stacked = weights.has("gate_up_proj");
  // Packages that quantise store the matrices of each expert.
  if (!stacked && weights.has("0.gate_proj.weight")) {
    for (std::int64_t e = 0; e < count; ++e) {
      const WeightReader expert = weights.under(std::to_string(e));
      ASSIGN_OR_RETURN(experts.gate_up_.emplace_back(), expert.part(hidden, gate_and_up, gate_up));
      ASSIGN_OR_RETURN(experts.down_.emplace_back(),
                       expert.part(inner, {{"down_proj", hidden}}, std::span(&experts.hidden_own_, 1)));
    }
    return experts;
  }
  // GGUF files may have separate gate and up.
  const bool apart = !stacked && weights.has("gate_proj");
  ASSIGN_OR_RETURN(
      experts.gate_up_,
      weights.experts(count, hidden, apart ? gate_and_up : std::vector<WeightReader::Part>{{"gate_up_proj", 2 * inner}},
                      gate_up));
  ASSIGN_OR_RETURN(experts.down_,
                   weights.experts(count, inner, {{"down_proj", hidden}}, std::span(&experts.hidden_own_, 1)));
  return experts;
}

void Experts::forward(Matrix<const float> x, std::vector<ExpertChoice> choices, Matrix<float> out,
                      Workspace& workspace) const {
  std::sort(choices.begin(), choices.end(), [](const ExpertChoice& a, const ExpertChoice& b) {
    return a.expert != b.expert ? a.expert < b.expert : a.row < b.row;
  });
  std::vector<Linear::Group> gate_up_of, down_of;  // of the chosen experts
  for (auto first = choices.begin(), last = first; first != choices.end(); first = last) {
    last = std::find_if(first, choices.end(), [&](const ExpertChoice& c) { return c.expert != first->expert; });
    const auto expert = static_cast<std::size_t>(first->expert);
    gate_up_of.push_back({&gate_up_[expert], last - first});
    down_of.push_back({&down_[expert], last - first});
  }
  const std::int64_t count = std::ssize(choices), hidden = x.size(1), own = inner_own_.count;
  const auto buffer = [&](Buffer& of, std::int64_t columns) {
    return of.view(count + kGemmHeight, columns).rows(0, count);
  };

  const Matrix<float> chosen = buffer(workspace.expert_rows, hidden);
  team_for(count, kCopiesPerPiece, [&](std::int64_t i) {
    std::copy_n(x[choices[static_cast<std::size_t>(i)].row].data(), hidden, chosen[i].data());
  });
  const Matrix<float> gate_up = buffer(workspace.gate_up, 2 * own), product = buffer(workspace.product, inner_);
  Linear::forward_groups(gate_up_of, chosen, gate_up);
  gelu_mul(gate_up.columns(0, own), gate_up.columns(own, own), product.columns(inner_own_.begin, own));
  gather(shards_, product, inner_own_);
  const Matrix<float> outputs = buffer(workspace.expert_rows, hidden_own_.count);
  Linear::forward_groups(down_of, product, outputs);
  team_for(out.size(0), 1, [&](std::int64_t r) {
    float* const to = out[r].data() + hidden_own_.begin;
    std::fill_n(to, hidden_own_.count, 0.0f);
    for (std::int64_t i = 0; const ExpertChoice& choice : choices) {
      const float* const from = outputs[i++].data();
      if (choice.row != r) continue;
      for (std::int64_t c = 0; c < hidden_own_.count; ++c) to[c] += choice.weight * from[c];
    }
  });
  gather(shards_, out, hidden_own_);
}

// ---- both, besides the dense MLP ----

Result<Moe> Moe::load(const WeightReader& weights, const TextConfig& model) {
  Moe moe;
  moe.eps_ = model.rms_norm_eps;
  moe.top_k_ = model.top_k_experts;
  ASSIGN_OR_RETURN(moe.post_feedforward_norm_1_,
                   weights.vector("post_feedforward_layernorm_1.weight", model.hidden_size));
  ASSIGN_OR_RETURN(moe.pre_feedforward_norm_2_,
                   weights.vector("pre_feedforward_layernorm_2.weight", model.hidden_size));
  ASSIGN_OR_RETURN(moe.post_feedforward_norm_2_,
                   weights.vector("post_feedforward_layernorm_2.weight", model.hidden_size));
  ASSIGN_OR_RETURN(moe.router_, Router::load(weights.under("router"), model));
  // Early exports of Model Optimizer have the experts, and not the router, under "moe".
  const bool moved = !weights.has("experts.gate_up_proj") && weights.has("moe.experts.0.gate_proj.weight");
  ASSIGN_OR_RETURN(moe.experts_, Experts::load(weights.under(moved ? "moe.experts" : "experts"), model));
  return moe;
}

void Moe::add_to(Matrix<const float> x, Matrix<float> h, Workspace& workspace, const Trace& trace) const {
  const Matrix<float> input = workspace.experts_input.view(x.size(0), x.size(1));
  const Matrix<float> output = workspace.experts_output.view(x.size(0), x.size(1));

  rms_norm(h, post_feedforward_norm_1_, eps_, h);
  trace.note("dense_normed", h);
  rms_norm(x, pre_feedforward_norm_2_, eps_, input);
  trace.note("experts_input", input);
  experts_.forward(input, router_.choose(x, workspace, trace.under("router")), output, workspace);
  trace.note("experts_output", output);
  rms_norm(output, post_feedforward_norm_2_, eps_, output);
  trace.note("experts_normed", output);
  add_in_place(h, output);
}

std::size_t Moe::weight_bytes() const {
  return router_.weight_bytes() + static_cast<std::size_t>(top_k_) * experts_.expert_bytes();
}

}  // namespace outrider
