#pragma once

#include <string>
#include <vector>

namespace outrider {

/// Returns the addresses at which other hosts can reach an endpoint that listens at `bound` (Endpoint::address()). For
/// tcp://0.0.0.0:PORT or tcp://[::]:PORT these are all addresses of the host except loopback and link-local ones. Any
/// other address is returned as it is. @return the most likely one first (private before public, IPv4 before IPv6);
/// none if the host has no address
std::vector<std::string> reachable_addresses(const std::string& bound);

}  // namespace outrider
