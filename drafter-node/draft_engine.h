#pragma once

#include <map>
#include <memory>
#include <vector>

#include "common/model/assistant.h"
#include "common/protocol/drafter_core.h"
#include "common/sampling/distribution.h"

namespace outrider {

/// Keeps the donor replicas of a drafter's sessions and drafts on them. Used by one thread.
class DraftEngine {
 public:
  /// @param stop_ids a draft ends with one of these: nothing may follow it.
  DraftEngine(std::unique_ptr<Assistant> assistant, std::vector<TokenId> stop_ids);

  /// Does one piece of work; the drafts are empty unless it is a kDraft.
  Candidates run(const DraftWork& work);

 private:
  /// Draws a draft of output `index` from the scores, with the noise that the rule wants, and appends its distribution
  /// to *q for kRejection or if it is wanted (Candidates::q). Penalties are left to the target: a drafter does not know
  /// the text.
  TokenId sample(const SamplingParams& sampling, std::int64_t index, std::span<const TokenId> ids,
                 std::span<const float> scores, bool want_q, std::vector<Distribution>* q);

  std::unique_ptr<Assistant> assistant_;
  std::vector<TokenId> stop_ids_;
  std::map<SessionId, DonorReplica> replicas_;
  std::vector<float> row_;  ///< scores of the whole vocabulary
  SamplingScratch scratch_;
  Distribution q_;
};

}  // namespace outrider
