#pragma once

#include <cstdint>
#include <string>

#include "coordinator-node/place.h"
#include "coordinator-node/session/session_base.h"

namespace outrider {

/// A sequence's encoder: it makes soft tokens of pictures and sounds before a verifier gets the prompt. One encoder
/// after the other may encode some of them.
class EncoderSeat {
 public:
  explicit EncoderSeat(SessionBase& session) : session_(session) {}

  const PeerId& peer() const { return place_.peer(); }
  const Place& place() const { return place_; }
  /// Takes a seat at an encoder, and asks for the next medium. @pre there is one
  void sit_at(const PeerId& encoder);
  void leave();

  /// The encoder said something, `waited` after it got its seat. @param verifier  the sequence's
  Next on_message(Message message, const Hello& verifier, Duration waited);
  /// It has not answered yet.
  Next on_tick();
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

  SessionBase& session_;
  Environment& environment_ = session_.environment;
  Sequence& sequence_ = session_.sequence;
  Place place_;
  int lost_ = 0;  ///< encoders that died, or were of no use
};

}  // namespace outrider
