#include "batch/progress.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <optional>

#include <fmt/format.h>

#include "common/base/json_fields.h"
#include "common/base/utf8.h"
#include "common/os/durable_file.h"

namespace outrider {
namespace {
using Json = nlohmann::json;

constexpr Duration kFileEvery = std::chrono::seconds(1), kLineEvery = std::chrono::minutes(1);
constexpr Duration kRecent = std::chrono::minutes(1);

std::optional<double> acceptance(const BatchCounts& counts) {
  if (counts.tokens_now.drafted == 0) return std::nullopt;
  return static_cast<double>(counts.tokens_now.accepted) / static_cast<double>(counts.tokens_now.drafted);
}

/// Estimates the remaining time from this run's rate.
std::optional<double> seconds_left(const BatchCounts& counts) {
  if (counts.finished_now == 0) return std::nullopt;
  return to_seconds(counts.elapsed) / counts.finished_now * counts.open();
}

std::string clock_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::lround(seconds));
  return whole < 3600 ? fmt::format("{}:{:02}", whole / 60, whole % 60)
                      : fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

}  // namespace

std::string lines_text(const BatchCounts& counts) {
  const std::string text = fmt::format("{} of {} lines", counts.completed + counts.failed, counts.total);
  return counts.failed == 0 ? text : fmt::format("{} ({} with errors)", text, counts.failed);
}

std::string progress_text(const BatchCounts& counts, double tokens_per_second) {
  std::string text = fmt::format("{}, {:.1f} tok/s", lines_text(counts), tokens_per_second);
  if (const auto rate = acceptance(counts)) text += fmt::format(", acceptance {:.2f}", *rate);
  text += fmt::format(", {} of {} under way", counts.under_way, counts.concurrency);
  if (counts.retries > 0)
    text += fmt::format(", {} retries (the last: {})", counts.retries, printable(counts.last_problem));
  if (const auto left = seconds_left(counts)) text += fmt::format(", {} left", clock_text(*left));
  return text;
}

BatchProgress::BatchProgress(std::filesystem::path file)
    : file_(std::move(file)), terminal_(isatty(STDERR_FILENO) == 1), line_due_(now() + kLineEvery) {}

BatchProgress::~BatchProgress() {
  if (terminal_) std::fprintf(stderr, "\r\033[K");
}

void BatchProgress::tick(const BatchCounts& counts, TimePoint now) {
  if (now < file_due_) return;
  file_due_ = now + kFileEvery;
  recent_.emplace_back(now, counts.tokens_now.completion);
  while (recent_.size() > 2 && now - recent_.front().first > kRecent) recent_.pop_front();
  const double seconds = to_seconds(now - recent_.front().first);
  if (seconds > 0)
    tokens_per_second_ = static_cast<double>(counts.tokens_now.completion - recent_.front().second) / seconds;
  write(counts, "running");
  if (terminal_) {
    constexpr int kCells = 20;
    const auto full = counts.total == 0
                          ? kCells
                          : static_cast<int>(kCells * std::uint64_t{counts.total - counts.open()} / counts.total);
    std::fprintf(stderr, "\r\033[K[%-*s] %s", kCells, std::string(static_cast<std::size_t>(full), '#').c_str(),
                 progress_text(counts, tokens_per_second_).c_str());
  } else if (now >= line_due_) {
    line_due_ = now + kLineEvery;
    std::fprintf(stderr, "outrider batch: %s\n", progress_text(counts, tokens_per_second_).c_str());
  }
}

void BatchProgress::write(const BatchCounts& counts, const char* state) const {
  const auto or_null = [](const std::optional<double>& value) { return value ? Json(*value) : Json(); };
  const Json json = {{"state", state},
                     {"total", counts.total},
                     {"completed", counts.completed},
                     {"failed", counts.failed},
                     {"under_way", counts.under_way},
                     {"concurrency", counts.concurrency},
                     {"retries", counts.retries},
                     {"last_problem", counts.last_problem.empty() ? Json() : Json(counts.last_problem)},
                     {"prompt_tokens", counts.tokens.prompt},
                     {"completion_tokens", counts.tokens.completion},
                     {"tokens_per_second", tokens_per_second_},
                     {"acceptance", or_null(acceptance(counts))},
                     {"elapsed_s", to_seconds(counts.elapsed)},
                     {"eta_s", or_null(seconds_left(counts))}};
  // Readers always see a complete file. A missing or old one does no harm.
  (void)replace_text(file_, to_text(json, 2) + "\n");
}

}  // namespace outrider
