#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/result.h"
#include "common/base/time.h"
#include "common/os/logging.h"
#include "server/http_message.h"
#include "server/trace_spans.h"

namespace outrider {

struct TraceOptions {
  std::filesystem::path file = {};      ///< OTLP's JSON, one per line; appended
  std::filesystem::path perfetto = {};  ///< Chrome's JSON, overwritten
  std::string otlp = {};                ///< http://HOST:PORT of a collector
  double share = 1;                     ///< of the requests not kept for another reason, 0 to 1
  std::string server = {}, model = {}, version = {};

  bool on() const { return !file.empty() || !perfetto.empty() || !otlp.empty(); }
};

/// Decides which traces are kept, after the end of their requests.
class TraceSampler {
 public:
  explicit TraceSampler(double share) : share_(share) {}
  /// @return the reason to keep it: "failed", "moved" (another verifier or coordinator continued it), "slow" (among the
  /// slowest twentieth of recent requests, by time per token), "asked" (the sender of its `traceparent` keeps the
  /// trace), "share" (by its id, so that equal shares select the same traces everywhere); null: it is not kept
  const char* why(const RequestTrace& trace);

 private:
  static constexpr std::size_t kLast = 128, kFirst = 20;  ///< window of requests; the least for one to be slow
  const double share_;
  std::vector<float> last_;  ///< seconds per token, a ring
  std::size_t next_ = 0;
};

/// Writes traces: receives them from any thread, and formats them on a thread of the lowest priority. Memory is
/// bounded: traces beyond the bound are dropped and counted.
class Tracer {
 public:
  /// @param options  on()
  /// @return kIo for a file that cannot be written, kInvalidArgument for a URL, kNotFound for a collector with an
  /// unknown name, which is resolved once, here
  static Result<std::unique_ptr<Tracer>> start(TraceOptions options);
  /// Writes all queued traces, for 5 s at most if the collector is slow.
  ~Tracer();

  /// Records a finished request. Any thread.
  void record(RequestTrace trace);

 private:
  struct Kept {
    RequestTrace trace;
    const char* why;
  };
  explicit Tracer(TraceOptions options);
  void run(const std::stop_token& stop);
  void write(const Kept& kept);
  /// Passes OtlpWriter's requests to the file and the collector.
  void flush();
  /// @return the reason that the collector did not accept all of it
  std::optional<std::string> post(std::string body);
  void lost(std::int64_t spans, const std::string& why);

  const TraceOptions options_;
  const std::int64_t unix_offset_ns_;
  std::ofstream file_, perfetto_;
  HttpHandler collector_;  ///< empty: none
  OtlpWriter otlp_;
  ChromeWriter chrome_;
  RateLimit warned_;
  std::optional<TimePoint> give_up_;  ///< on the collector: the program ends

  std::mutex mutex_;
  std::condition_variable_any changed_;
  TraceSampler sampler_;
  struct {
    std::deque<Kept> traces;
    std::size_t bytes = 0;
    std::int64_t left_out = 0;  ///< dropped for lack of room
  } waiting_;
  std::jthread thread_;  // last: it uses the others
};

}  // namespace outrider
