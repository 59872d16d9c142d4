#include "drafter-node/whole_model/whole_model.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/compute/kernels/ops.h"
#include "common/model/checkpoint/pack.h"
#include "common/model/gemma4/generation_config.h"
#include "common/model/tokenizer/tokenizer.h"
#include "common/os/logging.h"
#include "common/pair/pair_files.h"
#include "drafter-node/drafter_core.h"
#include "drafter-node/families.h"

namespace outrider {
namespace {

std::int64_t common_prefix(std::span<const TokenId> a, std::span<const TokenId> b) {
  return std::ranges::mismatch(a, b).in1 - a.begin();
}

class WholeText final : public DraftText {
 public:
  explicit WholeText(KvCache cache) : cache_(std::move(cache)) {}
  void extend(const KvRows& rows) override {
    const Position skipped = length() - rows.from;
    committed_.insert(committed_.end(), rows.tokens.begin() + skipped, rows.tokens.end());
  }
  Position length() const override { return std::ssize(committed_); }
  std::int64_t behind() const override { return length() - common_prefix(committed_, cached_); }

  /// What a step has yet to compute for its rows and a path, `most` tokens of it at most; the cache is cut to what
  /// comes before.
  /// @param empty  a new cache
  std::vector<TokenId> missing(std::span<const TokenId> path, std::int64_t most,
                               const std::function<KvCache()>& empty) {
    std::int64_t kept = common_prefix(committed_, cached_);
    if (path.empty() && kept == length()) return {};
    if (kept == length()) kept += common_prefix(path, std::span(cached_).subspan(static_cast<std::size_t>(kept)));
    const std::int64_t end = length() + std::ssize(path);
    kept = std::min(kept, end - 1);  // a row that is there says nothing any more
    if (!cache_.holds(kept)) {
      cache_ = empty();
      kept = 0;
    }
    cache_.truncate(kept);
    cached_.resize(static_cast<std::size_t>(kept));
    std::vector<TokenId> tokens;
    for (Position at = kept; at < std::min(end, kept + most); ++at)
      tokens.push_back(at < length() ? committed_[static_cast<std::size_t>(at)]
                                     : path[static_cast<std::size_t>(at - length())]);
    return tokens;
  }
  KvCache& cache() { return cache_; }
  /// These were computed.
  void add(std::span<const TokenId> tokens) { cached_.insert(cached_.end(), tokens.begin(), tokens.end()); }
  bool reaches(std::span<const TokenId> path) const {
    return !path.empty() && std::ssize(cached_) == length() + std::ssize(path);
  }

 private:
  std::vector<TokenId> committed_;
  std::vector<TokenId> cached_;  ///< of which cache_ has the rows
  KvCache cache_;
};

class WholeModel final : public DraftModel {
 public:
  explicit WholeModel(std::unique_ptr<Backbone> model) : model_(std::move(model)) {
    CHECK(model_->rows_max() >= kWholeModelRows, "{} rows", model_->rows_max());
  }
  DraftTraits traits() const override { return {.needs = DraftInput::kTokens, .by_tokens_alone = true}; }
  std::int64_t vocab_size() const override { return model_->config().vocab_size; }
  std::unique_ptr<DraftText> open() const override { return std::make_unique<WholeText>(model_->make_cache()); }
  void step_each(std::span<const DraftPoint> points, const VisitPoint& visit) override {
    std::vector<std::vector<TokenId>> rows(points.size());
    std::vector<Segment> segments;
    std::vector<std::size_t> visited;  // points, by output row
    std::int64_t room = kWholeModelRows;
    for (std::size_t i = 0; i < points.size() && room > 0; ++i) {
      auto& text = static_cast<WholeText&>(*points[i].text);
      const std::vector<TokenId>& path = points[i].path;
      rows[i] = text.missing(path, std::min(room, kCatchUpRows), [&] { return model_->make_cache(); });
      if (rows[i].empty()) continue;
      room -= std::ssize(rows[i]);
      text.add(rows[i]);
      if (text.reaches(path)) visited.push_back(i);
      segments.push_back({.cache = &text.cache(), .tokens = rows[i], .output_rows = text.reaches(path) ? 1 : 0});
    }
    if (segments.empty()) return;
    const Matrix<const float> logits = model_->forward(segments).logits;
    const float cap = model_->config().final_logit_softcapping;
    for (std::size_t row = 0; row < visited.size(); ++row) {
      const auto raw = logits[static_cast<std::int64_t>(row)].span();
      scores_.assign(raw.begin(), raw.end());
      if (cap > 0) softcap_in_place(Matrix<float>(scores_.data(), {1, std::ssize(scores_)}), cap);
      visit(visited[row], {}, scores_, {});
    }
  }

 private:
  std::unique_ptr<Backbone> model_;
  std::vector<float> scores_;
};

}  // namespace

std::unique_ptr<DraftModel> make_draft_model(std::unique_ptr<Backbone> model) {
  return std::make_unique<WholeModel>(std::move(model));
}

Result<LoadedDrafter> load_whole_model_drafter(const DrafterOptions& options) {
  if (options.worker.verify_weights) RETURN_IF_ERROR(verify_packs({options.draft_model}));
  ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::open(options.draft_model));
  ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::load(files));
  ASSIGN_OR_RETURN(std::unique_ptr<Backbone> model, Backbone::load(files, options.weight_type, kWholeModelRows));
  ASSIGN_OR_RETURN(GenerationConfig generation, load_generation_config(files));
  for (const std::string& note : model->config().notes)
    log_warn("event=metadata_overruled model={} note=\"{}\"", options.draft_model.string(), note);
  const PairFacts facts{.vocab_size = static_cast<std::int32_t>(model->config().vocab_size),
                        .context_max = model->config().max_position_embeddings,
                        .tokenizer_fingerprint = tokenizer.fingerprint()};
  return LoadedDrafter{.model = make_draft_model(std::move(model)),
                       .facts = facts,
                       .path = options.draft_model.string(),
                       .stop_ids = std::move(generation.eos_token_ids),
                       .tokenizer = options.draft_model};
}

}  // namespace outrider
