#pragma once

#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "common/base/option.h"
#include "common/compute/kernels/linear.h"
#include "common/compute/kernels/shards.h"
#include "common/wire/messages/messages.h"
#include "common/wire/transport/endpoint.h"
#include "common/wire/transport/security.h"
#include "common/wire/transport/worker.h"
#include "verifier-node/verifier_core.h"

namespace outrider {

class LentBackbone;

/// Listener for shards on other hosts.
struct RemoteShards {
  std::string listen = {};  ///< argument of listen_tcp(); empty: all shards are on this host
  Security security = {};
  std::function<void(const std::string& address)> on_listening = {};  ///< see run_coordinator()
};

struct VerifierOptions {
  std::filesystem::path backbone = {};  ///< checkpoint directory
  WeightType weight_type = WeightType::kBf16;
  std::string join = {};  ///< the coordinator's address
  WorkerOptions worker = {};
  int threads = 0;              ///< of the forward pass; 0: the fastest number, found by TeamSizer
  int shards = 1;               ///< processes that compute it together; 0 (auto): one per memory node of its cores
  int min_shards = 0;           ///< on several hosts, that may begin without the others; 0: all must join
  RemoteShards remote = {};
  std::int64_t memory_mib = 0;  ///< for the K/V of all sessions; 0: three quarters of the free memory after loading
  /// For measurements on random weights: probabilities that at least 1, 2, ... drafts of a round are accepted, at
  /// random instead of by the rule (vLLM's synthetic mode). Empty: the rule. The answer is then meaningless.
  std::vector<double> synthetic_acceptance = {};
  std::vector<double> added_verify_us = {};  ///< for measurements: longer forward passes, as added_time() takes them
  /// Files of a block or EAGLE-3 drafter, of which only the configuration is read. The verifier keeps and sends the
  /// rows for this drafter. Empty: the rows for an assistant.
  std::filesystem::path hidden_rows_for = {};
  bool no_towers = false;        ///< media must be encoded by an encoder
  LentBackbone* lent = nullptr;  ///< gets the backbone, for the time without sequences; outlives the verifier
  int drain_wait_s = 20;         ///< after a stop: time for the sequences in progress
  VerifierConfig core = {};      ///< K/V capacity is set once the model is loaded
};

template <class Visitor>
void declare_options(Visitor&& visit, VerifierOptions& options) {
  declare_options(visit, options.worker);
  visit("--threads", options.threads,
        {"Threads of the backbone's forward pass; 0: the fastest number, by measurement",
         {0, kThreadsMax},
         /*of_cluster=*/true});
  visit("--shards", options.shards,
        {.help = "Processes on this host that each compute a part of the backbone and share the threads; auto: one per "
                 "NUMA node of the usable cores",
         .range = {kShards.min, kShards.max},
         .word_for_0 = "auto"});
  visit("--min-shards", options.min_shards,
        {"With shards on several hosts: begin after 10 times --peer-timeout with at least this many, this one counted, "
         "if each has room for its share of the model; 0: wait for all",
         {0, kShards.max}});
  visit("--memory", options.memory_mib,
        {"MiB for the K/V of all sessions; 0: three quarters of the memory that is free after loading", {0, 1 << 30}});
  visit("--synthetic-acceptance", options.synthetic_acceptance,
        {"For measurements on random weights: probabilities that at least 1, 2, ... drafts of a round are accepted",
         {0, 1}});
  visit("--added-verify-us", options.added_verify_us,
        {"For measurements of a larger model: microseconds added to forward passes of 1, 2, 4, 8, ... rows; one value: "
         "to every pass",
         {0, 10'000'000}});
  visit("--hidden-rows-for", options.hidden_rows_for,
        {"Keep and send the rows for the drafter (DSpark, DFlash, EAGLE-3) in this directory, instead of an "
         "assistant's K/V; only its config.json is read"});
  visit("--no-towers", options.no_towers, {"Load no towers: 'outrider encoder' encodes pictures and sounds"});
  visit("--drain-wait", options.drain_wait_s,
        {"Seconds after SIGTERM for the sequences that no other verifier takes over", {0, 3600}});
  visit("--exit-when-refused", options.core.link.exit_when_refused, kExitWhenRefused);
}

/// A shard of another process's verifier.
struct ShardOptions {
  std::filesystem::path backbone = {};
  WeightType weight_type = WeightType::kBf16;
  std::int64_t rows_max = 0;
  int threads = 0;
  int memory = -1;  ///< descriptor from SharedMemoryShards::create()
  ShardPlace place = {};
};
/// Loads the shard's part and computes for the verifier. The verifier's end ends this process. @return the error
Result<void> run_shard(const ShardOptions& options);

/// A shard of a verifier on another host.
struct RemoteShardOptions {
  std::filesystem::path backbone = {};
  std::string join = {};  ///< RemoteShards::listen; several are separated by commas
  int threads = 0;        ///< 0: every core
  Security security = {};
};
/// Loads the shard's part and computes for the verifier. When the verifier is gone, the shard frees the part and joins
/// again, until `stop` (then Ok). A shard in a group continues after `stop` until its verifier ends, for as long as a
/// drain may take.
/// @return an error if a verifier refuses the shard, or the weights cannot be read
Result<void> run_remote_shard(const RemoteShardOptions& options, std::stop_token stop);

/// Loads the backbone, joins the coordinator and serves until `stop` (then Ok), or until an error at the start or a
/// final refusal. After `stop` it takes no new sequence; sequences in progress move to another verifier or end here,
/// within drain_wait_s. One thread does everything (ADR 3): messages and heartbeats are handled between the steps of a
/// long batch.
Result<void> run_verifier(TransportContext& context, const VerifierOptions& options, std::stop_token stop);

}  // namespace outrider
