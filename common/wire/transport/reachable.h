#pragma once

#include <string>
#include <vector>

namespace outrider {

/// Where others can dial an endpoint that listens at `bound` (Endpoint::address()). One that listens at every address
/// of its host, tcp://0.0.0.0:PORT or tcp://[::]:PORT, is at each of them; loopback, which means another host to
/// everybody else, and link-local ones are left out. Any other address stands for itself.
/// @return the likeliest first (private, then public, IPv4 before IPv6); none where a host has no address.
std::vector<std::string> reachable_addresses(const std::string& bound);

}  // namespace outrider
