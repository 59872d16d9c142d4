#pragma once

#include <cstdint>

namespace outrider {

/// A token's row in the vocabulary.
using TokenId = std::int32_t;

/// Absolute index of a token in its sequence, from 0. Never wrapped, never a slot of a ring buffer.
using Position = std::int64_t;

/// Rows of a sliding layer that the assistant sees: the window and one more (gemma4.md 4.4).
constexpr Position drafter_window(std::int64_t sliding_window) { return sliding_window + 1; }

/// A request at the coordinator, verifier and drafter. Unique per coordinator process.
enum class SessionId : std::uint64_t {};

/// One draft/verify exchange of a session. Round 0 is the prefill; each verify has the next number.
enum class RoundId : std::uint32_t {};

constexpr std::uint64_t value(SessionId id) { return static_cast<std::uint64_t>(id); }
constexpr std::uint32_t value(RoundId id) { return static_cast<std::uint32_t>(id); }
constexpr RoundId next(RoundId id) { return RoundId{value(id) + 1}; }

}  // namespace outrider
