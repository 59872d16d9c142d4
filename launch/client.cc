#include "launch/client.h"

#include "common/base/time.h"

namespace outrider {
namespace {
constexpr Duration kSilenceMax = std::chrono::seconds(3);
constexpr Duration kStatusInterval = std::chrono::milliseconds(50);
constexpr Duration kCancelInterval = std::chrono::milliseconds(100);
}  // namespace

Result<Client> Client::connect(TransportContext& context, const std::string& address) {
  ASSIGN_OR_RETURN(std::unique_ptr<Endpoint> endpoint, Endpoint::connect(context, address));
  return Client(std::move(endpoint));
}

Result<std::optional<Message>> Client::next(TimePoint* heard) {
  auto received = endpoint_->receive();
  if (!received) {
    endpoint_->wait(kCancelInterval);
    received = endpoint_->receive();
  }
  if (received) {
    *heard = now();
    if (!received->message) return received->message.error();
    if (const auto* refuse = std::get_if<Refuse>(&received->message->body)) {
      return Error{refuse->code, fmt::format("coordinator {}: {}", endpoint_->address(), refuse->message)};
    }
    return std::optional(std::move(*received->message));
  }
  if (now() - *heard > kSilenceMax) {
    return Error{Errc::kPeerGone, fmt::format("coordinator {} has not answered for {:.0f} s", endpoint_->address(), to_seconds(kSilenceMax))};
  }
  return std::optional<Message>();
}

Result<Generation> Client::generate(const Generate& request, const std::function<void(std::span<const TokenId>)>& on_tokens,
                                    const std::function<bool()>& cancelled) {
  const SessionId id{next_request_++};
  if (auto sent = endpoint_->send("", {.session = id, .body = request}); !sent) return sent.error();
  Generation generation;
  TimePoint heard = now();
  bool cancelling = false;
  while (true) {
    if (!cancelling && cancelled()) {
      if (auto sent = endpoint_->send("", {.session = id, .body = Cancel{}}); !sent) return sent.error();
      cancelling = true;
    }
    ASSIGN_OR_RETURN(const std::optional<Message> message, next(&heard));
    if (!message || message->session != id) continue;
    if (const auto* tokens = std::get_if<Tokens>(&message->body)) {
      const auto expected = static_cast<std::int64_t>(generation.tokens.size());
      if (tokens->index != expected) {
        return Error{Errc::kPeerGone, fmt::format("tokens from {} on, wanted {}: the connection to {} was interrupted", tokens->index,
                                                  expected, endpoint_->address())};
      }
      generation.tokens.insert(generation.tokens.end(), tokens->tokens.begin(), tokens->tokens.end());
      on_tokens(tokens->tokens);
    } else if (const auto* done = std::get_if<Done>(&message->body)) {
      generation.reason = done->reason;
      generation.metrics = done->metrics;
      return generation;
    } else if (const auto* failed = std::get_if<Failed>(&message->body)) {
      generation.cancelled = cancelling && failed->code == Errc::kCancelled;
      if (generation.cancelled) return generation;
      return Error{failed->code, failed->message};
    }
  }
}

Result<void> Client::wait_for_workers(int verifiers, int drafters, const std::function<Result<void>()>& still_possible) {
  TimePoint heard = now();
  while (true) {
    RETURN_IF_ERROR(still_possible());
    if (auto sent = endpoint_->send("", {.body = StatusRequest{}}); !sent) return sent.error();
    ASSIGN_OR_RETURN(const std::optional<Message> message, next(&heard));
    const auto* status = message ? std::get_if<Status>(&message->body) : nullptr;
    if (status != nullptr && status->verifiers >= verifiers && status->drafters >= drafters) return {};
    endpoint_->wait(kStatusInterval);
  }
}

}  // namespace outrider
