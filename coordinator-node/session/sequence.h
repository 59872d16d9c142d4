#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/wire/messages/messages.h"

namespace outrider {

/// Returns the first id beyond the vocabulary.
std::optional<TokenId> first_beyond(std::span<const TokenId> ids, std::int32_t vocab_size);

/// One request's tokens, prompt and answer, and its limits. Invariant: tokens only grow, from prompt_size to at most
/// prompt_size + request.max_tokens.
struct Sequence {
  explicit Sequence(Generate generate);

  Generate request;                          ///< without its prompt, which is in `tokens`
  std::vector<TokenId> tokens;               ///< prompt, then answer
  Position prompt_size;                      ///< tokens of the prompt
  std::vector<std::uint64_t> prefixes = {};  ///< of the prompt (hash_prefixes), once a verifier is needed
  std::size_t encoded = 0;                   ///< media of the request that are already soft tokens

  /// Returns the position of the last token, which is the first one without K/V at the target.
  Position base() const { return std::ssize(tokens) - 1; }
  /// Tokens that have K/V at a verifier: all but the last one of an answer that has begun.
  Position committed() const { return has_token() ? base() : prompt_size; }
  std::int64_t answered() const { return std::ssize(tokens) - prompt_size; }
  bool has_token() const { return answered() > 0; }
  std::int64_t tokens_left() const { return request.max_tokens - answered(); }
  /// Returns the drafts that fit the answer, and so the context. A verdict adds the target's own token.
  std::int64_t drafts_left() const { return tokens_left() - 1; }
  /// Returns the most drafts that the next round may have.
  std::int64_t draft_room() const { return std::min<std::int64_t>(request.draft_length, drafts_left()); }
  /// Returns the tokens of the answer. @pre check() has accepted the request: prompt_size is not negative
  std::span<const TokenId> answer() const { return std::span(tokens).subspan(static_cast<std::size_t>(prompt_size)); }
  /// Returns true if there are media that are not encoded yet.
  bool has_media() const { return encoded < request.media.size(); }
  /// Returns true if the answer depends on the drafts, not on the seed alone. The number of drafts must then not depend
  /// on measured times.
  bool output_depends_on_drafts() const {
    return !request.sampling.greedy() && request.sampling.rule != SamplingRule::kMatch;
  }
  /// Returns the most K/V rows of the sequence. A stepwise sequence has no limit: its memory grows with each verify.
  Position positions() const { return positions(request.max_tokens); }
  Position positions(std::int64_t max_tokens) const;
  /// Returns max_tokens, lowered to `fitting` if the answer may be shortened and has not begun. Below 1: not even the
  /// prompt fits, and a verifier's refusal says so.
  std::int64_t shortened(std::int64_t fitting) const {
    const bool may = request.shorten && !has_token() && fitting >= 1;
    return may ? std::min(request.max_tokens, fitting) : request.max_tokens;
  }
  /// Returns the bytes of the prompt, pictures included.
  std::int64_t prompt_bytes() const;

  /// Checks that the request can be answered, by a model with these facts if they are known.
  Result<void> check(const PairFacts* facts) const;
  /// Checks that an answer begun by another coordinator can continue. @pre check() accepts the rest of the request
  Result<void> check_resumed() const;

  /// Appends tokens up to the first stop, and cuts `fresh` to these. @return true if there was a stop
  bool append(std::vector<TokenId>& fresh);
};

}  // namespace outrider
