#include "common/wire/transport/authorization.h"

#include <algorithm>

#include <fmt/format.h>

namespace outrider {
namespace {

std::string with_article(const std::string& role) { return (role.starts_with("e") ? "an " : "a ") + role; }

Error not_for(const Identity& identity, const std::string& what) {
  std::string roles;
  for (const KeyRole role : kKeyRoles) {
    if (identity.may_be(role)) roles += (roles.empty() ? "" : " and ") + std::string(to_string(role));
  }
  return {Errc::kMismatch, "the key of {} is for {}; it may not {}", identity.name, with_article(roles), what};
}

// The first KeyRoles have the numbers of the Roles.
static_assert(static_cast<int>(KeyRole::kClient) == static_cast<int>(kLastRole) + 1);

}  // namespace

Result<void> admit(const Identity& identity, Message& message) {
  if (auto* hello = std::get_if<Hello>(&message.body)) {
    if (!identity.may_be(static_cast<KeyRole>(hello->role)))
      return not_for(identity, "join as " + with_article(to_string(hello->role)));
    hello->name = fmt::format("{}/{}", identity.name, hello->name);
    return {};
  }
  const Body& body = message.body;
  if (std::holds_alternative<StatusRequest>(body)) return {};
  const bool asks = std::holds_alternative<Generate>(body) || std::holds_alternative<Step>(body) ||
                    std::holds_alternative<Cancel>(body);
  // These names are qualified by the key, so that a client cannot use those of another key.
  if (auto* request = std::get_if<Generate>(&message.body)) {
    for (std::string* const name : {&request->on_behalf_of, &request->cache_scope})
      *name = identity.name + (name->empty() ? "" : "/" + *name);
    if (request->cache_scope.size() > kScopeBytes.max) {
      return Error(Errc::kInvalidArgument, "cache_scope: {} bytes with the name of its key, wanted at most {}",
                   request->cache_scope.size(), kScopeBytes.max);
    }
  }
  const bool may = std::ranges::any_of(
      kKeyRoles, [&](KeyRole role) { return (role == KeyRole::kClient) == asks && identity.may_be(role); });
  if (may) return {};
  return not_for(identity, asks ? "ask for texts" : fmt::format("send '{}'", name_of(message)));
}

}  // namespace outrider
