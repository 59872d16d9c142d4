#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace outrider {

/// A budget that clients share without knowing of each other: each may take no more than is free beyond what it holds,
/// one alone about half. So whoever comes next finds room, and a place that nobody else wants is not kept empty for him
/// for long (dynamic thresholds: Choudhury and Hahne, 1998). One thread.
class Shares {
 public:
  explicit Shares(std::int64_t total) : total_(total) {}

  /// @return whether `client` now holds `amount` more.
  bool take(const std::string& client, std::int64_t amount) {
    const auto held = held_.find(client);
    if ((held == held_.end() ? 0 : held->second) + amount > total_ - used_) return false;
    held_[client] += amount;
    used_ += amount;
    return true;
  }
  /// @param amount  of what it took.
  void give_back(const std::string& client, std::int64_t amount) {
    const auto held = held_.find(client);
    held->second -= amount;
    used_ -= amount;
    if (held->second == 0) held_.erase(held);
  }
  /// @param from  of what it holds. @return whether it now holds `to` instead, as if it had given `from` back and asked
  ///   anew; else it holds what it did. Less is always given.
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
