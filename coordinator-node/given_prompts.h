#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "common/base/ids.h"

namespace outrider {

/// Of a prompt: a hash of each beginning that is a whole number of kPrefixStep tokens long, the shortest first.
/// @param scope  cache_scope: prompts of two scopes have none in common.
std::vector<std::uint64_t> hash_prefixes(std::span<const TokenId> prompt, const std::string& scope);
inline constexpr Position kPrefixStep = 32;

/// The prompts that a verifier was given lately, by their prefixes: a guess at what its prefix cache has. It may have
/// dropped them since, which costs time and no more.
class GivenPrompts {
 public:
  void add(std::span<const std::uint64_t> prefixes);
  /// Tokens at a prompt's start that one of them has too.
  Position common(std::span<const std::uint64_t> prefixes) const;

 private:
  static constexpr std::size_t kPrefixesMax = 32'768;  ///< of a million tokens
  std::unordered_set<std::uint64_t> known_;
  std::deque<std::uint64_t> order_;
};

}  // namespace outrider
