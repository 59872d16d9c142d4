#include "server/tracer.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/json_fields.h"
#include "common/os/files.h"
#include "server/endpoint.h"

namespace outrider {
namespace {

constexpr std::size_t kWaitingBytesMax = 64u << 20;
/// Size of one body to a collector, or of one line of the file: collectors refuse more than some MiB.
constexpr std::size_t kBodyBytes = 1u << 20;
constexpr Duration kCollectorTimeout = std::chrono::seconds(10), kLastWords = std::chrono::seconds(5);
/// Time that spans wait for others, to be sent together.
constexpr Duration kTogether = std::chrono::milliseconds(200);

std::int64_t unix_offset_ns() {
  const auto unix = std::chrono::duration_cast<Duration>(std::chrono::system_clock::now().time_since_epoch());
  return (unix - now().time_since_epoch()).count();
}

/// @param path  empty: nothing is opened
Result<void> open(std::ofstream& file, const std::filesystem::path& path, std::ios::openmode mode) {
  if (!path.empty()) file.open(path, mode);
  return file ? Result<void>() : file_error(Errc::kIo, path, "{}", std::strerror(errno));
}

}  // namespace

const char* TraceSampler::why(const RequestTrace& trace) {
  std::int64_t tokens = 0, moved = 0;
  for (const TracedChoice& choice : trace.choices) {
    tokens += choice.generated_tokens;
    moved += choice.metrics.failovers + choice.metrics.resumes;
  }
  bool slow = false;
  if (tokens > 0 && trace.status == 200) {
    const auto seconds = static_cast<float>(to_seconds(trace.end - trace.arrived) / static_cast<double>(tokens));
    const auto slower = std::ranges::count_if(last_, [&](float other) { return other >= seconds; });
    slow = last_.size() >= kFirst && static_cast<std::size_t>(slower) * 20 < last_.size();
    if (last_.size() < kLast)
      last_.push_back(seconds);
    else
      last_[next_++ % kLast] = seconds;
  }
  if (trace.status != 200) return "failed";
  if (moved > 0) return "moved";
  if (slow) return "slow";
  if (trace.context.sampled) return "asked";
  const double drawn = static_cast<double>(trace.context.trace_low >> 11) * 0x1p-53;
  return drawn < share_ ? "share" : nullptr;
}

Tracer::Tracer(TraceOptions options)
    : options_(std::move(options)),
      unix_offset_ns_(unix_offset_ns()),
      otlp_(options_.version),
      sampler_(options_.share) {}

Result<std::unique_ptr<Tracer>> Tracer::start(TraceOptions options) {
  std::unique_ptr<Tracer> tracer(new Tracer(std::move(options)));
  const TraceOptions& wanted = tracer->options_;
  if (!wanted.otlp.empty()) {
    ASSIGN_OR_RETURN(tracer->collector_, open_endpoint("--otlp", wanted.otlp, /*api_key=*/"", /*known=*/true));
  }
  RETURN_IF_ERROR(open(tracer->file_, wanted.file, std::ios::app));
  RETURN_IF_ERROR(open(tracer->perfetto_, wanted.perfetto, std::ios::trunc));
  tracer->perfetto_ << "[\n";
  tracer->thread_ = std::jthread([self = tracer.get()](const std::stop_token& stop) { self->run(stop); });
  return tracer;
}

Tracer::~Tracer() {
  {
    const std::lock_guard lock(mutex_);
    give_up_ = now() + kLastWords;
  }
  if (thread_.joinable()) {  // otherwise a file or a collector could not be opened
    thread_.request_stop();
    thread_.join();
  }
  perfetto_.clear();
  // The last event's comma must be followed by another event.
  perfetto_ << "{\"ph\":\"M\",\"name\":\"outrider\",\"pid\":0,\"args\":{}}\n]\n";
}

void Tracer::record(RequestTrace trace) {
  const std::size_t bytes = trace.bytes();
  const std::lock_guard lock(mutex_);
  const char* const why = sampler_.why(trace);
  if (why == nullptr) return;
  if (waiting_.bytes + bytes > kWaitingBytesMax) return void(++waiting_.left_out);
  waiting_.bytes += bytes;
  waiting_.traces.push_back({std::move(trace), why});
  changed_.notify_one();
}

void Tracer::run(const std::stop_token& stop) {
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 19);  // of this thread alone
  while (true) {
    std::deque<Kept> taken;
    std::int64_t left_out = 0;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, stop, [&] { return !waiting_.traces.empty(); });
      changed_.wait_for(lock, stop, kTogether, [] { return false; });
      taken = std::exchange(waiting_.traces, {});
      waiting_.bytes = 0;
      left_out = std::exchange(waiting_.left_out, 0);
    }
    if (taken.empty()) break;  // stopped
    for (const Kept& kept : taken) write(kept);
    flush();
    perfetto_.flush();
    if (left_out > 0) log_warn("event=traces_lost traces={} reason=\"more than could be written\"", left_out);
  }
}

void Tracer::write(const Kept& kept) {
  const bool otlp = file_.is_open() || collector_, chrome = perfetto_.is_open();
  std::string events;
  if (chrome) chrome_.begin(kept.trace);
  const TraceFacts facts{
      .server = options_.server, .model = options_.model, .kept = kept.why, .unix_offset_ns = unix_offset_ns_};
  visit_spans(kept.trace, facts, [&](const Span& span) {
    if (otlp) otlp_.add(kept.trace.context, span);
    if (chrome) chrome_.add(kept.trace.context, span, events);
    if (otlp_.bytes() >= kBodyBytes) flush();
  });
  perfetto_.clear();  // after a full disk this one tries again
  if (chrome && !(perfetto_ << events))
    lost(0, fmt::format("{}: {}", options_.perfetto.string(), std::strerror(errno)));
}

void Tracer::flush() {
  if (otlp_.spans() == 0) return;
  const std::int64_t spans = otlp_.spans();
  std::string body = otlp_.take();
  if (file_.is_open() && !(file_ << body << std::endl))
    lost(spans, fmt::format("{}: {}", options_.file.string(), std::strerror(errno)));
  file_.clear();
  if (!collector_) return;
  if (const auto why = post(std::move(body))) lost(spans, *why);
}

std::optional<std::string> Tracer::post(std::string body) {
  const TimePoint deadline = now() + kCollectorTimeout;
  const auto late = [&] {
    const std::lock_guard lock(mutex_);
    return now() > deadline || (give_up_ && now() > *give_up_);
  };
  const HttpReply reply = collector_(
      {.method = "POST", .path = "/v1/traces", .body = std::move(body), .client = "", .key = nullptr, .gone = late});
  if (reply.status < 200 || reply.status > 299)
    return reply.status == 0 ? reply.body : fmt::format("the collector says {}", reply.status);
  const nlohmann::json reply_json = parse_json(reply.body);
  if (reply_json.is_object() && reply_json.contains("partialSuccess") && !reply_json["partialSuccess"].empty())
    return "the collector took a part: " + reply.body.substr(0, 200);
  return std::nullopt;
}

void Tracer::lost(std::int64_t spans, const std::string& why) {
  if (const auto more = warned_.pass(now())) log_warn("event=spans_lost spans={} reason=\"{}\"{}", spans, why, *more);
}

}  // namespace outrider
