#include "server/server_metrics.h"

#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <locale>
#include <map>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include "common/os/host.h"

namespace outrider {
namespace {
using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::BuildHistogram;
using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::MetricFamily;
using prometheus::Registry;

// vLLM's buckets, and below them those for small models.
const Histogram::BucketBoundaries kFirstTokenSeconds = {
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560};
const Histogram::BucketBoundaries kInterTokenSeconds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1,
                                                        0.15,  0.2,    0.3,   0.4,  0.5,   0.75, 1,     2.5,
                                                        5,     7.5,    10,    20,   40,    80};
const Histogram::BucketBoundaries kRequestSeconds = {0.01, 0.1, 0.3, 0.5, 0.8, 1,   1.5, 2,   2.5, 5,    10,  15,
                                                     20,   30,  40,  50,  60,  120, 240, 480, 960, 1920, 7680};
const Histogram::BucketBoundaries kTokens = {1,    2,    5,    10,     20,     50,     100,     200,    500,
                                             1000, 2000, 5000, 10'000, 20'000, 50'000, 100'000, 200'000};

double seconds_of_ns(std::int64_t ns) { return static_cast<double>(ns) / 1e9; }
double number(std::int64_t count) { return static_cast<double>(count); }

// Names are without the prefix, which reply() adds.

struct Point {
  double value;
  std::vector<prometheus::ClientMetric::Label> labels = {};
};
MetricFamily family_of(prometheus::MetricType type, const char* name, const char* help,
                       const std::vector<Point>& points) {
  MetricFamily family{.name = name, .help = help, .type = type, .metric = {}};
  for (const Point& point : points) {
    prometheus::ClientMetric& metric = family.metric.emplace_back();
    metric.label = point.labels;
    metric.gauge.value = metric.counter.value = point.value;  // the family's type selects one
  }
  return family;
}
/// Present values, and counts of another process, which restart with that process.
MetricFamily gauges(const char* name, const char* help, const std::vector<Point>& points) {
  return family_of(prometheus::MetricType::Gauge, name, help, points);
}
MetricFamily counts(const char* name, const char* help, const std::vector<Point>& points) {
  return family_of(prometheus::MetricType::Counter, name, help, points);
}

bool is_anybody(const WorkerStatus&) { return true; }
bool is_verifier(const WorkerStatus& worker) { return worker.role == Role::kVerifier; }
bool is_drafter(const WorkerStatus& worker) { return worker.role == Role::kDrafter; }
bool keeps_kv(const WorkerStatus& worker) { return worker.kv_bytes_max > 0; }
bool has_rtt(const WorkerStatus& worker) { return worker.rtt_ns > 0; }

/// Metrics of the coordinator and its workers, which may appear and disappear between scrapes.
std::vector<MetricFamily> families_of(const Status& status) {
  const auto each = [&](bool (*chosen)(const WorkerStatus&), auto member, double unit = 1) {
    std::vector<Point> points;
    for (const WorkerStatus& worker : status.workers) {
      if (chosen(worker))
        points.push_back(
            {static_cast<double>(worker.*member) / unit, {{"role", to_string(worker.role)}, {"worker", worker.name}}});
    }
    return points;
  };
  double used = 0, all = 0;  // of verifiers
  for (const WorkerStatus& worker : status.workers)
    if (is_verifier(worker)) used += number(worker.kv_bytes), all += number(worker.kv_bytes_max);
  const FailoverCounts& failovers = status.failovers;
  const AuditCounts& audits = status.audits;
  return {gauges("num_requests_running", "Requests that the coordinator is running, of all its clients",
                 {{number(status.sessions - status.waiting)}}),
          gauges("num_requests_waiting", "Requests in the coordinator's queue", {{number(status.waiting)}}),
          gauges("kv_cache_usage_perc", "Reserved share of the verifiers' K/V memory, 0 to 1",
                 {{all > 0 ? used / all : 0}}),
          counts("failovers_total", "Requests that lost their verifier or coordinator, by outcome",
                 {{number(failovers.exact), {{"result", "exact"}}},
                  {number(failovers.inexact), {{"result", "inexact"}}},
                  {number(failovers.failed), {{"result", "failed"}}},
                  {number(failovers.resumed), {{"result", "resumed"}}}}),
          counts("failover_resume_seconds_total",
                 "Of requests that continued: from the loss of their verifier until another one took over",
                 {{seconds_of_ns(failovers.resume_ns)}}),
          counts("audits_total", "Answers that another verifier was asked to verify again, by result",
                 {{number(audits.same), {{"result", "same"}}},
                  {number(audits.different), {{"result", "different"}}},
                  {number(audits.skipped), {{"result", "skipped"}}}}),
          counts("audited_tokens_total", "Tokens of answers that were verified again", {{number(audits.tokens)}}),
          gauges("workers", "Workers that have joined",
                 {{number(status.verifiers), {{"role", "verifier"}}},
                  {number(status.drafters), {{"role", "drafter"}}},
                  {number(status.encoders), {{"role", "encoder"}}}}),
          gauges("worker_rtt_seconds", "Round trip of a heartbeat between coordinator and worker, smoothed",
                 each(has_rtt, &WorkerStatus::rtt_ns, 1e9)),
          gauges("worker_sessions", "Sequences that a worker holds", each(is_anybody, &WorkerStatus::sessions)),
          gauges("worker_draining", "1: the worker takes no new sequences", each(is_anybody, &WorkerStatus::draining)),
          gauges("drafter_yield", "Share of a drafter's last rounds whose first draft was accepted",
                 each(is_drafter, &WorkerStatus::yield)),
          counts("draft_rounds_total", "Rounds that asked a drafter for drafts, by whether they came in time",
                 {{number(status.drafts_made), {{"result", "made"}}},
                  {number(status.drafts_missed), {{"result", "missed"}}}}),
          counts("drafter_late_rounds_total", "Rounds that continued without a drafter's answer",
                 each(is_drafter, &WorkerStatus::late_rounds)),
          gauges("drafter_paused", "1: the drafter gets no sequences, since other drafters' drafts are accepted",
                 each(is_drafter, &WorkerStatus::paused)),
          gauges("worker_shards", "Processes that compute a verifier's backbone together",
                 each(is_verifier, &WorkerStatus::shards)),
          gauges("worker_kv_bytes", "K/V memory that is reserved for a worker's sequences",
                 each(keeps_kv, &WorkerStatus::kv_bytes)),
          gauges("worker_kv_bytes_max", "K/V memory that a worker has", each(keeps_kv, &WorkerStatus::kv_bytes_max))};
}

/// Returns the system's start in Unix seconds.
double boot_time() {
  timespec now{}, up{};
  clock_gettime(CLOCK_REALTIME, &now);
  clock_gettime(CLOCK_BOOTTIME, &up);
  return static_cast<double>(now.tv_sec - up.tv_sec) + static_cast<double>(now.tv_nsec - up.tv_nsec) / 1e9;
}

std::int64_t open_files() {
  std::error_code failed;
  const std::filesystem::directory_iterator files("/proc/self/fd", failed);
  return failed ? 0 : std::distance(begin(files), end(files)) - 1;  // minus the one that reads this
}

/// The system's facts about this process, under the standard names of Prometheus clients. An unknown one is 0.
std::vector<MetricFamily> process_families() {
  constexpr std::size_t kUserTime = 11, kSystemTime = 12, kStart = 19, kVirtual = 20, kResident = 21;
  std::vector<std::string> stat = process_stat("self");
  stat.resize(std::max(stat.size(), kResident + 1), "0");
  const auto fact = [&](std::size_t field) { return std::stod(stat[field]); };
  const double ticks = number(sysconf(_SC_CLK_TCK)), page_bytes = number(sysconf(_SC_PAGESIZE));
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return {gauges("process_start_time_seconds", "When the process began, in Unix seconds",
                 {{boot_time() + fact(kStart) / ticks}}),
          counts("process_cpu_seconds_total", "CPU time of all of the process's threads",
                 {{(fact(kUserTime) + fact(kSystemTime)) / ticks}}),
          gauges("process_resident_memory_bytes", "Memory of the process that is in RAM",
                 {{fact(kResident) * page_bytes}}),
          gauges("process_virtual_memory_bytes", "Addresses that the process has mapped", {{fact(kVirtual)}}),
          gauges("process_open_fds", "File descriptors that are open", {{number(open_files())}}),
          gauges("process_max_fds", "File descriptors that may be", {{static_cast<double>(limit.rlim_cur)}})};
}

}  // namespace

struct ServerMetrics::Families {
  mutable Registry registry;

