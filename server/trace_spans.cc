#include "server/trace_spans.h"

#include <algorithm>
#include <concepts>
#include <iterator>
#include <type_traits>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/json_fields.h"
#include "common/base/random.h"

namespace outrider {
namespace {

constexpr std::string_view kCoordinator = "coordinator";

std::int64_t nanoseconds(float seconds) { return static_cast<std::int64_t>(static_cast<double>(seconds) * 1e9); }

/// Makes the spans of one choice.
class ChoiceSpans {
 public:
  ChoiceSpans(const RequestTrace& trace, std::size_t index, const TraceFacts& facts,
              const std::function<void(const Span&)>& spans, std::uint64_t& ids)
      : trace_(trace),
        choice_(trace.choices[index]),
        index_(static_cast<std::int32_t>(index)),
        facts_(facts),
        spans_(spans),
        ids_(ids) {}

  void visit() {
    if (choice_.first_token == TimePoint()) return;
    std::int64_t at = time(choice_.first_token);
    const std::int64_t opened = std::max(at - choice_.metrics.prefill_ns, time(trace_.arrived));
    const std::int64_t started = std::min(opened + choice_.metrics.queue_ns, at);
    const std::int64_t cached = choice_.metrics.cached_prompt_tokens;
    const SpanAttribute prompt[] = {{"outrider.prompt_tokens", trace_.prompt_tokens / count()},
                                    {"outrider.cached_tokens", cached}};
    if (!choice_.finish_reason.empty()) {  // otherwise unknown
      if (started > opened) add({.host = kCoordinator, .name = "queue", .begin_ns = opened, .end_ns = started});
      const std::uint16_t first = choice_.rounds.empty() ? std::uint16_t{0} : choice_.rounds[0].verifier;
      const std::string_view verifier = choice_.workers.empty() ? kCoordinator : worker(first);
      add({.host = verifier, .name = "prefill", .begin_ns = started, .end_ns = at, .attributes = prompt});
    }
    for (const TracedRound& round : choice_.rounds) at = visit(round, at);
  }

 private:
  /// @param at  end of the previous round @return end of this one
  std::int64_t visit(const TracedRound& round, std::int64_t at) {
    const std::int64_t end = std::max(time(round.end), at);
    const std::int64_t begin = std::clamp(end - nanoseconds(round.round_s), at, end);
    const SpanAttribute facts[] = {{"outrider.source", std::string_view(to_string(round.source))},
                                   {"outrider.wanted", std::int64_t{round.wanted}},
                                   {"outrider.drafted", std::int64_t{round.drafted}},
                                   {"outrider.accepted", std::int64_t{round.accepted}},
                                   {"outrider.ahead", round.ahead}};
    const std::uint64_t id =
        add({.host = kCoordinator, .name = "round", .begin_ns = begin, .end_ns = end, .attributes = facts});
    const std::int64_t exchange =
        nanoseconds(round.draft_s) + nanoseconds(round.draft_wire_s) + nanoseconds(round.draft_waited_s);
    const std::int64_t drafted = std::min(begin + exchange, end);
    if (drafted > begin) visit_draft(round, id, begin, drafted);
    visit_verify(round, id, drafted, end);
    return end;
  }

  void visit_draft(const TracedRound& round, std::uint64_t parent, std::int64_t begin, std::int64_t end) {
    const bool late = round.drafted == 0;  // the drafter's work is unknown
    const std::uint64_t wire = add_wire(parent, begin, end, late);
    const std::int64_t work = std::min(nanoseconds(round.draft_s), end - begin);
    if (late || work == 0) return;
    const std::int64_t to = end - (end - begin - work) / 2, from = std::max(to - work, begin);
    const SpanAttribute facts[] = {{"outrider.drafted", std::int64_t{round.drafted}}};
    const std::uint64_t draft = add({.host = worker(round.drafter),
                                     .name = "draft",
                                     .kind = Span::Kind::kServer,
                                     .parent = wire,
                                     .begin_ns = from,
                                     .end_ns = to,
                                     .attributes = facts});
    if (round.accepted == round.drafted) return;
    const std::int64_t kept = (to - from) * round.accepted / round.drafted;
    add({.host = worker(round.drafter),
         .name = "rejected",
         .parent = draft,
         .begin_ns = from + kept,
         .end_ns = to,
         .wasted = true});
  }

