#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/model/gemma4/backbone.h"
#include "common/model/gemma4/config.h"
#include "common/model/gemma4/decoder_layer.h"
#include "common/model/gemma4/draft_vocabulary.h"
#include "common/model/gemma4/embedding.h"
#include "common/model/gemma4/rope.h"

namespace outrider {

/// Committed K/V rows of the backbone's two donor layers: the drafter's copy of them.
struct DonorReplica {
  LayerKv sliding, full;
  Position length = 0;  ///< positions [0, length) are valid, as far as the sliding window reaches

  /// Appends the backbone's rows [length, end), copied from a cache that still has them.
  void extend(const Backbone& backbone, const KvCache& cache, Position end);
};

/// K/V of the two donor layers at positions [0, length): a replica's, or the backbone's own cache.
struct DonorRows {
  DonorRows(const DonorReplica& replica)
      : sliding(replica.sliding.view()), full(replica.full.view()), length(replica.length) {}
  DonorRows(const Backbone& backbone, const KvCache& cache)
      : sliding(cache.layer(backbone.donor_cache(AttentionKind::kSliding)).view()),
        full(cache.layer(backbone.donor_cache(AttentionKind::kFull)).view()),
        length(cache.length()) {}
  KvView sliding, full;
  Position length;
};

/// A token after which the assistant drafts, and the row that produced it.
struct DraftNode {
  TokenId token = 0;
  std::span<const float> state;  ///< [backbone_hidden_size] the target's, or the assistant's own
  DonorRows donors;              ///< rows before it in its sequence: at least one
  bool goes_on = true;           ///< its row is wanted, to continue from it
};
/// Receives a node's drafts: the scores of `ids`, or of the whole vocabulary in order if `ids` is empty; and the row
/// from which drafting continues, empty unless wanted.
using VisitNode = std::function<void(std::size_t node, std::span<const TokenId> ids, std::span<const float> scores,
                                     std::span<const float> state)>;

/// Returns the token with the highest score; the lowest id among equals. @param ids, scores  as in VisitNode
TokenId best_draft(std::span<const TokenId> ids, std::span<const float> scores);

/// The drafter's tied head. With ordered embeddings it scores the tokens of the best centroids (gemma4.md 4.3), else
/// those of a draft vocabulary while that suffices, else the whole vocabulary.
class DraftHead {
 public:
  /// @param draft_vocabulary  its size; 0, or at least vocab_size: none
  static Result<DraftHead> load(const WeightReader& weights, const AssistantConfig& config,
                                std::int64_t draft_vocabulary = 0);

  /// Null: there is none.
  DraftVocabulary* draft_vocabulary() { return vocabulary_ ? &*vocabulary_ : nullptr; }

  /// Calls visit(row, ids, scores) for each row of n [rows, hidden_size], normed.
  void score_each(
      Matrix<const float> n,
      const std::function<void(std::int64_t row, std::span<const TokenId> ids, std::span<const float> scores)>& visit);
  /// Returns all scores as the reference defines them: tokens without a chosen centroid get the lowest chosen score
  /// minus one. For parity tests.
  /// @param n  one row
  std::vector<float> scores(Matrix<const float> n);
  std::size_t weight_bytes() const;

 private:
  /// Scores the tokens of a row's best centroids, into candidate_ids_ and candidate_scores_.
  void score_candidates(std::span<const float> n, std::span<const float> centroid_scores);

