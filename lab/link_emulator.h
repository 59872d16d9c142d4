#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "common/base/result.h"
#include "common/base/time.h"
#include "common/os/descriptor.h"
#include "lab/link.h"

namespace outrider {

/// A TCP relay on the loopback interface that adds delay, jitter, a bandwidth limit or losses to a link, in both
/// directions. Each connection has a link of its own. A byte waits until earlier ones are sent at the link's bandwidth,
/// and arrives half a round trip later. A lost one arrives after one retransmission time-out, 200 ms and a round trip
/// (Linux's minimum); TCP keeps order, so that everything after it waits too.
class LinkEmulator {
 public:
  /// @param target  tcp://ADDRESS:PORT of the other end, with a numeric ADDRESS: connections to another one are closed
  /// @return kInvalidArgument for what is no address, kIo with the reason when it cannot listen
  static Result<std::unique_ptr<LinkEmulator>> start(const std::string& target);
  ~LinkEmulator();

  /// @return the address to connect to instead of `target`
  const std::string& address() const { return address_; }
  /// Sets the link for bytes that arrive from now on.
  void set(const Link& link);

 private:
  struct Pipe;
  struct Shared {
    mutable std::mutex mutex;
    Link link;
    Link now() const {
      const std::lock_guard lock(mutex);
      return link;
    }
  };
  LinkEmulator() = default;
  void accept_connections(std::stop_token stop);

  std::string address_, target_;
  Descriptor listener_;
  Shared shared_;
  std::list<std::unique_ptr<Pipe>> pipes_;  ///< used by the accepting thread until it ends
  std::jthread acceptor_;                   ///< last: it ends before the members that it uses
};

}  // namespace outrider
