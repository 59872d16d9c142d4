#pragma once

#include <string>
#include <vector>

#include "common/base/result.h"

/// Addresses of coordinators: tcp://HOST:PORT and inproc://NAME. HOST is a name, an IPv4 address, or an IPv6 address in
/// brackets.
namespace outrider {

/// The parts of a list with commas. @return kInvalidArgument for one that is no address to connect to.
Result<std::vector<std::string>> split_addresses(const std::string& addresses);

/// Refuses a TCP port that ZeroMQ would not: it listens at 34463 when asked for 99999, and at 80 for 80x.
bool has_sane_port(const std::string& address);

/// Whether nobody on another machine can be at the other end: inproc://, or TCP over the loopback interface. A name
/// other than localhost counts as elsewhere.
bool is_local(const std::string& address);

/// A TCP address with a number for its host: one for each that the name has, as the system prefers them.
/// @return kNotFound, saying why the name does not resolve. May take seconds where name servers do not answer.
Result<std::vector<std::string>> resolve(const std::string& address);

/// Why a TCP connection to a numeric address is not made: "connection refused". Empty: it can be made. Waits a quarter
/// of a second at most.
std::string why_unreachable(const std::string& numeric);

}  // namespace outrider
