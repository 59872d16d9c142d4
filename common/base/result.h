#pragma once

#include <array>
#include <cstddef>
#include <exception>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "common/base/check.h"

namespace outrider {

/// Error classes that a caller may branch on. The message has the details.
enum class Errc {
  kInvalidArgument,  ///< a client or a flag requests something impossible
  kNotFound,         ///< a file, tensor or key is missing
  kMalformed,        ///< bytes from a file or a peer violate their format
  kUnsupported,      ///< well formed, but not supported by this build
  kMismatch,         ///< two things that must fit (assistant and backbone, two nodes) do not
  kVersionMismatch,  ///< the peer speaks another protocol version
  kTimeout,          ///< no answer in time
  kPeerGone,         ///< the peer was there, and is gone
  kOutOfRange,       ///< a size beyond a limit (context length, frame bytes)
  kUnavailable,      ///< try again later (draining, queue full, nobody connected)
  kCancelled,        ///< on the client's request
  kIo,               ///< an error of the operating system
};

/// Short stable name, for logs and JSON.
inline const char* to_string(Errc code) {
  return std::array{"invalid_argument", "not_found", "malformed",    "unsupported", "mismatch",  "version_mismatch",
                    "timeout",          "peer_gone", "out_of_range", "unavailable", "cancelled", "io"}
      .at(static_cast<std::size_t>(code));
}

struct Error {
  Error(Errc what, std::string text) : code(what), message(std::move(text)) {}
  /// The message is fmt::format() of these values.
  template <typename First, typename... Rest>
  Error(Errc what, fmt::format_string<First, Rest...> format, First&& first, Rest&&... rest)
      : Error(what, fmt::format(format, std::forward<First>(first), std::forward<Rest>(rest)...)) {}

  Errc code;
  std::string message;  ///< one line: the thing, the value seen, the value wanted
};

/// A value or an error. Member names are std::expected's, which will replace it in C++23. @tparam E  has a message
template <typename T, typename E = Error>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(E error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool has_value() const { return state_.index() == 0; }
  explicit operator bool() const { return has_value(); }
  T& value() & {
    CHECK(has_value(), "{}", std::get<1>(state_).message);
    return std::get<0>(state_);
  }
  const T& value() const& {
    CHECK(has_value(), "{}", std::get<1>(state_).message);
    return std::get<0>(state_);
  }
  T&& value() && {
    CHECK(has_value(), "{}", std::get<1>(state_).message);
    return std::get<0>(std::move(state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  const E& error() const {
    CHECK(!has_value());
    return std::get<1>(state_);
  }

 private:
  std::variant<T, E> state_;
};

/// Success or an Error.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)), failed_(true) {}

  bool has_value() const { return !failed_; }
  explicit operator bool() const { return has_value(); }
  const Error& error() const {
    CHECK(failed_);
    return error_;
  }

 private:
  Error error_{Errc::kIo, ""};
  bool failed_ = false;
};

/// Calls a function that may throw (bad_alloc, a library) where no exception may leave: on our own threads. The
/// function returns a Result.
template <typename Function>
std::invoke_result_t<Function> no_throw(Function function) {
  try {
    return function();
  } catch (const std::exception& error) {
    return Error{Errc::kIo, error.what()};
  }
}

}  // namespace outrider

#define OUTRIDER_CONCAT_INNER(a, b) a##b
#define OUTRIDER_CONCAT(a, b) OUTRIDER_CONCAT_INNER(a, b)

/// Returns the error of a Result<void> expression, if there is one.
#define RETURN_IF_ERROR(expression)                                    \
  do {                                                                 \
    if (auto status_ = (expression); !status_) return status_.error(); \
  } while (false)

/// ASSIGN_OR_RETURN(auto x, expression): x is the value, or the error is returned.
#define ASSIGN_OR_RETURN(declaration, expression) \
  ASSIGN_OR_RETURN_INNER(OUTRIDER_CONCAT(result_, __LINE__), declaration, expression)
#define ASSIGN_OR_RETURN_INNER(result, declaration, expression) \
  auto result = (expression);                                   \
  if (!result) return result.error();                           \
  declaration = std::move(result).value()
