// A session whose client drafts and verifies step by step (ADR 4).
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "coordinator-node/session/session.h"

namespace outrider {
namespace {

/// Rare, because heartbeats accumulate in the queue of a client that does not read.
constexpr Duration kKeepAlive = std::chrono::seconds(30);
constexpr int kKeepAlivesMax = 120;  ///< then the session fails: an hour without a step

}  // namespace

StepwiseSession::StepwiseSession(Environment& environment, SessionId id, const Audit& audit)
    : Session(environment, id, PeerId(), id, audit.request) {
  Sequence& sequence = state_.sequence;
  state_.verifier.numeric_class = audit.numeric_class;
  state_.verifier.except = audit.verifier;
  state_.encoder.encoding_class = std::exchange(sequence.request.encoding_class, {});
  sequence.encoded = static_cast<std::size_t>(std::ranges::count_if(sequence.request.media, &WireMedium::is_encoded));
}

bool StepwiseSession::on_step(const Step& step) {
  const auto refuse = [&](std::string why) {
    state_.reply(Failed{Errc::kInvalidArgument, std::move(why)});
    return false;
  };
  if (state_.phase != Phase::kPaused) return Session::on_step(step);
  keep_alives_ = 0;
  Sequence& sequence = state_.sequence;
  Round& round = state_.round;
  if (step.draft_length > 0) {
    // A second draft of one round repeats the first: its hidden row and K/V are the same.
    sequence.request.draft_length = step.draft_length;
    if (!std::exchange(round.asked_drafter, true)) return follow(drafting_.ask(sequence.draft_room()));
    end_drafting();
    return true;
  }
  const std::int32_t vocab_size = state_.environment.fleet.facts()->vocab_size;
  if (const auto token = first_beyond(step.drafts, vocab_size))
    return refuse(fmt::format("draft token id {}, the vocabulary has {}", *token, vocab_size));
  if (std::ssize(step.drafts) > sequence.drafts_left())
    return refuse(fmt::format("{} drafts, the context has room for {}", step.drafts.size(), sequence.drafts_left()));
  round.drafts = {};
  // The client sends its drafts without their source.
  round.drafts.add(0, {.tokens = step.drafts}, DraftSource::kAssistant, std::ssize(step.drafts));
  return follow(verifying_.verify());
}

// Tells the verifier now and then that the session goes on, so that the verifier does not mistake it for one whose Free
// was lost (VerifierConfig::session_idle_max), and checks that the client is still there.
void StepwiseSession::on_tick() {
  if (state_.phase != Phase::kPaused) return Session::on_tick();
  if (state_.environment.now - state_.pending.sent() < kKeepAlive) return;
  if (++keep_alives_ > kKeepAlivesMax)
    return fail({Errc::kTimeout, "no step for {:.0f} s", to_seconds(kKeepAlive * keep_alives_)});
  state_.pending.keep_alive(state_.verifier.peer());
  state_.reply(Heartbeat{});
}

void StepwiseSession::end_drafting() {
  state_.enter(Phase::kPaused);
  std::vector<TokenId> drafts = state_.round.drafts.tokens;
  drafts.resize(std::min(drafts.size(), static_cast<std::size_t>(state_.sequence.request.draft_length)));
  state_.reply(Candidates{.tokens = std::move(drafts)});
}

}  // namespace outrider
