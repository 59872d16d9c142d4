#include <algorithm>
#include <map>
#include <utility>

#include "common/base/check.h"
#include "common/compute/kernels/ops.h"
#include "common/model/checkpoint/pack.h"
#include "common/model/gemma4/assistant.h"
#include "common/model/gemma4/backbone.h"
#include "common/model/gemma4/generation_config.h"
#include "common/model/gemma4/lent_backbone.h"
#include "common/model/tokenizer/tokenizer.h"
#include "common/os/logging.h"
#include "common/pair/pair_files.h"
#include "drafter-node/drafter_core.h"
#include "drafter-node/families.h"

namespace outrider {
namespace {

/// Guesses of the assistant per pass, for each sequence.
constexpr std::int64_t kGuesses = 3;
/// Most uncomputed rows of a sequence with guesses: the assistant would have to walk along all of them.
constexpr std::int64_t kKnownRowsMax = 4;
/// Hidden rows of a sequence that are kept: those to which a verdict may cut back.
constexpr std::size_t kStatesMax = 34;

std::int64_t common_prefix(std::span<const TokenId> a, std::span<const TokenId> b) {
  return std::ranges::mismatch(a, b).in1 - a.begin();
}

class WholeSequence final : public DraftSequence {
 public:
  explicit WholeSequence(KvCache cache) : cache_(std::move(cache)) {}
  void extend(const KvRows& rows) override {
    const Position skipped = length() - rows.from;
    committed_.insert(committed_.end(), rows.tokens.begin() + skipped, rows.tokens.end());
  }
  Position length() const override { return std::ssize(committed_); }
  std::int64_t behind() const override { return length() - common_prefix(committed_, cached_); }

  /// Returns the tokens that a step has yet to compute for its rows and a path, at most `most`; cuts the cache to the
  /// rows before them.
  /// @param empty  makes a new cache
  std::vector<TokenId> missing(std::span<const TokenId> path, std::int64_t most,
                               const std::function<KvCache()>& empty) {
    std::int64_t kept = common_prefix(committed_, cached_);
    if (path.empty() && kept == length()) return {};
    if (kept == length()) kept += common_prefix(path, std::span(cached_).subspan(static_cast<std::size_t>(kept)));
    const std::int64_t end = length() + std::ssize(path);
    kept = std::min(kept, end - 1);  // an existing row has no output any more
    if (!cache_.holds(kept)) {
      cache_ = empty();
      kept = 0;
    }
    cache_.truncate(kept);
    cached_.resize(static_cast<std::size_t>(kept));
    states_.erase(states_.lower_bound(kept), states_.end());
    std::vector<TokenId> tokens;
    for (Position at = kept; at < std::min(end, kept + most); ++at)
      tokens.push_back(at < length() ? committed_[static_cast<std::size_t>(at)]
                                     : path[static_cast<std::size_t>(at - length())]);
    return tokens;
  }
  KvCache& cache() { return cache_; }
  /// Records computed tokens.
  void add(std::span<const TokenId> tokens) { cached_.insert(cached_.end(), tokens.begin(), tokens.end()); }
  /// The hidden row of the last computed token; empty: not kept.
  std::span<const float> state() const {
    const auto last = states_.find(std::ssize(cached_) - 1);
    return last == states_.end() ? std::span<const float>() : last->second;
  }
  void keep_state(Position position, std::span<const float> state) {
    states_.insert_or_assign(position, std::vector(state.begin(), state.end()));
    if (states_.size() > kStatesMax) states_.erase(states_.begin());
  }

 private:
  std::vector<TokenId> committed_;
  std::vector<TokenId> cached_;  ///< tokens of cache_'s rows
  /// Hidden rows of some cached tokens, by position.
  std::map<Position, std::vector<float>> states_;
  KvCache cache_;
};

class WholeModel final : public DraftModel {
 public:
  WholeModel(std::shared_ptr<Backbone> model, std::unique_ptr<Assistant> assistant)
      : model_(std::move(model)), assistant_(std::move(assistant)) {
    CHECK(model_->rows_max() >= kWholeModelRows, "{} rows", model_->rows_max());
  }
  DraftTraits traits() const override { return {.needs = DraftInput::kTokens, .by_tokens_alone = true}; }
  std::int64_t vocab_size() const override { return model_->config().vocab_size; }
  std::unique_ptr<DraftSequence> open() const override { return std::make_unique<WholeSequence>(model_->make_cache()); }
  KvCost kv_cost() const override { return kv_cost_of(model_->make_cache()); }
  bool step_each(std::span<const DraftPoint> points, const VisitPoint& visit,
                 const std::function<void()>& between_steps) override {
    std::vector<Part> parts;
    std::int64_t room = kWholeModelRows;
    for (std::size_t i = 0; i < points.size() && room > 0; ++i) {
      auto& sequence = static_cast<WholeSequence&>(*points[i].sequence);
      const std::vector<TokenId>& path = points[i].path;
      std::vector<TokenId> rows =
          sequence.missing(path, std::min(room, kCatchUpRows), [&] { return model_->make_cache(); });
      if (rows.empty()) continue;
      room -= std::ssize(rows);
      const Position end = sequence.length() + std::ssize(path);
      const bool reaches = !path.empty() && sequence.cache().length() + std::ssize(rows) == end;
      parts.push_back({i, &sequence, std::move(rows), reaches});
    }
    if (parts.empty()) return false;
    if (assistant_) guess(points, parts, room);
    std::vector<Segment> segments;
    for (Part& part : parts) {
      part.sequence->add(part.rows);
      segments.push_back({.cache = &part.sequence->cache(), .tokens = part.rows, .output_rows = part.outputs()});
    }
    const auto [hidden, logits] = model_->forward(segments, nullptr, &between_steps);
    std::int64_t row = 0;
    for (const Part& part : parts) {
      bool holds = true;  // the guesses before this row are right
      for (std::int64_t left = part.outputs(); left > 0; --left, ++row) {
        if (assistant_) part.sequence->keep_state(part.sequence->cache().length() - left, hidden[row].span());
        if (!holds) continue;
        const std::optional<TokenId> next = visit(part.point, {}, scores(logits[row].span()), {});
        holds = left > 1 && next == part.rows[part.rows.size() - static_cast<std::size_t>(left) + 1];
      }
    }
    return true;
  }

