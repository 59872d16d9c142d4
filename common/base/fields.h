#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "common/base/result.h"

namespace outrider {

/// A struct whose fields are listed once, for whoever writes, reads, prints or draws it:
///
///   struct NeedKv {
///     Position have = 0;
///     static void fields(auto& v, auto& m) { v("have", m.have, kPositions); }
///   };
///
/// The visitor `v` is called with each field's name, the field of `m` (which may be const) and what it may hold: a
/// Range for numbers, a Count for lists and strings (then perhaps a Range for the list's numbers), Verbatim for a
/// string that a parser will read, the last enumerator for an enum, nothing for a bool, a described struct, or a number
/// that may be anything. The order is the wire's. A visitor that is for some fields only takes what they may hold by
/// value and has a catch-all, `void operator()(auto&&...) {}`, for the others; by reference the catch-all would be the
/// better match. A struct whose fields depend on each other also has `Result<void> settle()`: a reader calls it once
/// the fields are there. It sets what follows from them and says what does not fit.
struct AnyVisitor {
  void operator()(auto&&...) {}
};
template <typename T>
concept Described = requires(AnyVisitor& v, T& m) {
  T::fields(v, m);
};

/// Both ends are included.
template <typename T>
struct Range {
  T min, max;
  bool operator==(const Range&) const = default;
};
inline constexpr Range<std::int64_t> kNatural{0, std::numeric_limits<std::int64_t>::max()};
inline constexpr Range<double> kFinite{std::numeric_limits<double>::lowest(), std::numeric_limits<double>::max()};

/// Entries of a list, or bytes of a string.
struct Count {
  std::size_t min = 0, max = 0;
};

/// Bytes of a string that is no word to people: whatever they are, they stay as they are.
struct Verbatim {
  std::size_t max = 0;
};

}  // namespace outrider
