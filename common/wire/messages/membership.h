#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/time.h"
#include "common/wire/messages/messages.h"

namespace outrider {

/// A log line for the operator. The node writes it.
struct Notice {
  bool warning = false;
  std::string text;
  SessionId session = {};  ///< the session concerned, by its coordinator's number; 0: none
};
/// Returns the log line. In every role a line about one session begins with its number.
std::string to_text(const Notice& notice);

struct LinkConfig {
  Duration heartbeat_interval = std::chrono::milliseconds(500);
  Duration peer_timeout = std::chrono::seconds(3);  ///< silence after which a peer counts as gone
  Duration hello_interval = std::chrono::seconds(1);
  Duration refused_pause_max = std::chrono::seconds(60);  ///< limit of the pause after a refusal, before the next Hello
  bool exit_when_refused = false;                         ///< a refused worker ends instead of trying again
};

/// Output that every core has for its node, besides its own work.
struct CoreOutput {
  std::vector<Outgoing> send;
  std::vector<Notice> notices;
  /// Latest time of the next on_tick(), if known.
  std::optional<TimePoint> due = {};
  /// Set by a worker's core: the coordinator is silent, though the connection may look alive. Reconnect, to it or to
  /// the next one.
  bool redial = false;
};

/// A worker's membership at its coordinator. It introduces the worker until it is welcomed, keeps the connection alive,
/// and notices when the coordinator is gone, was replaced, or gave up this worker. A worker's core sends all messages
/// through this class. Pure: the caller passes the time.
class Membership {
 public:
  /// @param hello  its capacity is ignored
  Membership(const LinkConfig& config, Hello hello, const Capacity& capacity)
      : config_(config), hello_(std::move(hello)) {
    hello_.capacity = capacity;
  }

  enum class Event {
    kSession,  ///< the message is for the core
    kDealtWith,
    kForgetSessions,  ///< dealt with; the coordinator has no session of this worker
  };
  Event on_message(const Message& message, TimePoint now);
  /// Records that more of a long message arrived: the coordinator is alive, however slow the network.
  void on_arriving(TimePoint now) { last_received_ = now; }
  void on_tick(TimePoint now);

  /// Tells the coordinator now, and from now on in place of heartbeats, to send no new sessions: once might be lost.
  void drain();

  void send(Message message) { output_.send.push_back({"", std::move(message)}); }
  void answer(const Message& request, Body body) {
    send({.session = request.session, .round = request.round, .base = request.base, .body = std::move(body)});
  }
  void warn(std::string text, SessionId session = {}) { output_.notices.push_back({true, std::move(text), session}); }
  /// Returns messages and notices since the last call.
  CoreOutput take_output() { return std::exchange(output_, {}); }

  const PairFacts& facts() const { return hello_.facts; }
  bool joined() const { return joined_; }
  /// The refusal that ends the worker (LinkConfig::exit_when_refused).
  const std::optional<Error>& refusal() const { return refusal_; }

 private:
  void on_refuse(const Refuse& refuse, TimePoint now);

  LinkConfig config_;
  Hello hello_;
  bool joined_ = false, draining_ = false;
  std::uint64_t number_ = 0;
  std::optional<TimePoint> next_hello_, next_heartbeat_;
  TimePoint last_received_{}, redialled_{};
  std::optional<Error> refusal_;
  Duration refused_pause_{};  ///< the last pause; 0: not refused since the last Welcome
  std::string refused_;       ///< the last reason that was logged
  CoreOutput output_;
};

}  // namespace outrider
