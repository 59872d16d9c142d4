#include "cluster-launch/push.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cluster-launch/reach.h"
#include "common/base/child.h"
#include "common/base/text.h"

namespace outrider {
namespace {
namespace fs = std::filesystem;

/// Hosts that hang are rsync's and ssh's to notice.
constexpr int kSeconds = 24 * 3600, kStartSeconds = 60;

/// A file or a folder here, and what it becomes there.
using Item = std::pair<fs::path, fs::path>;

/// What goes to one host.
struct Cargo {
  Host host;
  std::vector<Item> items;
  bool failed = false;
};

/// The directories of a process's models.
std::vector<std::string> models_of(const PlannedProcess& process) {
  std::vector<std::string> models;
  for (const char* option : {"--model", "--backbone", "--assistant"}) {
    const auto found = std::ranges::find(process.options, option);
    if (found != process.options.end()) models.push_back(*(found + 1));
  }
  return models;
}

Result<std::vector<Cargo>> cargoes_of(const Plan& plan, const ProcessPlan& processes, const PushSources& sources) {
  if (plan.program.empty())
    return Error{Errc::kInvalidArgument, "program: the plan does not say where the program goes on the hosts"};
  std::vector<Cargo> cargoes;
  std::set<std::vector<std::string>> seen;
  for (const Host& host : processes.hosts) {
    std::set<fs::path> there;
    Cargo cargo{host, {{sources.program, plan.program}}};
    for (const PlannedProcess& process : processes.processes) {
      if (process.host.address != host.address || process.host.ssh != host.ssh) continue;
      for (const std::string& model : models_of(process)) {
        const bool replaced = model == plan.model && !sources.model.empty();
        if (there.insert(model).second) cargo.items.emplace_back(replaced ? sources.model : fs::path(model), model);
      }
    }
    for (const auto& [from, to] : cargo.items) {
      if (!to.is_absolute()) return Error(Errc::kInvalidArgument, "{}: wanted an absolute path", to.string());
      std::error_code error;
      if (!fs::exists(from, error)) return Error(Errc::kNotFound, "{}: is not here", from.string());
    }
    // Hosts of one address are one machine.
    std::vector<std::string> dialled = host.ssh;
    dialled.push_back(host.address);
    if (seen.insert(std::move(dialled)).second) cargoes.push_back(std::move(cargo));
  }
  return cargoes;
}

/// The files of an item: here and there.
std::vector<Item> files_of(const Item& item) {
  if (!fs::is_directory(item.first)) return {item};
  std::vector<Item> files;
  for (const auto& entry :
       fs::recursive_directory_iterator(item.first, fs::directory_options::follow_directory_symlink)) {
    if (entry.is_regular_file()) files.emplace_back(entry.path(), item.second / fs::relative(entry.path(), item.first));
  }
  std::ranges::sort(files);
  return files;
}

std::vector<std::string> rsync_command(const Host& host, const Item& item) {
  const std::string end = fs::is_directory(item.first) ? "/" : "";
  const std::string address = host.address.find(':') == std::string::npos ? host.address : "[" + host.address + "]";
  return {"rsync",
          "--archive",
          "--copy-links",
          "--checksum",
          "--mkpath",
          "--protect-args",
          "--timeout=60",
          "--out-format=%n",
          "--rsh",
          shell_line(ssh_words(host)),
          item.first.string() + end,
          address + ":" + item.second.string() + end};
}

/// The SHA-256 of files, a line each, where `side` says which of the two.
std::vector<std::string> sums_command(const std::vector<Item>& files, fs::path Item::*side) {
  std::string script;
  for (const Item& file : files) script += "sha256sum < " + shell_line({(file.*side).string()}) + "; ";
  return {"sh", "-c", script};
}

void fail(Cargo& cargo, const std::string& why) {
  std::fprintf(stderr, "outrider: %s: %s\n", cargo.host.name.c_str(), why.c_str());
  cargo.failed = true;
}

/// Runs a command for each host that has not failed, and hands each its answer.
void on_each(std::vector<Cargo>& cargoes, int seconds, const auto& command, const auto& take) {
  std::vector<std::vector<std::string>> commands;
  std::vector<Cargo*> asked;
  for (Cargo& cargo : cargoes) {
    if (cargo.failed) continue;
    asked.push_back(&cargo);
    commands.push_back(command(cargo));
  }
  const std::vector<Captured> answers = run_all(commands, seconds);
  for (std::size_t i = 0; i < answers.size(); ++i) take(*asked[i], answers[i]);
}

void send(std::vector<Cargo>& cargoes) {
  const std::size_t most =
      std::ranges::max(cargoes, {}, [](const Cargo& cargo) { return cargo.items.size(); }).items.size();
  for (std::size_t i = 0; i < most; ++i) {
    on_each(
        cargoes, kSeconds,
        [&](const Cargo& cargo) {
          return i < cargo.items.size() ? rsync_command(cargo.host, cargo.items[i]) : std::vector<std::string>{"true"};
        },
        [&](Cargo& cargo, const Captured& answer) {
          const std::vector<std::string> lines = lines_of(answer.out);
          if (answer.status == 127 && lines.empty()) return fail(cargo, "there is no rsync on this machine");
          if (answer.status != 0) return fail(cargo, lines.empty() ? "rsync failed" : lines.front());
          for (const std::string& line : lines) {
            if (!line.ends_with('/')) std::printf("%s: sent %s\n", cargo.host.name.c_str(), line.c_str());
          }
        });
  }
}

void compare(std::vector<Cargo>& cargoes) {
  const auto files_for = [](const Cargo& cargo) {
    std::vector<Item> files;
    for (const Item& item : cargo.items) std::ranges::copy(files_of(item), std::back_inserter(files));
    return files;
  };
  std::vector<std::string> here;  // of each host that has not failed, in order
  on_each(
      cargoes, kSeconds, [&](const Cargo& cargo) { return sums_command(files_for(cargo), &Item::first); },
      [&](Cargo&, const Captured& answer) { here.push_back(answer.out); });
  std::size_t next = 0;
  on_each(
      cargoes, kSeconds,
      [&](const Cargo& cargo) {
        return command_on(Reach::kSsh, cargo.host, sums_command(files_for(cargo), &Item::second));
      },
      [&](Cargo& cargo, const Captured& answer) {
        const std::vector<std::string> ours = lines_of(here[next++]), theirs = lines_of(answer.out);
        const std::vector<Item> files = files_for(cargo);
        for (std::size_t i = 0; i < files.size(); ++i) {
          if (i < ours.size() && i < theirs.size() && ours[i] == theirs[i]) continue;
          return fail(cargo, fmt::format("{} is not what was sent: SHA-256 {}, wanted {}", files[i].second.string(),
                                         i < theirs.size() ? theirs[i] : "none", i < ours.size() ? ours[i] : "one"));
        }
        std::printf("%s: %zu files are there as they are here\n", cargo.host.name.c_str(), files.size());
      });
}

}  // namespace

Result<int> push_to_hosts(const Plan& plan, const ProcessPlan& processes, const PushSources& sources) {
  ASSIGN_OR_RETURN(std::vector<Cargo> cargoes, cargoes_of(plan, processes, sources));
  send(cargoes);
  compare(cargoes);
  on_each(
      cargoes, kStartSeconds,
      [&](const Cargo& cargo) {
        return command_on(Reach::kSsh, cargo.host, {plan.program, "--version"});
      },
      [&](Cargo& cargo, const Captured& answer) {
        const std::vector<std::string> lines = lines_of(answer.out);
        if (answer.status != 0)
          return fail(cargo, fmt::format("{} does not start there: {}", plan.program,
                                         lines.empty() ? fmt::format("status {}", answer.status) : lines.back()));
        std::printf("%s: %s is %s\n", cargo.host.name.c_str(), plan.program.c_str(),
                    lines.empty() ? "" : lines.back().c_str());
      });
  return static_cast<int>(std::ranges::count(cargoes, true, &Cargo::failed));
}

}  // namespace outrider
