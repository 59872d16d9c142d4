#pragma once

#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/result.h"
#include "common/base/time.h"
#include "common/os/logging.h"
#include "server/endpoint.h"
#include "server/gen_ai_metrics.h"
#include "server/trace_spans.h"

namespace outrider {

struct TraceOptions {
  std::filesystem::path file = {};      ///< OTLP's JSON, a line each; goes on behind what is there
  std::filesystem::path perfetto = {};  ///< Chrome's JSON, begun anew
  std::string otlp = {};                ///< http://HOST:PORT of a collector
  double share = 1;                     ///< of the requests that nothing else keeps, 0 to 1
  std::string server = {}, model = {}, version = {};

  bool on() const { return !file.empty() || !perfetto.empty() || !otlp.empty(); }
};

/// Which traces are kept, once it is known how their requests ended.
class TraceSampler {
 public:
  explicit TraceSampler(double share) : share_(share) {}
  /// @return why it is kept: "failed", "moved" (another verifier or coordinator had to go on with it), "slow" (among
  ///   the slowest twentieth of the last requests, by time per token), "asked" (whoever sent its `traceparent` keeps
  ///   the trace), "share" (by its id, so that everybody who takes that share takes the same); null: it is not.
  const char* why(const RequestTrace& trace);

 private:
  static constexpr std::size_t kLast = 128, kFirst = 20;  ///< requests that count; before so many, none is slow
  const double share_;
  std::vector<float> last_;  ///< seconds per token, a ring
  std::size_t next_ = 0;
};

/// Writes traces down: takes them from any thread, and makes text of them on a thread of its own, of the lowest
/// priority. What is kept in memory is bounded: traces beyond that are left out and counted.
class Tracer {
 public:
  /// @param options  on(). @return kIo for a file that cannot be written, kInvalidArgument for a URL, kNotFound for a
  ///   collector whose name nobody knows: it is looked up once, here.
  static Result<std::unique_ptr<Tracer>> start(TraceOptions options);
  /// Writes all waiting traces, for 5 s at most if the collector is slow.
  ~Tracer();

  /// A request has ended. Any thread.
  void record(RequestTrace trace);
  /// Counts a request in the metrics that a collector gets, whether or not its trace is kept. Any thread.
  void measure(const FinishedRequest& request);

 private:
  struct File {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  struct Kept {
    RequestTrace trace;
    const char* why;
  };
  /// It is the default of OpenTelemetry's SDKs.
  static constexpr Duration kMetricsEvery = std::chrono::seconds(60);
  explicit Tracer(TraceOptions options);
  void run(const std::stop_token& stop);
  void write(const Kept& kept);
  /// It passes OtlpWriter's requests to the file and the collector.
  void flush();
  /// The metrics so far, to the collector, if there is one.
  void send_metrics();
  std::int64_t unix_ns(TimePoint time) const { return time.time_since_epoch().count() + unix_offset_ns_; }
  /// @return why the collector did not take all of it
  std::optional<std::string> post(const char* path, std::string body);
  void lost(std::int64_t spans, const std::string& why);

  const TraceOptions options_;
  const std::int64_t unix_offset_ns_;
  std::unique_ptr<std::FILE, File> file_, perfetto_;
  std::shared_ptr<const HttpEndpoint> collector_;
  OtlpWriter otlp_;
  ChromeWriter chrome_;
  RateLimit warned_;
  const TimePoint began_ = now();
  TimePoint metrics_due_ = began_ + kMetricsEvery;
  std::optional<TimePoint> give_up_;  ///< on the collector: the program ends

  std::mutex mutex_;
  std::condition_variable_any changed_;
  TraceSampler sampler_;
  GenAiMetrics metrics_;
  struct {
    std::deque<Kept> traces;
    std::size_t bytes = 0;
    std::int64_t left_out = 0;  ///< while there was no room
  } waiting_;
  std::jthread thread_;  // last: it uses the others
};

}  // namespace outrider
