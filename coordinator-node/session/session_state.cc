#include "coordinator-node/session/session_state.h"

#include <utility>

namespace outrider {
namespace {

bool is_in_round(Phase phase) { return phase == Phase::kDrafting || phase == Phase::kVerifying; }

}  // namespace

SessionState::SessionState(Environment& environment_of_all, SessionId number, PeerId peer, SessionId peers_number,
                           Generate request)
    : SessionBase(environment_of_all, number, std::move(request)), client(std::move(peer)), request_id(peers_number) {
  verifier.unassigned_since = environment.now;
  if (!sequence.has_token()) return;
  verifier.resuming = true;
  verifier.numeric_class = std::exchange(sequence.request.numeric_class, {});
  verifier.reported_name = std::exchange(sequence.request.verifier_name, {});
  encoder.encoding_class = std::exchange(sequence.request.encoding_class, {});
  verifier.why = {Errc::kUnavailable, "no verifier can go on with it"};
}

void SessionState::enter(Phase next) {
  DCHECK(may_follow(phase, next), "{} after {}", to_string(next), to_string(phase));
  verifier.place().set_in_round(is_in_round(next));
  drafters.set_in_round(next == Phase::kDrafting);
  if (next == Phase::kMoving) verifier.unassigned_since = verifier.missed_since = environment.now;
  phase = next;
  entered = environment.now;
}

Result<void> SessionState::check(const PairFacts* facts) const {
  if (verifier.resuming) {
    RETURN_IF_ERROR(sequence.check(nullptr));
    RETURN_IF_ERROR(sequence.check_resumed());
  }
  return sequence.check(facts);
}

std::optional<Audit> SessionState::audit() const {
  const Generate& request = sequence.request;
  const bool began_here = request.answered == 0 && client != "";
  if (!ledger.done || !began_here || sequence.output_depends_on_drafts() || !sequence.has_token() ||
      ledger.metrics.failovers > 0 || verifier.reported_name.empty())
    return std::nullopt;
  const auto prompt_end = sequence.tokens.begin() + sequence.prompt_size;
  Audit audit{.request = {.prompt = {sequence.tokens.begin(), prompt_end},
                          .max_tokens = sequence.answered(),
                          .stop_ids = request.stop_ids,
                          .stepwise = true,
                          .sampling = request.sampling,
                          .cache_scope = request.cache_scope,
                          .media = request.media,
                          .encoding_class = encoder.encoding_class},
              .answer = {prompt_end, sequence.tokens.end()},
              .numeric_class = verifier.numeric_class.value_or(""),
              .verifier = verifier.reported_name};
  audit.request.sampling.logprobs.reset();
  audit.request.sampling.prompt_logprobs.reset();
  return audit;
}

void SessionState::add_load(std::map<PeerId, Load>& loads) const {
  const auto add = [&](const Place& place, bool in_round) {
    if (place.peer().empty()) return;
    Load& load = loads[place.peer()];
    ++load.sessions;
    load.rounds += in_round;
    load.kv_bytes += place.load().kv_bytes;
  };
  add(verifier.place(), is_in_round(phase));
  add(encoder.place(), false);
  for (const DrafterSeats::Replica& replica : drafters.replicas) add(replica.place, phase == Phase::kDrafting);
}

}  // namespace outrider
