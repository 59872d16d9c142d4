#include "coordinator-node/admission_queue.h"

#include <utility>

namespace outrider {

Result<void> AdmissionQueue::enter(SessionId id, const PeerId& peer, const std::string& on_behalf_of,
                                   std::int64_t prompt_bytes) {
  // A front end has a peer per request, and a name per client: then only the name counts.
  const ClientKey key = on_behalf_of.empty() ? "p" + peer : "n" + on_behalf_of;
  if (!places_.take(key, 1)) {
    return Error(Errc::kUnavailable,
                 "{} requests are waiting, {} of them this client's; of {} places the rest is for others", waiting(),
                 waiting_of(key), config_.waiting_max);
  }
  if (!bytes_.take(key, prompt_bytes)) {
    places_.give_back(key, 1);
    return Error(Errc::kUnavailable, "prompts of {} bytes are waiting, this one has {}; of {} the rest is for others",
                 bytes_.used(), prompt_bytes, config_.waiting_bytes_max);
  }
  const auto [client, is_new] = clients_.try_emplace(key);
  if (is_new) client->second.turn = ++turn_;
  client->second.waiting.push_back(id);
  entries_[id] = {.client = key, .prompt_bytes = prompt_bytes};
  return {};
}

void AdmissionQueue::give_back(const Entry& entry) {
  places_.give_back(entry.client, 1);
  bytes_.give_back(entry.client, entry.prompt_bytes);
}

std::size_t AdmissionQueue::waiting_of(const ClientKey& client) const {
  const auto known = clients_.find(client);
  return known == clients_.end() ? 0 : known->second.waiting.size();
}

std::optional<SessionId> AdmissionQueue::next(const std::function<bool(SessionId)>& possible) const {
  if (is_full()) return std::nullopt;
  const Client* first = nullptr;
  for (const auto& [key, client] : clients_) {
    if (client.waiting.empty() || client.starting == kStartingMax) continue;
    if (first != nullptr && std::pair(client.open, client.turn) > std::pair(first->open, first->turn)) continue;
    if (possible(client.waiting.front())) first = &client;
  }
  return first == nullptr ? std::nullopt : std::optional(first->waiting.front());
}

void AdmissionQueue::admit(SessionId id) {
  Entry& entry = entries_.at(id);
  Client& client = clients_.at(entry.client);
  CHECK(!client.waiting.empty() && client.waiting.front() == id, "session {} is not the next of its client", value(id));
  client.waiting.pop_front();
  client.turn = ++turn_;
  ++client.open;
  ++client.starting;
  entry.state = State::kStarting;
  give_back(entry);
  open_bytes_ += entry.prompt_bytes;
}

void AdmissionQueue::resize(SessionId id, std::int64_t prompt_bytes) {
  Entry& entry = entries_.at(id);
  if (entry.state != State::kWaiting) open_bytes_ += prompt_bytes - std::exchange(entry.prompt_bytes, prompt_bytes);
}

void AdmissionQueue::started(SessionId id) {
  Entry& entry = entries_.at(id);
  if (entry.state != State::kStarting) return;
  entry.state = State::kStarted;
  --clients_.at(entry.client).starting;
}

void AdmissionQueue::leave(SessionId id) {
  const auto entry = entries_.find(id);
  const auto client = clients_.find(entry->second.client);
  if (entry->second.state == State::kWaiting) {
    std::erase(client->second.waiting, id);
    give_back(entry->second);
  } else {
    started(id);
    --client->second.open;
    open_bytes_ -= entry->second.prompt_bytes;
  }
  if (client->second.open == 0 && client->second.waiting.empty()) clients_.erase(client);
  entries_.erase(entry);
}

}  // namespace outrider
