#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "coordinator-node/place.h"
#include "coordinator-node/session/environment.h"
#include "coordinator-node/session/ledger.h"
#include "coordinator-node/session/pending_request.h"

namespace outrider {

/// A sequence's encoder: it makes soft tokens of pictures and sounds before a verifier gets the prompt. One encoder
/// after the other may encode some of them.
class EncoderSeat {
 public:
  EncoderSeat(Environment& environment, SessionId id, Sequence& sequence, PendingRequest& pending, const Round& round,
              Ledger& ledger)
      : environment_(environment), id_(id), sequence_(sequence), pending_(pending), round_(round), ledger_(ledger) {}

  const PeerId& peer() const { return place_.peer(); }
  const Place& place() const { return place_; }
  /// Takes a seat at an encoder, and asks for the next medium. @pre there is one
  void sit_at(const PeerId& encoder);
  void leave();

  /// What follows.
  struct Next {
    enum class What {
      kNothing,
      kPrefill,    ///< the verifier gets the prompt: all are encoded, or its own towers encode the rest
      kElsewhere,  ///< the encoder has left: somebody else encodes the rest
      kFail,       ///< the sequence cannot go on
    };
    What what = What::kNothing;
    Error why{Errc{}, ""};
  };
  /// The encoder said something, `waited` after it got its seat. @param verifier  the sequence's
  /// @return none for what makes no sense
  std::optional<Next> on_message(Message message, const Hello& verifier, Duration waited);
  /// It is there and answers with nothing of use.
  Next distrust(Error why);
  /// It is dead, or of no use.
  Next lose(Error why);

  /// A prompt's pictures, sounds and soft tokens are in one message, with its tokens (WireLimits::message_bytes_max).
  static constexpr std::int64_t kMediaBytesMax = 128 << 20;

  /// Of who has encoded some of them, or all, a verifier perhaps: whoever encodes them again must make the same bits.
  std::string encoding_class = {};

 private:
  void ask() const;
  Next accept(Encoded encoded, const Hello& verifier, Duration waited);

  Environment& environment_;
  const SessionId id_;
  Sequence& sequence_;
  PendingRequest& pending_;
  const Round& round_;
  Ledger& ledger_;
  Place place_;
  int lost_ = 0;  ///< encoders that died, or were of no use
};

}  // namespace outrider
