#include "http-server/process_facts.h"

#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

namespace outrider {
namespace {

/// Of /proc/self/stat, from the third (proc(5)): the second is a name, with whatever characters, in brackets.
std::vector<double> stat_fields() {
  std::ifstream file("/proc/self/stat");
  std::string line;
  std::getline(file, line);
  std::istringstream rest(line.substr(line.rfind(')') + 1));
  std::string state;
  rest >> state;
  return {std::istream_iterator<double>(rest), {}};
}

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
  const std::vector<double> stat = stat_fields();
  constexpr std::size_t kUserTime = 10, kSystemTime = 11, kStart = 18, kVirtual = 19,
                        kResident = 20;  // less 4 of proc(5)
  if (stat.size() > kResident) {
    facts.start_unix_s = boot_time() + stat[kStart] / ticks;
    facts.cpu_s = (stat[kUserTime] + stat[kSystemTime]) / ticks;
    facts.virtual_bytes = static_cast<std::int64_t>(stat[kVirtual]);
    facts.resident_bytes = static_cast<std::int64_t>(stat[kResident]) * sysconf(_SC_PAGESIZE);
  }
  facts.open_fds = open_files();
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) facts.max_fds = static_cast<std::int64_t>(limit.rlim_cur);
  return facts;
}

}  // namespace outrider
