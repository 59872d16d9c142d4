#include "common/transport/client.h"

#include <limits>

namespace outrider {
namespace {
constexpr Duration kSilenceMax = std::chrono::seconds(3);
constexpr Duration kStatusInterval = std::chrono::milliseconds(50);
constexpr Duration kCancelInterval = std::chrono::milliseconds(100);

Error no_text_yet() { return {Errc::kInvalidArgument, "there is no text yet: prefill comes first"}; }

/// What a coordinator could not even read, so that it would not answer.
Result<void> check_ids(const char* what, const std::vector<TokenId>& ids, std::size_t max) {
  if (ids.size() > max)
    return Error{Errc::kInvalidArgument, fmt::format("{} {}, wanted at most {}", ids.size(), what, max)};
  for (const TokenId id : ids) {
    if (id < 0) return Error{Errc::kInvalidArgument, fmt::format("token id {}, wanted none below 0", id)};
  }
  return {};
}

}  // namespace

Client::Client(std::unique_ptr<Endpoint> endpoint) : endpoint_(std::move(endpoint)), no_text_(no_text_yet()) {}

Result<Client> Client::connect(TransportContext& context, const std::string& addresses) {
  ASSIGN_OR_RETURN(std::unique_ptr<Endpoint> endpoint, Endpoint::connect(context, addresses));
  return Client(std::move(endpoint));
}

Result<std::optional<Message>> Client::next(TimePoint* heard) {
  auto received = endpoint_->receive();
  if (!received) {
    endpoint_->wait(kCancelInterval);
    received = endpoint_->receive();
  }
  if (received) {
    *heard = clock_.now();
    if (!received->message) {
      return Error{received->message.error().code,
                   fmt::format("coordinator {}: {}", endpoint_->address(), received->message.error().message)};
    }
    if (const auto* refuse = std::get_if<Refuse>(&received->message->body)) {
      return Error{refuse->code, fmt::format("coordinator {}: {}", endpoint_->address(), refuse->message)};
    }
    return std::optional(std::move(*received->message));
  }
  const std::optional<Error> trouble = endpoint_->trouble();
  if (trouble && trouble->code != Errc::kPeerGone) return *trouble;
  if (clock_.now() - *heard > kSilenceMax) {
    return Error{Errc::kPeerGone, fmt::format("coordinator {} has not answered for {:.0f} s{}", endpoint_->address(),
                                              to_seconds(kSilenceMax), trouble ? " (" + trouble->message + ")" : "")};
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
  std::vector<Answer> answers;
  const auto cancel_open = [&] {
    for (const Answer& answer : answers) {
      if (!answer.done && !answer.end) send_cancel(answer.id);
    }
  };
  for (const Generate& request : requests) {
    next_request();
    if (auto sent = endpoint_->send("", {.session = request_, .body = request}); !sent) {
      cancel_open();
      return sent.error();
    }
    answers.push_back({request, request_});
  }
  std::size_t open = answers.size();
  TimePoint heard = clock_.now();
  bool cancelling = false;
  while (open > 0) {
    if (!cancelling && events.cancelled()) {
      cancel_open();
      cancelling = true;
    }
    Result<std::optional<Message>> received = next(&heard);
    if (!received) {
      cancel_open();
      for (std::size_t i = 0; i < answers.size(); ++i) {
        if (!answers[i].done && answers[i].end) finish(answers[i], i, events), --open;
      }
      if (open == 0) break;
      return received.error();
    }
    if (!*received) continue;
    const Message& message = **received;
    const std::size_t index =
        value(message.session) - value(answers[0].id);  // far too large for one of an earlier request
    if (index >= answers.size() || answers[index].done) continue;
    if (auto taken = take(answers[index], index, message.body, cancelling, events); !taken) {
      cancel_open();
      return taken.error();
    }
    if (answers[index].done) --open;
  }
  std::vector<Generation> generations;
  for (Answer& answer : answers) generations.push_back(std::move(answer.generation));
  return generations;
}

Result<void> Client::take(Answer& answer, std::size_t index, const Body& body, bool cancelling,
                          const AnswerEvents& events) {
  Generation& generation = answer.generation;
  const bool scored = answer.request.sampling.logprobs.has_value();
  if (const auto* tokens = std::get_if<Tokens>(&body)) {
    if (answer.end) return {};  // under way before the coordinator heard of the end
    const auto expected = std::ssize(generation.tokens);
    if (tokens->index != expected) {
      return Error{Errc::kPeerGone, fmt::format("tokens from {} on, wanted {}: the connection to {} was interrupted",
                                                tokens->index, expected, endpoint_->address())};
    }
    if (tokens->logprobs.size() != (scored ? tokens->tokens.size() : 0)) {
      return Error{Errc::kMalformed,
                   fmt::format("coordinator {} sent {} logprobs for {} tokens, or not those that were asked for",
                               endpoint_->address(), tokens->logprobs.size(), tokens->tokens.size())};
    }
    generation.tokens.insert(generation.tokens.end(), tokens->tokens.begin(), tokens->tokens.end());
    generation.logprobs.insert(generation.logprobs.end(), tokens->logprobs.begin(), tokens->logprobs.end());
    if (tokens->round) events.on_round(index, *tokens->round);
    current_ = &answer;
    events.on_tokens(index, tokens->tokens);
    current_ = nullptr;
    if (!answer.end) return {};
    CHECK(*answer.end >= 0 && *answer.end <= std::ssize(generation.tokens), "an answer of {} tokens is to end after {}",
          generation.tokens.size(), *answer.end);
    generation.tokens.resize(static_cast<std::size_t>(*answer.end));
    if (scored) generation.logprobs.resize(generation.tokens.size());
    send_cancel(answer.id, answer.end);
  } else if (const auto* done = std::get_if<Done>(&body)) {
    generation.reason = done->reason;
    generation.metrics = done->metrics;
    finish(answer, index, events);
  } else if (const auto* failed = std::get_if<Failed>(&body)) {
    if (answer.end) {  // and has all that it needs
      finish(answer, index, events);
      return {};
    }
    answer.done = true;
    generation.cancelled = cancelling && failed->code == Errc::kCancelled;
    if (!generation.cancelled) return Error{failed->code, failed->message};
  }
  return {};
}

void Client::finish(Answer& answer, std::size_t index, const AnswerEvents& events) {
  if (answer.end) answer.generation.reason = FinishReason::kStop;
  answer.done = true;
  events.on_end(index, answer.generation);
}

void Client::send_cancel(SessionId request, std::optional<std::int64_t> keep) {
  // An error is not lost: the coordinator is silent then, too.
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
  TimePoint heard = clock_.now();
  Result<Body> result = answer(&heard);
  if (!result) return result.error().code == Errc::kInvalidArgument ? result.error() : ended(result.error());
  if (std::holds_alternative<Done>(*result)) return ended({Errc::kOutOfRange, "the text has filled the context"});
  auto* fits = std::get_if<Answer>(&*result);
  const std::size_t min = std::is_same_v<Answer, Tokens> ? 1 : 0;
  if (fits == nullptr || fits->tokens.size() < min || fits->tokens.size() > max) {
    return ended({Errc::kMalformed,
                  fmt::format("coordinator {} gave an answer that does not fit the step", endpoint_->address())});
  }
  return std::move(fits->tokens);
}

Result<TokenId> Client::prefill(std::vector<TokenId> prompt, const SamplingParams& sampling) {
  next_request();
  RETURN_IF_ERROR(check_ids("prompt tokens", prompt, kTokensMax));
  ASSIGN_OR_RETURN(const std::vector<TokenId> first,
                   step<Tokens>(Generate{.prompt = std::move(prompt),
                                         .max_tokens = std::numeric_limits<std::int64_t>::max(),
                                         .draft_length = 1,  // above 0: a drafter is to have the prompt's K/V
                                         .stop_ids = {},
                                         .wait_ms = kVerifierWaitMs,
                                         .stepwise = true,
                                         .sampling = sampling},
                                1));
  no_text_.reset();
  return first[0];
}

Result<std::vector<TokenId>> Client::draft(std::int32_t count) {
  if (count < 1 || count > kDraftLengthMax) {
    return Error{Errc::kInvalidArgument, fmt::format("{} drafts, wanted 1 to {}", count, kDraftLengthMax)};
  }
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
  TimePoint heard = clock_.now();
  while (true) {
    ASSIGN_OR_RETURN(const std::optional<Message> message, next(&heard));
    if (const auto* status = message ? std::get_if<Status>(&message->body) : nullptr) return *status;
  }
}

Result<void> Client::wait_for_workers(int verifiers, int drafters,
                                      const std::function<Result<void>()>& still_possible) {
  TimePoint heard = clock_.now();
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
