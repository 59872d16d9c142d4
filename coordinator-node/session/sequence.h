#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/wire/messages/messages.h"

namespace outrider {

/// The first id that a vocabulary of this size does not have.
std::optional<TokenId> first_beyond(std::span<const TokenId> ids, std::int32_t vocab_size);

/// One request's tokens, prompt and answer, and what the answer may still become.
/// Invariant: tokens only grow, from prompt_size on, to prompt_size + request.max_tokens at most.
struct Sequence {
  explicit Sequence(Generate generate);

  Generate request;                          ///< its prompt is in `tokens`
  std::vector<TokenId> tokens;               ///< prompt, then answer
  Position prompt_size;                      ///< so many of `tokens`
  std::vector<std::uint64_t> prefixes = {};  ///< of the prompt (hash_prefixes), once a verifier is looked for
  std::size_t encoded = 0;                   ///< so many of the request's media are soft tokens already

  /// Position of the last token: the first one whose K/V the target does not have yet.
  Position base() const { return std::ssize(tokens) - 1; }
  std::int64_t answered() const { return std::ssize(tokens) - prompt_size; }
  bool has_token() const { return answered() > 0; }
  std::int64_t tokens_left() const { return request.max_tokens - answered(); }
  /// Drafts that the answer, and so the context, has room for; a verdict adds a token of its own.
  std::int64_t drafts_left() const { return tokens_left() - 1; }
  /// Drafts that a round may have.
  std::int64_t draft_room() const { return std::min<std::int64_t>(request.draft_length, drafts_left()); }
  /// @pre prompt_size is not negative: check() has accepted the request
  std::span<const TokenId> answer() const { return std::span(tokens).subspan(static_cast<std::size_t>(prompt_size)); }
  /// Whether pictures or sounds are left that nobody has encoded.
  bool has_media() const { return encoded < request.media.size(); }
  /// Under the rules that are not exact for a seed: measured times must then have none in how many there are.
  bool drafts_have_a_say() const { return !request.sampling.greedy() && request.sampling.rule != SamplingRule::kMatch; }
  /// K/V rows that the sequence can come to need. Nobody knows how long a stepwise one gets: its room grows with each
  /// verify.
  Position positions() const;
  /// Memory of the prompt, pictures included.
  std::int64_t prompt_bytes() const;

  /// Whether the request can be answered at all, and by a model with these facts, if they are known.
  Result<void> check(const PairFacts* facts) const;
  /// Whether an answer that another coordinator began can go on. @pre check() likes the rest of the request
  Result<void> check_resumed() const;

  /// Appends tokens up to the first stop, and cuts `fresh` to these. @return whether a stop was among them
  bool append(std::vector<TokenId>& fresh);
};

}  // namespace outrider
