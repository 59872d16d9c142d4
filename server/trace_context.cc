#include "server/trace_context.h"

#include <fmt/format.h>

#include "common/base/text.h"
#include "server/random_id.h"

namespace outrider {
namespace {

std::uint64_t random_id_not_0() {
  while (true) {
    if (const std::uint64_t id = random_number(); id != 0) return id;
  }
}

}  // namespace

TraceContext TraceContext::begin(std::string_view traceparent) {
  TraceContext context{.span = random_id_not_0()};
  // 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01; later versions may append more.
  constexpr std::size_t kSize = 55;
  const bool has_form = traceparent.size() >= kSize && traceparent[2] == '-' && traceparent[35] == '-' &&
                        traceparent[52] == '-' && (traceparent.size() == kSize || traceparent[kSize] == '-') &&
                        traceparent.substr(0, kSize).find_first_of("ABCDEF") == traceparent.npos;
  if (has_form) {
    const auto hex = [&](std::size_t at, std::size_t digits) {
      return to_number<std::uint64_t>(traceparent.substr(at, digits), 16);
    };
    const auto version = hex(0, 2), high = hex(3, 16), low = hex(19, 16), parent = hex(36, 16), flags = hex(53, 2);
    const bool is_known = version && *version != 0xff && (*version != 0 || traceparent.size() == kSize);
    if (is_known && high && low && (*high | *low) != 0 && parent && *parent != 0 && flags) {
      context.trace_high = *high;
      context.trace_low = *low;
      context.parent = *parent;
      context.sampled = (*flags & 1) != 0;
      return context;
    }
  }
  context.trace_high = random_number();
  context.trace_low = random_id_not_0();
  return context;
}

std::string TraceContext::traceparent() const {
  return fmt::format("00-{:016x}{:016x}-{:016x}-{:02x}", trace_high, trace_low, span, sampled ? 1 : 0);
}

}  // namespace outrider
