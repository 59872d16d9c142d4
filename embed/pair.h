#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/client/client.h"
#include "common/client/text_side.h"
#include "launch/local_cluster.h"
#include "server/api_server.h"

namespace outrider {

/// A target and its assistant, ready to generate; here or behind a coordinator. Both behave the same: a local pair is a
/// coordinator and its workers on threads of this process.
///
/// Any thread, several at a time.
class Pair {
 public:
  /// Loads the weights.
  /// @param options  models, types and threads. Without a draft model the pair's assistant drafts; without either (an
  /// empty path) all decoding is plain.
  static Result<std::shared_ptr<Pair>> open_local(ClusterOptions options);
  /// @param address  of a running coordinator
  /// @param backbone  folder of its target's texts (TextSide): the weights are not read
  /// @return kPeerGone when no coordinator answers there
  static Result<std::shared_ptr<Pair>> open_remote(const std::string& address, const std::filesystem::path& backbone);

  /// Answers a POST to this path of docs/http.md, without HTTP.
  /// @param on_reply  receives the reply's JSON; for a stream each event's, and false ends it. On the calling thread.
  /// @param stopped  any thread sets it to end the request, also before its first event
  /// @return kInvalidArgument with the request's error, kOutOfRange if the context is too short for it, kNotFound for
  /// another path, kUnavailable or kPeerGone
  Result<void> post(const std::string& path, std::string body,
                    const std::function<bool(std::string_view json)>& on_reply, std::atomic<bool>& stopped);

  /// Tokenizes a body like /tokenize, with its media.
  Result<ApiServer::RenderedPrompt> prompt_of(std::string_view body) const;
  /// Makes a client, for whole answers or with a sequence of its own, for prefill and the other steps. With
  /// text().greedy() the text is that of plain greedy decoding. The pair outlives it.
  Result<Client> connect();

  const TextSide& text() const { return api_->text(); }

 private:
  Pair() = default;
  /// Called once there is a coordinator.
  void serve(TextSide text, const std::string& address, Duration failover_wait);

  TransportContext context_;
  std::unique_ptr<Cluster> cluster_;  ///< of a local pair
  std::string address_;
  std::optional<ApiServer> api_;
  std::vector<HttpRoute> routes_;
};

}  // namespace outrider
