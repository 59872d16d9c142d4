#include "common/client/client.h"

#include <limits>
#include <mutex>

#include "common/os/logging.h"

namespace outrider {
namespace {
constexpr Duration kSilenceMax = std::chrono::seconds(3);
constexpr Duration kStatusInterval = std::chrono::milliseconds(50);
constexpr Duration kStatusAgain = std::chrono::milliseconds(500);  ///< without an answer to the last question
constexpr Duration kCancelInterval = std::chrono::milliseconds(100);

Error no_text_yet() { return {Errc::kInvalidArgument, "there is no text yet: prefill comes first"}; }

/// Checks limits beyond which the coordinator could not decode the message, and so would not answer.
Result<void> check_ids(const char* what, const std::vector<TokenId>& ids, std::size_t max) {
  if (ids.size() > max) return Error(Errc::kInvalidArgument, "{} {}, wanted at most {}", ids.size(), what, max);
  for (const TokenId id : ids) {
    if (id < 0) return Error(Errc::kInvalidArgument, "token id {}, wanted none below 0", id);
  }
  return {};
}

/// Removes the names in `full`, which are for the log.
Error unnamed(const Error& full, const std::string& message) {
  static std::mutex mutex;
  static RateLimit limit;
  const std::lock_guard lock(mutex);
  if (const auto more = limit.pass(now())) log_warn("event=no_coordinator reason=\"{}\"{}", full.message, *more);
  return {full.code, message};
}

}  // namespace

Client::Client(std::unique_ptr<Endpoint> endpoint, const ClientOptions& options)
    : endpoint_(std::move(endpoint)), options_(options), no_text_(no_text_yet()) {}

Result<Client> Client::connect(TransportContext& context, const std::string& addresses, const ClientOptions& options) {
  Result<std::unique_ptr<Endpoint>> endpoint = Endpoint::connect(context, addresses);
  if (!endpoint)
    return options.names ? endpoint.error() : unnamed(endpoint.error(), "the coordinator cannot be dialled");
  Client client(std::move(*endpoint), options);
  if (addresses.starts_with("inproc://")) client.options_.failover_wait = Duration::zero();
  return client;
}

Error Client::named(const Error& error) const {
  const std::optional<Error> failure = endpoint_->connection_error();
  const Error full(error.code, "coordinator {} {}{}", endpoint_->address(), error.message,
                   failure ? " (" + failure->message + ")" : "");
  return options_.names ? full : unnamed(full, "the coordinator " + error.message);
}

Result<std::optional<Message>> Client::receive() {
  auto received = endpoint_->receive();
  if (!received) {
    endpoint_->wait(kCancelInterval);
    received = endpoint_->receive();
  }
  if (!received) {
    // Errors that waiting cannot help; a coordinator that was there may come back.
    const std::optional<Error> failure = endpoint_->connection_error();
    if (failure && failure->code != Errc::kPeerGone && !endpoint_->was_there())
      return options_.names ? *failure : unnamed(*failure, "the coordinator cannot be reached");
    return std::optional<Message>();
  }
  if (!received->message) {
    return named({received->message.error().code, "sends what cannot be read: {}", received->message.error().message});
  }
  if (const auto* refuse = std::get_if<Refuse>(&received->message->body))
    return named({refuse->code, "refuses this program: {}", refuse->message});
  return std::optional(std::move(*received->message));
}

Result<std::optional<Message>> Client::next(TimePoint* last_message) {
  ASSIGN_OR_RETURN(std::optional<Message> message, receive());
  if (message || is_alive()) {
    *last_message = clock_.now();
  } else if (clock_.now() - *last_message > kSilenceMax) {
    return named({Errc::kPeerGone, "has not answered for {:.0f} s", to_seconds(kSilenceMax)});
  }
  return message;
}

Result<Body> Client::answer(TimePoint* last_message) {
  while (true) {
    ASSIGN_OR_RETURN(std::optional<Message> message, next(last_message));
    if (!message || message->session != request_ || std::holds_alternative<Heartbeat>(message->body)) continue;
    if (const auto* failed = std::get_if<Failed>(&message->body)) return Error{failed->code, failed->message};
    if (std::holds_alternative<WhoAreYou>(message->body)) return Error{Errc::kPeerGone, "the coordinator is stopping"};
    return std::move(message->body);
  }
}

Result<Generation> Client::generate(const Generate& request,
                                    const std::function<void(std::span<const TokenId>)>& on_tokens,
                                    const std::function<bool()>& cancelled,
                                    const std::function<void(const RoundReport&)>& on_round) {
  ASSIGN_OR_RETURN(
      std::vector<Generation> generations,
      generate_all({request}, {.on_tokens = [&](std::size_t, std::span<const TokenId> tokens) { on_tokens(tokens); },
                               .on_round = [&](std::size_t, const RoundReport& round) { on_round(round); },
                               .cancelled = cancelled}));
  return std::move(generations[0]);
}

Result<std::vector<Generation>> Client::generate_all(const std::vector<Generate>& requests,
                                                     const AnswerEvents& events) {
  for (const Generate& request : requests) {
    RETURN_IF_ERROR(check_ids("prompt tokens", request.prompt, kTokensMax));
    RETURN_IF_ERROR(check_ids("stop ids", request.stop_ids, kSamplingListMax));
    RETURN_IF_ERROR(check_sampling(request.sampling, std::numeric_limits<std::int32_t>::max()));
  }
  end_text();
  ClientCore answers({.silence_max = kSilenceMax,
                      .failover_wait = options_.failover_wait,
                      .was_there = endpoint_->was_there(),
                      .places = endpoint_->places()},
                     requests, events, request_, clock_.now());
  answers_ = &answers;
  connection_ = endpoint_->connections() + (endpoint_->connected() ? 0 : 1);
  Result<void> result = send(answers.take_output());
  while (result && answers.open() > 0) {
    if (events.cancelled()) answers.cancel();
    result = go_on(answers);
    if (auto sent = send(answers.take_output()); result && !sent) result = sent;
  }
  if (!result) {
    answers.give_up();
    (void)send(answers.take_output());
  }
  answers_ = nullptr;
  request_ = answers.last();
  if (!result && answers.open() > 0) return result.error();
  return answers.take_generations();
}

Result<void> Client::go_on(ClientCore& answers) {
  ASSIGN_OR_RETURN(const std::optional<Message> message, receive());
  if (message) RETURN_IF_ERROR(answers.on_message(*message, clock_.now()));
  if (endpoint_->connected() && endpoint_->connections() != connection_) {
    connection_ = endpoint_->connections();
    RETURN_IF_ERROR(answers.on_connected(clock_.now()));
  }
  if (is_alive()) answers.on_arriving(clock_.now());
  const Result<void> ticked = answers.on_tick(clock_.now());
  return ticked ? ticked : named(ticked.error());
}

Result<void> Client::send(ClientCore::Output output) {
  for (const Message& message : output.send) {
    const auto sent = endpoint_->send("", message);
    if (!sent && std::holds_alternative<Generate>(message.body)) return sent.error();  // otherwise silence follows
  }
  if (output.redial) endpoint_->redial();
  return {};
}

void Client::send_cancel(SessionId request, std::optional<std::int64_t> keep) {
  // A send error causes silence, which is handled.
  (void)endpoint_->send("", {.session = request, .body = Cancel{keep}});
}

// ---- steps ----

Client::~Client() {
  if (endpoint_ != nullptr && !no_text_) send_cancel(request_);
}

void Client::end_text() {
  if (!no_text_) send_cancel(request_);
  no_text_ = no_text_yet();
}

void Client::next_request() {
  end_text();
  request_ = SessionId{value(request_) + 1};
}

template <typename Answer>
Result<std::vector<TokenId>> Client::step(Body body, std::size_t max) {
  const auto ended = [&](Error error) {
    send_cancel(request_);
    no_text_ = error;
    return error;
  };
  if (auto sent = endpoint_->send("", {.session = request_, .body = std::move(body)}); !sent)
    return ended(sent.error());
  TimePoint last_message = clock_.now();
  Result<Body> result = answer(&last_message);
  if (!result) return result.error().code == Errc::kInvalidArgument ? result.error() : ended(result.error());
  if (std::holds_alternative<Done>(*result)) return ended({Errc::kOutOfRange, "the text has filled the context"});
  auto* fits = std::get_if<Answer>(&*result);
  const std::size_t min = std::is_same_v<Answer, Tokens> ? 1 : 0;
  if (fits == nullptr || fits->tokens.size() < min || fits->tokens.size() > max)
    return ended(named({Errc::kMalformed, "gave an answer that does not fit the step"}));
  return std::move(fits->tokens);
}

Result<TokenId> Client::prefill(std::vector<TokenId> prompt, const SamplingParams& sampling,
                                std::vector<WireMedium> media) {
  next_request();
  RETURN_IF_ERROR(check_ids("prompt tokens", prompt, kTokensMax));
  ASSIGN_OR_RETURN(const std::vector<TokenId> first,
                   step<Tokens>(Generate{.prompt = std::move(prompt),
                                         .max_tokens = std::numeric_limits<std::int64_t>::max(),
                                         .draft_length = 1,  // above 0: a drafter must get the prompt's K/V
                                         .stop_ids = {},
                                         .wait_ms = kVerifierWaitMs,
                                         .stepwise = true,
                                         .sampling = sampling,
                                         .media = std::move(media)},
                                1));
  no_text_.reset();
  return first[0];
}

Result<std::vector<TokenId>> Client::draft(std::int32_t count) {
  if (count < 1 || count > kDraftLengthMax)
    return Error(Errc::kInvalidArgument, "{} drafts, wanted 1 to {}", count, kDraftLengthMax);
  if (no_text_) return *no_text_;
  return step<Candidates>(Step{.draft_length = count, .drafts = {}}, static_cast<std::size_t>(count));
}

Result<std::vector<TokenId>> Client::verify(std::vector<TokenId> drafts) {
  RETURN_IF_ERROR(check_ids("drafts", drafts, static_cast<std::size_t>(kDraftLengthMax)));
  if (no_text_) return *no_text_;
  const std::size_t most = drafts.size() + 1;
  return step<Tokens>(Step{.draft_length = 0, .drafts = std::move(drafts)}, most);
}

Result<Status> Client::status() {
  if (auto sent = endpoint_->send("", {.body = StatusRequest{}}); !sent) return sent.error();
  TimePoint last_message = clock_.now();
  while (true) {
    ASSIGN_OR_RETURN(const std::optional<Message> message, next(&last_message));
    if (const auto* status = message ? std::get_if<Status>(&message->body) : nullptr) return *status;
  }
}

Result<void> Client::wait_for_workers(int verifiers, int drafters,
                                      const std::function<Result<void>()>& still_possible) {
  TimePoint last_message = clock_.now(), next_question = last_message;
  while (true) {
    RETURN_IF_ERROR(still_possible());
    if (clock_.now() >= next_question) {
      if (auto sent = endpoint_->send("", {.body = StatusRequest{}}); !sent) return sent.error();
      next_question = clock_.now() + kStatusAgain;
    }
    ASSIGN_OR_RETURN(const std::optional<Message> message, next(&last_message));
    const auto* status = message ? std::get_if<Status>(&message->body) : nullptr;
    if (status != nullptr && status->verifiers >= verifiers && status->drafters >= drafters) return {};
    // Not before the answer: over a slow link questions would fill it. Not after each answer either: answers to
    // questions on an earlier connection would keep a loop of questions going at full speed.
    if (status != nullptr) next_question = clock_.now() + kStatusInterval;
    endpoint_->wait(kStatusInterval);
  }
}

}  // namespace outrider
