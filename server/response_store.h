#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/shares.h"
#include "common/base/time.h"
#include "server/http_message.h"

// Stores the responses of /v1/responses, and makes those that run in the background.

namespace outrider {

/// Responses with their conversations, kept for a day at most, in bounded memory: the owner of the largest share loses
/// its oldest response. Any thread.
class ResponseStore {
 public:
  static constexpr std::size_t kCountMax = 1024, kBytesMax = 32 << 20;
  static constexpr Duration kAgeMax = std::chrono::hours(24);

  /// @param id  a new one @param owner  the only one who can find it
  /// @param kept  JSON
  void put(const std::string& id, const std::string& owner, std::string kept, TimePoint time = now());
  /// @return the stored response, as text; empty if there is none (any more)
  std::string text(const std::string& id, const std::string& owner, TimePoint time = now()) const;
  /// @return true if there was one
  bool forget(const std::string& id, const std::string& owner);

 private:
  struct Entry {
    std::string id, owner, kept;  ///< as text: a tree takes ten times as much
    TimePoint since;
  };
  using Entries = std::deque<Entry>;
  /// @return the end if the owner has no such entry
  Entries::const_iterator find(const std::string& id, const std::string& owner) const;
  void drop(Entries::const_iterator entry);

  mutable std::mutex mutex_;
  Entries entries_;  ///< the oldest first
  std::size_t bytes_ = 0;
};

/// Responses that are made after their request was answered, each on its own thread. Their number is bounded, and
/// shared by client. Finished ones move to the store. The destructor cuts off the rest. Any thread.
class BackgroundResponses {
 public:
  static constexpr int kCountMax = 64;
  /// @param store  outlives it
  explicit BackgroundResponses(ResponseStore& store) : store_(store) {}
  ~BackgroundResponses();

  /// Converts a reply to the response that the store keeps, as JSON.
  using Finish = std::function<std::string(const HttpReply& reply)>;
  /// Waits until `chat` has found its request valid.
  /// @param http  its memory and its place among its key's requests are kept
  /// @param response  its state while in progress
  /// @return the error if it was not begun
  std::optional<HttpReply> begin(const std::string& id, HttpRequest http, nlohmann::json response, HttpHandler chat,
                                 Finish finish);
  /// @return null if there is none (any more)
  nlohmann::json get(const std::string& id, const std::string& owner) const;
  /// @return the final response, which the store has; null if there is none (any more)
  nlohmann::json cancel(const std::string& id, const std::string& owner);

 private:
  enum class State { kPreparing, kMaking, kOver };
  struct Job {
    std::string id, owner, client;
    nlohmann::json response;
    Finish finish;
    State state = State::kPreparing;
    std::atomic<bool> cancelled = false;
    std::optional<HttpReply> refusal;  ///< set if the job ended before the response was made
    std::jthread thread;
  };
  void run(Job& job, const HttpRequest& http, const HttpHandler& chat);
  /// @return a response in progress; null if there is none
  Job* find(const std::string& id, const std::string& owner) const;

  ResponseStore& store_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Shares places_{kCountMax};
  std::vector<std::shared_ptr<Job>> jobs_;  ///< includes finished ones, until the next one begins
};

}  // namespace outrider
