// Traces: which request is in which, which are kept, and what is written of one.
#include <map>
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "server/trace_spans.h"
#include "server/tracer.h"

namespace outrider {
namespace {

using nlohmann::json;

const std::string kTrace = "4bf92f3577b34da6a3ce929d0e0e4736", kParent = "00f067aa0ba902b7";

TEST(TraceContext, TakesAValidParentAndBeginsATraceForAnyOther) {
  const TraceContext taken = TraceContext::begin("00-" + kTrace + "-" + kParent + "-01");
  EXPECT_TRUE(taken.is_traced());
  EXPECT_TRUE(taken.sampled);
  EXPECT_EQ(taken.parent, 0x00f067aa0ba902b7u);
  EXPECT_EQ(taken.traceparent(), fmt::format("00-{}-{:016x}-01", kTrace, taken.span));
  EXPECT_FALSE(TraceContext::begin("00-" + kTrace + "-" + kParent + "-00").sampled);
  EXPECT_EQ(TraceContext::begin("cc-" + kTrace + "-" + kParent + "-01-later").parent, taken.parent)
      << "a later version";
  std::set<std::uint64_t> own;
  for (const std::string& other :
       {std::string(), "00-" + kTrace + "-" + kParent, "ff-" + kTrace + "-" + kParent + "-01",
        "00-" + kTrace + "-" + kParent + "-01-more", "00-" + std::string(32, '0') + "-" + kParent + "-01",
        "00-" + kTrace + "-" + std::string(16, '0') + "-01", "00-4BF92F3577B34DA6A3CE929D0E0E4736-" + kParent + "-01",
        "00-" + kTrace + "-" + kParent + "-0x"}) {
    const TraceContext begun = TraceContext::begin(other);
    EXPECT_TRUE(begun.is_traced()) << other;
    EXPECT_EQ(begun.parent, 0u) << other;
    EXPECT_FALSE(begun.sampled) << other;
    EXPECT_TRUE(own.insert(begun.trace_low).second) << other;
  }
}

/// One that took so many milliseconds for each of 10 tokens.
RequestTrace request(int ms_per_token) {
  RequestTrace trace{.context = TraceContext::begin(""),
                     .arrived = TimePoint(Duration(1)),
                     .path = "/v1/completions",
                     .operation = "text_completion"};
  trace.end = trace.arrived + std::chrono::milliseconds(10 * ms_per_token);
  trace.choices.resize(1);
  trace.choices[0].generated_tokens = 10;
  return trace;
}

TEST(TraceSampler, KeepsWhatFailedMovedOrWasSlowAndAShareOfTheRest) {
  TraceSampler none(0), all(1);
  EXPECT_EQ(none.why(request(5)), nullptr);
  EXPECT_STREQ(all.why(request(5)), "share");
  RequestTrace failed = request(5), moved = request(5), asked = request(5);
  failed.status = 503;
  moved.choices[0].metrics.failovers = 1;
  asked.context.sampled = true;
  EXPECT_STREQ(none.why(failed), "failed");
  EXPECT_STREQ(none.why(moved), "moved");
  EXPECT_STREQ(none.why(asked), "asked");
  for (int i = 0; i < 200; ++i) EXPECT_EQ(none.why(request(5 + i % 3)), nullptr) << i;
  EXPECT_STREQ(none.why(request(9)), "slow");
  EXPECT_EQ(none.why(request(5)), nullptr);
  // Everybody who takes a share of a trace's requests takes the same.
  TraceSampler half(0.5), other(0.5);
  int kept = 0;
  for (int i = 0; i < 400; ++i) {
    const RequestTrace trace = request(5);
    const char* const why = half.why(trace);
    EXPECT_EQ(why == nullptr, other.why(trace) == nullptr);
    kept += why != nullptr;
  }
  EXPECT_GT(kept, 120);
  EXPECT_LT(kept, 280);
}

RoundReport round_of(int drafted, int accepted, const std::string& drafter) {
  RoundReport report{.draft_length = 4, .drafts = {}, .outcome = {}, .depths = {}, .drafter = drafter};
  report.outcome.drafted = drafted;
  report.outcome.accepted = accepted;
  report.outcome.draft_s = drafted > 0 ? 0.002 : 0;
  report.outcome.draft_wire_s = 0.001;
  report.outcome.verify_s = 0.004;
  report.outcome.waited_s = 0.001;
  report.outcome.batch_rows = 7;
  report.outcome.round_s = 0.010;
  return report;
}

/// Ten tokens in rounds of 10 ms.
RequestTrace answered() {
  RequestTrace trace = request(5);
  TracedChoice& choice = trace.choices[0];
  TimePoint at = trace.arrived + std::chrono::milliseconds(20);
  choice.add(at, nullptr, "v1");
  const auto add = [&](const RoundReport& report, const std::string& verifier) {
    at += std::chrono::milliseconds(10);
    choice.add(at, &report, verifier);
  };
  add(round_of(4, 1, "d1"), "v1");
  add(round_of(4, 4, ""), "v1");
  add(round_of(0, 0, ""), "v2");
  add(round_of(2, 0, "d2"), "v2");
  trace.end = at;
  choice.finish_reason = "stop";
  choice.metrics.prefill_ns = 15'000'000;
  choice.metrics.queue_ns = 4'000'000;
  return trace;
}

TEST(Tracer, ThatCannotWriteSaysSo) {
  const auto file = Tracer::start({.file = "/no/folder/trace"});
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().message, "/no/folder/trace: No such file or directory");
  EXPECT_EQ(Tracer::start({.otlp = "somewhere"}).error().code, Errc::kInvalidArgument);
}

TEST(TraceSpans, LieWithinTheirParentsAtTheirHosts) {
  struct Seen {
    std::string host, name;
    std::int64_t begin, end;
    bool wasted;
    std::uint64_t parent;
  };
  std::map<std::uint64_t, Seen> spans;
  std::multiset<std::string> names;
  const RequestTrace trace = answered();
  visit_spans(trace, {.server = "s", .model = "m", .kept = "share"}, [&](const Span& span) {
    const Seen seen{
        std::string(span.host), std::string(span.name), span.begin_ns, span.end_ns, span.wasted, span.parent};
    EXPECT_TRUE(spans.emplace(span.id, seen).second) << "an id twice";
    EXPECT_LE(span.begin_ns, span.end_ns) << span.name;
    names.insert(fmt::format("{}@{}", span.name, span.host));
    if (span.id == trace.context.span) return;
    ASSERT_TRUE(spans.contains(span.parent)) << span.name;
    EXPECT_GE(span.begin_ns, spans[span.parent].begin) << span.name;
    EXPECT_LE(span.end_ns, spans[span.parent].end) << span.name;
    EXPECT_EQ(span.wasted,
              span.name == "rejected" || (span.name == "wire" && span.end_ns - span.begin_ns == 1'000'000));
  });
  EXPECT_EQ(names, (std::multiset<std::string>{"text_completion m@s",
                                               "queue@coordinator",
                                               "prefill@v1",
                                               "round@coordinator",
                                               "round@coordinator",
                                               "round@coordinator",
                                               "round@coordinator",
                                               "wire@coordinator",
                                               "wire@coordinator",
                                               "wire@coordinator",
                                               "wire@coordinator",
                                               "wire@coordinator",
                                               "wire@coordinator",
                                               "wire@coordinator",
                                               "wire@coordinator",
                                               "draft@d1",
                                               "draft@d1",
                                               "draft@d2",
                                               "rejected@d1",
                                               "rejected@d2",
                                               "verify@v1",
                                               "verify@v1",
                                               "verify@v2",
                                               "verify@v2"}));
  for (const auto& [id, span] : spans) {
    const auto length = static_cast<double>(span.end - span.begin);
    if (span.name == "draft") {
      EXPECT_NEAR(length, 2e6, 1000);
    } else if (span.name == "verify") {
      EXPECT_NEAR(length, 4e6, 1000);
    } else if (span.name == "rejected") {
      EXPECT_NEAR(length, span.host == "d1" ? 1.5e6 : 2e6, 1000);
    }
  }
}

// A drafter's own time may be all of the round's as the coordinator measured it, and a little more.
TEST(TraceSpans, OfDraftsThatTookLongerThanTheirRoundLieWithinIt) {
  RequestTrace trace = request(5);
  RoundReport report = round_of(4, 1, "d");
  report.outcome.draft_s = 0.012;
  const TimePoint first = trace.arrived + std::chrono::milliseconds(20);
  trace.choices[0].add(first, nullptr, "v");
  trace.choices[0].add(trace.end = first + std::chrono::milliseconds(10), &report, "v");
  std::map<std::uint64_t, std::pair<std::int64_t, std::int64_t>> times;
  bool drafted = false;
  visit_spans(trace, {.server = "s", .model = "m", .kept = "share"}, [&](const Span& span) {
    times[span.id] = {span.begin_ns, span.end_ns};
    drafted = drafted || span.name == "draft";
    if (span.id == trace.context.span) return;
    EXPECT_GE(span.begin_ns, times.at(span.parent).first) << span.name;
    EXPECT_LE(span.end_ns, times.at(span.parent).second) << span.name;
  });
  EXPECT_TRUE(drafted);
}

TEST(TraceSpans, OfMoreRoundsThanAreKeptAreCounted) {
  RequestTrace trace = request(5);
  TimePoint at = trace.arrived;
  for (std::size_t i = 0; i < TracedChoice::kRoundsMax + 5; ++i)
    trace.choices[0].add(at += Duration(10), std::make_unique<RoundReport>(round_of(1, 1, "d")).get(), "v");
  EXPECT_EQ(trace.choices[0].rounds.size(), TracedChoice::kRoundsMax);
  EXPECT_EQ(trace.choices[0].rounds_left_out, 5);
  EXPECT_LT(trace.bytes(), 2 * TracedChoice::kRoundsMax * sizeof(TracedRound) + 10'000);
}

TEST(TraceWriters, EscapeWhatStrangersSay) {
  RequestTrace trace = answered();
  trace.error = "a \"quote\", \\ and a line\nfeed, \xff";
  trace.status = 500;
  OtlpWriter otlp("1.0");
  ChromeWriter chrome;
  std::string events;
  chrome.begin(trace);
  visit_spans(trace, {.server = "s\"", .model = "m", .kept = "failed"}, [&](const Span& span) {
    otlp.add(trace.context, span);
    chrome.add(trace.context, span, events);
  });
  const std::int64_t spans = otlp.spans();
  const json message = json::parse(otlp.take());
  EXPECT_EQ(otlp.spans(), 0);
  std::int64_t seen = 0;
  bool failed = false;
  for (const json& resource : message["resourceSpans"]) {
    for (const json& span : resource["scopeSpans"][0]["spans"]) {
      ++seen;
      if (span.contains("status"))
        failed = span["status"]["message"].get<std::string>().starts_with("a \"quote\", \\ and a line\nfeed, ");
    }
  }
  EXPECT_EQ(seen, spans);
  EXPECT_TRUE(failed);
  events.erase(events.rfind(','));
  int wasted = 0;
  for (const json& event : json::parse("[" + events + "]")) wasted += event.value("cname", "") == "terrible";
  EXPECT_EQ(wasted, 1 + 2 + 1) << "the request, rejected drafts, a late drafter";
}

TEST(TraceSpans, OfARequestSayWhatGenAiConventionsWant) {
  RequestTrace trace = answered();
  trace.choices.resize(3);  // the last was cut short
  trace.choices[1].finish_reason = "length";
  trace.status = 503;
  OtlpWriter otlp("1.0");
  visit_spans(trace, {.server = "s", .model = "m", .kept = "failed"}, [&](const Span& span) {
    if (span.id == trace.context.span) otlp.add(trace.context, span);
  });
  const json span = json::parse(otlp.take())["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
  EXPECT_EQ(span["name"], "text_completion m");
  std::map<std::string, json> values;
  for (const json& attribute : span["attributes"]) values[attribute["key"]] = attribute["value"];
  const auto text = [](const char* value) { return json{{"stringValue", value}}; };
  EXPECT_EQ(values["gen_ai.operation.name"], text("text_completion"));
  EXPECT_EQ(values["gen_ai.provider.name"], text("outrider"));
  EXPECT_EQ(values["gen_ai.request.model"], text("m"));
  EXPECT_EQ(values["gen_ai.response.model"], text("m"));
  EXPECT_EQ(values["error.type"], text("503"));
  EXPECT_EQ(values["gen_ai.response.finish_reasons"],
            (json{{"arrayValue", {{"values", {text("stop"), text("length")}}}}}));
}

TEST(ChromeWriter, GivesRequestsThatOverlapLinesOfTheirOwn) {
  ChromeWriter chrome;
  const auto lines_of = [&](int from_ms, int to_ms, std::size_t choices) {
    RequestTrace trace{.context = TraceContext::begin(""), .path = "/"};
    trace.arrived = TimePoint(std::chrono::milliseconds(from_ms));
    trace.end = TimePoint(std::chrono::milliseconds(to_ms));
    trace.choices.resize(choices);
    std::string events;
    chrome.begin(trace);
    for (std::size_t i = 0; i < std::max<std::size_t>(choices, 1); ++i)
      chrome.add(trace.context, {.host = "h", .name = "n", .id = 1, .choice = static_cast<std::int32_t>(i)}, events);
    std::set<int> lines;
    events.erase(events.rfind(','));
    for (const json& event : json::parse("[" + events + "]"))
      if (event["ph"] == "X") lines.insert(event["tid"].get<int>());
    return lines;
  };
  EXPECT_EQ(lines_of(0, 10, 1), std::set{1});
  EXPECT_EQ(lines_of(5, 12, 2), (std::set{2, 3}));
  EXPECT_EQ(lines_of(10, 13, 1), std::set{1});
  EXPECT_EQ(lines_of(11, 14, 1), std::set{4});
  EXPECT_EQ(lines_of(13, 20, 3), (std::set{1, 2, 3}));
}

}  // namespace
}  // namespace outrider
