#pragma once

#include <string>
#include <vector>

namespace outrider {

/// Returns the addresses at which other hosts can reach an endpoint that listens at `bound` (Endpoint::address()). For
/// tcp://0.0.0.0:PORT these are all IPv4 addresses of the host, for tcp://[::]:PORT those of IPv6 too, except loopback
/// and link-local ones. Any other address is returned as it is.
/// @return the most likely one first (IPv4 before IPv6, then private before public); none if the host has no address
std::vector<std::string> reachable_addresses(const std::string& bound);

}  // namespace outrider
