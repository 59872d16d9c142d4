#pragma once

#include <functional>
#include <future>
#include <map>
#include <memory>
#include <vector>

#include "common/decoding/sampling/sampler.h"
#include "common/media/towers.h"
#include "common/model/gemma4/backbone.h"
#include "verifier-node/sequences.h"
#include "verifier-node/verifier_core.h"

namespace outrider {

/// Runs the verifier core's batches on a backbone: one forward for the rows of all sessions, each
/// session's sampler on its rows, rollback of what was rejected. Used by one thread.
class BackboneEngine {
 public:
  /// @param synthetic_acceptance as in VerifierOptions.
  /// @param towers  makes soft tokens of the pictures and sounds that sessions have, and outlives this
  explicit BackboneEngine(std::unique_ptr<Backbone> backbone, std::vector<double> synthetic_acceptance = {},
                          Towers* towers = nullptr)
      : sequences_(std::move(backbone)), synthetic_acceptance_(std::move(synthetic_acceptance)), towers_(towers) {}

  /// @param between_steps called after every layer that is computed or copied, after the head, while masks of grammars
  ///   are made, and for every session when all tokens are chosen, so that a caller's loop stays awake in a long batch.
  std::vector<VerifyResult> run(
      const std::vector<VerifyWork>& batch, const std::function<void()>& between_steps = [] {});
  void release(SessionId session);
  const Backbone& backbone() const { return sequences_.backbone(); }
  /// What a session's K/V take, at all shards together, for its Capacity.
  KvCost kv_cost() const;

 private:
  struct Session {
    Sampler sampler;
    /// Of the pictures and sounds of a prompt that is under way, by their order: [soft tokens, hidden_size], or not yet
    /// there.
    std::vector<Tensor> soft = {};
  };
  /// A session's first rows are due: its sequence, empty or with what it reuses.
  std::map<SessionId, Session>::iterator open(const VerifyWork& work, const std::function<void()>& between_steps);
  /// The soft tokens among a prompt's rows, encoded when their first is due.
  std::vector<SoftRows> soft_rows(const VerifyWork& work, Session& session, const std::function<void()>& between_steps);
  /// Makes the grammars' masks of a batch's rows on a thread of its own: which tokens may follow depends on the drafts,
  /// not on their logits. Where no thread is to be had, get() does it. Invalid: no session has a grammar.
  std::future<void> masks_ahead(const std::vector<VerifyWork>& batch);
  /// Committed donor rows [from, to) of a cache, copied out of its rings.
  KvRows donor_rows(const KvCache& cache, Position from, Position to, WireForm form) const;
  /// The end of the donor rows from `from` on that one message carries.
  Position donor_rows_end(const KvCache& cache, Position from) const;
  /// What the session's rule makes of a sequence's rows of logits; of a prompt, of its last row.
  struct Decision {
    Result<VerifyOutcome> outcome;
    std::vector<TokenLogprobs> logprobs;  ///< of the drafts kept and the token after them, if the session wants them
  };
  Decision decide(const VerifyWork& work, Matrix<const float> logits);
  /// All sequences at once: the logits of one take the time of a layer. Nothing for those that have none.
  std::vector<std::optional<Decision>> decide_all(const std::vector<VerifyWork>& batch,
                                                  std::span<const Sequences::Rows> rows, Matrix<const float> logits);
  std::vector<TokenLogprobs> logprobs_along(const Sampler& sampler, Matrix<const float> logits, const VerifyWork& work,
                                            const VerifyOutcome& outcome);
  /// What a coin makes of the drafts.
  VerifyOutcome synthetic_outcome(Matrix<const float> logits, const VerifyWork& work) const;

  Sequences sequences_;  ///< those of sessions, and of what has ended, until the core releases them
  std::map<SessionId, Session> sessions_;
  std::vector<double> synthetic_acceptance_;
  Towers* towers_;
};

}  // namespace outrider
