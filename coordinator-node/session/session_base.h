#pragma once

#include <string>
#include <utility>

#include "coordinator-node/session/environment.h"
#include "coordinator-node/session/ledger.h"
#include "coordinator-node/session/pending_request.h"

namespace outrider {

/// A part's decision after an event, which Session::follow() executes.
struct Next {
  enum class What {
    kNothing,      ///< an answer is outstanding, or the event changed nothing
    kNonsense,     ///< the message is invalid here
    kPrefill,      ///< send the prompt to the verifier
    kEncode,       ///< the encoder is gone: encode the rest elsewhere. `why`
    kEndDrafting,  ///< the round gets no more drafts
    kVerify,       ///< send the round's drafts to the verifier
    kRound,        ///< the round is over: begin the next one. `kv`
    kMove,         ///< find another verifier
    kFail,         ///< the sequence cannot continue. `why`
    kDone,         ///< the answer is complete. `reason`
  };
  What what = What::kNothing;
  Error why{Errc{}, ""};
  KvRows kv = {};  ///< rows committed by the last round
  FinishReason reason = {};

  static Next fail(Error why) { return {.what = What::kFail, .why = std::move(why)}; }
};

/// State that all parts of a session share.
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
  PendingRequest pending;  ///< the last request to the verifier, or to the encoder before it
  Round round = {};

  /// Makes a message of this round.
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
