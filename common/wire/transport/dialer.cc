#include "common/wire/transport/dialer.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include <fmt/format.h>
#include <zmq.hpp>

#include "common/wire/transport/address.h"

namespace outrider {
namespace {

constexpr Duration kPauseMin = std::chrono::milliseconds(50), kPauseMax = std::chrono::seconds(1);
/// ZeroMQ's timeout of one attempt; the system's default is two minutes.
constexpr int kConnectMs = 3'000;
constexpr int kEvents = ZMQ_EVENT_CONNECTED | ZMQ_EVENT_CLOSED | ZMQ_EVENT_DISCONNECTED |
                        ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                        ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;

}  // namespace

Dialer::Dialer(void* context, void* socket, std::vector<std::string> addresses,
               std::optional<KeysToConnect> credentials)
    : socket_(socket),
      monitor_(context, socket, kEvents),
      addresses_(std::move(addresses)),
      credentials_(std::move(credentials)) {
  zmq_setsockopt(socket_, ZMQ_CONNECT_TIMEOUT, &kConnectMs, sizeof kConnectMs);
  find_places();
}

const std::string& Dialer::address() const { return current_ ? current_->given : addresses_[0]; }

void Dialer::find_places() {
  next_turn_.reset();
  places_.clear();
  failures_.clear();
  tried_ = 0;
  for (const std::string& given : addresses_) {
    const Result<std::vector<std::string>> numeric = resolve(given);
    if (!numeric) {
      failures_.push_back({Errc::kNotFound, "{}: {}", given, numeric.error().message});
      continue;
    }
    for (const std::string& one : *numeric) {
      if (!credentials_) {
        places_.push_back({given, one, {}});
        continue;
      }
      for (const Key& key : credentials_->coordinator) places_.push_back({given, one, key});
    }
  }
  if (places_.empty()) return failed(Errc::kNotFound, "", false);
  // With a single place, ZeroMQ keeps trying there: its queue holds the messages to send.
  if (places_.size() > 1 || current_ != places_[0]) dial(places_[0]);
}

void Dialer::dial(const Place& place) {
  close_connections();
  if (credentials_) {
    zmq_setsockopt(socket_, ZMQ_CURVE_SECRETKEY, credentials_->own.secret.data(), credentials_->own.secret.size());
    zmq_setsockopt(socket_, ZMQ_CURVE_PUBLICKEY, credentials_->own.open.data(), credentials_->own.open.size());
    zmq_setsockopt(socket_, ZMQ_CURVE_SERVERKEY, place.coordinator->data(), place.coordinator->size());
  }
  const int ipv6 = place.numeric.find('[') != place.numeric.npos ? 1 : 0;
  zmq_setsockopt(socket_, ZMQ_IPV6, &ipv6, sizeof ipv6);
  dialled_ = true;
  current_ = place;
  if (zmq_connect(socket_, place.numeric.c_str()) != 0) failed(Errc::kPeerGone, zmq_strerror(errno), false);
}

void Dialer::close_connections() {
  if (current_) zmq_disconnect(socket_, current_->numeric.c_str());
  current_.reset();
  connected_ = false;
}

void Dialer::redial() {
  if (!connected_) return;
  const auto here = std::ranges::find(places_, *current_);
  if (here != places_.end()) std::rotate(places_.begin(), here + 1, places_.end());
  tried_ = 0;
  dial(Place(places_[0]));
}

void Dialer::failed(Errc code, const std::string& why, bool retries) {
  if (!places_.empty()) {
    const std::string given = current_ ? current_->given : addresses_[0];
    const std::string numeric = current_ && current_->numeric != given ? " (" + current_->numeric + ")" : "";
    failures_.push_back({code, fmt::format("{}{}: {}", given, numeric, why)});
    if (!retries || places_.size() > 1) close_connections();
    if (++tried_ < places_.size()) return dial(places_[tried_]);
  }
  std::string all;
  bool hopeless = true;
  for (const Error& failure : failures_) {
    hopeless = hopeless && failure.code != Errc::kPeerGone;
    if (all.find(failure.message) == all.npos) all += (all.empty() ? "" : "; ") + failure.message;
  }
  connection_error_ = Error{hopeless ? failures_.back().code : Errc::kPeerGone, std::move(all)};
  failures_.clear();
  pause_ = std::clamp(2 * pause_, kPauseMin, kPauseMax);
  next_turn_ = now() + pause_;
}

bool Dialer::arriving() {
  const std::optional<Arrival::Bytes> bytes = connected_ ? Arrival::bytes_of(fd_) : std::nullopt;
  if (bytes) arrival_.look(*bytes, std::exchange(got_message_, false));
  const bool leaving = arrival_.leaving();
  return arrival_.more() || leaving;
}

bool Dialer::service() {
  while (const std::optional<Monitor::Event> event = monitor_.take()) {
    if (current_ && event->address == current_->numeric) on_event(event->number, event->value);
  }
  if (next_turn_ && now() >= *next_turn_) find_places();
  return std::exchange(dialled_, false);
}

void Dialer::on_event(int event, std::uint32_t value) {
  switch (event) {
    case ZMQ_EVENT_CONNECTED:
      fd_ = static_cast<int>(value);
      arrival_ = {};
      return;
    case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
      connected_ = true;
      ++connections_;
      next_turn_.reset();
      connection_error_.reset();
      failures_.clear();
      tried_ = 0;
      pause_ = {};
      return;
    case ZMQ_EVENT_DISCONNECTED:
      // After dial() ZeroMQ may keep the former connection for a while, to send what waits (ZMQ_LINGER).
      connected_ = connected_ && static_cast<int>(value) != fd_;
      return;
    case ZMQ_EVENT_CLOSED: {
      const std::string why = why_unreachable(current_->numeric);
      return failed(Errc::kPeerGone, why.empty() ? "the connection was closed" : why, true);
    }
    case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
      return failed(Errc::kMismatch, "the coordinator refused our key (its authorized_keys has no line for it)", false);
    case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
      if (value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH) {
        return failed(Errc::kMismatch,
                      credentials_ ? "this coordinator goes without keys (--insecure, or it listens on its own machine)"
                                   : "this coordinator wants keys: give --key and --coordinator-key (on its own host "
                                     "too, or join it by an address that is not loopback)",
                      false);
      }
      return failed(Errc::kMismatch, fmt::format("the handshake failed (ZeroMQ's error {:#x})", value), false);
    default:  // without detail: closed, or silent. After a time-out `value` is the number of any earlier error
      if (value != EPIPE && value != ECONNRESET)
        return failed(Errc::kPeerGone, "it takes connections but does not answer: it hangs, or is no coordinator",
                      false);
      if (credentials_)
        return failed(Errc::kMismatch,
                      "it hung up: this is not the coordinator whose key we know, or goes without keys", false);
      return failed(Errc::kPeerGone, "it hung up: this is no coordinator, or one that wants keys", false);
  }
}

}  // namespace outrider
