#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace outrider {

/// A budget for clients that do not know of each other: after a take, a client has no more than was free before it, so
/// that a single one gets about half. The next client then finds room, and unwanted room is not kept free for long
/// (dynamic thresholds: Choudhury and Hahne, 1998). One thread.
class Shares {
 public:
  explicit Shares(std::int64_t total) : total_(total) {}

  /// @return true if `client` now has `amount` more
  bool take(const std::string& client, std::int64_t amount) {
    const auto held = held_.find(client);
    if ((held == held_.end() ? 0 : held->second) + amount > total_ - used_) return false;
    held_[client] += amount;
    used_ += amount;
    return true;
  }
  /// @param amount  at most what it has
  void give_back(const std::string& client, std::int64_t amount) {
    const auto held = held_.find(client);
    held->second -= amount;
    used_ -= amount;
    if (held->second == 0) held_.erase(held);
  }
  /// @param from  part of its amount
  /// @return true if `from` was replaced by `to`, as by give_back() and take(); otherwise nothing changes. A decrease
  /// always succeeds
  bool change(const std::string& client, std::int64_t from, std::int64_t to) {
    std::int64_t& held = held_[client];
    const bool given = to <= from || held - from + to <= total_ - (used_ - from);
    if (given) held += to - from, used_ += to - from;
    if (held == 0) held_.erase(client);
    return given;
  }
  std::int64_t used() const { return used_; }

 private:
  std::int64_t total_, used_ = 0;
  std::map<std::string, std::int64_t> held_;  ///< above 0
};

}  // namespace outrider
