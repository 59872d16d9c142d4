#pragma once

#include <string>
#include <utility>

#include "coordinator-node/session/environment.h"
#include "coordinator-node/session/ledger.h"
#include "coordinator-node/session/pending_request.h"

namespace outrider {

/// What follows from an event. The part of the session that the event concerned says so, and Session::follow does it.
struct Next {
  enum class What {
    kNothing,      ///< an answer is awaited, or the event changed nothing
    kNonsense,     ///< the message makes no sense here
    kPrefill,      ///< the verifier gets the prompt
    kEncode,       ///< the encoder has left: somebody else encodes the rest. `why`
    kEndDrafting,  ///< the round gets no more drafts
    kVerify,       ///< the verifier gets the round's drafts
    kRound,        ///< the round is over, and the next one begins. `kv`
    kMove,         ///< the sequence needs another verifier
    kFail,         ///< the sequence cannot go on. `why`
    kDone,         ///< the answer is complete. `reason`
  };
  What what = What::kNothing;
  Error why{Errc{}, ""};
  KvRows kv = {};  ///< what the last round committed
  FinishReason reason = {};

  static Next fail(Error why) { return {.what = What::kFail, .why = std::move(why)}; }
};

/// What every part of a session works on.
struct SessionBase {
  SessionBase(Environment& environment_of_all, SessionId number, Generate request)
      : environment(environment_of_all),
        id(number),
        ledger{.opened = environment.now},
        sequence(std::move(request)),
        pending(environment) {}

  Environment& environment;
  const SessionId id;
  Ledger ledger;
  Sequence sequence;
  PendingRequest pending;  ///< what the verifier, or the encoder before it, was asked last
  Round round = {};

  /// A message of this round.
  Message message(Body body, Position base = 0) const {
    return {.session = id, .round = round.id, .base = base, .body = std::move(body)};
  }
  void send(const PeerId& to, Body body, Position base = 0) const {
    environment.send(to, message(std::move(body), base));
  }
  void warn_of_worker(const PeerId& worker, const std::string& what) const {
    environment.warn_of_worker(worker, what, id);
  }
};

}  // namespace outrider
