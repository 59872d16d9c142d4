#include "http-server/admission.h"

#include <utility>

#include <fmt/format.h>

#include "common/base/time.h"

namespace outrider {
namespace {
/// How often who waits is asked whether it still does.
constexpr Duration kAskInterval = std::chrono::milliseconds(100);
}  // namespace

Result<std::unique_ptr<Admission::Place>> Admission::enter(const std::string& client,
                                                           const std::function<bool()>& gone) {
  std::unique_ptr<Place> place(new Place(*this, client));  // outlives the lock, which its destructor takes
  std::unique_lock lock(mutex_);
  const auto [entry, is_new] = clients_.try_emplace(client);
  if (is_new) entry->second.turn = ++turn_;
  std::deque<Place*>& line = entry->second.line;
  if (line.size() >= waiting_max_)
    return Error{Errc::kUnavailable,
                 fmt::format("{} requests of {} are waiting, no more of one client", line.size(), client)};
  line.push_back(place.get());
  place->state_ = Place::State::kWaiting;
  ++waiting_;
  admit();
  while (place->state_ == Place::State::kWaiting) {
    place->let_in_.wait_for(lock, kAskInterval);
    lock.unlock();
    if (gone()) return Error{Errc::kCancelled, "the client went away"};
    lock.lock();
  }
  return place;
}

int Admission::open() const {
  const std::lock_guard lock(mutex_);
  return open_;
}

int Admission::waiting() const {
  const std::lock_guard lock(mutex_);
  return waiting_;
}

void Admission::started(Place& place) {
  const std::lock_guard lock(mutex_);
  if (place.state_ != Place::State::kStarting) return;
  place.state_ = Place::State::kStarted;
  --clients_.at(place.client_).starting;
  admit();
}

void Admission::leave(Place& place) {
  const std::lock_guard lock(mutex_);
  if (place.state_ == Place::State::kNone) return;
  const auto client = clients_.find(place.client_);
  if (place.state_ == Place::State::kWaiting) {
    std::erase(client->second.line, &place);
    --waiting_;
  } else {
    if (place.state_ == Place::State::kStarting) --client->second.starting;
    --client->second.open;
    --open_;
  }
  if (client->second.open == 0 && client->second.line.empty()) clients_.erase(client);
  admit();
}

void Admission::admit() {
  while (open_ < open_max_) {
    Client* next = nullptr;
    for (auto& [name, client] : clients_) {
      if (client.line.empty() || client.starting == kStartingMax) continue;
      if (next == nullptr || std::pair(client.open, client.turn) < std::pair(next->open, next->turn)) next = &client;
    }
    if (next == nullptr) return;
    Place& place = *next->line.front();
    next->line.pop_front();
    next->turn = ++turn_;
    place.state_ = Place::State::kStarting;
    --waiting_;
    ++open_;
    ++next->open;
    ++next->starting;
    place.let_in_.notify_one();
  }
}

}  // namespace outrider
