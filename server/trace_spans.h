#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/request_trace.h"

namespace outrider {

/// An attribute of a span, under OpenTelemetry's name where it has one.
struct SpanAttribute {
  std::string_view key;
  std::variant<std::int64_t, double, bool, std::string_view, std::span<const std::string_view>> value;
};

/// A time span of a request at one host.
struct Span {
  enum class Kind : std::uint8_t { kInternal = 1, kServer = 2, kClient = 3 };  ///< OTLP's numbers

  std::string_view host;  ///< the node's name
  std::string_view name;
  Kind kind = Kind::kInternal;
  std::uint64_t id = 0, parent = 0;
  std::int64_t begin_ns = 0, end_ns = 0;  ///< since 1970
  std::span<const SpanAttribute> attributes = {};
  std::string_view error = {};  ///< reason of a failure; empty: none
  bool wasted = false;          ///< work whose result was discarded
  std::int32_t choice = 0;
};

/// Facts about a trace besides the request itself.
struct TraceFacts {
  std::string_view server, model;   ///< the server's node name, and the model's
  std::string_view kept;            ///< reason that the trace is kept
  std::int64_t unix_offset_ns = 0;  ///< from TimePoint to the time since 1970
};

/// Visits all spans of a request, parents first: the request; per choice queue and prefill; per round `round`, and in
/// it a `wire` for each answered message, which contains the other host's work, `draft` or `verify`. A host's part is
/// in the middle of its wire: the rest is split evenly between both directions, as in NTP. Rejected drafts are a span
/// `rejected` within their draft. @param spans  called with each; its contents are valid during the call
void visit_spans(const RequestTrace& trace, const TraceFacts& facts, const std::function<void(const Span&)>& spans);

/// Writes spans in OTLP's JSON (https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding), by host.
class OtlpWriter {
 public:
  explicit OtlpWriter(std::string version) : version_(std::move(version)) {}
  void add(const TraceContext& trace, const Span& span);
  std::int64_t spans() const { return spans_; }
  std::size_t bytes() const { return bytes_; }
  /// Returns the added spans as one ExportTraceServiceRequest without a line feed. @pre spans() > 0
  std::string take();

 private:
  const std::string version_;
  std::map<std::string, std::string, std::less<>> hosts_;
  std::int64_t spans_ = 0;
  std::size_t bytes_ = 0;
};

/// Writes spans as events of Chrome's trace format, which Perfetto reads too: a process per host, with a thread per
/// concurrent request. Wasted work is red.
class ChromeWriter {
 public:
  /// Begins the spans of a request.
  void begin(const RequestTrace& trace);
  void add(const TraceContext& trace, const Span& span, std::string& out);

 private:
  std::map<std::string, int, std::less<>> hosts_;
  std::vector<TimePoint> lanes_;  ///< end of the last request of each
  std::size_t lane_ = 0, lanes_wanted_ = 1;
};

}  // namespace outrider