  Family<Counter>& counters(const char* name, const char* help) {
    return BuildCounter().Name(name).Help(help).Register(registry);
  }
  Counter& counter(const char* name, const char* help) { return counters(name, help).Add({}); }
  Gauge& last(const char* name, const char* help) {
    return BuildGauge().Name(name).Help(help).Register(registry).Add({});
  }
  Histogram& histogram(const char* name, const char* help, const Histogram::BucketBoundaries& buckets) {
    return BuildHistogram().Name(name).Help(help).Register(registry).Add({}, buckets);
  }

  /// Adds each field of a RequestMetrics to its counter.
  struct CountFields {
    Families& families;

    void operator()(const char* name, std::int64_t count, Counted counted) {
      prometheus::Labels labels;
      if (counted.label != nullptr) labels = {{counted.label, counted.value}};
      families.request_counters(counted).Add(labels).Increment(
          std::string_view(name).ends_with("_ns") ? seconds_of_ns(count) : number(count));
    }
    void operator()(const char*, const std::vector<std::int64_t>& counts, Count, Counted counted) {
      for (std::size_t i = 0; i < counts.size(); ++i)
        families.request_counters(counted).Add({{counted.label, std::to_string(i)}}).Increment(number(counts[i]));
    }
    void operator()(auto&&...) {}  // in a histogram, see below
  };
  std::map<std::string, Family<Counter>*> request_counters_;
  Family<Counter>& request_counters(Counted counted) {
    Family<Counter>*& family = request_counters_[counted.name];
    if (family == nullptr) family = &counters(counted.name, counted.help);
    return *family;
  }

