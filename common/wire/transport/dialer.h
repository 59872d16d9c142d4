#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/base/time.h"
#include "common/wire/transport/key_needs.h"
#include "common/wire/transport/monitor.h"
#include "common/wire/transport/receive_budget.h"

namespace outrider {

/// Connects a ZeroMQ socket over TCP to the first of several places that answers: every address of every name, with
/// each key that the coordinator may have. When that one is lost and does not come back, it looks again.
/// Names are resolved here and each time anew, since ZeroMQ would retry in silence one that does not resolve; and a
/// connection whose handshake fails is tried again here, since ZeroMQ gives up on it for ever.
///
/// The socket's thread.
class Dialer {
 public:
  /// @param context, socket  ZeroMQ's; outlive it. @param addresses as split_addresses() gives them.
  /// @param credentials  none: in clear
  /// Throws zmq::error_t where the system has no file handle left.
  Dialer(void* context, void* socket, std::vector<std::string> addresses, std::optional<KeysToConnect> credentials);

  /// Hears what has become of the connection. @return whether it dials anew: what was sent before it was connected is
  /// lost.
  bool service();
  bool connected() const { return connected_; }
  /// So far.
  int connections() const { return connections_; }
  /// Every address of every name with every key.
  int places() const { return static_cast<int>(places_.size()); }
  /// Leaves the place that it is connected to for the one after it; does nothing while it looks for one anyway.
  void redial();
  /// Where it is connected to, or the first of the addresses, as it was given.
  const std::string& address() const;
  /// A message was handed out.
  void heard() { heard_ = true; }
  /// As Endpoint::arriving().
  bool arriving();
  /// Why none of the places answers; nothing while one does, or before all were tried. kNotFound or kMismatch where
  /// waiting does not help: no name resolves, or no key fits. Else kPeerGone.
  const std::optional<Error>& trouble() const { return trouble_; }
  /// For zmq_poll: readable when service() has something to do.
  void* monitor() const { return monitor_.handle(); }

 private:
  /// One way to try.
  struct Place {
    std::string given, numeric;
    std::optional<Key> coordinator;
    bool operator==(const Place&) const = default;
  };
  void find_places();
  void dial(const Place& place);
  void hang_up();
  /// The current place does not answer. @param retries  whether ZeroMQ goes on trying there by itself.
  void failed(Errc code, const std::string& why, bool retries);
  void on_event(int event, std::uint32_t value);

  void* const socket_;
  Monitor monitor_;
  const std::vector<std::string> addresses_;
  const std::optional<KeysToConnect> credentials_;

  std::vector<Place> places_;
  std::optional<Place> current_;  ///< that ZeroMQ connects to
  std::size_t tried_ = 0;         ///< of places_, in this turn
  std::vector<Error> failures_;   ///< of this turn
  std::optional<TimePoint> next_turn_;
  Duration pause_{};
  bool connected_ = false, dialled_ = false;
  int connections_ = 0;
  int fd_ = -1;  ///< ZeroMQ's, of the connection
  Arrival arrival_ = {};
  bool heard_ = false;
  std::optional<Error> trouble_;
};

}  // namespace outrider
