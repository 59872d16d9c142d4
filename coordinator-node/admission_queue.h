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
  std::size_t open_max = 1024;               ///< running sequences, on all verifiers
  /// Bytes of the running sequences' prompts, which are kept for other verifiers: beyond these no sequence starts.
  std::int64_t open_bytes_max = std::int64_t{1} << 31;
  std::int64_t waiting_max = 1024;           ///< queued sequences, shared between clients
  std::int64_t waiting_bytes_max = 1 << 28;  ///< of all queued prompts, pictures included; shared too
};

/// The fair queue of a coordinator's sequences, for all clients, including those of front ends. The next sequence
/// belongs to the client with the fewest running ones; among equals, to the one that has not been served for longest. A
/// client's own sequences start in order of arrival. A client is a peer, or the client that a peer names
/// (Generate::on_behalf_of). No client can fill the queue so far that a new one finds no room (Shares).
class AdmissionQueue {
 public:
  /// Running sequences of one client that may be without a token: enough for their prompts to fill a verifier's forward
  /// pass, and few enough that another client's prompt soon gets a share of one.
  static constexpr int kStartingMax = 8;

  explicit AdmissionQueue(const AdmissionConfig& config)
      : config_(config), places_(config.waiting_max), bytes_(config.waiting_bytes_max) {}

  /// Appends a sequence to its client's queue. @return kUnavailable when the queue is full
  Result<void> enter(SessionId id, const PeerId& peer, const std::string& on_behalf_of, std::int64_t prompt_bytes);
  /// Returns the next sequence; none if the queue is empty, or no sequence may start now. The sequence stays the next
  /// one until it is admitted, leaves, or a sequence with precedence arrives: smaller sequences do not overtake it.
  /// @param possible  returns true if a sequence could start at some verifier; a client whose first sequence has none
  /// is overtaken
  std::optional<SessionId> next(const std::function<bool(SessionId)>& possible = [](SessionId) { return true; }) const;
  /// Marks the sequence that next() returned as running.
  void admit(SessionId id);
  /// Records that a running sequence has its first token. May be called again.
  void started(SessionId id);
  /// Records the present size of a running sequence's prompt: its media are encoded meanwhile.
  void resize(SessionId id, std::int64_t prompt_bytes);
  /// Removes a queued or running sequence.
  void leave(SessionId id);

  std::size_t waiting() const { return static_cast<std::size_t>(places_.used()); }
  /// Returns true when the running sequences, or the bytes of their prompts, are at their maximum.
  bool is_full() const {
    return entries_.size() - waiting() >= config_.open_max || open_bytes_ >= config_.open_bytes_max;
  }

 private:
  using ClientKey = std::string;  ///< a peer, or a name that a front end gave; its first letter tells which
  enum class State { kWaiting, kStarting, kStarted };
  struct Entry {
    ClientKey client;
    std::int64_t prompt_bytes = 0;
    State state = State::kWaiting;
  };
  struct Client {
    std::uint64_t turn = 0;  ///< when one of its sequences was admitted last, or it arrived
    int open = 0, starting = 0;
    std::deque<SessionId> waiting;
  };

  /// Gives back a sequence's share of the queue.
  void give_back(const Entry& entry);
  std::size_t waiting_of(const ClientKey& client) const;

  AdmissionConfig config_;
  std::map<SessionId, Entry> entries_;
  std::map<ClientKey, Client> clients_;  ///< those with sequences here
  Shares places_, bytes_;                ///< of the queue
  std::int64_t open_bytes_ = 0;          ///< of the running sequences' prompts
  std::uint64_t turn_ = 0;
};

}  // namespace outrider
