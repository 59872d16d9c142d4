#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "common/os/file_watch.h"
#include "common/os/logging.h"
#include "common/wire/transport/keys.h"

namespace outrider {

/// Name and roles of a peer, by its key.
struct Identity {
  std::string name;
  unsigned roles = 0;  ///< a bit per KeyRole
  bool may_be(KeyRole role) const { return (roles >> static_cast<unsigned>(role) & 1) != 0; }
};

/// Answers ZeroMQ's authentication requests (ZAP) on a thread of its own: for each connection to a socket with keys,
/// whether the key is authorized. Reads the file again after a change. While it is unreadable, no key is authorized.
class Gatekeeper {
 public:
  /// The ZAP domain; for a socket without one, ZeroMQ would admit everybody without a request.
  static constexpr const char* kDomain = "outrider";

  /// @param context  ZeroMQ's, which has at most one gatekeeper; must outlive it
  /// @return the error of the file, or of a line in it
  static Result<std::unique_ptr<Gatekeeper>> start(void* context, const std::filesystem::path& authorized);
  ~Gatekeeper();

  /// @param user_id  ZeroMQ's property of every message: the peer's public key
  /// @return none for a key that is not authorized, or no longer is. Any thread
  std::optional<Identity> identity(const char* user_id) const;

 private:
  Gatekeeper(void* socket, std::filesystem::path authorized);
  Result<void> read();
  void read_again_when_changed();
  void serve(std::stop_token stop);
  void answer_one();

  void* const socket_;
  FileWatch authorized_;
  RateLimit limit_;
  mutable std::mutex mutex_;
  std::map<Key, Identity> known_;  ///< guarded by mutex_
  std::jthread thread_;            // last: it uses the others
};

}  // namespace outrider
