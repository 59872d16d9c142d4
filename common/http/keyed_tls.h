#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>

#include "common/http/tls.h"

namespace outrider {

using CurveKey = std::array<std::uint8_t, 32>;
/// One end's Curve25519 key.
struct CurveKeyPair {
  CurveKey secret, open;
};

// TLS between two ends that know each other's public keys: TLS 1.3 with a key that both derive from theirs (an external
// PSK, RFC 8446 2.2) and an ephemeral one per connection. No certificates. Null if OpenSSL fails.

/// The client's side. @param server  the key that the other end must have
std::unique_ptr<TlsSession> tls_to_key(const CurveKeyPair& own, const CurveKey& server, int socket);
/// The server's side. @param admits  returns true if a client with this key may connect; called within handshake()
std::unique_ptr<TlsSession> tls_from_keys(const CurveKeyPair& own, std::function<bool(const CurveKey&)> admits,
                                          int socket);

}  // namespace outrider
