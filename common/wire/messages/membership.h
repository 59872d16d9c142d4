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

/// Something a person should read. The node logs it.
struct Notice {
  bool warning = false;
  std::string text;
  SessionId session = {};  ///< the one that it is about, by its coordinator's number; 0: none
};
/// What is logged: a line about one session begins with it, alike in every role.
std::string to_text(const Notice& notice);

struct LinkConfig {
  Duration heartbeat_interval = std::chrono::milliseconds(500);
  Duration peer_timeout = std::chrono::seconds(3);  ///< silence after which a peer counts as gone
  Duration hello_interval = std::chrono::seconds(1);
  Duration refused_pause_max = std::chrono::seconds(60);  ///< of a worker that was refused, until its next Hello
  bool exit_when_refused = false;                         ///< it is not to try again
};

/// What every core wants of its node, besides its own work.
struct CoreOutput {
  std::vector<Outgoing> send;
  std::vector<Notice> notices;
  /// When on_tick() is due next at the latest, if that is known.
  std::optional<TimePoint> due = {};
  /// Of a worker's: the coordinator is silent, though its connection may not say so. It, or the next one, is to be
  /// dialled anew.
  bool redial = false;
};

/// A worker's place in its coordinator's books: introduces the worker until it is welcomed, keeps the connection
/// alive, notices when the coordinator went away, is another one than before, or had given this worker up. Everything
/// that a worker's core tells its coordinator goes through here. Pure: time is handed in.
class Membership {
 public:
  /// @param hello without its capacity.
  Membership(const LinkConfig& config, Hello hello, const Capacity& capacity)
      : config_(config), hello_(std::move(hello)) {
    hello_.capacity = capacity;
  }

  enum class Event {
    kSession,  ///< the message is for the core
    kDealtWith,
    kForgetSessions,  ///< dealt with; the coordinator knows of no session of this worker
  };
  Event on_message(const Message& message, TimePoint now);
  /// More of a long message has come: the coordinator is there, however slow the way.
  void on_arriving(TimePoint now) { heard_ = now; }
  void on_tick(TimePoint now);

  void send(Message message) { output_.send.push_back({"", std::move(message)}); }
  void answer(const Message& request, Body body) {
    send({.session = request.session, .round = request.round, .base = request.base, .body = std::move(body)});
  }
  void warn(std::string text, SessionId session = {}) { output_.notices.push_back({true, std::move(text), session}); }
  /// What was sent and said since the last call.
  CoreOutput take_output() { return std::exchange(output_, {}); }

  const PairFacts& facts() const { return hello_.facts; }
  bool joined() const { return joined_; }
  /// Why the worker is to end: it was refused, and is not to try again.
  const std::optional<Error>& refusal() const { return refusal_; }

 private:
  void on_refuse(const Refuse& refuse, TimePoint now);

  LinkConfig config_;
  Hello hello_;
  bool joined_ = false;
  std::uint64_t number_ = 0;
  std::optional<TimePoint> next_hello_, next_heartbeat_;
  TimePoint heard_{}, redialled_{};
  std::optional<Error> refusal_;
  Duration refused_pause_{};  ///< the last one; 0: not refused since it was welcomed
  std::string refused_;       ///< why, as it was said
  CoreOutput output_;
};

}  // namespace outrider
