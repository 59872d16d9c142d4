#include "coordinator-node/place.h"

#include <utility>

#include "common/base/check.h"

namespace outrider {

Place::Place(Fleet& fleet, PeerId peer) : fleet_(&fleet), peer_(std::move(peer)) {
  DCHECK(worker() != nullptr);
  add({.sessions = 1});
}

Place::~Place() { add({.sessions = -load_.sessions, .rounds = -load_.rounds, .kv_bytes = -load_.kv_bytes}); }

void Place::set_in_round(bool in_round) { add({.rounds = int{in_round} - load_.rounds}); }

void Place::set_aside(std::int64_t kv_bytes) {
  if (kv_bytes > load_.kv_bytes) add({.kv_bytes = kv_bytes - load_.kv_bytes});
}

void Place::add(const Load& more) {
  Worker* at = worker();
  for (Load* load : {static_cast<Load*>(at), &load_}) {
    if (load == nullptr) continue;
    load->sessions += more.sessions;
    load->rounds += more.rounds;
    load->kv_bytes += more.kv_bytes;
    DCHECK(load->sessions >= 0 && load->rounds >= 0 && load->kv_bytes >= 0);
  }
}

void Place::swap(Place& other) noexcept {
  std::swap(fleet_, other.fleet_);
  std::swap(peer_, other.peer_);
  std::swap(load_, other.load_);
}

}  // namespace outrider
