#include "common/os/host.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>
#include <system_error>

#include "common/os/logging.h"

namespace outrider {
namespace {
namespace fs = std::filesystem;

/// Returns the only number in a file; none if there is no file or a word ("max") in it.
std::optional<std::int64_t> number_in(const fs::path& path) {
  std::ifstream file(path);
  std::int64_t value = 0;
  return file >> value && value >= 0 ? std::optional(value) : std::nullopt;
}

/// Returns the number after `key` in a file of "key value" lines.
std::optional<std::int64_t> number_after(const fs::path& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    std::int64_t value = 0;
    if (words >> name >> value && name == key) return value;
  }
  return std::nullopt;
}

/// Returns the memory left in one cgroup. Its idle page cache is reclaimable, and so does not count as used.
std::optional<std::int64_t> left_in_cgroup(const fs::path& dir, const char* limit_file, const char* usage_file,
                                           const char* idle_key) {
  const auto limit = number_in(dir / limit_file), usage = number_in(dir / usage_file);
  if (!limit || !usage) return std::nullopt;
  return std::max<std::int64_t>(0, *limit - *usage + number_after(dir / "memory.stat", idle_key).value_or(0));
}

/// Returns the cores granted by one CPU cgroup.
std::optional<double> granted_by_cgroup(const fs::path& dir, bool unified) {
  double quota = -1, period = 0;
  if (unified) {
    std::ifstream(dir / "cpu.max") >> quota >> period;  // "max 100000" is no number
  } else {
    std::ifstream(dir / "cpu.cfs_quota_us") >> quota;
    std::ifstream(dir / "cpu.cfs_period_us") >> period;
  }
  return quota > 0 && period > 0 ? std::optional(quota / period) : std::nullopt;
}

/// Visits every group of this process with `controller`, from its own up: limits apply along the whole path. In a
/// container the path may be the host's, of which only the lower end is visible.
/// @param visit  called with the group's folder and true for version 2
template <typename Visit>
void each_cgroup(const fs::path& root, const std::string& controller, Visit visit) {
  // "0::/path" for version 2, "4:memory:/path" or "3:cpu,cpuacct:/path" for version 1.
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool unified = controllers.empty();
    if (!unified && ("," + controllers + ",").find("," + controller + ",") == std::string::npos) continue;
    const fs::path mount = root / (unified ? "sys/fs/cgroup" : "sys/fs/cgroup/" + controller);
    for (fs::path path = fs::path(line.substr(second + 1)).relative_path();; path = path.parent_path()) {
      visit(mount / path, unified);
      if (path.empty()) break;
    }
  }
}

/// Calls visit(node, its cores) for every memory node with cores, in numerical order.
template <typename Visit>
void for_memory_nodes(const fs::path& root, Visit visit) {
  for (int node = 0;; ++node) {
    std::ifstream file(root / "sys/devices/system/node" / ("node" + std::to_string(node)) / "cpulist");
    std::string range;
    if (!file) return;
    std::vector<int> cores;
    while (std::getline(file, range, ',')) {  // "0-15" or "3"
      int first = 0, last = 0;
      const int found = std::sscanf(range.c_str(), "%d-%d", &first, &last);
      for (int core = first; found > 0 && core <= (found > 1 ? last : first); ++core) cores.push_back(core);
    }
    if (!cores.empty()) visit(node, cores);
  }
}

bool contains(const cpu_set_t& set, int core) { return core < CPU_SETSIZE && CPU_ISSET(core, &set); }

bool contains_any(const cpu_set_t& set, const std::vector<int>& cores) {
  return std::ranges::any_of(cores, [&](int core) { return contains(set, core); });
}

}  // namespace

