#pragma once

#include <map>
#include <memory>
#include <vector>

#include "common/model/assistant.h"
#include "common/protocol/drafter_core.h"

namespace outrider {

/// Keeps the donor replicas of a drafter's sessions and drafts on them. Used by one thread.
class DraftEngine {
 public:
  /// @param stop_ids a draft ends with one of these: nothing may follow it.
  DraftEngine(std::unique_ptr<Assistant> assistant, std::vector<TokenId> stop_ids)
      : assistant_(std::move(assistant)), stop_ids_(std::move(stop_ids)) {}

  struct Drafts {
    std::vector<TokenId> tokens;
    std::int64_t draft_ns = 0;  ///< in assistant forwards
  };
  /// Does one piece of work; the drafts are empty unless it is a kDraft.
  Drafts run(const DraftWork& work);
  /// Everything that lives as long as the engine or a session; sessions as if they had `positions` each.
  void report_buffers(const BufferSink& sink, Position positions) const;

 private:
  std::unique_ptr<Assistant> assistant_;
  std::vector<TokenId> stop_ids_;
  std::map<SessionId, DonorReplica> replicas_;
};

}  // namespace outrider
