#pragma once

#include <cstdint>
#include <string>

#include "coordinator-node/place.h"
#include "coordinator-node/session/session_base.h"

namespace outrider {

/// A sequence's encoder, which makes soft tokens of the media before a verifier gets the prompt. Several encoders may
/// encode the media of one prompt in turn.
class EncoderSeat {
 public:
  explicit EncoderSeat(SessionBase& session) : session_(session) {}

  const PeerId& peer() const { return place_.peer(); }
  const Place& place() const { return place_; }
  /// Takes a place at an encoder, and requests the next medium. @pre a medium is not encoded yet
  void assign(const PeerId& encoder);
  void leave();

  /// Handles the encoder's message, `waited` after assign(). @param verifier  the sequence's
  Next on_message(Message message, const Hello& verifier, Duration waited);
  /// Handles the passing of time while an answer of the encoder is outstanding.
  Next on_tick();
  /// Handles an encoder that is alive but whose answers are useless.
  Next distrust(Error why);
  /// Handles the loss of an encoder that is dead or useless.
  Next lose(Error why);

  /// Most bytes of a prompt's media: they share one message with its tokens (WireLimits::message_bytes_max).
  static constexpr std::int64_t kMediaBytesMax = 128 << 20;

  /// Class of the encoders, or the verifier, that have encoded some of the media: the rest must have the same bits.
  std::string encoding_class = {};

 private:
  void ask() const;
  Next accept(Encoded encoded, const Hello& verifier, Duration waited);

  SessionBase& session_;
  Environment& environment_ = session_.environment;
  Sequence& sequence_ = session_.sequence;
  Place place_;
  int lost_ = 0;  ///< encoders that died, or were useless
};

}  // namespace outrider
