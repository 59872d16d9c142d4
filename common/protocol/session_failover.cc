// A text that goes on without the verifier that it had.
#include <algorithm>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "common/protocol/session.h"

namespace outrider {

void Session::leave_verifier(const Desk& desk) {
  if (Worker* verifier = desk.fleet.find(workers_.verifier)) {
    --verifier->sessions;
    verifier->rounds -= int{is_in_round(phase_)};
    verifier->kv_bytes -= workers_.kv_bytes;
    desk.send(workers_.verifier, {.session = id_, .round = round_.id, .body = Free{}});
  }
  workers_.verifier.clear();
  workers_.kv_bytes = 0;
  if (!request_.unverified) policy_.reset();  // it refers to the verifier's costs; a fixed length does not
}

void Session::leave_draining_verifier(const Desk& desk) {
  const Worker* verifier = desk.fleet.find(workers_.verifier);
  if (verifier == nullptr || !verifier->draining) return;
  const auto offer = desk.fleet.choose_verifier(positions(), wanted());
  if (offer && !offer->refuses) leave_verifier(desk);
}

void Session::lose_verifier(const Desk& desk, Error why) {
  leave_encoder(desk);
  leave_verifier(desk);
  if (request_.unverified && has_token()) return;  // it had no more to say
  failover_.why = std::move(why);
  if (++failover_.lost > desk.failover.limit) {
    ++desk.failovers.failed;
    std::string what = failover_.why.message;
    if (failover_.lost > 1) what += fmt::format("; the text has lost {} verifiers", failover_.lost);
    return fail(desk, failover_.why.code, std::move(what));
  }
  // Who drafts, or waits for its client, needs no verifier until it has something to verify.
  if (phase_ == Phase::kEncoding || phase_ == Phase::kPrefill || phase_ == Phase::kVerifying)
    move_to_another_verifier(desk);
}

void Session::distrust_verifier(const Desk& desk, Error why) {
  Worker& verifier = desk.fleet.at(workers_.verifier);
  verifier.suspect = true;
  why.message = fmt::format("verifier {}: {}", verifier.hello.name, why.message);
  warn_of(desk, workers_.verifier, why.message);
  lose_verifier(desk, std::move(why));
}

void Session::move_to_another_verifier(const Desk& desk) {
  enter(desk, Phase::kMoving);
  round_.id = next(round_.id);  // what was asked before is late from now on, wherever it comes from
  round_.moved = true;
  start(desk);  // else its coordinator starts it as soon as somebody has room
}

void Session::on_moved(const Desk& desk, Verdict verdict) {
  const Hello& verifier = desk.fleet.at(workers_.verifier).hello;
  // Where nothing but the text decides, the same bits choose its last token once more.
  if (failover_.numeric_class && !drafts_have_a_say() && verdict.next_token != text_.back()) {
    return distrust_verifier(desk, {Errc::kMismatch, "token {} where another of class '{}' chose {}",
                                    verdict.next_token, verifier.numeric_class, text_.back()});
  }
  count_failover(desk);
  failover_.numeric_class = verifier.numeric_class;
  forward(desk, std::move(verdict.kv));
  round_.id = next(round_.id);
  send_verify(desk);
}

Result<void> Session::check_resumed() const {
  const auto refused = [](std::string why) { return Error{Errc::kInvalidArgument, std::move(why)}; };
  if (request_.unverified) return refused("an unverified answer cannot go on elsewhere");
  if (tokens_left() < 1 || request_.max_tokens > kPositions.max) {
    return refused(fmt::format("{} tokens of an answer of {}, wanted fewer, and at most {}", answered(),
                               request_.max_tokens, kPositions.max));
  }
  const std::span<const TokenId> answer = std::span(text_).subspan(static_cast<std::size_t>(prompt_.size));
  if (const auto stop = std::ranges::find_first_of(answer, request_.stop_ids); stop != answer.end())
    return refused(fmt::format("an answer that goes on after its stop id {}", *stop));
  return {};
}

void Session::on_resumed(const Desk& desk, Verdict verdict) {
  if (failover_.numeric_class && !drafts_have_a_say() && verdict.next_token != text_.back()) {
    // The client's word stands against the verifier's: nobody's fault but this request's.
    return fail(desk, Errc::kMismatch,
                fmt::format("the answer so far ends with token {}, wanted {}", text_.back(), verdict.next_token));
  }
  const Hello& verifier = desk.fleet.at(workers_.verifier).hello;
  failover_.elsewhere = false;
  failover_.numeric_class = verifier.numeric_class;
  if (has_media()) encoding_.encoding_class = verifier.encoding_class;
  desk.fleet.keep_facts(verifier.facts);
  ++desk.failovers.resumed;
  books_.first_token = desk.now;
  books_.metrics.prefill_ns = (desk.now - books_.opened).count();
  books_.metrics.cached_prompt_tokens = std::min(verdict.cached_tokens, prompt_.size);
  if (request_.stepwise) {  // its client waits for that
    Tokens none{.index = answered(), .tokens = {}};
    tell_how_to_go_on(desk, none);
    reply(desk, std::move(none));
  }
  round_.hidden = std::move(verdict.hidden);
  next_round(desk, std::move(verdict.kv));
}

void Session::tell_how_to_go_on(const Desk& desk, Tokens& tokens) {
  if (request_.max_tokens != failover_.told_tokens) tokens.max_tokens = failover_.told_tokens = request_.max_tokens;
  const Worker* verifier = desk.fleet.find(workers_.verifier);
  // One without a class nobody can stand in for.
  if (verifier == nullptr || verifier->hello.numeric_class.empty() || failover_.told_verifier == verifier->hello.name)
    return;
  tokens.numeric_class = verifier->hello.numeric_class;
  tokens.encoding_class = encoding_.encoding_class;
  tokens.verifier_name = failover_.told_verifier = verifier->hello.name;
}

void Session::count_failover(const Desk& desk) {
  const bool exact = !has_token() || failover_.numeric_class;
  const std::int64_t paused = (desk.now - failover_.since).count();
  ++(exact ? desk.failovers.exact : desk.failovers.inexact);
  desk.failovers.resume_ns += paused;
  ++books_.metrics.failovers;
  books_.metrics.inexact_failovers += exact ? 0 : 1;
  books_.metrics.failover_ns += paused;
}

void Session::on_alone(const Desk& desk, Duration alone) {
  if (phase_ == Phase::kWaiting && !has_token()) {
    if (alone < std::chrono::milliseconds(request_.wait_ms)) return;
    const bool blind = desk.fleet.has_verifier({});
    return fail(desk, Errc::kUnavailable,
                fmt::format("no {} joined within {:.1f} s{}", blind ? "encoder" : "verifier", to_seconds(alone),
                            blind ? ", and there is no verifier with towers" : ""));
  }
  if (alone < desk.failover.wait) return;
  if (desk.failover.allow_inexact && std::exchange(failover_.numeric_class, std::nullopt)) {
    encoding_.encoding_class.clear();
    workers_.alone_since = desk.now;
    return;
  }
  ++desk.failovers.failed;
  std::string what = failover_.why.message;
  if (alone > Duration::zero()) {
    what +=
        fmt::format("; {} joined within {:.1f} s",
                    failover_.numeric_class ? "none that would give the same bytes" : "no other", to_seconds(alone));
  }
  fail(desk, failover_.why.code, std::move(what));
}

}  // namespace outrider
