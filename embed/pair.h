#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/client/client.h"
#include "common/client/text_side.h"
#include "launch/local_cluster.h"
#include "server/api_server.h"

namespace outrider {

/// A target and its assistant, ready to write text; here or behind a coordinator. What it does is the
/// same either way: a local pair is a coordinator and its workers on threads of this process.
///
/// Any thread, several at a time.
class Pair {
 public:
  /// Loads the weights. @param options of the models, their types and threads. Without a draft model the pair's
  ///   assistant drafts; without that too (an empty path) all decoding is plain.
  static Result<std::shared_ptr<Pair>> open_local(ClusterOptions options);
  /// @param address of a running coordinator. @param backbone where its target's texts lie (TextSide):
  ///   the weights are not looked at.
  /// @return kPeerGone when nobody answers there.
  static Result<std::shared_ptr<Pair>> open_remote(const std::string& address, const std::filesystem::path& backbone);

  /// Writes a text from its prompt to its end. @param on_tokens gets the new tokens as they come; false
  ///   stops. A text so stopped has its tokens, reason kStop and no metrics.
  Result<Generation> generate_speculative(const Generate& request,
                                          const std::function<bool(std::span<const TokenId>)>& on_tokens);

  /// It answers a POST to this path of docs/http.md, without HTTP. @param on_reply  gets the reply's JSON; of a
  ///   stream each event's, and false ends it. On the calling thread.
  /// @return kInvalidArgument and what is wrong with the request, kOutOfRange where the context is too short for it,
  ///   kNotFound for another path, kUnavailable or kPeerGone.
  Result<void> post(const std::string& path, std::string body,
                    const std::function<bool(std::string_view json)>& on_reply);

  /// It makes the tokens of a body as /tokenize would, with its media.
  Result<ApiServer::RenderedPrompt> prompt_of(std::string_view body) const;
  /// A text of its own, for prefill and the other steps. However it goes on, it is that of plain greedy decoding, with
  /// text().greedy(). The pair outlives it.
  Result<Client> connect();

  const TextSide& text() const { return api_->text(); }

 private:
  Pair() = default;
  /// Once there is a coordinator.
  void serve(TextSide text, const std::string& address, Duration failover_wait);

  TransportContext context_;
  std::unique_ptr<Cluster> cluster_;  ///< of a local pair
  std::string address_;
  std::optional<ApiServer> api_;
  std::vector<HttpRoute> routes_;
};

}  // namespace outrider
