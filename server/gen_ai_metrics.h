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

/// gen_ai.provider.name: none of OpenTelemetry's list is who answers here.
inline constexpr std::string_view kGenAiProvider = "outrider";

/// The metrics that OpenTelemetry's GenAI conventions have for a model server, as sums since the start:
/// gen_ai.server.request.duration, .time_to_first_token and .time_per_output_token, with the buckets that they advise
/// (https://github.com/open-telemetry/semantic-conventions-genai, "Generative AI model server metrics"). One thread at
/// a time.
class GenAiMetrics {
 public:
  void record(const FinishedRequest& request);
  bool empty() const { return series_.empty(); }
  /// It writes one ExportMetricsServiceRequest of OTLP's JSON. @pre not empty()
  /// @param resource  as otlp_resource(). @param model  that there is
  std::string otlp(std::string_view resource, std::string_view model, std::int64_t begin_unix_ns,
                   std::int64_t now_unix_ns) const;

 private:
  struct Histogram {
    std::vector<std::int64_t> counts = {};  ///< of each bucket; empty: nothing was counted
    std::int64_t count = 0;
    double sum = 0;
  };
  static constexpr std::size_t kMetrics = 3;
  /// The histograms stand by operation and error.type, which is empty for success.
  std::map<std::pair<std::string, std::string>, std::array<Histogram, kMetrics>> series_;
};

}  // namespace outrider
