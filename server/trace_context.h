#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace outrider {

/// The trace of a request, by W3C's Trace Context (https://www.w3.org/TR/trace-context/).
struct TraceContext {
  std::uint64_t trace_high = 0, trace_low = 0;  ///< both 0: no trace
  std::uint64_t span = 0;                       ///< the request's own here
  std::uint64_t parent = 0;                     ///< the caller's span; 0: the trace begins here
  bool sampled = false;                         ///< the caller keeps the trace

  bool is_traced() const { return (trace_high | trace_low) != 0; }

  /// Returns the context of a request with this header: in its trace, or in a new one if the header is invalid.
  static TraceContext begin(std::string_view traceparent);
  /// Returns the header of the reply, with the request's own span.
  std::string traceparent() const;
};

}  // namespace outrider
