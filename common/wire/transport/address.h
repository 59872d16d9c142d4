#pragma once

#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/base/time.h"
#include "common/os/descriptor.h"

/// Addresses of coordinators: tcp://HOST:PORT and inproc://NAME. HOST is a name, an IPv4 address, or an IPv6 address in
/// brackets.
namespace outrider {

/// The parts of a list with commas. @return kInvalidArgument for one that is no address to connect to.
Result<std::vector<std::string>> split_addresses(const std::string& addresses);

/// Refuses of TCP what ZeroMQ would not, or not understandably: it listens at 34463 when asked for port 99999, and at
/// 80 for 80x; and an IPv6 address without brackets, of which nobody knows whether its end is the port.
bool is_sane(const std::string& address);
/// What is_sane() wants, for messages.
inline constexpr const char* kAddressForm = "tcp://HOST:PORT (with brackets around an IPv6 address)";

/// Whether nobody on another machine can be at the other end: inproc://, or TCP over the loopback interface. A name
/// other than localhost counts as elsewhere.
bool is_local(const std::string& address);

/// A TCP address with a number for its host: one for each that the name has, as the system prefers them.
/// @return kNotFound, saying why the name does not resolve. May take seconds where name servers do not answer.
Result<std::vector<std::string>> resolve(const std::string& address);

/// A TCP connection to a numeric address, whose reads and writes do not block. Waits so long at most.
/// @return kPeerGone, saying why there is none: "connection refused"
Result<Descriptor> connect_tcp(const std::string& numeric, Duration wait);

/// Why a TCP connection to a numeric address is not made. Empty: it can be made. Waits a quarter of a second at most.
std::string why_unreachable(const std::string& numeric);

/// A socket that listens at tcp://HOST:PORT without blocking; HOST may be *, and PORT too: any free one.
/// @return kInvalidArgument, kNotFound or kIo with the address
Result<Descriptor> listen_tcp(const std::string& address);
/// Where a TCP socket is, and where its peer is, in numbers; empty: nowhere.
std::string own_address(int socket);
std::string peer_address(int socket);

}  // namespace outrider
