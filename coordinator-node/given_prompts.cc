#include "coordinator-node/given_prompts.h"

#include <algorithm>

#include "common/base/random.h"

namespace outrider {

std::vector<std::uint64_t> hash_prefixes(std::span<const TokenId> prompt, const std::string& scope) {
  std::uint64_t hash = 0;
  for (const char c : scope) hash = mix64(hash ^ static_cast<std::uint8_t>(c));
  std::vector<std::uint64_t> prefixes;
  for (Position end = kPrefixStep; end <= std::ssize(prompt); end += kPrefixStep) {
    for (const TokenId token : prompt.subspan(static_cast<std::size_t>(end - kPrefixStep), kPrefixStep))
      hash = mix64(hash ^ static_cast<std::uint32_t>(token));
    prefixes.push_back(hash);
  }
  return prefixes;
}

void GivenPrompts::add(std::span<const std::uint64_t> prefixes) {
  for (const std::uint64_t prefix : prefixes.first(std::min(prefixes.size(), kPrefixesMax))) {
    if (!known_.insert(prefix).second) continue;
    order_.push_back(prefix);
    if (order_.size() <= kPrefixesMax) continue;
    known_.erase(order_.front());
    order_.pop_front();
  }
}

Position GivenPrompts::common(std::span<const std::uint64_t> prefixes) const {
  const auto end = std::ranges::find_if_not(prefixes, [&](std::uint64_t prefix) { return known_.contains(prefix); });
  return (end - prefixes.begin()) * kPrefixStep;
}

}  // namespace outrider
