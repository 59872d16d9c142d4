#include "server/gen_ai_metrics.h"

#include <algorithm>
#include <span>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/json_fields.h"
#include "common/base/time.h"

namespace outrider {
namespace {
using Json = nlohmann::json;

constexpr double kDurationBounds[] = {0.01, 0.02, 0.04, 0.08,  0.16,  0.32,  0.64,
                                      1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92};
constexpr double kFirstTokenBounds[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                        0.25,  0.5,   0.75, 1.0,  2.5,  5.0,  7.5,  10.0};
constexpr double kPerTokenBounds[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5};

enum Metric : std::size_t { kDuration, kFirstToken, kPerToken };
struct MetricKind {
  const char *name, *description;
  std::span<const double> bounds;
};
constexpr MetricKind kKinds[] = {
    {"gen_ai.server.request.duration", "Arrival of a request to its end", kDurationBounds},
    {"gen_ai.server.time_to_first_token", "Arrival of a request to its first token, of those that succeeded",
     kFirstTokenBounds},
    {"gen_ai.server.time_per_output_token", "Time for each token after the first, of answers that succeeded",
     kPerTokenBounds}};

Json attribute(const char* key, std::string_view value) { return {{"key", key}, {"value", {{"stringValue", value}}}}; }

}  // namespace

void GenAiMetrics::record(const FinishedRequest& request) {
  const bool failed = request.status != 200;
  auto& series = series_[{std::string(request.operation), failed ? std::to_string(request.status) : ""}];
  const auto add = [&](Metric metric, double seconds) {
    const std::span<const double> bounds = kKinds[metric].bounds;
    Histogram& histogram = series[metric];
    histogram.counts.resize(bounds.size() + 1);
    ++histogram.counts[static_cast<std::size_t>(std::ranges::lower_bound(bounds, seconds) - bounds.begin())];
    ++histogram.count;
    histogram.sum += seconds;
  };
  add(kDuration, to_seconds(request.total));
  if (failed) return;
  if (request.time_to_first_token) add(kFirstToken, to_seconds(*request.time_to_first_token));
  for (const FinishedChoice& choice : request.choices) {
    if (choice.generated_tokens > 1)
      add(kPerToken,
          static_cast<double>(choice.metrics.decode_ns) / 1e9 / static_cast<double>(choice.generated_tokens - 1));
  }
}

std::string GenAiMetrics::otlp(std::string_view resource, std::string_view model, std::int64_t begin_unix_ns,
                               std::int64_t now_unix_ns) const {
  // protobuf's JSON writes 64-bit integers as strings.
  Json metrics = Json::array();
  for (std::size_t i = 0; i < kMetrics; ++i) {
    Json points = Json::array();
    for (const auto& [labels, series] : series_) {
      const Histogram& histogram = series[i];
      if (histogram.count == 0) continue;
      Json attributes = {attribute("gen_ai.operation.name", labels.first),
                         attribute("gen_ai.provider.name", kGenAiProvider), attribute("gen_ai.request.model", model),
                         attribute("gen_ai.response.model", model)};
      if (!labels.second.empty()) attributes.push_back(attribute("error.type", labels.second));
      Json counts = Json::array();
      for (const std::int64_t count : histogram.counts) counts.push_back(std::to_string(count));
      points.push_back({{"attributes", std::move(attributes)},
                        {"startTimeUnixNano", std::to_string(begin_unix_ns)},
                        {"timeUnixNano", std::to_string(now_unix_ns)},
                        {"count", std::to_string(histogram.count)},
                        {"sum", histogram.sum},
                        {"bucketCounts", std::move(counts)},
                        {"explicitBounds", std::vector<double>(kKinds[i].bounds.begin(), kKinds[i].bounds.end())}});
    }
    if (points.empty()) continue;
    constexpr int kCumulative = 2;
    metrics.push_back({{"name", kKinds[i].name},
                       {"description", kKinds[i].description},
                       {"unit", "s"},
                       {"histogram", {{"aggregationTemporality", kCumulative}, {"dataPoints", std::move(points)}}}});
  }
  return fmt::format(
      R"({{"resourceMetrics":[{{"resource":{},"scopeMetrics":[{{"scope":{{"name":"outrider"}},"metrics":{}}}]}}]}})",
      resource, to_text(metrics));
}

}  // namespace outrider
