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
  std::filesystem::path draft_table = {};       ///< file that drafts are looked up in (DraftTable); empty: none
  std::filesystem::path rejection_log = {};  ///< file that rejected drafts are appended to (RejectionLog); empty: none
  int failover_wait_s = 30;                  ///< FailoverConfig::wait
  int requests_max = 0;                      ///< texts at work at once; 0: LineConfig's
  CoordinatorConfig core = {.instance = 0};  ///< 0: chosen at random; `want_rejections` is rejection_log's matter
};

template <class Visitor>
void declare_options(Visitor&& visit, CoordinatorOptions& options) {
  visit(OptionInfo{.name = "--policy-state",
                   .help = "File that keeps over restarts what the ucb1 and thompson policies learned"},
        options.policy_state);
  visit(OptionInfo{.name = "--draft-table",
                   .help = "Table of the model's own answers (bake-table makes one): a source of drafts for auto, "
                           "ucb1, thompson and +table",
                   .of_cluster = true},
        options.draft_table);
  visit(OptionInfo{.name = "--drafters-per-text",
                   .help = "Drafters that are asked for each round's drafts: the first that answers has drafted",
                   .min = 1,
                   .max = 8},
        options.core.drafters_per_text);
  visit(OptionInfo{.name = "--rejection-log",
                   .help = "File to append a JSON line to for every round that loses a draft: which, where, and how "
                           "far the drafter was off",
                   .of_cluster = true},
        options.rejection_log);
  visit(OptionInfo{.name = "--audit",
                   .help = "Share of the answers that another verifier of the same numeric class verifies again; what "
                           "differs is logged and counted",
                   .min = 0,
                   .max = 1},
        options.core.audit.share);
  visit(OptionInfo{.name = "--max-requests",
                   .help = "Texts written at once; 0: 1024. The others wait for their turn",
                   .min = 0,
                   .max = 1024},
        options.requests_max);
  FailoverConfig& failover = options.core.failover;
  visit(OptionInfo{.name = "--failover-wait",
                   .help = "Seconds that a text whose verifier died waits for one that would give the same bytes",
                   .min = 0,
                   .max = 86'400},
        options.failover_wait_s);
  visit(OptionInfo{.name = "--failover-limit",
                   .help = "Verifiers that one text may lose before it fails; 0: it fails with the first",
                   .min = 0,
                   .max = 1 << 20},
        failover.limit);
  visit(OptionInfo{.name = "--allow-inexact-failover",
                   .help = "Then let it go on at any verifier of the model, though its bytes may differ from there on"},
        failover.allow_inexact);
}

/// Serves until `stop` (then Ok), or says why it cannot start. on_listening gets the real address once
/// peers may connect.
Result<void> run_coordinator(TransportContext& context, const CoordinatorOptions& options, std::stop_token stop,
                             const std::function<void(const std::string& address)>& on_listening);

}  // namespace outrider