  void visit_verify(const TracedRound& round, std::uint64_t parent, std::int64_t begin, std::int64_t end) {
    const std::uint64_t wire = add_wire(parent, begin, end);
    const std::int64_t work = std::min(nanoseconds(round.verify_s), end - begin);
    const std::int64_t waited = std::min(nanoseconds(round.waited_s), end - begin - work);
    const std::int64_t from = begin + (end - begin - work - waited) / 2 + waited;
    const SpanAttribute facts[] = {{"outrider.rows", std::int64_t{round.drafted} + 1},
                                   {"outrider.batch_rows", std::int64_t{round.batch_rows}},
                                   {"outrider.waited_ms", static_cast<double>(waited) / 1e6}};
    add({.host = worker(round.verifier),
         .name = "verify",
         .kind = Span::Kind::kServer,
         .parent = wire,
         .begin_ns = from,
         .end_ns = from + work,
         .attributes = facts});
  }

  std::uint64_t add_wire(std::uint64_t parent, std::int64_t begin, std::int64_t end, bool wasted = false) {
    return add({.host = kCoordinator,
                .name = "wire",
                .kind = Span::Kind::kClient,
                .parent = parent,
                .begin_ns = begin,
                .end_ns = end,
                .wasted = wasted});
  }
  std::uint64_t add(Span span) {
    span.id = std::max<std::uint64_t>(mix64(++ids_), 1);  // 0 is no id
    if (span.parent == 0) span.parent = trace_.context.span;
    span.choice = index_;
    spans_(span);
    return span.id;
  }
  std::int64_t time(TimePoint point) const { return point.time_since_epoch().count() + facts_.unix_offset_ns; }
  std::int64_t count() const { return std::ssize(trace_.choices); }
  std::string_view worker(std::uint16_t index) const {
    return choice_.workers.empty() ? std::string_view("?") : std::string_view(choice_.workers[index]);
  }

