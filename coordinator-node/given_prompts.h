#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "common/base/ids.h"

namespace outrider {

/// Hashes each prefix of a prompt whose length is a multiple of kPrefixStep tokens, the shortest first.
/// @param scope  cache_scope: prompts of different scopes have no common hash
std::vector<std::uint64_t> hash_prefixes(std::span<const TokenId> prompt, const std::string& scope);
inline constexpr Position kPrefixStep = 32;

/// The prefixes of prompts that a verifier was given recently: a guess at its prefix cache. The verifier may have
/// dropped some, which only costs time.
class GivenPrompts {
 public:
  void add(std::span<const std::uint64_t> prefixes);
  /// Returns the length of the longest known prefix.
  Position common(std::span<const std::uint64_t> prefixes) const;

 private:
  static constexpr std::size_t kPrefixesMax = 32'768;  ///< of a million tokens
  std::unordered_set<std::uint64_t> known_;
  std::deque<std::uint64_t> order_;
};

}  // namespace outrider
