#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "common/base/result.h"

namespace outrider {

/// One connection's TLS, over a socket that does not block. One thread.
class TlsSession {
 public:
  /// The client's side. The other end must be `host`, a name or an address in numbers, by the system's trust store.
  /// @return kIo for what cannot be a host's name.
  static Result<std::unique_ptr<TlsSession>> to(const std::string& host, int socket);

  /// It says how an attempt ended.
  struct Attempt {
    std::size_t bytes = 0;  ///< above 0: it went well
    short wait_for = 0;     ///< else POLLIN or POLLOUT, then try again; 0: the connection is of no use any more
  };

  virtual ~TlsSession() = default;
  virtual Attempt handshake() = 0;  ///< `bytes` is 1 when it is done
  virtual Attempt read(std::span<char> bytes) = 0;
  /// Again after wait_for: with the same bytes, which may lie elsewhere.
  virtual Attempt write(std::span<const char> bytes) = 0;
  virtual bool has_unread() const = 0;      ///< bytes that read() gives although nothing may come from the socket
  virtual void end() = 0;                   ///< tells the other side that nothing more comes
  virtual std::string problem() const = 0;  ///< why the last attempt failed, if the other end has broken the rules
};

/// A server's certificate and key. Any thread.
class TlsIdentity {
 public:
  /// It loads PEM files: the certificate, then those that vouch for it; and its key, without a password. They are read
  /// again when they have changed; while they do not fit then, that is logged and those before hold.
  /// @return kNotFound, kIo or kMalformed with the file.
  static Result<std::shared_ptr<TlsIdentity>> load(const std::filesystem::path& certificate,
                                                   const std::filesystem::path& key);

  virtual ~TlsIdentity() = default;
  /// The server's side of a connection. Null where there is no memory for it.
  virtual std::unique_ptr<TlsSession> session(int socket) = 0;
};

}  // namespace outrider
