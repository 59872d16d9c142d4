#pragma once

#include <cstdint>
#include <utility>

#include "coordinator-node/fleet.h"

namespace outrider {

/// A session's place at a worker: its share of the worker's load, which begins and ends with this object. After the
/// worker is gone it counts nothing.
class Place {
 public:
  Place() = default;  ///< no worker
  Place(Fleet& fleet, PeerId peer);
  Place(Place&& other) noexcept { swap(other); }
  Place& operator=(Place&& other) noexcept {
    Place(std::move(other)).swap(*this);
    return *this;
  }
  ~Place();

  const PeerId& peer() const { return peer_; }
  Worker* worker() const { return fleet_ == nullptr ? nullptr : fleet_->find(peer_); }
  /// Sets whether the session has a round in progress there.
  void set_in_round(bool in_round);
  /// Reserves so many bytes of K/V in the verifier's memory, if they are more than before.
  void set_aside(std::int64_t kv_bytes);
  void leave() { *this = {}; }
  const Load& load() const { return load_; }

 private:
  void swap(Place& other) noexcept;
  /// Adds to the worker's load and to this share of it.
  void add(const Load& more);

  Fleet* fleet_ = nullptr;
  PeerId peer_;
  Load load_;
};

}  // namespace outrider
