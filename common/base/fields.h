#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "common/base/result.h"

namespace outrider {

/// A struct lists its fields once, for all visitors that write, read, print or draw it:
///
///   struct NeedKv {
///     Position have = 0;
///     static void fields(auto& v, auto& m) { v("have", m.have, kPositions); }
///   };
///
/// The visitor `v` is called with each field's name, the field of `m` (which may be const) and its constraint: a Range
/// for numbers, a Count for lists and strings (then perhaps a Range for the list's numbers), Verbatim for a string that
/// a parser will read, the last enumerator for an enum, nothing for a bool, a described struct, or an unconstrained
/// number. The order is the wire's. A visitor for only some of the fields takes constraints by value and has a
/// catch-all, `void operator()(auto&&...) {}`, for the others; with references the catch-all would be the better match.
/// A struct whose fields depend on each other also has `Result<void> settle()`, which a reader calls after the fields:
/// it sets derived fields, and reports fields that do not fit each other.
struct AnyVisitor {
  void operator()(auto&&...) {}
};
template <typename T>
concept Described = requires(AnyVisitor& v, T& m) {
  T::fields(v, m);
};

/// An inclusive range.
template <typename T>
struct Range {
  T min, max;
  bool operator==(const Range&) const = default;
};
inline constexpr Range<std::int64_t> kNatural{0, std::numeric_limits<std::int64_t>::max()};
inline constexpr Range<double> kFinite{std::numeric_limits<double>::lowest(), std::numeric_limits<double>::max()};

/// Allowed number of list entries, or of a string's bytes.
struct Count {
  std::size_t min = 0, max = 0;
};

/// Allowed bytes of a string that is not for people: kept unchanged, whatever they are.
struct Verbatim {
  std::size_t max = 0;
};

}  // namespace outrider
