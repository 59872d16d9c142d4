#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace outrider {

/// Which trace a request belongs to, as W3C's Trace Context has it (https://www.w3.org/TR/trace-context/).
struct TraceContext {
  std::uint64_t trace_high = 0, trace_low = 0;  ///< both 0: the request is in no trace
  std::uint64_t span = 0;                       ///< the request's own here
  std::uint64_t parent = 0;                     ///< the span of whoever asked; 0: the trace begins here
  bool sampled = false;                         ///< whoever asked keeps the trace

  bool is_traced() const { return (trace_high | trace_low) != 0; }

  /// A request that came with this header: in its trace, or in a new one where it is no valid `traceparent`.
  static TraceContext begin(std::string_view traceparent);
  /// The header that answers it, with the request's own span.
  std::string traceparent() const;
};

}  // namespace outrider
