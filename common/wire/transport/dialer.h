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
/// each key that the coordinator may have. Searches again when that connection is lost and does not come back. Names
/// are resolved here, before each attempt, since ZeroMQ would retry an unresolvable name in silence. A connection whose
/// handshake fails is retried here, since ZeroMQ gives it up for good.
///
/// Used by the socket's thread.
class Dialer {
 public:
  /// @param context, socket  ZeroMQ's; must outlive the Dialer. @param addresses  from split_addresses()
  /// @param credentials  none: unencrypted
  /// Throws zmq::error_t when the process has no file handle left.
  Dialer(void* context, void* socket, std::vector<std::string> addresses, std::optional<KeysToConnect> credentials);

  /// Handles connection events. @return true after dialling anew: messages sent before that connection are lost
  bool service();
  bool connected() const { return connected_; }
  /// Connections so far.
  int connections() const { return connections_; }
  /// Number of places: every address of every name with every key.
  int places() const { return static_cast<int>(places_.size()); }
  /// Leaves the current place for the next one; does nothing while a search is under way.
  void redial();
  /// The address in use, or else the first one, as given by the caller.
  const std::string& address() const;
  /// Records that a message was received.
  void on_received() { got_message_ = true; }
  /// See Endpoint::arriving().
  bool arriving();
  /// The reason that no place answers; none while one does, or before all were tried. kNotFound or kMismatch if waiting
  /// cannot help (no name resolves, or no key fits), else kPeerGone.
  const std::optional<Error>& connection_error() const { return connection_error_; }
  /// For zmq_poll: readable when service() is to be called.
  void* monitor() const { return monitor_.handle(); }

 private:
  /// One address of one name, with one key.
  struct Place {
    std::string given, numeric;
    std::optional<Key> coordinator;
    bool operator==(const Place&) const = default;
  };
  void find_places();
  void dial(const Place& place);
  void close_connections();
  /// Records that the current place does not answer. @param retries  true when ZeroMQ keeps trying there itself
  void failed(Errc code, const std::string& why, bool retries);
  void on_event(int event, std::uint32_t value);

  void* const socket_;
  Monitor monitor_;
  const std::vector<std::string> addresses_;
  const std::optional<KeysToConnect> credentials_;

  std::vector<Place> places_;
  std::optional<Place> current_;  ///< the one that ZeroMQ connects to
  std::size_t tried_ = 0;         ///< places tried in this turn
  std::vector<Error> failures_;   ///< errors of this turn
  std::optional<TimePoint> next_turn_;
  Duration pause_{};
  bool connected_ = false, dialled_ = false;
  int connections_ = 0;
  int fd_ = -1;  ///< ZeroMQ's handle of the connection
  Arrival arrival_ = {};
  bool got_message_ = false;
  std::optional<Error> connection_error_;
};

}  // namespace outrider
