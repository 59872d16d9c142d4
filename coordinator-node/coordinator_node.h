#pragma once

#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>

#include "common/protocol/coordinator_core.h"
#include "common/transport/endpoint.h"

namespace outrider {

struct CoordinatorOptions {
  std::string listen;                        ///< tcp://ADDRESS:PORT or inproc://NAME; workers and clients dial it
  std::filesystem::path policy_state = {};   ///< file that keeps what the bandits learned (PolicyState); empty: none
  std::filesystem::path rejection_log = {};  ///< file that rejected drafts are appended to (RejectionLog); empty: none
  int requests_max = 0;    ///< texts at work at once, and of one client waiting; 0: LineConfig's
  CoordinatorConfig core;  ///< `instance` is chosen at random when 0; `want_rejections` is rejection_log's matter
};

/// Serves until `stop` (then Ok), or says why it cannot start. on_listening gets the real address once
/// peers may connect.
Result<void> run_coordinator(TransportContext& context, const CoordinatorOptions& options, std::stop_token stop,
                             const std::function<void(const std::string& address)>& on_listening);

}  // namespace outrider
