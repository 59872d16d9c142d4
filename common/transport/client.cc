#include "common/transport/client.h"

#include <limits>

#include "common/base/time.h"

namespace outrider {
namespace {
constexpr Duration kSilenceMax = std::chrono::seconds(3);
constexpr Duration kStatusInterval = std::chrono::milliseconds(50);
constexpr Duration kCancelInterval = std::chrono::milliseconds(100);

Error no_text_yet() { return {Errc::kInvalidArgument, "there is no text yet: prefill comes first"}; }

/// What a coordinator could not even read, so that it would not answer.
Result<void> check_ids(const char* what, const std::vector<TokenId>& ids, std::size_t max) {
  if (ids.size() > max) return Error{Errc::kInvalidArgument, fmt::format("{} {}, wanted at most {}", ids.size(), what, max)};
  for (const TokenId id : ids) {
    if (id < 0) return Error{Errc::kInvalidArgument, fmt::format("token id {}, wanted none below 0", id)};
  }
  return {};
}

}  // namespace

Client::Client(std::unique_ptr<Endpoint> endpoint) : endpoint_(std::move(endpoint)), no_text_(no_text_yet()) {}

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

Result<Body> Client::answer(TimePoint* heard) {
  while (true) {
    ASSIGN_OR_RETURN(std::optional<Message> message, next(heard));
    if (!message || message->session != request_ || std::holds_alternative<Heartbeat>(message->body)) continue;
    if (const auto* failed = std::get_if<Failed>(&message->body)) return Error{failed->code, failed->message};
    return std::move(message->body);
  }
}

Result<Generation> Client::generate(const Generate& request, const std::function<void(std::span<const TokenId>)>& on_tokens,
                                    const std::function<bool()>& cancelled, const std::function<void(const RoundReport&)>& on_round) {
  RETURN_IF_ERROR(check_ids("prompt tokens", request.prompt, WireLimits{}.tokens_max));
  RETURN_IF_ERROR(check_ids("stop ids", request.stop_ids, kSamplingListMax));
  RETURN_IF_ERROR(check_sampling(request.sampling, std::numeric_limits<std::int32_t>::max()));
  next_request();
  if (auto sent = endpoint_->send("", {.session = request_, .body = request}); !sent) return sent.error();
  generation_ = {};
  end_.reset();
  TimePoint heard = now();
  bool cancelling = false;
  while (true) {
    if (!cancelling && !end_ && cancelled()) {
      send_cancel();
      cancelling = true;
    }
    Result<std::optional<Message>> received = next(&heard);
    if (!received) {
      send_cancel();
      if (end_) return std::move(generation_);
      return received.error();
    }
    const std::optional<Message> message = std::move(*received);
    if (!message || message->session != request_) continue;
    if (const auto* tokens = std::get_if<Tokens>(&message->body)) {
      if (end_) continue;  // under way before the coordinator heard of the end
      const auto expected = static_cast<std::int64_t>(generation_.tokens.size());
      if (tokens->index != expected) {
        send_cancel();
        return Error{Errc::kPeerGone, fmt::format("tokens from {} on, wanted {}: the connection to {} was interrupted", tokens->index,
                                                  expected, endpoint_->address())};
      }
      if (tokens->logprobs.size() != (request.sampling.logprobs ? tokens->tokens.size() : 0)) {
        send_cancel();
        return Error{Errc::kMalformed, fmt::format("coordinator {} sent {} logprobs for {} tokens, or not those that were asked for", endpoint_->address(),
                                                   tokens->logprobs.size(), tokens->tokens.size())};
      }
      generation_.tokens.insert(generation_.tokens.end(), tokens->tokens.begin(), tokens->tokens.end());
      generation_.logprobs.insert(generation_.logprobs.end(), tokens->logprobs.begin(), tokens->logprobs.end());
      if (tokens->round) on_round(*tokens->round);
      on_tokens(tokens->tokens);
      if (!end_) continue;
      CHECK(*end_ >= 0 && *end_ <= std::ssize(generation_.tokens), "an answer of {} tokens is to end after {}", generation_.tokens.size(), *end_);
      generation_.tokens.resize(static_cast<std::size_t>(*end_));
      if (request.sampling.logprobs) generation_.logprobs.resize(generation_.tokens.size());
      send_cancel(end_);
    } else if (const auto* done = std::get_if<Done>(&message->body)) {
      generation_.reason = end_ ? FinishReason::kStop : done->reason;
      generation_.metrics = done->metrics;
      return std::move(generation_);
    } else if (const auto* failed = std::get_if<Failed>(&message->body)) {
      generation_.cancelled = cancelling && failed->code == Errc::kCancelled;
      if (generation_.cancelled || end_) return std::move(generation_);
      return Error{failed->code, failed->message};
    }
  }
}

void Client::send_cancel(std::optional<std::int64_t> keep) {
  // An error is not lost: the coordinator is silent then, too.
  (void)endpoint_->send("", {.session = request_, .body = Cancel{keep}});
}

// ---- steps ----

Client::~Client() {
  if (endpoint_ != nullptr && !no_text_) send_cancel();
}

void Client::next_request() {
  if (!no_text_) send_cancel();
  no_text_ = no_text_yet();
  request_ = SessionId{value(request_) + 1};
}

template <typename Answer>
Result<std::vector<TokenId>> Client::step(Body body, std::size_t max) {
  const auto ended = [&](Error error) {
    send_cancel();
    no_text_ = error;
    return error;
  };
  if (auto sent = endpoint_->send("", {.session = request_, .body = std::move(body)}); !sent) return ended(sent.error());
  TimePoint heard = now();
  Result<Body> result = answer(&heard);
  if (!result) return result.error().code == Errc::kInvalidArgument ? result.error() : ended(result.error());
  if (std::holds_alternative<Done>(*result)) return ended({Errc::kOutOfRange, "the text has filled the context"});
  auto* fits = std::get_if<Answer>(&*result);
  const std::size_t min = std::is_same_v<Answer, Tokens> ? 1 : 0;
  if (fits == nullptr || fits->tokens.size() < min || fits->tokens.size() > max) {
    return ended({Errc::kMalformed, fmt::format("coordinator {} gave an answer that does not fit the step", endpoint_->address())});
  }
  return std::move(fits->tokens);
}

Result<TokenId> Client::prefill(std::vector<TokenId> prompt, const SamplingParams& sampling) {
  RETURN_IF_ERROR(check_ids("prompt tokens", prompt, WireLimits{}.tokens_max));
  next_request();
  ASSIGN_OR_RETURN(const std::vector<TokenId> first,
                   step<Tokens>(Generate{.prompt = std::move(prompt),
                                         .max_tokens = std::numeric_limits<std::int64_t>::max(),
                                         .draft_length = 1,  // above 0: a drafter is to have the prompt's K/V
                                         .stop_ids = {},
                                         .wait_ms = kVerifierWaitMs,
                                         .stepwise = true,
                                         .sampling = sampling}, 1));
  no_text_.reset();
  return first[0];
}

Result<std::vector<TokenId>> Client::draft(std::int32_t count) {
  if (count < 1 || count > WireLimits{}.draft_length_max) {
    return Error{Errc::kInvalidArgument, fmt::format("{} drafts, wanted 1 to {}", count, WireLimits{}.draft_length_max)};
  }
  if (no_text_) return *no_text_;
  return step<Candidates>(Step{.draft_length = count, .drafts = {}}, static_cast<std::size_t>(count));
}

Result<std::vector<TokenId>> Client::verify(std::vector<TokenId> drafts) {
  RETURN_IF_ERROR(check_ids("drafts", drafts, static_cast<std::size_t>(WireLimits{}.draft_length_max)));
  if (no_text_) return *no_text_;
  const std::size_t most = drafts.size() + 1;
  return step<Tokens>(Step{.draft_length = 0, .drafts = std::move(drafts)}, most);
}

Result<Status> Client::status() {
  if (auto sent = endpoint_->send("", {.body = StatusRequest{}}); !sent) return sent.error();
  TimePoint heard = now();
  while (true) {
    ASSIGN_OR_RETURN(const std::optional<Message> message, next(&heard));
    if (const auto* status = message ? std::get_if<Status>(&message->body) : nullptr) return *status;
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