  const RequestTrace& trace_;
  const TracedChoice& choice_;
  const std::int32_t index_;
  const TraceFacts& facts_;
  const std::function<void(const Span&)>& spans_;
  std::uint64_t& ids_;
};

// ---- text, without an object per value: a round has five spans ----

std::string quoted(std::string_view text) {
  const bool plain = std::ranges::all_of(text, [](char c) { return c >= 0x20 && c < 0x7f && c != '"' && c != '\\'; });
  return plain ? fmt::format("\"{}\"", text) : to_text(nlohmann::json(text));
}

/// @param typed  as OTLP's AnyValue, with its kind as the key
std::string value_of(const SpanAttribute& attribute, bool typed) {
  return std::visit(
      [&](const auto& value) {
        using T = std::remove_cvref_t<decltype(value)>;
        if constexpr (std::same_as<T, std::int64_t>) {
          return typed ? fmt::format(R"({{"intValue":"{}"}})", value) : fmt::format("{}", value);
        } else if constexpr (std::same_as<T, std::string_view>) {
          return typed ? fmt::format(R"({{"stringValue":{}}})", quoted(value)) : quoted(value);
        } else if constexpr (std::same_as<T, std::span<const std::string_view>>) {
          std::string values;
          for (const std::string_view one : value) values += (values.empty() ? "" : ",") + value_of({"", one}, typed);
          return typed ? fmt::format(R"({{"arrayValue":{{"values":[{}]}}}})", values) : fmt::format("[{}]", values);
        } else {
          constexpr const char* kKind = std::same_as<T, bool> ? "boolValue" : "doubleValue";
          return typed ? fmt::format(R"({{"{}":{}}})", kKind, value) : fmt::format("{}", value);
        }
      },
      attribute.value);
}

/// Returns the Resource of a host's spans, in OTLP's JSON.
std::string otlp_resource(std::string_view version, std::string_view host) {
  const auto text = [](const char* key, std::string_view value) {
    return fmt::format(R"({{"key":"{}","value":{{"stringValue":{}}}}})", key, quoted(value));
  };
  return fmt::format(R"({{"attributes":[{},{},{}]}})", text("service.name", "outrider"),
                     text("service.version", version), text("service.instance.id", host));
}

/// Nanoseconds as Chrome's microseconds.
std::string microseconds(std::int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

}  // namespace

void visit_spans(const RequestTrace& trace, const TraceFacts& facts, const std::function<void(const Span&)>& spans) {
  RequestMetrics sum;
  std::int64_t generated = 0, left_out = 0;
  for (const TracedChoice& choice : trace.choices) {
    add(sum, choice.metrics);
    generated += choice.generated_tokens;
    left_out += choice.rounds_left_out;
  }
  std::vector<std::string_view> finish_reasons;
  for (const TracedChoice& choice : trace.choices)
    if (!choice.finish_reason.empty()) finish_reasons.push_back(choice.finish_reason);
  const std::string name = fmt::format("{} {}", trace.operation, facts.model), status = std::to_string(trace.status);
  std::vector<SpanAttribute> attributes = {{"http.request.method", std::string_view("POST")},
                                           {"http.route", std::string_view(trace.path)},
                                           {"http.response.status_code", std::int64_t{trace.status}},
                                           {"gen_ai.operation.name", trace.operation},
                                           {"gen_ai.provider.name", std::string_view("outrider")},
                                           {"gen_ai.request.model", facts.model},
                                           {"gen_ai.response.model", facts.model},
                                           {"gen_ai.usage.input_tokens", trace.prompt_tokens},
                                           {"gen_ai.usage.output_tokens", generated},
                                           {"outrider.kept", facts.kept},
                                           {"outrider.choices", static_cast<std::int64_t>(trace.choices.size())},
                                           {"outrider.rounds", sum.rounds},
                                           {"outrider.drafted", sum.drafted_tokens},
                                           {"outrider.accepted", sum.accepted_tokens},
                                           {"outrider.failovers", sum.failovers},
                                           {"outrider.resumes", sum.resumes}};
  if (!trace.id.empty()) attributes.push_back({"gen_ai.response.id", std::string_view(trace.id)});
  if (!finish_reasons.empty()) attributes.push_back({"gen_ai.response.finish_reasons", finish_reasons});
  if (trace.status != 200) attributes.push_back({"error.type", std::string_view(status)});
  if (left_out > 0) attributes.push_back({"outrider.rounds_left_out", left_out});
  spans({.host = facts.server,
         .name = name,
         .kind = Span::Kind::kServer,
         .id = trace.context.span,
         .parent = trace.context.parent,
         .begin_ns = trace.arrived.time_since_epoch().count() + facts.unix_offset_ns,
         .end_ns = trace.end.time_since_epoch().count() + facts.unix_offset_ns,
         .attributes = attributes,
         .error = trace.error});
  std::uint64_t ids = trace.context.span;
  for (std::size_t i = 0; i < trace.choices.size(); ++i) ChoiceSpans(trace, i, facts, spans, ids).visit();
}

// ---- OTLP ----

void OtlpWriter::add(const TraceContext& trace, const Span& span) {
  auto found = hosts_.find(span.host);
  if (found == hosts_.end()) found = hosts_.emplace(std::string(span.host), std::string()).first;
  std::string& out = found->second;
  const std::size_t before = out.size();
  const auto to_out = std::back_inserter(out);
  fmt::format_to(to_out, R"({}{{"traceId":"{:016x}{:016x}","spanId":"{:016x}")", out.empty() ? "" : ",",
                 trace.trace_high, trace.trace_low, span.id);
  if (span.parent != 0) fmt::format_to(to_out, R"(,"parentSpanId":"{:016x}")", span.parent);
  fmt::format_to(to_out, R"(,"name":{},"kind":{},"startTimeUnixNano":"{}","endTimeUnixNano":"{}","attributes":[)",
                 quoted(span.name), static_cast<int>(span.kind), span.begin_ns, span.end_ns);
  auto attribute = [&, comma = ""](const SpanAttribute& one) mutable {
    fmt::format_to(to_out, R"({}{{"key":"{}","value":{}}})", std::exchange(comma, ","), one.key,
                   value_of(one, /*typed=*/true));
  };
  std::ranges::for_each(span.attributes, std::ref(attribute));
  if (span.wasted) attribute({"outrider.wasted", true});
  if (span.choice > 0) attribute({"outrider.choice", std::int64_t{span.choice}});
  out += "]";
  if (!span.error.empty()) fmt::format_to(to_out, R"(,"status":{{"code":2,"message":{}}})", quoted(span.error));
  out += "}";
  ++spans_;
  bytes_ += out.size() - before;
}

std::string OtlpWriter::take() {
  std::string body = "{\"resourceSpans\":[";
  body.reserve(bytes_ + 512 * hosts_.size());
  for (const auto& [host, spans] : hosts_) {
    fmt::format_to(std::back_inserter(body), R"({}{{"resource":{},"scopeSpans":[)", body.back() == '[' ? "" : ",",
                   otlp_resource(version_, host));
    body.append(R"({"scope":{"name":"outrider"},"spans":[)").append(spans).append("]}]}");
  }
  body += "]}";
  hosts_.clear();
  spans_ = 0;
  bytes_ = 0;
  return body;
}

// ---- Chrome ----

void ChromeWriter::begin(const RequestTrace& trace) {
  // Requests come in the order of their ends: a request that starts after the last end in a lane overlaps none there.
  lanes_wanted_ = std::max<std::size_t>(trace.choices.size(), 1);
  for (lane_ = 0; lane_ < lanes_.size(); ++lane_) {
    const std::size_t last = std::min(lane_ + lanes_wanted_, lanes_.size());
    if (std::all_of(lanes_.begin() + static_cast<std::ptrdiff_t>(lane_),
                    lanes_.begin() + static_cast<std::ptrdiff_t>(last),
                    [&](TimePoint end) { return end <= trace.arrived; }))
      break;
  }
  lanes_.resize(std::max(lanes_.size(), lane_ + lanes_wanted_));
  std::fill_n(lanes_.begin() + static_cast<std::ptrdiff_t>(lane_), lanes_wanted_, trace.end);
}

void ChromeWriter::add(const TraceContext& trace, const Span& span, std::string& out) {
  const auto to_out = std::back_inserter(out);
  auto host = hosts_.find(span.host);
  if (host == hosts_.end()) {
    host = hosts_.emplace(std::string(span.host), static_cast<int>(hosts_.size()) + 1).first;
    fmt::format_to(to_out, R"({{"ph":"M","name":"process_name","pid":{},"args":{{"name":{}}}}},)", host->second,
                   quoted(span.host));
    out += "\n";
  }
  fmt::format_to(to_out, R"({{"ph":"X","name":{},"pid":{},"tid":{},"ts":{},"dur":{},{}"args":{{)", quoted(span.name),
                 host->second, lane_ + static_cast<std::size_t>(span.choice) + 1, microseconds(span.begin_ns),
                 microseconds(span.end_ns - span.begin_ns),
                 span.wasted || !span.error.empty() ? R"("cname":"terrible",)" : "");
  auto argument = [&, comma = ""](std::string_view key, const std::string& value) mutable {
    fmt::format_to(to_out, R"({}"{}":{})", std::exchange(comma, ","), key, value);
  };
  for (const SpanAttribute& attribute : span.attributes) argument(attribute.key, value_of(attribute, /*typed=*/false));
  if (span.kind == Span::Kind::kServer && span.id == trace.span)
    argument("trace", fmt::format(R"("{:016x}{:016x}")", trace.trace_high, trace.trace_low));
  if (!span.error.empty()) argument("error", quoted(span.error));
  out += "}},\n";
}

}  // namespace outrider