  // vLLM's.
  Histogram& time_to_first_token =
      histogram("time_to_first_token_seconds", "Arrival of a request to its first token", kFirstTokenSeconds);
  Histogram& inter_token_latency = histogram("inter_token_latency_seconds",
                                             "Between two arrivals of tokens, each of one or more", kInterTokenSeconds);
  Histogram& e2e_request_latency = histogram(
      "e2e_request_latency_seconds", "Arrival of a request to its end, of those that succeeded", kRequestSeconds);
  Histogram& request_queue_time =
      histogram("request_queue_time_seconds", "Time in the coordinator's queue, of each choice", kRequestSeconds);
  Histogram& request_prefill_time = histogram(
      "request_prefill_time_seconds", "From leaving the queue to the first token, of each choice", kRequestSeconds);
  Histogram& request_decode_time =
      histogram("request_decode_time_seconds", "From the first token to the last, of each choice", kRequestSeconds);
  Histogram& request_prompt_tokens = histogram("request_prompt_tokens", "Tokens of a prompt, of each choice", kTokens);
  Histogram& request_generation_tokens =
      histogram("request_generation_tokens", "Tokens of an answer, of each choice", kTokens);
  Counter& prompt_tokens = counter("prompt_tokens_total", "Prompt tokens of requests that got an answer");
  Counter& generation_tokens = counter("generation_tokens_total", "Tokens of answers");
  Family<Counter>& request_success =
      counters("request_success_total",
               "Finished answers, by reason; of requests, abort: the client disconnected, error: the request failed");
  Counter& prefix_cache_queries = counter("prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache");

  // Ours.
  Family<Counter>& decode_tokens =
      counters("decode_tokens_total", "Tokens after an answer's first, by whether the answer had drafts");
  Family<Counter>& decode_seconds =
      counters("decode_seconds_total", "From an answer's first token to its last, by whether the answer had drafts");
  Counter& broken_tool_calls =
      counter("broken_tool_calls_total", "Tool calls that the model did not write correctly; they became content");
  Family<Counter>& http_responses = counters("http_responses_total", "Answers over HTTP by status");

  // Headline metrics of the last answer, as printed by `outrider run`.
  Gauge& backbone_only_tok_per_sec = last("backbone_only_tok_per_sec", "Of the last answer that had no drafts");
  Gauge& speculative_tok_per_sec = last("speculative_tok_per_sec", "Of the last answer that had drafts");
  Gauge& draft_tokens_per_batch =
      last("draft_tokens_per_batch", "Drafts of a drafting round, in the last answer that had drafts");
  Gauge& accepted_tokens = last("accepted_tokens", "In the last answer that had drafts");
  Gauge& drafted_tokens = last("drafted_tokens", "In the last answer that had drafts");
  Gauge& target_verify_ms = last("target_verify_ms", "Mean over the rounds of the last answer");
  Gauge& assistant_draft_ms =
      last("assistant_draft_ms", "Mean over the assistant's rounds of the last answer that had such");

  /// Labelled counters start at zero before their first event, which otherwise would not count in a rate.
  Families() {
    for (const char* reason : {"stop", "length", "tool_calls", "abort", "error"})
      request_success.Add({{"finished_reason", reason}});
    for (const char* mode : {"backbone_only", "speculative"}) {
      decode_tokens.Add({{"mode", mode}});
      decode_seconds.Add({{"mode", mode}});
    }
    RequestMetrics none;
    none.drafted_per_position = none.accepted_per_position = std::vector<std::int64_t>(8);
    CountFields count{*this};
    RequestMetrics::fields(count, std::as_const(none));
    http_responses.Add({{"code", "200"}});
  }

