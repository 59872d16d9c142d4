#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/api_server.h"

namespace outrider {

/// gen_ai.provider.name; OpenTelemetry's list has no value for this server.
inline constexpr std::string_view kGenAiProvider = "outrider";

/// The metrics of OpenTelemetry's GenAI conventions for a model server, as sums since the start:
/// gen_ai.server.request.duration, .time_to_first_token and .time_per_output_token, with the recommended buckets
/// (https://github.com/open-telemetry/semantic-conventions-genai, "Generative AI model server metrics"). One thread at
/// a time.
class GenAiMetrics {
 public:
  void record(const FinishedRequest& request);
  bool empty() const { return series_.empty(); }
  /// Writes one ExportMetricsServiceRequest in OTLP's JSON. @pre not empty() @param resource  from otlp_resource()
  /// @param model  the served model
  std::string otlp(std::string_view resource, std::string_view model, std::int64_t begin_unix_ns,
                   std::int64_t now_unix_ns) const;

 private:
  struct Histogram {
    std::vector<std::int64_t> counts = {};  ///< per bucket; empty: nothing was counted
    std::int64_t count = 0;
    double sum = 0;
  };
  static constexpr std::size_t kMetrics = 3;
  /// Histograms by operation and error.type, which is empty for success.
  std::map<std::pair<std::string, std::string>, std::array<Histogram, kMetrics>> series_;
};

}  // namespace outrider
