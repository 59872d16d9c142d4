#pragma once

#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>

#include "common/base/option.h"
#include "common/protocol/coordinator_core.h"
#include "common/transport/endpoint.h"

namespace outrider {

struct CoordinatorOptions {
  std::string listen = "tcp://127.0.0.1:7070";  ///< tcp://ADDRESS:PORT or inproc://NAME; workers and clients dial it
  std::filesystem::path policy_state = {};      ///< file that keeps what the bandits learned (PolicyState); empty: none
  std::filesystem::path rejection_log = {};  ///< file that rejected drafts are appended to (RejectionLog); empty: none
  CoordinatorConfig core = {.instance = 0};  ///< 0: chosen at random; `want_rejections` is rejection_log's matter
};

template <class Visitor>
void declare_options(Visitor&& visit, CoordinatorOptions& options) {
  visit(OptionInfo{.name = "--policy-state",
                   .help = "File that keeps over restarts what the ucb1 and thompson policies learned"},
        options.policy_state);
  visit(OptionInfo{.name = "--rejection-log",
                   .help = "File to append a JSON line to for every round that loses a draft: which, where, and how "
                           "far the drafter was off",
                   .of_cluster = true},
        options.rejection_log);
}

/// Serves until `stop` (then Ok), or says why it cannot start. on_listening gets the real address once
/// peers may connect.
Result<void> run_coordinator(TransportContext& context, const CoordinatorOptions& options, std::stop_token stop,
                             const std::function<void(const std::string& address)>& on_listening);

}  // namespace outrider
