#pragma once

#include <algorithm>
#include <map>
#include <optional>

#include "coordinator-node/auditor.h"
#include "coordinator-node/session/drafter_seats.h"
#include "coordinator-node/session/phases.h"
#include "coordinator-node/session/verifier_seat.h"

namespace outrider {

/// What a session keeps from one event to the next, and what can be said of it.
struct SessionState : SessionBase {
  SessionState(Environment& environment_of_all, SessionId number, PeerId peer, SessionId peers_number,
               Generate request);

  const PeerId client;         ///< "": the coordinator itself, for an audit
  const SessionId request_id;  ///< the client's own number
  Phase phase = Phase::kWaiting;
  TimePoint entered = environment.now;  ///< its phase
  EncoderSeat encoder{*this};
  VerifierSeat verifier{*this, encoder};
  DrafterSeats drafters{*this};

  void enter(Phase next);
  Duration waited() const { return environment.now - entered; }
  /// Whether a request to the verifier is out.
  bool asks_verifier() const { return phase == Phase::kPrefill || phase == Phase::kVerifying; }
  /// A stepwise sequence's drafts are the client's.
  bool logs_rejections() const { return environment.want_rejections && !sequence.request.stepwise; }
  void reply(Body body) const { environment.send(client, {.session = request_id, .body = std::move(body)}); }
  /// Hands K/V rows of its verifier on to its drafters.
  void forward(KvRows kv) { drafters.forward(std::move(kv), verifier.peer()); }

  /// Whether its request can be answered at all, and by a model with these facts, if they are known.
  Result<void> check(const PairFacts* facts) const;
  /// Whether a verifier is there that it could start at, with room or without.
  bool has_verifier() const { return environment.fleet.has_verifier(verifier.requirements()); }
  /// Whether a verifier here has given it a token, or has caught up with an answer that began elsewhere.
  bool has_started() const { return sequence.has_token() && !verifier.resuming; }
  /// How long a stepwise session has had nothing to do but wait for its client.
  Duration resting() const { return phase == Phase::kPaused ? waited() : Duration::zero(); }
  bool is_drafter(const PeerId& peer, RoundId of) const {
    return of == round.id && std::ranges::count(drafters.replicas, peer, &DrafterSeats::Replica::peer) > 0;
  }
  /// It has ended: what another verifier would have to say the same to. None for a sequence that is not one verifier's
  /// alone: which failed, moved or came from elsewhere, or that drafts have a say in.
  std::optional<Audit> audit() const;
  /// Adds its share to its workers' loads.
  void add_load(std::map<PeerId, Load>& loads) const;
};

}  // namespace outrider
