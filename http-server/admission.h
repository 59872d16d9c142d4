#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "common/base/result.h"

namespace outrider {

/// The line in front of the coordinator, to which all clients of an HTTP server are one crowd: lets so many requests in
/// at once, and next one of the client that has the fewest in; among equals, whose turn is longest ago. Any thread.
class Admission {
 public:
  /// Of a client's requests that are in, so many may be without a token. The coordinator has a line of its own, where
  /// nobody knows HTTP's clients: none is to fill it, but prompts are to fill a verifier's forward pass.
  static constexpr int kStartingMax = 8;

  /// A request's own; it leaves with its destructor.
  class Place {
   public:
    ~Place() { admission_.leave(*this); }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    /// It has its first token.
    void started() { admission_.started(*this); }

   private:
    friend class Admission;
    enum class State { kNone, kWaiting, kStarting, kStarted };
    Place(Admission& admission, std::string client) : admission_(admission), client_(std::move(client)) {}

    Admission& admission_;
    const std::string client_;
    // Under admission_.mutex_:
    State state_ = State::kNone;
    std::condition_variable let_in_;
  };

  /// @param open_max     requests that are in at once
  /// @param waiting_max  requests of one client that wait, at least 1; a further one is refused
  Admission(int open_max, std::size_t waiting_max) : open_max_(open_max), waiting_max_(waiting_max) {}

  /// Waits for a turn of `client`. The Admission must outlive the place.
  /// @return kUnavailable when too many of its requests wait, kCancelled once `gone` says so, which is asked several
  /// times a second.
  Result<std::unique_ptr<Place>> enter(const std::string& client, const std::function<bool()>& gone);

  int open() const;
  int waiting() const;

 private:
  struct Client {
    std::uint64_t turn = 0;  ///< when it was last let in, or came
    int open = 0, starting = 0;
    std::deque<Place*> line;  ///< those that wait
  };

  void started(Place& place);
  void leave(Place& place);
  /// Lets in whom it may. @pre the mutex is held.
  void admit();

  const int open_max_;
  const std::size_t waiting_max_;
  mutable std::mutex mutex_;
  std::map<std::string, Client> clients_;  ///< that have requests here
  int open_ = 0, waiting_ = 0;
  std::uint64_t turn_ = 0;
};

}  // namespace outrider
