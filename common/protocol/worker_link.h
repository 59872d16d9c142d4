#pragma once

#include <optional>
#include <vector>

#include "common/base/time.h"
#include "common/protocol/messages.h"

namespace outrider {

/// Something a person should read. The node logs it.
struct Notice {
  bool warning = false;
  std::string text;
};

struct LinkConfig {
  Duration heartbeat_interval = std::chrono::milliseconds(500);
  Duration peer_timeout = std::chrono::seconds(3);  ///< silence after which a peer counts as gone
  Duration hello_interval = std::chrono::seconds(1);
};

/// A worker's side of its connection: introduces itself until welcomed, keeps the connection alive,
/// notices when the coordinator went away, is another one than before, or had given this worker up. Pure: time is
/// handed in.
class WorkerLink {
 public:
  WorkerLink(const LinkConfig& config, Hello hello) : config_(config), hello_(std::move(hello)) {}

  enum class Event { kNone, kForgetSessions };
  /// @return true when the message is dealt with: it was one of the connection's own, or came before
  ///   the Welcome. *event says what follows. Appends an answer if there is one.
  bool on_message(const Message& message, TimePoint now, Event* event, std::vector<Outgoing>* outgoing);
  /// Appends what is due.
  void on_tick(TimePoint now, std::vector<Outgoing>* outgoing, std::vector<Notice>* notices);

  bool joined() const { return joined_; }
  const std::optional<Error>& refusal() const { return refusal_; }

 private:
  LinkConfig config_;
  Hello hello_;
  bool joined_ = false;
  std::uint64_t membership_ = 0;
  std::optional<TimePoint> next_hello_, next_heartbeat_;
  TimePoint heard_{};
  std::optional<Error> refusal_;
};

}  // namespace outrider
