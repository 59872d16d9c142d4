#include "common/wire/messages/membership.h"

#include <algorithm>

#include <fmt/format.h>

namespace outrider {

std::string to_text(const Notice& notice) {
  return notice.session == SessionId{} ? notice.text : fmt::format("session={} {}", value(notice.session), notice.text);
}

Membership::Event Membership::on_message(const Message& message, TimePoint now) {
  last_received_ = now;
  if (const auto* welcome = std::get_if<Welcome>(&message.body)) {
    joined_ = true;
    refused_pause_ = {};
    refused_.clear();
    // A coordinator that restarted or gave up this worker has none of its sessions, and will send no Free for them.
    return std::exchange(number_, welcome->membership) == welcome->membership ? Event::kDealtWith
                                                                              : Event::kForgetSessions;
  }
  if (const auto* refuse = std::get_if<Refuse>(&message.body)) {
    on_refuse(*refuse, now);
    return Event::kDealtWith;
  }
  if (std::holds_alternative<WhoAreYou>(message.body)) {
    joined_ = false;
    next_hello_ = now;
    return Event::kDealtWith;
  }
  if (const auto* heartbeat = std::get_if<Heartbeat>(&message.body)) {
    if (heartbeat->sent_ns > 0) send({.body = *heartbeat});
    return Event::kDealtWith;
  }
  // Before the Welcome these sessions may be another coordinator's; this one repeats whatever matters.
  return joined_ ? Event::kSession : Event::kDealtWith;
}

void Membership::on_refuse(const Refuse& refuse, TimePoint now) {
  if (config_.exit_when_refused) {
    refusal_ = Error{refuse.code, refuse.message};
    return;
  }
  // The reason may pass: the workers that joined first may leave.
  joined_ = false;
  refused_pause_ = std::clamp(2 * refused_pause_, config_.hello_interval, config_.refused_pause_max);
  next_hello_ = now + refused_pause_;
  if (refused_ == refuse.message) return;
  refused_ = refuse.message;
  warn(fmt::format("the coordinator refused us: {}; asking again, ever more rarely", refuse.message));
}

void Membership::drain() {
  draining_ = true;
  send({.body = Drain{}});
}

void Membership::on_tick(TimePoint now) {
  const bool has_contact = last_received_ != TimePoint() && refused_pause_ == Duration::zero();
  if (has_contact && now - std::max(last_received_, redialled_) > config_.peer_timeout) {
    output_.redial = true;
    redialled_ = now;
  }
  if (joined_ && now - last_received_ > config_.peer_timeout) {
    joined_ = false;
    next_hello_ = now;
    warn(fmt::format("coordinator silent for {:.1f} s; introducing ourselves again", to_seconds(now - last_received_)));
  }
  if (!joined_) {
    if (next_hello_ && now < *next_hello_) return;
    next_hello_ = now + config_.hello_interval;
    return send({.body = hello_});
  }
  if (next_heartbeat_ && now < *next_heartbeat_) return;
  next_heartbeat_ = now + config_.heartbeat_interval;
  send({.body = draining_ ? Body(Drain{}) : Body(Heartbeat{})});
}

}  // namespace outrider
