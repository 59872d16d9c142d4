#pragma once

#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>

#include "verifier-node/verifier_node.h"

namespace outrider {

/// Where the other shards of VerifierOptions::shards join a verifier from other hosts.
struct RemoteShards {
  std::string listen = {};  ///< as listen_tcp() takes it; empty: they are this host's
  Security security = {};
  std::function<void(const std::string& address)> on_listening = {};  ///< as run_coordinator()'s
};
/// As run_verifier() of verifier_node.h, of a group of several hosts.
Result<void> run_verifier(TransportContext& context, const VerifierOptions& options, const RemoteShards& remote,
                          std::stop_token stop);

/// A part of the backbone of a verifier on another host.
struct RemoteShardOptions {
  std::filesystem::path backbone = {};
  std::string join = {};  ///< RemoteShards::listen; several with commas between
  int threads = 0;        ///< 0: every core
  Security security = {};
};
/// Loads its part and computes what the verifier says. When the verifier is gone, frees the part and joins again, until
/// `stop` (then Ok). In a group it goes on after `stop` until the verifier ends, or for as long as that one may drain.
/// @return why it cannot: a verifier refuses it, or the weights cannot be read
Result<void> run_remote_shard(const RemoteShardOptions& options, std::stop_token stop);

}  // namespace outrider
