#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "common/model/backbone.h"
#include "common/protocol/verifier_core.h"
#include "common/sampling/sampler.h"

namespace outrider {

/// Runs the verifier core's batches on a backbone: one forward for the rows of all sessions, each
/// session's sampler on its rows, rollback of what was rejected. Used by one thread.
class BackboneEngine {
 public:
  explicit BackboneEngine(std::unique_ptr<Backbone> backbone) : backbone_(std::move(backbone)) {}

  /// @param between_layers as in Backbone::forward.
  std::vector<VerifyResult> run(const std::vector<VerifyWork>& batch, const std::function<void()>& between_layers = {});
  void release(SessionId session) { sessions_.erase(session); }
  /// Everything that lives as long as the engine or a session; sessions as if they had `positions` each.
  void report_buffers(const BufferSink& sink, Position positions) const;
  const Backbone& backbone() const { return *backbone_; }
  /// What a session's K/V take here, for its Capacity.
  KvCost kv_cost() const;

 private:
  struct Session {
    KvCache cache;
    Sampler sampler;
  };
  /// A session's first rows are due: its cache, empty or with what it reuses.
  std::map<SessionId, Session>::iterator open(const VerifyWork& work);
  /// Committed donor rows [from, to) of a cache, copied out of its rings.
  KvRows donor_rows(const KvCache& cache, Position from, Position to) const;

  std::unique_ptr<Backbone> backbone_;
  std::map<SessionId, Session> sessions_;  ///< and texts that have ended, until the core releases them
  SamplingScratch scratch_;
};

}  // namespace outrider
