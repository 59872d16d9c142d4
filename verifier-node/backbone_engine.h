#pragma once

#include <functional>
#include <future>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "common/decoding/sampling/sampler.h"
#include "common/media/towers.h"
#include "common/model/gemma4/backbone.h"
#include "verifier-node/sequences.h"
#include "verifier-node/verifier_core.h"

namespace outrider {

/// Runs the verifier core's batches on a backbone: one forward for the rows of all sessions, each session's sampler on
/// its rows, rollback of rejected drafts. Used by one thread.
class BackboneEngine {
 public:
  /// @param synthetic_acceptance  see VerifierOptions
  /// @param towers  make soft tokens of sessions' media; outlive this object
  explicit BackboneEngine(std::shared_ptr<Backbone> backbone, std::vector<double> synthetic_acceptance = {},
                          Towers* towers = nullptr)
      : sequences_(std::move(backbone)), synthetic_acceptance_(std::move(synthetic_acceptance)), towers_(towers) {}

  /// @param between_steps  called after every layer that is computed or copied, after the head, while grammar masks are
  /// made, and per session when all tokens are chosen, so that a caller's loop can run during a long batch
  std::vector<VerifyResult> run(
      const std::vector<VerifyWork>& batch, const std::function<void()>& between_steps = [] {});
  /// Ends a session and keeps its K/V under another number.
  void rename(SessionId session, SessionId kept);
  void release(SessionId session);
  const Backbone& backbone() const { return sequences_.backbone(); }
  /// Returns a session's K/V memory, on all shards together, for Capacity.
  KvCost kv_cost() const;
  /// Returns the K/V memory of all shards together that is in use when one of them has filled its host.
  /// @param free_mib  free memory of each shard's host, by rank
  std::int64_t kv_bytes_until_full(std::span<const float> free_mib) const;

 private:
  struct Session {
    Sampler sampler;
    /// Per medium of a prompt in progress: [soft tokens, hidden_size], or empty until encoded.
    std::vector<Tensor> soft = {};
  };
  /// Makes a cache as the shard of that rank has for a sequence.
  KvCache cache_of_shard(int rank) const;
  /// Opens a session at its first rows: its sequence, empty or with reused rows.
  std::map<SessionId, Session>::iterator open(const VerifyWork& work, const std::function<void()>& between_steps);
  /// Returns the soft tokens among a prompt's rows; encodes a medium at its first row.
  std::vector<SoftRows> soft_rows(const VerifyWork& work, Session& session, const std::function<void()>& between_steps);
  /// Computes the grammar mask of each sequence's first row on a thread of its own: it does not depend on the logits.
  /// If no thread can be started, get() computes them. The future is invalid if no session has a grammar.
  std::future<void> masks_ahead(const std::vector<VerifyWork>& batch);
  /// Copies committed donor rows [from, to) out of a cache's rings.
  KvRows donor_rows(const KvCache& cache, Position from, Position to, WireForm form) const;
  /// Returns the end of the donor rows from `from` on that one message can carry.
  Position donor_rows_end(const KvCache& cache, Position from) const;
  /// Result of the session's rule on a sequence's logits; for a prompt, on its last row.
  struct Decision {
    Result<VerifyOutcome> outcome;
    std::vector<TokenLogprobs> logprobs;  ///< of the accepted drafts and the next token, if requested
  };
  Decision decide(const VerifyWork& work, Matrix<const float> logits);
  /// Decides for all sequences concurrently, because one sequence's logits take the time of a layer. There is no
  /// decision for a sequence without logits.
  std::vector<std::optional<Decision>> decide_all(const std::vector<VerifyWork>& batch,
                                                  std::span<const Sequences::Rows> rows, Matrix<const float> logits);
  std::vector<TokenLogprobs> logprobs_along(const Sampler& sampler, Matrix<const float> logits, const VerifyWork& work,
                                            const VerifyOutcome& outcome);
  /// Accepts drafts by random numbers (VerifierOptions::synthetic_acceptance).
  VerifyOutcome synthetic_outcome(Matrix<const float> logits, const VerifyWork& work) const;

  Sequences sequences_;  ///< of sessions, and ended ones until the core releases them
  std::map<SessionId, Session> sessions_;
  std::vector<double> synthetic_acceptance_;
  Towers* towers_;
};

}  // namespace outrider
