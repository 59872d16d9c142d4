#pragma once

#include <filesystem>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "common/base/option.h"
#include "common/kernels/linear.h"
#include "common/protocol/verifier_core.h"
#include "common/transport/endpoint.h"
#include "common/transport/worker.h"

namespace outrider {

struct VerifierOptions {
  std::filesystem::path backbone = {};  ///< checkpoint directory
  WeightType weight_type = WeightType::kBf16;
  std::string join = {};  ///< the coordinator's address
  WorkerOptions worker = {};
  int threads = 0;              ///< of the forward pass; 0: as many as TeamSizer finds fastest
  std::int64_t memory_mib = 0;  ///< for the K/V of all sessions; 0: three quarters of what is free after loading
  /// For measurements on random weights: the chance that at least 1, 2, ... drafts of a round are accepted, by a coin
  /// instead of the rule (vLLM's synthetic mode). Empty: the rule. The text means nothing then.
  std::vector<double> synthetic_acceptance = {};
  int added_verify_us = 0;   ///< for measurements: what a forward pass takes longer than it does here, microseconds
  bool no_towers = false;    ///< pictures and sounds come encoded, or not at all
  int drain_wait_s = 20;     ///< after a stop: how long the texts at hand may go on here
  VerifierConfig core = {};  ///< what its capacity says of K/V is filled in once the model is there
};

template <class Visitor>
void declare_options(Visitor&& visit, VerifierOptions& options) {
  declare_options(visit, options.worker);
  visit("--threads", options.threads,
        {"Threads of the backbone's forward pass; 0: as many as are found fastest, at most every core",
         {0, kThreadsMax},
         /*of_cluster=*/true});
  visit("--memory", options.memory_mib,
        {"MiB for the K/V of all sessions; 0: three quarters of what is free once the model is loaded", {0, 1 << 30}});
  visit("--synthetic-acceptance", options.synthetic_acceptance,
        {"For measurements on random weights: a coin accepts at least 1, 2, ... drafts of a round at these rates",
         {0, 1}});
  visit("--added-verify-us", options.added_verify_us,
        {"For measurements of a larger model: every forward pass takes so many microseconds longer", {0, 10'000'000}});
  visit("--no-towers", options.no_towers, {"Load no towers: pictures and sounds are for 'outrider encoder' to encode"});
  visit("--drain-wait", options.drain_wait_s,
        {"Seconds after SIGTERM that texts may go on here which no other verifier takes over", {0, 3600}});
  visit("--exit-when-refused", options.core.link.exit_when_refused, kExitWhenRefused);
}

/// Loads the backbone, joins the coordinator and serves until `stop` (then Ok) or until it cannot
/// start, or is refused and not to try again (then the reason). After `stop` it takes no new text; those at hand move
/// to another verifier or end here, for so long as drain_wait_s says. One thread does it all (ADR 3): messages and
/// heartbeats go on between the steps of a long batch.
Result<void> run_verifier(TransportContext& context, const VerifierOptions& options, std::stop_token stop);

}  // namespace outrider
