#pragma once

#include <cstdint>
#include <string>

#include "coordinator-node/place.h"
#include "coordinator-node/session/session_base.h"

namespace outrider {

/// A sequence's encoder: it makes soft tokens of media before a verifier gets the prompt. Several encoders may encode
/// some of them in turn.
class EncoderSeat {
 public:
  explicit EncoderSeat(SessionBase& session) : session_(session) {}

  const PeerId& peer() const { return place_.peer(); }
  const Place& place() const { return place_; }
  /// Takes a seat at an encoder, and requests the next medium. @pre there is one
  void sit_at(const PeerId& encoder);
  void leave();

  /// Handles the encoder's message, `waited` after it got its seat. @param verifier  the sequence's
  Next on_message(Message message, const Hello& verifier, Duration waited);
  /// Called while its answer is outstanding.
  Next on_tick();
  /// The encoder is alive but its answers are useless.
  Next distrust(Error why);
  /// The encoder is dead or useless.
  Next lose(Error why);

  /// A prompt's media, soft tokens and tokens are in one message (WireLimits::message_bytes_max).
  static constexpr std::int64_t kMediaBytesMax = 128 << 20;

  /// Class of those that have encoded some media, perhaps a verifier: further ones must make the same bits.
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
