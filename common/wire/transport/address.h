#pragma once

#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/base/time.h"
#include "common/os/descriptor.h"

/// Addresses of coordinators: tcp://HOST:PORT and inproc://NAME. HOST is a name, an IPv4 address, or an IPv6 address in
/// brackets.
namespace outrider {

/// Splits a list at its commas. @return kInvalidArgument for an entry that cannot be connected to
Result<std::vector<std::string>> split_addresses(const std::string& addresses);

/// Rejects TCP addresses that ZeroMQ would misread: it listens at port 34463 when asked for 99999, and at 80 for 80x.
/// An IPv6 address without brackets is rejected too, since its end may or may not be the port.
bool is_sane(const std::string& address);
/// The form that is_sane() accepts, for messages.
inline constexpr const char* kAddressForm = "tcp://HOST:PORT (with brackets around an IPv6 address)";

/// Returns true when the other end must be on this machine: inproc://, or TCP over the loopback interface. A name other
/// than localhost counts as remote.
bool is_local(const std::string& address);

/// Replaces the host name of a TCP address: one result per numeric address, in the system's order of preference.
/// @return kNotFound, with the reason, if the name does not resolve. May take seconds when name servers do not answer.
Result<std::vector<std::string>> resolve(const std::string& address);

/// Opens a non-blocking TCP connection to a numeric address. Waits for `wait` at most.
/// @return kPeerGone with the reason, such as "connection refused"
Result<Descriptor> connect_tcp(const std::string& numeric, Duration wait);

/// Tries a TCP connection for a quarter of a second. @return the reason for its failure; empty: it would succeed
std::string why_unreachable(const std::string& numeric);

/// Opens a non-blocking socket that listens at tcp://HOST:PORT; * stands for every address or any free port.
/// @return kInvalidArgument, kNotFound or kIo with the address
Result<Descriptor> listen_tcp(const std::string& address);
/// Numeric addresses of a TCP socket and of its peer; empty if there is none.
std::string own_address(int socket);
std::string peer_address(int socket);

}  // namespace outrider
