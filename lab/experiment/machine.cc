#include "lab/experiment/machine.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>

#include <fmt/format.h>

#include "common/os/host.h"
#include "launch/cluster/facts.h"

namespace outrider {
namespace {

std::string whole(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// Returns the ticks of this process and its descendants: a verifier's shards are its children, not ours.
double ticks_of_ours() {
  constexpr std::size_t kParent = 1, kUserTime = 11, kSystemTime = 12;
  std::multimap<std::string, std::string> children;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const std::string pid = entry.path().filename().string();
    if (std::isdigit(static_cast<unsigned char>(pid[0])) == 0) continue;
    const std::vector<std::string> stat = process_stat(pid);
    if (stat.size() > kParent) children.emplace(stat[kParent], pid);
  }
  double ticks = 0;
  std::vector<std::string> ours = {std::to_string(getpid())};
  while (!ours.empty()) {
    const auto [first, last] = children.equal_range(ours.back());
    const std::vector<std::string> stat = process_stat(ours.back());
    ours.pop_back();
    if (stat.size() > kSystemTime) ticks += std::stod(stat[kUserTime]) + std::stod(stat[kSystemTime]);
    for (auto child = first; child != last; ++child) ours.push_back(child->second);
  }
  return ticks;
}

/// Returns the first value of `key` in lines "key : value".
std::string value_of(const std::string& text, const std::string& key) {
  const std::size_t line = text.find(key), colon = text.find(':', line);
  if (line == std::string::npos || colon == std::string::npos) return "";
  const std::size_t start = text.find_first_not_of(" \t", colon + 1);
  return start == std::string::npos ? "" : text.substr(start, text.find('\n', start) - start);
}

double mean_clock_mhz(const std::string& cpuinfo) {
  double sum = 0;
  int count = 0;
  for (std::size_t at = cpuinfo.find("cpu MHz"); at != std::string::npos; at = cpuinfo.find("cpu MHz", at + 1)) {
    sum += std::atof(value_of(cpuinfo.substr(at, 80), "cpu MHz").c_str());
    ++count;
  }
  return count == 0 ? 0 : sum / count;
}

}  // namespace

CpuTicks parse_proc_stat(const std::string& text) {
  std::istringstream fields(text);
  std::string cpu;
  double user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0, steal = 0;
  fields >> cpu >> user >> nice >> system >> idle >> iowait >> irq >> softirq >> steal;
  return {.busy = user + nice + system + irq + softirq, .idle = idle + iowait, .steal = steal};
}

CpuTicks CpuTicks::now() {
  CpuTicks ticks = parse_proc_stat(whole("/proc/stat"));
  ticks.ours = ticks_of_ours();
  return ticks;
}

MachineUse machine_use(const CpuTicks& before, const CpuTicks& after) {
  const double busy = after.busy - before.busy, steal = after.steal - before.steal;
  const double all = std::max(busy + steal + after.idle - before.idle, 1.0);
  MachineUse use{.steal = steal / all, .others = std::max(busy - (after.ours - before.ours), 0.0) / all};
  use.load = std::atof(whole("/proc/loadavg").c_str());
  use.clock_mhz = mean_clock_mhz(whole("/proc/cpuinfo"));
  return use;
}

Json to_json(const MachineUse& use) {
  return {{"steal", use.steal},
          {"others", use.others},
          {"load", use.load},
          {"clock_mhz", use.clock_mhz > 0 ? Json(use.clock_mhz) : Json()},
          {"read_gb_s_before", use.read_gb_s_before},
          {"read_gb_s_after", use.read_gb_s_after}};
}

std::optional<std::string> moved_too_much(const MachineUse& use, const VoidRule& rule) {
  if (use.steal > rule.steal)
    return fmt::format("{:.0f} % of the cores' time was stolen, wanted at most {:.0f} %", use.steal * 100,
                       rule.steal * 100);
  if (use.others > rule.others)
    return fmt::format("other processes took {:.0f} % of the cores' time, wanted at most {:.0f} %", use.others * 100,
                       rule.others * 100);
  const double change = std::abs(use.read_gb_s_after / use.read_gb_s_before - 1);
  if (use.read_gb_s_before > 0 && change > rule.bandwidth)
    return fmt::format("the read bandwidth went from {:.1f} to {:.1f} GB/s, wanted at most {:.0f} % of change",
                       use.read_gb_s_before, use.read_gb_s_after, rule.bandwidth * 100);
  return std::nullopt;
}

Json describe_machine() {
  utsname system{};
  uname(&system);
  return {{"cpu", cpu_model()},
          {"cores", std::thread::hardware_concurrency()},
          {"memory", value_of(whole("/proc/meminfo"), "MemTotal")},
          {"system", fmt::format("{} {} {}", system.sysname, system.release, system.machine)}};
}

}  // namespace outrider
