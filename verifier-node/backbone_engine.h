#pragma once

#include <functional>
#include <future>
#include <map>
#include <memory>
#include <vector>

#include "common/model/backbone.h"
#include "common/protocol/verifier_core.h"
#include "common/sampling/sampler.h"
#include "common/towers/towers.h"

namespace outrider {

/// Runs the verifier core's batches on a backbone: one forward for the rows of all sessions, each
/// session's sampler on its rows, rollback of what was rejected. Used by one thread.
class BackboneEngine {
 public:
  /// @param synthetic_acceptance as in VerifierOptions.
  /// @param grammars  makes those that sessions have, and outlives this; null: no session has one.
  /// @param towers  makes soft tokens of the pictures and sounds that sessions have, likewise
  explicit BackboneEngine(std::unique_ptr<Backbone> backbone, std::vector<double> synthetic_acceptance = {},
                          GrammarCompiler* grammars = nullptr, Towers* towers = nullptr)
      : backbone_(std::move(backbone)),
        synthetic_acceptance_(std::move(synthetic_acceptance)),
        grammars_(grammars),
        towers_(towers) {}

  /// @param between_steps called after every layer that is computed or copied, after the head, and for every
  ///   session when all tokens are chosen, so that a caller's loop stays awake in a long batch.
  std::vector<VerifyResult> run(
      const std::vector<VerifyWork>& batch, const std::function<void()>& between_steps = [] {});
  void release(SessionId session) { sessions_.erase(session); }
  const Backbone& backbone() const { return *backbone_; }
  /// What a session's K/V take here, for its Capacity.
  KvCost kv_cost() const;

 private:
  struct Session {
    KvCache cache;
    Sampler sampler;
    /// Of the pictures and sounds of a prompt that is under way, by their order: [soft tokens, hidden_size], or not yet
    /// there.
    std::vector<Tensor> soft = {};
  };
  /// A session's first rows are due: its cache, empty or with what it reuses.
  std::map<SessionId, Session>::iterator open(const VerifyWork& work, const std::function<void()>& between_steps);
  /// The soft tokens among a prompt's rows, encoded when their first is due.
  std::vector<SoftRows> soft_rows(const VerifyWork& work, Session& session, const std::function<void()>& between_steps);
  /// Makes the grammars' masks of a batch's rows on a thread of its own: which tokens may follow depends on the drafts,
  /// not on their logits. Where no thread is to be had, get() does it. Invalid: no session has a grammar.
  std::future<void> masks_ahead(const std::vector<VerifyWork>& batch);
  /// Committed donor rows [from, to) of a cache, copied out of its rings.
  KvRows donor_rows(const KvCache& cache, Position from, Position to, WireForm form) const;
  /// What the session's rule makes of a text's rows of logits; of a prompt, of its last row.
  struct Decision {
    Result<VerifyOutcome> outcome;
    std::vector<TokenLogprobs> logprobs;  ///< of the drafts kept and the token after them, if the session wants them
  };
  Decision decide(const VerifyWork& work, Matrix<const float> logits);
  /// All texts at once: the logits of one take the time of a layer. Nothing for those that have none.
  std::vector<std::optional<Decision>> decide_all(const std::vector<VerifyWork>& batch,
                                                  std::span<const Segment> segments, Matrix<const float> logits);
  std::vector<TokenLogprobs> logprobs_along(const Sampler& sampler, Matrix<const float> logits, const VerifyWork& work,
                                            const VerifyOutcome& outcome);
  /// What a coin makes of the drafts.
  VerifyOutcome synthetic_outcome(Matrix<const float> logits, const VerifyWork& work) const;

  std::unique_ptr<Backbone> backbone_;
  std::map<SessionId, Session> sessions_;  ///< and texts that have ended, until the core releases them
  std::vector<double> synthetic_acceptance_;
  GrammarCompiler* grammars_;
  Towers* towers_;
};

}  // namespace outrider
