#include "common/protocol/worker_link.h"

namespace outrider {

bool WorkerLink::on_message(const Message& message, TimePoint now, Event* event, std::vector<Outgoing>* outgoing) {
  *event = Event::kNone;
  heard_ = now;
  if (const auto* welcome = std::get_if<Welcome>(&message.body)) {
    // A coordinator that started anew, or that gave us up, knows none of our sessions, and no Free will come for them.
    if (welcome->membership != membership_) *event = Event::kForgetSessions;
    membership_ = welcome->membership;
    joined_ = true;
    return true;
  }
  if (const auto* refuse = std::get_if<Refuse>(&message.body)) {
    refusal_ = Error{refuse->code, refuse->message};
    return true;
  }
  if (std::holds_alternative<WhoAreYou>(message.body)) {
    joined_ = false;
    next_hello_ = now;
    return true;
  }
  if (const auto* heartbeat = std::get_if<Heartbeat>(&message.body)) {
    if (heartbeat->sent_ns > 0) outgoing->push_back({"", {.body = *heartbeat}});
    return true;
  }
  // Before the Welcome it is not known whose sessions these are; the coordinator repeats what counts.
  return !joined_;
}

void WorkerLink::on_tick(TimePoint now, std::vector<Outgoing>* outgoing, std::vector<Notice>* notices) {
  if (joined_ && now - heard_ > config_.peer_timeout) {
    joined_ = false;
    next_hello_ = now;
    notices->push_back(
        {true, fmt::format("coordinator silent for {:.1f} s; introducing ourselves again", to_seconds(now - heard_))});
  }
  if (!joined_) {
    if (next_hello_ && now < *next_hello_) return;
    next_hello_ = now + config_.hello_interval;
    outgoing->push_back({"", {.body = hello_}});
    return;
  }
  if (next_heartbeat_ && now < *next_heartbeat_) return;
  next_heartbeat_ = now + config_.heartbeat_interval;
  outgoing->push_back({"", {.body = Heartbeat{}}});
}

}  // namespace outrider
