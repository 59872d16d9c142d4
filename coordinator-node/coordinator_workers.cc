// Workers join, send and leave.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "coordinator-node/coordinator_core.h"
#include "coordinator-node/handshake.h"

namespace outrider {

bool CoordinatorCore::on_hello(const PeerId& from, const Hello& hello) {
  const Worker* before = fleet_.find(from);
  if (before != nullptr &&
      (before->hello.role != hello.role || before->hello.facts != hello.facts ||
       before->hello.numeric_class != hello.numeric_class || before->hello.encoding_class != hello.encoding_class ||
       before->hello.needs != hello.needs)) {
    drop_worker(from, "introduced itself as something else");
    before = nullptr;
  }
  if (const PairFacts* facts = fleet_.facts(); facts != nullptr && before == nullptr) {
    const char* who = hello.role == Role::kVerifier ? "this verifier" : to_string(hello.role);
    if (auto why = mismatch(*facts, hello.facts, who, hello.needs)) {
      refuse(from, hello.name, *why);
      return false;
    }
  }
  send(from, {.body = Welcome{fleet_.join(from, hello, environment_.now).membership}});
  if (before != nullptr) return false;
  environment_.notice(false, fmt::format("{} joined as {}", hello.name, to_string(hello.role)));
  if (hello.role == Role::kDrafter) {
    if (hello.unproven)
      environment_.notice(
          true, fmt::format("{} is on another machine and has no key: it drafts for no text in which drafts have a "
                            "say (rejection, typical; docs/security.md)",
                            hello.name));
    if (const PairFacts* facts = fleet_.facts()) fleet_.keep_facts(*facts);  // the first pair's
  }
  compare_encoding(hello);
  if (hello.role == Role::kEncoder) start_waiting();
  if (hello.role != Role::kVerifier) return true;
  if (config_.table != nullptr && config_.table->fingerprint() != hello.facts.backbone_fingerprint)
    environment_.notice(
        true, fmt::format("the draft table is not used for {}: it is of a model with the fingerprint {:016x}, this "
                          "one's is {:016x}",
                          hello.name, config_.table->fingerprint(), hello.facts.backbone_fingerprint));
  // Others may have come before the first verifier; it is the authority.
  std::vector<PeerId> unfit;
  for (const auto& [peer, other] : fleet_.workers()) {
    const auto why = other.verifies()
                         ? std::nullopt
                         : mismatch(hello.facts, other.hello.facts, to_string(other.hello.role), other.hello.needs);
    if (!why) continue;
    refuse(peer, other.hello.name, *why);
    unfit.push_back(peer);
  }
  for (const PeerId& peer : unfit) drop_worker(peer, "does not fit");
  if (std::ranges::any_of(fleet_.workers(), [](const auto& entry) { return entry.second.drafts(); }))
    fleet_.keep_facts(hello.facts);
  start_waiting();
  return true;
}

void CoordinatorCore::compare_encoding(const Hello& newcomer) {
  for (const auto& [peer, worker] : fleet_.workers()) {
    const bool came = newcomer.role == Role::kEncoder;
    const Hello &encoder = came ? newcomer : worker.hello, &verifier = came ? worker.hello : newcomer;
    if (encoder.role != Role::kEncoder || verifier.role != Role::kVerifier || verifier.no_towers ||
        verifier.encoding_class == encoder.encoding_class)
      continue;
    environment_.notice(
        true, fmt::format("{} encodes nothing for {}, whose own towers make other bits: its class is '{}', theirs "
                          "'{}'",
                          encoder.name, verifier.name, encoder.encoding_class, verifier.encoding_class));
  }
}

void CoordinatorCore::refuse(const PeerId& peer, const std::string& name, std::string why) {
  std::string text = fmt::format("refused {}: {}", name, why);
  if (fleet_.is_news(peer, text, environment_.now)) environment_.notice(true, std::move(text));
  send(peer, {.body = Refuse{Errc::kMismatch, std::move(why)}});
}

bool CoordinatorCore::on_worker(const PeerId& from, Worker& worker, Message message) {
  const auto* heartbeat = std::get_if<Heartbeat>(&message.body);
  if (heartbeat != nullptr && message.session == SessionId{}) {
    const Duration time = environment_.now.time_since_epoch() - Duration(heartbeat->sent_ns);
    if (heartbeat->sent_ns > 0 && time > Duration::zero() && time <= config_.link.peer_timeout) worker.measure(time);
    return false;
  }
  if (std::holds_alternative<Drain>(message.body)) {
    if (std::exchange(worker.draining, true)) return false;  // said
    environment_.notice(false, fmt::format("{} is draining", worker.hello.name));
    return true;
  }
  const auto session = sessions_.find(message.session);
  if (session == sessions_.end()) return false;  // an answer to a session that has ended
  const auto* failed = std::get_if<Failed>(&message.body);
  if (failed != nullptr && failed->code != Errc::kUnavailable && session->second->is_drafter(from, message.round)) {
    // What a drafter cannot do for one session it cannot do for the next.
    send(from, {.body = Refuse{failed->code, failed->message}});
    drop_worker(from, fmt::format("failed ({})", failed->message));
    return true;
  }
  const std::string name = name_of(message);
  const bool makes_sense = session->second->on_worker(from, std::move(message));
  if (!makes_sense)
    environment_.notice(true, fmt::format("'{}' from {} makes no sense here; dropped", name, worker.hello.name),
                        session->first);
  reap(session);
  return makes_sense;
}

void CoordinatorCore::drop_worker(const PeerId& peer, const std::string& why) {
  const auto gone = fleet_.remove(peer);  // policies of its sessions refer to it until these have ended below
  if (gone.empty()) return;
  const Worker& worker = gone.mapped();
  const std::string what = fmt::format("{} {} {}", to_string(worker.hello.role), worker.hello.name, why);
  if (!worker.suspect) {  // else it was warned of
    const bool goes_on = !worker.verifies() && !worker.draining;
    environment_.notice(!worker.draining, what + (goes_on ? "; going on without it" : ""));
  }
  // Clients hear no names.
  const std::string without_name = fmt::format("the {} {}", to_string(worker.hello.role), why);
  for (auto& [id, session] : sessions_) session->on_worker_gone(peer, without_name);
  reap_all();
}

}  // namespace outrider
