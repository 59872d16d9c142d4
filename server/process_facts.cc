#include "server/process_facts.h"

#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <filesystem>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

#include "common/os/host.h"

namespace outrider {
namespace {

/// Unix seconds at which the system started.
double boot_time() {
  timespec now{}, up{};
  clock_gettime(CLOCK_REALTIME, &now);
  clock_gettime(CLOCK_BOOTTIME, &up);
  return static_cast<double>(now.tv_sec - up.tv_sec) + static_cast<double>(now.tv_nsec - up.tv_nsec) / 1e9;
}

std::int64_t open_files() {
  std::error_code failed;
  const std::filesystem::directory_iterator files("/proc/self/fd", failed);
  return failed ? 0 : std::distance(begin(files), end(files)) - 1;  // less the one that reads this
}

}  // namespace

ProcessFacts process_facts() {
  ProcessFacts facts;
  const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  const std::vector<std::string> stat = process_stat("self");
  constexpr std::size_t kUserTime = 11, kSystemTime = 12, kStart = 19, kVirtual = 20, kResident = 21;
  if (stat.size() > kResident) {
    facts.start_unix_s = boot_time() + std::stod(stat[kStart]) / ticks;
    facts.cpu_s = (std::stod(stat[kUserTime]) + std::stod(stat[kSystemTime])) / ticks;
    facts.virtual_bytes = std::stoll(stat[kVirtual]);
    facts.resident_bytes = std::stoll(stat[kResident]) * sysconf(_SC_PAGESIZE);
  }
  facts.open_fds = open_files();
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) facts.max_fds = static_cast<std::int64_t>(limit.rlim_cur);
  return facts;
}

}  // namespace outrider
