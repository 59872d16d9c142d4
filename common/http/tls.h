#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "common/base/result.h"

namespace outrider {

/// TLS of one connection, over a non-blocking socket. One thread.
class TlsSession {
 public:
  /// The client's side. The other end must be `host`, a name or a numeric address, by the system's trust store.
  /// @return kIo if `host` cannot be a host's name
  static Result<std::unique_ptr<TlsSession>> to(const std::string& host, int socket);

  /// The outcome of one attempt.
  struct Attempt {
    std::size_t bytes = 0;  ///< above 0: success
    short wait_for = 0;     ///< else POLLIN or POLLOUT, then try again; 0: the connection has failed
  };

  virtual ~TlsSession() = default;
  virtual Attempt handshake() = 0;  ///< `bytes` is 1 when it is done
  virtual Attempt read(std::span<char> bytes) = 0;
  /// After wait_for it is called again with the same bytes, which may have moved.
  virtual Attempt write(std::span<const char> bytes) = 0;
  virtual bool has_unread() const = 0;      ///< bytes that read() returns without new data on the socket
  virtual void end() = 0;                   ///< sends the end of data to the other side
  virtual std::string problem() const = 0;  ///< reason that an attempt failed, if TLS has one
};

/// A server's certificate and key. Any thread.
class TlsIdentity {
 public:
  /// Loads PEM files: the certificate with its chain, and its key without a password. They are read again after a
  /// change; while they do not match then, that is logged and the previous ones stay in use.
  /// @return kNotFound, kIo or kMalformed with the file
  static Result<std::shared_ptr<TlsIdentity>> load(const std::filesystem::path& certificate,
                                                   const std::filesystem::path& key);

  virtual ~TlsIdentity() = default;
  /// The server's side of a connection. Null without memory for it.
  virtual std::unique_ptr<TlsSession> session(int socket) = 0;
};

}  // namespace outrider
