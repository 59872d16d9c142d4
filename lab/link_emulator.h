#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "common/base/result.h"
#include "common/base/time.h"

namespace outrider {

/// A TCP relay on the loopback interface that makes a link longer: every byte comes out half a round trip
/// after it went in, in both directions. Bandwidth is the loopback's.
class LinkEmulator {
 public:
  /// @param target tcp://ADDRESS:PORT that connections lead to, ADDRESS a number. @return kIo with the reason when it
  /// cannot listen.
  static Result<std::unique_ptr<LinkEmulator>> start(const std::string& target);
  ~LinkEmulator();

  /// Where to connect instead of `target`.
  const std::string& address() const { return address_; }
  /// For bytes that come from now on.
  void set_round_trip(Duration round_trip) { delay_ns_ = round_trip.count() / 2; }

 private:
  struct Pipe;
  LinkEmulator() = default;
  void accept_connections(std::stop_token stop);

  std::string address_, target_host_;
  std::uint16_t target_port_ = 0;
  int listener_ = -1;
  std::atomic<std::int64_t> delay_ns_ = 0;
  std::list<std::unique_ptr<Pipe>> pipes_;  ///< the accepting thread's until it ends
  std::jthread acceptor_;
};

}  // namespace outrider
