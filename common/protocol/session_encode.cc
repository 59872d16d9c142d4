// Pictures and sounds of a text that an encoder turns into soft tokens before a verifier gets its prompt.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/protocol/media_bytes.h"
#include "common/protocol/session.h"
#include "common/protocol/soft_tokens.h"

namespace outrider {
namespace {

/// A prompt's pictures, sounds and soft tokens are in one message, with its tokens (WireLimits::message_bytes_max).
constexpr std::int64_t kMediaBytesMax = 128 << 20;

}  // namespace

void Session::encode_at(const Desk& desk, const PeerId& encoder) {
  encoding_.encoder = encoder;
  ++desk.fleet.at(encoder).sessions;
  enter(desk, Phase::kEncoding);
  ask_encoder(desk);
}

void Session::ask_encoder(const Desk& desk) {
  const WireMedium& next = request_.media[encoding_.done];
  ask(desk, next.first, Encode{.medium = next, .cache_scope = request_.cache_scope});
}

void Session::leave_encoder(const Desk& desk) {
  Worker* encoder = desk.fleet.find(encoding_.encoder);
  if (encoder != nullptr) {
    --encoder->sessions;
    desk.send(encoding_.encoder, {.session = id_, .round = round_.id, .body = Free{}});
  }
  encoding_.encoder.clear();
}

void Session::lose_encoder(const Desk& desk, Error why) {
  leave_encoder(desk);
  if (++encoding_.lost > desk.failover.limit) {
    return fail(desk, why.code, fmt::format("{}; the text has lost {} encoders", why.message, encoding_.lost));
  }
  encode_elsewhere(desk, std::move(why));
}

void Session::encode_elsewhere(const Desk& desk, Error why) {
  const Hello& verifier = desk.fleet.at(workers_.verifier).hello;
  const PeerId other = desk.fleet.choose_encoder(verifier, encoding_.encoding_class);
  if (!other.empty()) return encode_at(desk, other);
  if (!verifier.no_towers) return send_prefill(desk);  // its towers make the same bits
  failover_.why = std::move(why);
  leave_verifier(desk);
  const bool moved = round_.moved;
  move_to_another_verifier(desk);
  round_.moved = moved;  // its verifier is well
}

void Session::distrust_encoder(const Desk& desk, Error why) {
  Worker& encoder = desk.fleet.at(encoding_.encoder);
  encoder.miss(desk.now);
  why.message = fmt::format("encoder {}: {}", encoder.hello.name, why.message);
  warn_of(desk, encoding_.encoder, why.message);
  lose_encoder(desk, std::move(why));
}

bool Session::on_encoder(const Desk& desk, Message message) {
  asked_.unheard = 0;
  if (std::holds_alternative<Heartbeat>(message.body)) return true;  // in work
  if (const auto* failed = std::get_if<Failed>(&message.body)) {
    // Where its books say otherwise than ours, a Free was lost: it is asked again.
    if (failed->code == Errc::kUnavailable) return true;
    fail(desk, failed->code,
         fmt::format("encoder {}: {}", desk.fleet.at(encoding_.encoder).hello.name, failed->message));
    return true;
  }
  auto* encoded = std::get_if<Encoded>(&message.body);
  if (encoded == nullptr) return false;
  if (message.base == request_.media[encoding_.done].first) on_encoded(desk, std::move(*encoded));  // else it is late
  return true;
}

void Session::on_encoded(const Desk& desk, Encoded encoded) {
  Worker& encoder = desk.fleet.at(encoding_.encoder);
  WireMedium& medium = request_.media[encoding_.done];
  if (auto fine = check_encoded(encoder.hello.facts, encoded.medium); !fine)
    return distrust_encoder(desk, fine.error());
  encoder.retry = {};
  books_.metrics.encode_ns += std::clamp<std::int64_t>(encoded.encode_ns, 0, (desk.now - entered_).count());
  const std::int64_t bytes = media_bytes(request_.media) - std::ssize(medium.content.data.bytes()) +
                             std::ssize(encoded.medium.content.data.bytes());
  const bool fits = bytes <= kMediaBytesMax;
  if (!fits && desk.fleet.at(workers_.verifier).hello.no_towers) {
    return fail(desk, Errc::kOutOfRange,
                fmt::format("pictures and sounds become {} bytes of soft tokens, wanted at most {}: choose fewer, or a "
                            "smaller number of soft tokens",
                            bytes, kMediaBytesMax));
  }
  if (fits) {
    medium = {.first = medium.first, .content = std::move(encoded.medium.content), .together = encoded.medium.together};
    encoding_.encoding_class = encoder.hello.encoding_class;
    ++encoding_.done;
  }
  if (!fits || encoding_.done == request_.media.size()) {
    leave_encoder(desk);
    return send_prefill(desk);  // the verifier's own towers encode the rest
  }
  if (!encoder.draining) return ask_encoder(desk);
  leave_encoder(desk);
  encode_elsewhere(desk, {Errc::kUnavailable, "encoder {} is draining", encoder.hello.name});
}

}  // namespace outrider