  std::int64_t vocab_size_ = 0, hidden_size_ = 0;
  Linear dense_;  ///< all rows, unless the head is ordered
  std::optional<DraftVocabulary> vocabulary_;
  Linear part_;                              ///< the rows of vocabulary_, as of part_version_
  std::int64_t part_version_ = 0;
  std::int64_t top_k_ = 0, group_size_ = 0;  ///< ordered head: tokens per centroid
  Linear centroids_;
  std::vector<TokenId> ordering_;  ///< [num_centroids * group_size_], tokens by centroid
  RowTable rows_;                  ///< embedding rows in that order, so that a centroid's are adjacent
  std::vector<TokenId> candidate_ids_;
  std::vector<float> candidate_scores_;
  Buffer scores_;
};

/// Input of greedy drafting.
struct DraftRequest {
  TokenId token;
  std::span<const float> hidden;  ///< [backbone_hidden_size] the target's row that produced `token`
  const DonorReplica& replica;    ///< rows before `token`: at least one
  std::int64_t count;
  std::span<const TokenId> stop_ids = {};
};

/// Deliberate deviations of a draft step, to diagnose an assistant that was trained differently.
struct StepVariant {
  Position rope_shift = 0;   ///< added to the position that rotates the queries
  bool swap_halves = false;  ///< state first, then embedding
};

/// The Gemma 4 assistant (MTP drafter, gemma4.md 4). It reads the target's embedding of the last token, hidden row and
/// K/V, and has no cache of its own.
class Assistant {
 public:
  /// @param backbone  the target: its embedding table (kept open) and its donors' shapes. An assistant of another
  /// backbone is refused.
  /// @param type  of a checkpoint's weights. A pack has its own, beside a backbone of any type but f32
  /// @param draft_vocabulary  as for DraftHead
  static Result<std::unique_ptr<Assistant>> load(const ModelFiles& files, const TextConfig& backbone,
                                                 const WeightSource& backbone_weights, WeightType type,
                                                 std::int64_t draft_vocabulary = 0);
  static Result<std::unique_ptr<Assistant>> load(AssistantConfig config, std::shared_ptr<const WeightSource> weights,
                                                 const TextConfig& backbone, const WeightSource& backbone_weights,
                                                 std::int64_t draft_vocabulary = 0);

  DonorReplica make_replica() const;

  /// Returns up to `count` drafts after `token` (gemma4.md 4.5), with the same position and K/V throughout. Stops after
  /// a stop token.
  std::vector<TokenId> draft(const DraftRequest& request);

  /// Runs one step for several nodes, of one token tree or of several sequences, and reads the weights once. The bits
  /// of a node do not depend on the others.
  void step_each(std::span<const DraftNode> nodes, const VisitNode& visit);

  /// One draft step, as at the start of draft(): for parity tests.
  struct Step {
    std::vector<float> logits;  ///< [vocab_size]
    std::vector<float> state;   ///< [backbone_hidden_size], the next step's hidden row
    TokenId token;
  };
  Step draft_step(TokenId token, std::span<const float> state, const DonorReplica& replica,
                  const StepVariant& variant = {});

  const AssistantConfig& config() const { return config_; }
  /// See DraftHead.
  DraftVocabulary* draft_vocabulary() { return head_.draft_vocabulary(); }
  std::size_t weight_bytes() const;

 private:
  Assistant() = default;
  /// Row contexts of a step, by kind of layer.
  struct Rows {
    std::vector<RowContext> sliding, full;
  };
  void add_row(Rows& rows, const DonorRows& donors, Position rope_shift = 0) const;
  /// Row [2 * backbone_hidden_size] of a step's input: the token's embedding, then the state.
  void fill_input(TokenId token, std::span<const float> state, std::span<float> row) const;
  /// Maps a step's input to normed hidden rows, in scratch_; the caller derives scores and next state.
  Matrix<const float> step(Matrix<const float> input, const Rows& rows);

  AssistantConfig config_;
  std::int64_t sliding_window_ = 0;
  DType kv_dtype_ = DType::kF32;
  LayerConfig sliding_donor_{}, full_donor_{};
  std::optional<Embedding> target_embedding_;
  std::optional<Rope> rope_;
  Linear pre_projection_, post_projection_;
  std::vector<DecoderLayer> layers_;
  std::vector<float> norm_;
  DraftHead head_;
  Workspace workspace_;
  struct {
    Buffer input, x, normed, state;
  } scratch_;  ///< of one step, besides the layers'
};

}  // namespace outrider
