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

/// A stretch of a request's time at one host.
struct Span {
  enum class Kind : std::uint8_t { kInternal = 1, kServer = 2, kClient = 3 };  ///< OTLP's numbers

  std::string_view host;  ///< the node's name
  std::string_view name;
  Kind kind = Kind::kInternal;
  std::uint64_t id = 0, parent = 0;
  std::int64_t begin_ns = 0, end_ns = 0;  ///< since 1970
  std::span<const SpanAttribute> attributes = {};
  std::string_view error = {};  ///< why it failed; empty: it did not
  bool wasted = false;          ///< work whose result was thrown away
  std::int32_t choice = 0;
};

/// These are known of a trace besides the request itself.
struct TraceFacts {
  std::string_view server, model;   ///< the server's name as a node, and the model's
  std::string_view kept;            ///< why the trace was not left out
  std::int64_t unix_offset_ns = 0;  ///< from TimePoint to the time since 1970
};

/// All spans of a request, parents first: the request; of each choice queue and prefill; of each round `round`, and in
/// it a `wire` for each message that was answered, which holds what the other host did meanwhile, `draft` or `verify`.
/// A host's part lies in the middle of its wire: the rest is split evenly between both directions, as in NTP. Rejected
/// drafts are a span `rejected` within their draft.
/// @param spans  called with each; what it points to lives as long as the call
void visit_spans(const RequestTrace& trace, const TraceFacts& facts, const std::function<void(const Span&)>& spans);

/// @return the resource that emits spans, as OTLP's JSON. @param host  the node's name
std::string otlp_resource(std::string_view version, std::string_view host);

/// Spans as OTLP's JSON (https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding), by host.
class OtlpWriter {
 public:
  explicit OtlpWriter(std::string version) : version_(std::move(version)) {}
  void add(const TraceContext& trace, const Span& span);
  std::int64_t spans() const { return spans_; }
  std::size_t bytes() const { return bytes_; }
  /// Takes all that was added, as one ExportTraceServiceRequest without a line feed. @pre spans() > 0
  std::string take();

 private:
  const std::string version_;
  std::map<std::string, std::string, std::less<>> hosts_;
  std::int64_t spans_ = 0;
  std::size_t bytes_ = 0;
};

/// Spans as events of Chrome's trace format, which Perfetto reads too: a process for each host, in it a thread for each
/// of the requests that are under way at once. Wasted work is red.
class ChromeWriter {
 public:
  /// A request's spans follow.
  void begin(const RequestTrace& trace);
  void add(const TraceContext& trace, const Span& span, std::string& out);

 private:
  std::map<std::string, int, std::less<>> hosts_;
  std::vector<TimePoint> lanes_;  ///< when the last request of each ended
  std::size_t lane_ = 0, lanes_wanted_ = 1;
};

}  // namespace outrider
