#pragma once

#include <memory>

#include "common/protocol/messages.h"
#include "http-server/api_server.h"

namespace outrider {

/// What /metrics says, in Prometheus' text format: vLLM's names where it has one, under our prefix (docs/http.md lists
/// them all). Sums since the start, from which a reader makes rates; a worker's facts are those of the moment.
class ServerMetrics {
 public:
  ServerMetrics();
  ~ServerMetrics();

  // Any thread, many at once.

  void record(const FinishedRequest& request);
  /// One answer that went out, whoever wrote it.
  void record_response(int status);

  /// @param status  of the coordinator; an error: then its workers' metrics are absent
  HttpReply reply(const Result<Status>& status) const;

 private:
  struct Families;
  std::unique_ptr<Families> families_;
};

}  // namespace outrider
