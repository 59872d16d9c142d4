#include "coordinator-node/session/encoder_seat.h"

#include <algorithm>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "common/wire/messages/donor_rows.h"

namespace outrider {

void EncoderSeat::assign(const PeerId& encoder) {
  place_ = Place(environment_.fleet, encoder);
  ask();
}

void EncoderSeat::ask() const {
  DCHECK(sequence_.has_media());
  const WireMedium& next = sequence_.request.media[sequence_.encoded];
  const std::string& scope = sequence_.request.cache_scope;
  session_.pending.ask(peer(), session_.message(Encode{.medium = next, .cache_scope = scope}, next.first));
}

void EncoderSeat::leave() {
  if (place_.worker() != nullptr) session_.send(peer(), Free{});
  place_.leave();
}

Next EncoderSeat::lose(Error why) {
  leave();
  if (++lost_ > environment_.config.failover.limit)
    return Next::fail({why.code, fmt::format("{}; the sequence has lost {} encoders", why.message, lost_)});
  return {Next::What::kEncode, std::move(why)};
}

Next EncoderSeat::distrust(Error why) {
  environment_.fleet.at(peer()).miss(environment_.now);
  session_.warn_of_worker(peer(), why.message);
  why.message = "the encoder: " + why.message;
  return lose(std::move(why));
}

Next EncoderSeat::on_tick() {
  if (auto why = session_.pending.on_tick(peer())) return distrust(std::move(*why));
  return {};
}

Next EncoderSeat::on_message(Message message, const Hello& verifier, Duration waited) {
  if (session_.pending.on_message(message)) return {};
  if (const auto* failed = std::get_if<Failed>(&message.body)) {
    // The encoder may lack room although our accounts have some, because a Free was lost. It is asked again.
    if (failed->code == Errc::kUnavailable) return {};
    return Next::fail(environment_.for_client(peer(), *failed, session_.id));
  }
  auto* encoded = std::get_if<Encoded>(&message.body);
  if (encoded == nullptr) return {.what = Next::What::kNonsense};
  if (message.base != sequence_.request.media[sequence_.encoded].first) return {};  // late
  return accept(std::move(*encoded), verifier, waited);
}

Next EncoderSeat::accept(Encoded encoded, const Hello& verifier, Duration waited) {
  Worker& encoder = environment_.fleet.at(peer());
  if (auto ok = check_encoded(encoder.hello.facts, encoded.medium); !ok) return distrust(ok.error());
  encoder.retry = {};
  session_.ledger.metrics.encode_ns += std::clamp<std::int64_t>(encoded.encode_ns, 0, waited.count());
  WireMedium& medium = sequence_.request.media[sequence_.encoded];
  const std::int64_t bytes = media_bytes(sequence_.request.media) - std::ssize(medium.content.data.bytes()) +
                             std::ssize(encoded.medium.content.data.bytes());
  if (bytes > kMediaBytesMax && verifier.no_towers) {
    return Next::fail({Errc::kUnsupported,
                       "pictures and sounds become {} bytes of soft tokens, wanted at most {}: choose fewer, or a "
                       "smaller number of soft tokens",
                       bytes, kMediaBytesMax});
  }
  if (bytes <= kMediaBytesMax) {
    medium = {.first = medium.first, .content = std::move(encoded.medium.content), .together = encoded.medium.together};
    encoding_class = encoder.hello.encoding_class;
    ++sequence_.encoded;
    if (sequence_.has_media() && !encoder.draining) return ask(), Next();
  }
  const bool goes_on = bytes <= kMediaBytesMax && sequence_.has_media();
  leave();
  if (goes_on) return {Next::What::kEncode, {Errc::kUnavailable, "the encoder is draining"}};
  return {.what = Next::What::kPrefill};
}

}  // namespace outrider
