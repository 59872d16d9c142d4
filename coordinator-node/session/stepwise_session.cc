// A session whose client drafts and verifies step by step (ADR 4).
#include <utility>

#include <fmt/format.h>

#include "coordinator-node/session/session.h"

namespace outrider {
namespace {

/// Rare, because all of it waits in the queue of a client that does not read.
constexpr Duration kKeepAlive = std::chrono::seconds(30);
constexpr int kKeepAlivesMax = 120;  ///< then the session fails: nobody waits an hour for a step

}  // namespace

bool StepwiseSession::on_step(const Step& step) {
  const auto refuse = [&](std::string why) {
    reply(Failed{Errc::kInvalidArgument, std::move(why)});
    return false;
  };
  if (phase_ != Phase::kPaused) return Session::on_step(step);
  keep_alives_ = 0;
  if (step.draft_length > 0) {
    // A second draft of one round shows the first again: its hidden row and K/V are the same.
    sequence_.request.draft_length = step.draft_length;
    if (!std::exchange(round_.asked_drafter, true)) {
      follow(drafting_.ask(sequence_.draft_room()));
      return true;
    }
    const RoundDrafts all = std::exchange(round_.drafts, {});
    round_.drafts.add(0, {.tokens = all.tokens}, DraftSource::kAssistant, step.draft_length);
    end_drafting();
    return true;
  }
  const std::int32_t vocab_size = environment_.fleet.facts()->vocab_size;
  if (const auto token = first_beyond(step.drafts, vocab_size))
    return refuse(fmt::format("draft token id {}, the vocabulary has {}", *token, vocab_size));
  if (std::ssize(step.drafts) > sequence_.drafts_left()) {
    return refuse(fmt::format("{} drafts, the context has room for {}", step.drafts.size(), sequence_.drafts_left()));
  }
  round_.drafts = {};
  // The client says what it drafts, not from what.
  round_.drafts.add(0, {.tokens = step.drafts}, DraftSource::kAssistant, std::ssize(step.drafts));
  send_verify();
  return true;
}

void StepwiseSession::on_pause() {
  if (environment_.now - pending_.sent() < kKeepAlive) return;
  if (++keep_alives_ > kKeepAlivesMax)
    return fail(Errc::kTimeout, fmt::format("no step for {:.0f} s", to_seconds(kKeepAlive * keep_alives_)));
  pending_.repeat(environment_, verifier_.peer());
  reply(Heartbeat{});
}

void StepwiseSession::end_drafting() {
  enter(Phase::kPaused);
  reply(Candidates{.tokens = round_.drafts.tokens});
}

void StepwiseSession::on_resumed_tokens() {
  Tokens none{.index = sequence_.answered(), .tokens = {}};  // its client waits for that
  verifier_.report(none, encoder_.encoding_class);
  reply(std::move(none));
}

}  // namespace outrider