  void record(const FinishedChoice& choice) {
    const RequestMetrics& m = choice.metrics;
    request_success.Add({{"finished_reason", choice.finish_reason}}).Increment();
    request_prompt_tokens.Observe(number(choice.prompt_tokens));
    request_generation_tokens.Observe(number(choice.generated_tokens));
    request_queue_time.Observe(seconds_of_ns(m.queue_ns));
    request_prefill_time.Observe(seconds_of_ns(m.prefill_ns - m.queue_ns));
    request_decode_time.Observe(seconds_of_ns(m.decode_ns));
    prefix_cache_queries.Increment(number(choice.prompt_tokens));
    CountFields count{*this};
    RequestMetrics::fields(count, m);

    const bool speculative = m.drafting_rounds > 0;
    const std::int64_t decoded = choice.generated_tokens - 1;
    if (decoded <= 0 || m.decode_ns <= 0 || m.rounds == 0) return;
    const char* mode = speculative ? "speculative" : "backbone_only";
    decode_tokens.Add({{"mode", mode}}).Increment(number(decoded));
    decode_seconds.Add({{"mode", mode}}).Increment(seconds_of_ns(m.decode_ns));
    (speculative ? speculative_tok_per_sec : backbone_only_tok_per_sec)
        .Set(number(decoded) / seconds_of_ns(m.decode_ns));
    target_verify_ms.Set(1e3 * seconds_of_ns(m.verify_ns) / number(m.rounds));
    if (!speculative) return;
    draft_tokens_per_batch.Set(number(m.drafted_tokens) / number(m.drafting_rounds));
    accepted_tokens.Set(number(m.accepted_tokens));
    drafted_tokens.Set(number(m.drafted_tokens));
    if (m.assistant_rounds() > 0)
      assistant_draft_ms.Set(1e3 * seconds_of_ns(m.draft_ns) / number(m.assistant_rounds()));
  }
};

ServerMetrics::ServerMetrics(MetricsOptions options)
    : options_(std::move(options)), families_(std::make_unique<Families>()) {}
ServerMetrics::~ServerMetrics() = default;

void ServerMetrics::record(const FinishedRequest& request) {
  Families& f = *families_;
  if (request.time_to_first_token) {
    f.time_to_first_token.Observe(to_seconds(*request.time_to_first_token));
    f.prompt_tokens.Increment(number(request.prompt_tokens));
    f.generation_tokens.Increment(number(request.generated_tokens));
  }
  f.broken_tool_calls.Increment(number(request.broken_tool_calls));
  for (const Duration gap : request.inter_token_gaps) f.inter_token_latency.Observe(to_seconds(gap));
  if (request.status == 200) f.e2e_request_latency.Observe(to_seconds(request.total));
  if (request.status == kClientGone) f.request_success.Add({{"finished_reason", "abort"}}).Increment();
  if (request.status >= 500) f.request_success.Add({{"finished_reason", "error"}}).Increment();
  for (const FinishedChoice& choice : request.choices) f.record(choice);
}

void ServerMetrics::record_response(int status) {
  families_->http_responses.Add({{"code", std::to_string(status)}}).Increment();
}

HttpReply ServerMetrics::reply(const Result<Status>& status) const {
  std::vector<MetricFamily> families = families_->registry.Collect();
  families.push_back(gauges("coordinator_up", "1: the coordinator answers; else its workers' metrics are absent",
                            {{number(status.has_value())}}));
  if (status) std::ranges::move(families_of(*status), std::back_inserter(families));
  families.push_back(
      gauges("build_info", "1; its label is the program's version", {{1, {{"version", options_.version}}}}));
  for (MetricFamily& family : families) {
    family.name = options_.prefix + ":" + family.name;
    if (options_.model.empty()) continue;
    for (prometheus::ClientMetric& metric : family.metric)
      metric.label.insert(metric.label.begin(), {"model_name", options_.model});
  }
  std::ranges::move(process_families(), std::back_inserter(families));
  std::ostringstream text;
  text.imbue(std::locale::classic());
  prometheus::TextSerializer().Serialize(text, families);
  return {.status = 200, .body = text.str(), .content_type = "text/plain; version=0.0.4; charset=utf-8"};
}

}  // namespace outrider
