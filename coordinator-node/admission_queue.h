#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "common/base/shares.h"
#include "common/wire/messages/messages.h"

namespace outrider {

struct AdmissionConfig {
  std::size_t open_max = 1024;               ///< sequences at work at once, on all verifiers
  std::int64_t waiting_max = 1024;           ///< sequences that wait for their turn, shared by client
  std::int64_t waiting_bytes_max = 1 << 28;  ///< of the prompts of all that wait, pictures too; shared likewise
};

/// Whose turn it is: the one line of a coordinator, front ends' clients included. The next sequence is one of the
/// client that has the fewest at work; among equals, of the one whose turn is longest ago. Of one client the sequences
/// start in the order in which they came. A client is a peer, or whoever a peer asks for (Generate::on_behalf_of). None
/// takes so many of the places to wait in that somebody new finds none (Shares).
class AdmissionQueue {
 public:
  /// Of a client's sequences at work, so many may be without a token: enough for their prompts to fill a verifier's
  /// forward pass, and few enough that somebody else's prompt soon has its part of one.
  static constexpr int kStartingMax = 8;

  explicit AdmissionQueue(const AdmissionConfig& config)
      : config_(config), places_(config.waiting_max), bytes_(config.waiting_bytes_max) {}

  /// Puts a sequence at the end of its client's line. @return kUnavailable when too much waits.
  Result<void> enter(SessionId id, const PeerId& peer, const std::string& on_behalf_of, std::int64_t prompt_bytes);
  /// Whose turn it is; none if nobody waits, or who waits may not start now. Who it is stays next until it is let in or
  /// leaves, or one that goes before it comes: a large sequence is not overtaken for being large.
  /// @param possible  whether there is a verifier that a sequence could start at; a client whose first sequence has
  /// none is
  ///   overtaken.
  std::optional<SessionId> next(const std::function<bool(SessionId)>& possible = [](SessionId) { return true; }) const;
  /// next() is at work now.
  void let_in(SessionId id);
  /// It has its first token. May be said again.
  void started(SessionId id);
  /// It waits or works no longer.
  void leave(SessionId id);

  std::size_t waiting() const { return static_cast<std::size_t>(places_.used()); }
  /// Whether as many sequences as may be are at work.
  bool is_full() const { return texts_.size() - waiting() >= config_.open_max; }

 private:
  using ClientKey = std::string;  ///< a peer, or a name that a front end gave; which, its first letter says
  enum class State { kWaiting, kStarting, kStarted };
  struct Text {
    ClientKey client;
    std::int64_t prompt_bytes = 0;
    State state = State::kWaiting;
  };
  struct Client {
    std::uint64_t turn = 0;  ///< when one of its sequences was let in last, or it came
    int open = 0, starting = 0;
    std::deque<SessionId> waiting;
  };

  /// It waits no longer.
  void give_back(const Text& text);
  std::size_t waiting_of(const ClientKey& client) const;

  AdmissionConfig config_;
  std::map<SessionId, Text> texts_;
  std::map<ClientKey, Client> clients_;  ///< that have sequences here
  Shares places_, bytes_;                ///< to wait in
  std::uint64_t turn_ = 0;
};

}  // namespace outrider
