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

/// Who a peer is, by its key.
struct Identity {
  std::string name;
  unsigned roles = 0;  ///< a bit for each KeyRole
  bool may_be(KeyRole role) const { return (roles >> static_cast<unsigned>(role) & 1) != 0; }
};

/// Asks at the door: a thread that answers ZeroMQ, for each connection to a socket with keys (ZAP), whether its key is
/// authorized. The file is read again when it changes. While it cannot be read nobody is authorized.
class Gatekeeper {
 public:
  /// ZeroMQ gives it as domain; a socket without one would ask nobody and let everybody in.
  static constexpr const char* kDomain = "outrider";

  /// @param context  ZeroMQ's, which has at most one of these; outlives it.
  /// @return the error of the file, or of a line in it.
  static Result<std::unique_ptr<Gatekeeper>> start(void* context, const std::filesystem::path& authorized);
  ~Gatekeeper();

  /// @param user_id  as ZeroMQ has it on every message of a peer: its public key.
  /// @return nothing for a key that is not authorized, or not any more. Any thread.
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
