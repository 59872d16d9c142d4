#include "coordinator-node/session/environment.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

namespace outrider {

Error Environment::for_client(const PeerId& worker, const Failed& failed, SessionId session) {
  constexpr Errc kOfTheRequest[] = {Errc::kInvalidArgument, Errc::kUnsupported, Errc::kOutOfRange, Errc::kUnavailable,
                                    Errc::kNotFound};
  if (std::ranges::find(kOfTheRequest, failed.code) != std::end(kOfTheRequest)) return {failed.code, failed.message};
  warn_of_worker(worker, failed.message, session);
  const Role role = fleet.at(worker).hello.role;
  return {failed.code, fmt::format("the {} failed; its coordinator's log says why", to_string(role))};
}

void Environment::warn_of_worker(const PeerId& worker, const std::string& what, SessionId session) {
  const Hello& hello = fleet.at(worker).hello;
  warn_of(worker, fmt::format("{} {}: {}", to_string(hello.role), hello.name, what), session);
}

}  // namespace outrider
