#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/protocol/messages.h"
#include "common/transport/endpoint.h"

namespace outrider {

/// What came back for one Generate.
struct Generation {
  std::vector<TokenId> tokens;
  FinishReason reason = FinishReason::kStop;
  RequestMetrics metrics;
  bool cancelled = false;  ///< ended by the caller; then there are no reason and no metrics
};

/// A coordinator's client. One thread, one request at a time.
class Client {
 public:
  static Result<Client> connect(TransportContext& context, const std::string& address);

  /// Runs a request to its end. on_tokens gets the new tokens as they come. Once `cancelled` says so,
  /// asked several times a second, the request is cancelled; what came before is the generation.
  /// @return the coordinator's error, or kPeerGone when it has been silent for 3 s.
  Result<Generation> generate(const Generate& request, const std::function<void(std::span<const TokenId>)>& on_tokens,
                              const std::function<bool()>& cancelled = [] { return false; });

  /// Asks until so many workers have joined. `still_possible` says why not to wait any longer.
  Result<void> wait_for_workers(int verifiers, int drafters, const std::function<Result<void>()>& still_possible);

 private:
  explicit Client(std::unique_ptr<Endpoint> endpoint) : endpoint_(std::move(endpoint)) {}
  /// The next message, nothing after a while without one, or why none will come.
  Result<std::optional<Message>> next(TimePoint* heard);

  std::unique_ptr<Endpoint> endpoint_;
  std::uint64_t next_request_ = 1;
};

}  // namespace outrider
