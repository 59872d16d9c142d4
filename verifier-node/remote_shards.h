#pragma once

#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>

#include "verifier-node/verifier_node.h"

namespace outrider {

/// Listener for shards of VerifierOptions::shards on other hosts.
struct RemoteShards {
  std::string listen = {};  ///< argument of listen_tcp(); empty: all shards are on this host
  Security security = {};
  std::function<void(const std::string& address)> on_listening = {};  ///< see run_coordinator()
};
/// run_verifier() of verifier_node.h for a group on several hosts.
Result<void> run_verifier(TransportContext& context, const VerifierOptions& options, const RemoteShards& remote,
                          std::stop_token stop);

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

}  // namespace outrider