 private:
  /// A pass's share of a sequence.
  struct Part {
    std::size_t point;
    WholeSequence* sequence;
    std::vector<TokenId> rows;  ///< after the cached ones; the last are guesses
    bool reaches;               ///< the part reaches the path's end
    std::int64_t guesses = 0;
    /// Rows with wanted scores: the path's last one and the guesses.
    std::int64_t outputs() const { return reaches ? 1 + guesses : 0; }
  };
  /// Continues from the last row that the model computed, along the known tokens first.
  struct Walk {
    Part* part;
    const DraftPoint* point;
    std::int64_t most;         ///< guesses
    std::vector<float> state;  ///< before the token at `at`
    std::size_t at = 0;        ///< index into the part's rows
    std::span<const TokenId> guessed() const { return std::span(part->rows).last(part->guesses); }
  };

  /// Appends to the parts the assistant's guesses of the drafts after their paths. @param room  free rows of the pass
  void guess(std::span<const DraftPoint> points, std::vector<Part>& parts, std::int64_t room) {
    std::vector<Walk> walks;
    for (Part& part : parts) {
      const std::int64_t most = std::min({points[part.point].wanted - 1, kGuesses, room});
      const std::span<const float> state = part.sequence->state();
      if (!part.reaches || most <= 0 || std::ssize(part.rows) > kKnownRowsMax || state.empty()) continue;
      room -= most;
      walks.push_back({&part, &points[part.point], most, {state.begin(), state.end()}});
    }
    while (!walks.empty()) {
      std::vector<DraftNode> nodes;
      for (const Walk& walk : walks)
        nodes.push_back({walk.part->rows[walk.at], walk.state, {*model_, walk.part->sequence->cache()}});
      assistant_->step_each(nodes, [&](std::size_t node, std::span<const TokenId> ids, std::span<const float> scores,
                                       std::span<const float> state) {
        Walk& walk = walks[node];
        walk.state.assign(state.begin(), state.end());
        if (++walk.at < walk.part->rows.size()) return;
        const auto& choose = walk.point->choose;
        walk.part->rows.push_back(choose ? choose(walk.guessed(), ids, scores) : best_draft(ids, scores));
        ++walk.part->guesses;
      });
      std::erase_if(walks, [](const Walk& walk) { return walk.part->guesses == walk.most; });
    }
  }
  /// Returns the scores after the softcap.
  std::span<const float> scores(std::span<const float> logits) {
    scores_.assign(logits.begin(), logits.end());
    if (const float cap = model_->config().final_logit_softcapping; cap > 0)
      softcap_in_place(Matrix<float>(scores_.data(), {1, std::ssize(scores_)}), cap);
    return scores_;
  }

  std::shared_ptr<Backbone> model_;
  std::unique_ptr<Assistant> assistant_;  ///< null: none
  std::vector<float> scores_;
};

}  // namespace

std::unique_ptr<DraftModel> make_draft_model(std::shared_ptr<Backbone> model, std::unique_ptr<Assistant> assistant) {
  return std::make_unique<WholeModel>(std::move(model), std::move(assistant));
}

Result<LoadedDrafter> load_whole_model_drafter(const DrafterOptions& options) {
  ASSIGN_OR_RETURN(const PairPaths paths, pair_paths(options.draft_model, {.assistant = false}));
  const bool cascade = !paths.assistant.empty();
  if (options.worker.verify_weights) {
    RETURN_IF_ERROR(verify_packs({paths.backbone}));
    if (cascade) RETURN_IF_ERROR(verify_packs({paths.assistant}));
  }
  ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::open(paths.backbone));
  ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::load(files));
  std::shared_ptr<Backbone> model;
  if (options.lent != nullptr) {
    model = options.lent->backbone();
  } else {
    ASSIGN_OR_RETURN(model, Backbone::load(files, options.weight_type, kWholeModelRows));
    for (const std::string& note : model->config().notes)
      log_warn("event=metadata_overruled model={} note=\"{}\"", options.draft_model.string(), note);
  }
  std::unique_ptr<Assistant> assistant;
  if (cascade) {
    ASSIGN_OR_RETURN(const ModelFiles assistant_files, ModelFiles::open(paths.assistant));
    ASSIGN_OR_RETURN(assistant,
                     Assistant::load(assistant_files, model->config(), model->weights(), options.weight_type));
  }
  ASSIGN_OR_RETURN(GenerationConfig generation, load_generation_config(files));
  const PairFacts facts{.vocab_size = static_cast<std::int32_t>(model->config().vocab_size),
                        .context_max = model->config().max_position_embeddings,
                        .tokenizer_fingerprint = tokenizer.fingerprint()};
  return LoadedDrafter{.model = make_draft_model(std::move(model), std::move(assistant)),
                       .facts = facts,
                       .path = options.draft_model.string(),
                       .stop_ids = std::move(generation.eos_token_ids),
                       .tokenizer = paths.backbone};
}

}  // namespace outrider