std::optional<std::int64_t> available_memory_bytes(const fs::path& root) {
  std::optional<std::int64_t> least;
  if (const auto kib = number_after(root / "proc/meminfo", "MemAvailable:")) least = *kib * 1024;
  each_cgroup(root, "memory", [&](const fs::path& dir, bool unified) {
    const auto left =
        unified ? left_in_cgroup(dir, "memory.max", "memory.current", "inactive_file")
                : left_in_cgroup(dir, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file");
    if (left) least = std::min(*left, least.value_or(*left));
  });
  return least;
}

std::int64_t free_mib() {
  return available_memory_bytes().value_or(std::numeric_limits<std::int64_t>::max()) >> 20;
}

std::optional<double> granted_cores(const fs::path& root) {
  std::optional<double> least;
  each_cgroup(root, "cpu", [&](const fs::path& dir, bool unified) {
    if (const auto granted = granted_by_cgroup(dir, unified)) least = std::min(*granted, least.value_or(*granted));
  });
  return least;
}

int memory_node_count(const fs::path& root) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 1;
  int count = 0;
  for_memory_nodes(root, [&](int, const std::vector<int>& of_node) { count += contains_any(allowed, of_node); });
  return std::max(count, 1);
}

std::vector<int> share_of_cores(int rank, int count, const fs::path& root) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return {};
  std::vector<int> cores;
  const auto add = [&](int core) {
    if (contains(allowed, core)) cores.push_back(core);
    if (core < CPU_SETSIZE) CPU_CLR(core, &allowed);
  };
  for_memory_nodes(root, [&](int, const std::vector<int>& of_node) { std::ranges::for_each(of_node, add); });
  for (int core = 0; core < CPU_SETSIZE; ++core) add(core);  // if there is no information about nodes
  const auto cut = [&](int i) { return std::ssize(cores) * i / count; };
  if (std::ssize(cores) < count) return {};
  return {cores.begin() + cut(rank), cores.begin() + cut(rank + 1)};
}

void use_share_of_cores(int rank, int count) {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  for (const int core : share_of_cores(rank, count)) CPU_SET(core, &mine);
  if (CPU_COUNT(&mine) == 0) return;
  sched_setaffinity(0, sizeof mine, &mine);
  std::uint64_t nodes = 0, others = 0;
  for_memory_nodes("/", [&](int node, const std::vector<int>& cores) {
    if (node < 64) (contains_any(mine, cores) ? nodes : others) |= std::uint64_t{1} << node;
  });
  if (nodes == 0) return;
  // First touch alone takes memory of another node where files in the page cache have filled this one.
  if (syscall(SYS_set_mempolicy, MPOL_BIND, &nodes, 65) != 0)  // the kernel reads one bit less
    log_warn("event=memory_not_bound nodes={:#x} reason=\"{}\"", nodes, std::generic_category().message(errno));
  // Freed memory of the heap may hold weights later. Where this is refused too, the warning above says enough.
  if (others != 0) syscall(SYS_migrate_pages, 0, 65, &others, &nodes);
}

fs::path user_folder(const char* variable, const char* below_home) {
  const char* const chosen = std::getenv(variable);
  const char* const home = std::getenv("HOME");
  if (chosen != nullptr && *chosen == '/') return fs::path(chosen) / "outrider";
  return home != nullptr && *home == '/' ? fs::path(home) / below_home / "outrider" : fs::path();
}

fs::path cache_folder() {
  const char* const cache = std::getenv("OUTRIDER_CACHE");
  return cache != nullptr && *cache == '/' ? fs::path(cache) : user_folder("XDG_CACHE_HOME", ".cache");
}

std::vector<std::string> process_stat(std::string_view pid) {
  std::ifstream file(fs::path("/proc") / pid / "stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::istringstream fields(text.substr(text.rfind(')') + 1));  // a name may contain spaces and brackets
  return {std::istream_iterator<std::string>(fields), {}};
}

void take_short_turns() {
  // The first version of the kernel's struct sched_attr, which glibc has only since 2.41.
  struct {
    std::uint32_t size, policy;
    std::uint64_t flags;
    std::int32_t nice;
    std::uint32_t priority;
    std::uint64_t runtime, deadline, period;
  } attributes = {};
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0) return;
  if (attributes.policy != SCHED_OTHER && attributes.policy != SCHED_BATCH) return;
  attributes.runtime = 100'000;  // ns: the minimum
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace outrider
