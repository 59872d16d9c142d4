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

// Between two ends that know each other by such keys: TLS 1.3 with a key that both derive from theirs (an external PSK,
// RFC 8446 2.2) and one that is agreed on for each connection. No certificate counts. Null where OpenSSL cannot.

/// The client's side. @param server  the key that the other end must have
std::unique_ptr<TlsSession> tls_to_key(const CurveKeyPair& own, const CurveKey& server, int socket);
/// The server's side. @param admits  whether a client with this key may connect; asked within handshake()
std::unique_ptr<TlsSession> tls_from_keys(const CurveKeyPair& own, std::function<bool(const CurveKey&)> admits,
                                          int socket);

}  // namespace outrider
