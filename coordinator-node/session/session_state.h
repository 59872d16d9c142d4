#pragma once

#include <algorithm>
#include <map>
#include <optional>

#include "coordinator-node/session/drafter_seats.h"
#include "coordinator-node/session/phases.h"
#include "coordinator-node/session/verifier_seat.h"

namespace outrider {

/// State of a session between events, with its queries.
struct SessionState : SessionBase {
  SessionState(Environment& environment_of_all, SessionId number, PeerId peer, SessionId peers_number,
               Generate request);

  const PeerId client;         ///< "": the coordinator itself, for an audit
  const SessionId request_id;  ///< the client's own number
  Phase phase = Phase::kWaiting;
  TimePoint entered = environment.now;  ///< start of its phase
  EncoderSeat encoder{*this};
  VerifierSeat verifier{*this, encoder};
  DrafterSeats drafters{*this};

  void enter(Phase next);
  Duration waited() const { return environment.now - entered; }
  /// Returns true while a request to the verifier is outstanding.
  bool asks_verifier() const { return phase == Phase::kPrefill || phase == Phase::kVerifying; }
  /// Returns true if rejected drafts are logged. A stepwise sequence's drafts are the client's, and not logged.
  bool logs_rejections() const { return environment.config.want_rejections && !sequence.request.stepwise; }
  void reply(Body body) const { environment.send(client, {.session = request_id, .body = std::move(body)}); }
  /// Forwards K/V rows of the verifier to the drafters.
  void forward(KvRows kv) { drafters.forward(std::move(kv), verifier.peer()); }

  /// Checks that the request can be answered, by a model with these facts if they are known.
  Result<void> check(const PairFacts* facts) const;
  /// Returns true if the sequence could start at some verifier, with room or without.
  bool has_verifier() const { return environment.fleet.has_verifier(verifier.requirements()); }
  /// Returns true once a verifier here has answered with a token, or has caught up with an answer begun elsewhere.
  bool has_started() const { return sequence.has_token() && !verifier.resuming; }
  /// Returns the time that a stepwise session has been waiting for its client.
  Duration paused_for() const { return phase == Phase::kPaused ? waited() : Duration::zero(); }
  bool is_drafter(const PeerId& peer, RoundId of) const {
    return of == round.id && std::ranges::count(drafters.replicas, peer, &DrafterSeats::Replica::peer) > 0;
  }
  /// Returns the audit of a finished sequence; none unless one verifier alone determined the answer. A sequence that
  /// failed, moved, came from another coordinator, or depends on drafts has none.
  std::optional<Audit> audit() const;
  /// Adds the session's share to the loads of its workers.
  void add_load(std::map<PeerId, Load>& loads) const;
};

}  // namespace outrider
