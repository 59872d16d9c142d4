#pragma once

#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>

#include "common/base/option.h"
#include "common/wire/transport/endpoint.h"
#include "coordinator-node/coordinator_core.h"

namespace outrider {

struct CoordinatorOptions {
  std::string listen = "tcp://127.0.0.1:7070";  ///< tcp://ADDRESS:PORT or inproc://NAME, for workers and clients
  std::filesystem::path draft_table = {};       ///< file of looked-up drafts (DraftTable); empty: none
  std::filesystem::path rejection_log = {};  ///< file to which rejected drafts are appended (RejectionLog); empty: none
  int failover_wait_s = 30;                  ///< FailoverConfig::wait
  int peer_timeout_s = 3;                    ///< LinkConfig::peer_timeout
  int requests_max = 0;                      ///< running sequences; 0: AdmissionConfig's
  CoordinatorConfig core = {.instance = 0};  ///< 0: random; `want_rejections` follows rejection_log
};

template <class Visitor>
void declare_options(Visitor&& visit, CoordinatorOptions& options) {
  visit("--draft-table", options.draft_table,
        {.help = "Table of the model's own answers, made by bake-table: a source of drafts for auto and +table",
         .of_cluster = true});
  visit("--drafters-per-sequence", options.core.drafters_per_sequence,
        {"Drafters that are asked for each round's drafts; the first answer is used", {1, 8}});
  visit("--rejection-log", options.rejection_log,
        {.help = "File to append a JSON line to for every round that loses a draft: the draft, its position and the "
                 "rank of the target's token",
         .of_cluster = true});
  visit("--audit", options.core.audit.share,
        {"Share of the answers that another verifier of the same numeric class verifies again; differences are logged "
         "and counted",
         {0, 1}});
  visit("--max-requests", options.requests_max,
        {"Sequences that run at once (0: 1024); others wait in the queue", {0, 1024}});
  FailoverConfig& failover = options.core.failover;
  visit("--failover-wait", options.failover_wait_s,
        {"Seconds that a sequence whose verifier died waits for another of its numeric class", {0, 86'400}});
  visit("--failover-limit", failover.limit,
        {"Verifiers that a sequence may lose before it fails; 0: the first loss ends it", {0, 1 << 20}});
  visit("--peer-timeout", options.peer_timeout_s,
        {"Seconds without a byte of a worker after which it counts as gone", {1, 86'400}});
  visit("--allow-inexact-failover", failover.allow_inexact,
        {"After --failover-wait, continue at any verifier of the model; the text may differ from there on"});
}

/// Serves until `stop` (then Ok), or returns the error that prevents its start. on_listening gets the actual address
/// once peers may connect.
Result<void> run_coordinator(TransportContext& context, const CoordinatorOptions& options, std::stop_token stop,
                             const std::function<void(const std::string& address)>& on_listening);

}  // namespace outrider
