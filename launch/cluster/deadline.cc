#include "launch/cluster/deadline.h"

#include <algorithm>
#include <cstdint>
#include <ctime>

#include "common/base/text.h"
#include "launch/cluster/slurm_jobs.h"

namespace outrider {
namespace {

/// Most seconds until a deadline: a clock's nanoseconds have room for little more than twice that.
constexpr std::int64_t kFarthest = std::int64_t{1} << 32;

/// Parses a local time printed by squeue.
std::optional<WallTime> parse_time(const std::string& text) {
  std::tm time{};
  time.tm_isdst = -1;
  const char* const end = strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &time);
  if (end == nullptr || *end != '\0') return {};
  return std::chrono::system_clock::from_time_t(std::clamp<std::time_t>(std::mktime(&time), 0, 2 * kFarthest));
}

std::optional<std::chrono::seconds> parse_duration(const std::string& text) {
  const std::optional<int> number = to_number<int>(text.substr(0, text.size() - 1));
  const int seconds = text.ends_with('s') ? 1 : text.ends_with('m') ? 60 : text.ends_with('h') ? 3600 : 0;
  if (!number || *number < 0 || seconds == 0) return {};
  return std::chrono::seconds(std::min(std::int64_t{*number} * seconds, kFarthest));
}

}  // namespace

Result<std::optional<WallTime>> parse_deadline(const std::string& text) {
  if (text.empty()) return std::optional<WallTime>();
  if (text == "slurm") {
    ASSIGN_OR_RETURN(const std::string end, ask_slurm_of_this_job("%e"));
    if (end == "N/A" || end == "NONE") return std::optional<WallTime>();
    if (const std::optional<WallTime> time = parse_time(end)) return time;
    return Error(Errc::kUnavailable, "--deadline slurm: squeue says '{}'", end);
  }
  if (const auto duration = parse_duration(text)) return std::optional(std::chrono::system_clock::now() + *duration);
  if (const std::optional<WallTime> time = parse_time(text)) return time;
  return Error(Errc::kInvalidArgument, "--deadline is '{}', wanted {}", text, kDeadlineForms);
}

}  // namespace outrider
