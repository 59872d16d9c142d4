#include "common/client/client_core.h"

#include <algorithm>

#include <fmt/format.h>

namespace outrider {
namespace {

/// A coordinator that has just started may be overloaded, or have no verifier yet.
constexpr Duration kAskAgain = std::chrono::milliseconds(500);
/// Time without a verifier after which another coordinator is asked: workers of a lost coordinator may move later than
/// its clients.
constexpr Duration kUnserved = std::chrono::seconds(2);

}  // namespace

void set_drafts(Generate& request, const DraftLength& wanted) {
  request.draft_length = wanted.length;
  request.policy = wanted.policy;
  request.draft_ahead = wanted.ahead;
  request.added = wanted.added;
}

ClientCore::ClientCore(const ClientConfig& config, const std::vector<Generate>& requests, const AnswerEvents& events,
                       SessionId last, TimePoint now)
    : config_(config),
      events_(events),
      answers_(requests.size()),
      open_(requests.size()),
      last_(last),
      last_received_(now),
      redialled_(now),
      served_(now),
      was_there_(config.was_there) {
  for (std::size_t i = 0; i < requests.size(); ++i) {
    answers_[i].request = &requests[i];
    answers_[i].asked = now;
    ask(answers_[i]);
  }
  if (at_once()) ask_for_status();
}

ClientCore::Answer* ClientCore::find(SessionId id) {
  const auto found = std::ranges::find_if(answers_, [&](const Answer& one) { return one.id == id && !one.done; });
  return found == answers_.end() ? nullptr : &*found;
}

// ---- asking ----

void ClientCore::ask(Answer& answer) {
  last_ = answer.id = SessionId{value(last_) + 1};
  answer.again.reset();
  Generate request = *answer.request;
  const std::vector<TokenId>& tokens = answer.generation.tokens;
  if (!tokens.empty()) {
    request.prompt.insert(request.prompt.end(), tokens.begin(), tokens.end());
    request.answered = std::ssize(tokens);
    request.numeric_class = answer.numeric_class;
    request.encoding_class = answer.encoding_class;
    request.verifier_name = answer.generation.verifier;
    if (answer.max_tokens > 0) request.max_tokens = answer.max_tokens;
    request.shorten = false;
  }
  output_.send.push_back({.session = answer.id, .body = std::move(request)});
}

Result<void> ClientCore::ask_again(Answer& answer, bool lost) {
  if (answer.end || cancelling_) {
    answer.generation.cancelled = !answer.end;
    answer.end ? finish(answer) : end(answer);
    return {};
  }
  const std::vector<TokenId>& tokens = answer.generation.tokens;
  const Generate& request = *answer.request;
  const bool stopped = !tokens.empty() && std::ranges::find(request.stop_ids, tokens.back()) != request.stop_ids.end();
  if (stopped || std::ssize(tokens) >= (answer.max_tokens > 0 ? answer.max_tokens : request.max_tokens)) {
    answer.generation.reason = stopped ? FinishReason::kStop : FinishReason::kLength;
    finish(answer);  // only its metrics are missing
    return {};
  }
  if (lost && ++answer.restarts > config_.restarts_max) {
    return failed(
        {Errc::kPeerGone, fmt::format("{} coordinators or connections were lost without a token", answer.restarts)});
  }
  ++answer.generation.metrics.resumes;
  if (!answer.missed) answer.missed = last_received_;
  send_cancel(answer);  // it may be in transit
  ask(answer);
  return {};
}

Result<void> ClientCore::on_connected(TimePoint now) {
  const bool left = std::exchange(passed_.last, false);
  refused_.reset();  // by a coordinator that is gone
  for (Answer& answer : answers_) {
    if (answer.done) continue;
    if (left && answer.generation.tokens.empty() && !cancelling_)
      ask(answer);  // nothing was lost
    else
      RETURN_IF_ERROR(ask_again(answer, !left));
  }
  redialled_ = served_ = now;
  if (at_once()) ask_for_status();
  return {};
}

bool ClientCore::at_once() const {
  return passed_.at_once < config_.places && config_.places > 1 && !cancelling_ &&
         std::ranges::all_of(answers_, [](const Answer& one) { return one.generation.tokens.empty(); });
}

bool ClientCore::may_wait(const Answer& answer, TimePoint now) const {
  if (answer.done) return false;
  return answer.generation.tokens.empty() ? now - answer.asked <= std::chrono::milliseconds(answer.request->wait_ms)
                                          : now - answer.latest <= config_.failover_wait;
}

bool ClientCore::may_go_elsewhere(bool refused, TimePoint now) const {
  if (config_.places == 1 || cancelling_) return false;
  if (at_once() || passed_.since_token < config_.places) return true;
  return !refused && std::ranges::any_of(answers_, [&](const Answer& one) { return may_wait(one, now); });
}

Result<void> ClientCore::on_tick(TimePoint now) {
  const Duration silence = now - last_received_;
  if (open_ > 0 && silence > config_.silence_max) {
    if (cancelling_) return on_connected(now);  // nothing is left to confirm it
    finish_ended();
    if (open_ == 0) return {};
    if (!was_there_ || silence > config_.failover_wait)
      return failed({Errc::kPeerGone, "has not answered for {:.0f} s", to_seconds(silence)});
    if (now - redialled_ > config_.silence_max) output_.redial = true, redialled_ = now;
    return {};
  }
  for (Answer& answer : answers_) {
    if (!answer.done && answer.again && now >= *answer.again) ask(answer);
  }
  if (now - served_ > kUnserved && may_go_elsewhere(false, now)) {
    served_ = now;
    ask_for_status();
  }
  return {};
}

void ClientCore::cancel() {
  if (std::exchange(cancelling_, true)) return;
  for (const Answer& answer : answers_) {
    if (!answer.done && !answer.end) send_cancel(answer);
  }
}

void ClientCore::finish_ended() {
  for (Answer& answer : answers_) {
    if (!answer.done && answer.end) finish(answer);
  }
}

void ClientCore::give_up() {
  cancel();
  finish_ended();
}

Error ClientCore::failed(Error error) {
  give_up();
  return error;
}

// ---- received messages ----

Result<void> ClientCore::on_message(const Message& message, TimePoint now) {
  last_received_ = now;
  was_there_ = true;
  if (const auto* status = std::get_if<Status>(&message.body)) return take_status(*status, now);
  Answer* const answer = find(message.session);
  if (answer == nullptr) return {};  // of an earlier request, or connection
  if (const auto* tokens = std::get_if<Tokens>(&message.body)) return take_tokens(*answer, *tokens, now);
  if (const auto* scores = std::get_if<PromptScores>(&message.body)) return take_prompt_scores(*answer, *scores);
  if (const auto* failed = std::get_if<Failed>(&message.body)) return take_failed(*answer, *failed, now);
  if (const auto* done = std::get_if<Done>(&message.body)) {
    RequestMetrics& metrics = answer->generation.metrics;
    const RequestMetrics before = std::exchange(metrics, done->metrics);
    metrics.resumes = before.resumes;
    metrics.resume_ns = before.resume_ns;
    if (metrics.resumes > 0 && answer->first_token != TimePoint()) {
      metrics.prefill_ns = (answer->first_token - answer->asked).count();
      metrics.decode_ns = (answer->latest - answer->first_token).count();
    }
    answer->generation.reason = done->reason;
    finish(*answer);
  } else if (std::holds_alternative<WhoAreYou>(message.body)) {  // it is about to end, and tells every client
    if (config_.failover_wait == Duration::zero())
      return this->failed({Errc::kPeerGone, "the coordinator is stopping"});
    output_.redial = true;
    redialled_ = now;
  }
  return {};
}

Result<void> ClientCore::take_prompt_scores(Answer& answer, const PromptScores& scores) {
  const Position prompt = std::ssize(answer.request->prompt), end = scores.first + std::ssize(scores.logprobs);
  if (answer.end || end <= answer.scored) return {};  // begun again elsewhere: these are known
  if (!answer.request->sampling.prompt_logprobs || end > prompt) {
    return failed({Errc::kMalformed,
                   "the coordinator sent log-probabilities up to token {} of a prompt of "
                   "{}, or they were not asked for",
                   end, prompt});
  }
  if (scores.first > answer.scored) return ask_again(answer);  // some were lost
  const std::span<const TokenLogprobs> fresh =
      std::span(scores.logprobs).last(static_cast<std::size_t>(end - answer.scored));
  answer.scored = end;
  events_.on_prompt_scores(index_of(answer), fresh);
  return {};
}

Result<void> ClientCore::take_tokens(Answer& answer, const Tokens& tokens, TimePoint now) {
  if (answer.end) return {};  // sent before the coordinator got the cancel
  Generation& generation = answer.generation;
  const SamplingParams& wanted = answer.request->sampling;
  const bool unscored = wanted.prompt_logprobs && answer.scored < std::ssize(answer.request->prompt);
  if (unscored || tokens.index != std::ssize(generation.tokens)) return ask_again(answer);  // some were lost
  const bool scored = wanted.logprobs.has_value();
  if (tokens.logprobs.size() != (scored ? tokens.tokens.size() : 0)) {
    return failed({Errc::kMalformed, "the coordinator sent {} logprobs for {} tokens, or not those that were asked for",
                   tokens.logprobs.size(), tokens.tokens.size()});
  }
  if (!tokens.numeric_class.empty()) {
    answer.numeric_class = tokens.numeric_class;
    answer.encoding_class = tokens.encoding_class;
    generation.verifier = tokens.verifier_name;
  }
  if (tokens.max_tokens > 0) answer.max_tokens = tokens.max_tokens;
  if (answer.first_token == TimePoint()) answer.first_token = now;
  answer.latest = served_ = now;
  answer.restarts = passed_.since_token = 0;
  if (answer.missed) generation.metrics.resume_ns += (now - *std::exchange(answer.missed, {})).count();
  generation.tokens.insert(generation.tokens.end(), tokens.tokens.begin(), tokens.tokens.end());
  generation.logprobs.insert(generation.logprobs.end(), tokens.logprobs.begin(), tokens.logprobs.end());
  if (tokens.round) events_.on_round(index_of(answer), *tokens.round);
  current_ = &answer;
  events_.on_tokens(index_of(answer), tokens.tokens);
  current_ = nullptr;
  if (!answer.end) return {};
  CHECK(*answer.end >= 0 && *answer.end <= std::ssize(generation.tokens), "an answer of {} tokens is to end after {}",
        generation.tokens.size(), *answer.end);
  generation.tokens.resize(static_cast<std::size_t>(*answer.end));
  if (scored) generation.logprobs.resize(generation.tokens.size());
  send_cancel(answer, answer.end);
  return {};
}

Result<void> ClientCore::take_failed(Answer& answer, const Failed& failed, TimePoint now) {
  if (answer.end) {  // and is complete
    finish(answer);
    return {};
  }
  if (cancelling_ && failed.code == Errc::kCancelled) {
    answer.generation.cancelled = true;
    end(answer);
    return {};
  }
  const bool may_come = answer.missed && now - *answer.missed <= config_.failover_wait;
  if (failed.code == Errc::kUnavailable && may_come && !cancelling_) {
    answer.again = now + kAskAgain;
    return {};
  }
  if (failed.code == Errc::kUnavailable && may_go_elsewhere(true, now)) {
    refused_ = Error{failed.code, failed.message};
    ask_for_status();
    return {};
  }
  answer.done = true;
  return this->failed({failed.code, failed.message});
}

Result<void> ClientCore::take_status(const Status& status, TimePoint now) {
  if (passed_.last) return {};  // reported by the coordinator that is being left
  served_ = now;
  const std::optional<Error> refused = std::exchange(refused_, {});
  if (status.verifiers > 0 || !may_go_elsewhere(refused.has_value(), now))
    return refused ? failed(*refused) : Result<void>();
  ++(at_once() ? passed_.at_once : passed_.since_token);
  output_.redial = passed_.last = true;
  redialled_ = now;
  return {};
}

void ClientCore::end(Answer& answer) {
  answer.done = true;
  --open_;
}

void ClientCore::finish(Answer& answer) {
  if (answer.end) answer.generation.reason = FinishReason::kStop;
  end(answer);
  events_.on_end(index_of(answer), answer.generation);
}

std::vector<Generation> ClientCore::take_generations() {
  std::vector<Generation> generations;
  for (Answer& answer : answers_) generations.push_back(std::move(answer.generation));
  return generations;
}

}  // namespace outrider
