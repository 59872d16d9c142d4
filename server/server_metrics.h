#pragma once

#include <memory>
#include <string>

#include "common/wire/messages/messages.h"
#include "server/generation_task.h"
#include "server/http_message.h"

namespace outrider {

struct MetricsOptions {
  std::string prefix = "outrider";  ///< before the colon of each name; "vllm" makes them vLLM's
  std::string model = "";           ///< label `model_name` of each; empty: none
  std::string version = "";         ///< of the program
};

/// Writes /metrics in Prometheus' text format: vLLM's names where they exist, under a prefix (docs/http.md lists all).
/// Sums since the start; a worker's facts are current.
class ServerMetrics {
 public:
  explicit ServerMetrics(MetricsOptions options = {});
  ~ServerMetrics();

  // Any thread, many at once.

  void record(const FinishedRequest& request);
  /// Counts a sent response, of any writer.
  void record_response(int status);

  /// @param status  of the coordinator; an error: its workers' metrics are absent
  HttpReply reply(const Result<Status>& status) const;

 private:
  struct Families;
  const MetricsOptions options_;
  std::unique_ptr<Families> families_;
};

}  // namespace outrider
