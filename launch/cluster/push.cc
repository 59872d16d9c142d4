#include "launch/cluster/push.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/base/complain.h"
#include "common/base/text.h"
#include "common/os/child.h"
#include "launch/cluster/backend.h"

namespace outrider {
namespace {
namespace fs = std::filesystem;

/// Long, since rsync and ssh detect hosts that hang.
constexpr int kSeconds = 24 * 3600, kStartSeconds = 60;

/// A local file or folder, and its remote path.
using Item = std::pair<fs::path, fs::path>;

/// The files for one host.
struct Transfer {
  Host host;
  std::vector<Item> items;
  bool failed = false;
};

/// Returns the directories of a process's models.
std::vector<std::string> models_of(const PlannedProcess& process) {
  std::vector<std::string> models;
  for (const char* option : {"--model", "--backbone", "--assistant", "--draft-model", "--hidden-rows-for"}) {
    const auto found = std::ranges::find(process.options, option);
    if (found != process.options.end()) models.push_back(*(found + 1));
  }
  return models;
}

Result<std::vector<Transfer>> transfers_of(const Plan& plan, const ProcessPlan& processes, const PushSources& sources) {
  if (plan.program.empty())
    return Error{Errc::kInvalidArgument, "program: the plan does not say where the program goes on the hosts"};
  std::vector<Transfer> transfers;
  std::set<std::vector<std::string>> seen;
  for (const Host& host : processes.hosts) {
    std::set<fs::path> there;
    Transfer transfer{host, {{sources.program, plan.program}}};
    for (const PlannedProcess& process : processes.processes) {
      if (process.host.address != host.address || process.host.ssh != host.ssh) continue;
      for (const std::string& model : models_of(process)) {
        if (hub_name(model)) continue;  // each host downloads it
        const bool replaced = model == plan.model && !sources.model.empty();
        if (there.insert(model).second) transfer.items.emplace_back(replaced ? sources.model : fs::path(model), model);
      }
    }
    for (const auto& [from, to] : transfer.items) {
      if (!to.is_absolute()) return Error(Errc::kInvalidArgument, "{}: wanted an absolute path", to.string());
      std::error_code error;
      if (!fs::exists(from, error)) return Error(Errc::kNotFound, "{}: is not here", from.string());
    }
    // Hosts with one address are one machine.
    std::vector<std::string> dialled = host.ssh;
    dialled.push_back(host.address);
    if (seen.insert(std::move(dialled)).second) transfers.push_back(std::move(transfer));
  }
  return transfers;
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

void fail(Transfer& transfer, const std::string& why) {
  complain("{}: {}", transfer.host.name, why);
  transfer.failed = true;
}

/// Runs a command for each host that has not failed, and passes on each answer.
void on_each(std::vector<Transfer>& transfers, int seconds, const auto& command, const auto& take) {
  std::vector<std::vector<std::string>> commands;
  std::vector<Transfer*> asked;
  for (Transfer& transfer : transfers) {
    if (transfer.failed) continue;
    asked.push_back(&transfer);
    commands.push_back(command(transfer));
  }
  const std::vector<Captured> answers = run_all(commands, seconds);
  for (std::size_t i = 0; i < answers.size(); ++i) take(*asked[i], answers[i]);
}

void send(std::vector<Transfer>& transfers) {
  const std::size_t most =
      std::ranges::max(transfers, {}, [](const Transfer& transfer) { return transfer.items.size(); }).items.size();
  for (std::size_t i = 0; i < most; ++i) {
    on_each(
        transfers, kSeconds,
        [&](const Transfer& transfer) {
          return i < transfer.items.size() ? rsync_command(transfer.host, transfer.items[i])
                                           : std::vector<std::string>{"true"};
        },
        [&](Transfer& transfer, const Captured& answer) {
          const std::vector<std::string> lines = lines_of(answer.out);
          if (answer.status == 127 && lines.empty()) return fail(transfer, "there is no rsync on this machine");
          if (answer.status != 0) return fail(transfer, lines.empty() ? "rsync failed" : lines.front());
          for (const std::string& line : lines) {
            if (!line.ends_with('/')) std::printf("%s: sent %s\n", transfer.host.name.c_str(), line.c_str());
          }
        });
  }
}

}  // namespace

Result<int> push_to_hosts(const Plan& plan, const ProcessPlan& processes, const PushSources& sources) {
  ASSIGN_OR_RETURN(std::vector<Transfer> transfers, transfers_of(plan, processes, sources));
  send(transfers);
  on_each(
      transfers, kStartSeconds,
      [&](const Transfer& transfer) {
        return command_on(Backend::kSsh, transfer.host, {plan.program, "--version"});
      },
      [&](Transfer& transfer, const Captured& answer) {
        const std::vector<std::string> lines = lines_of(answer.out);
        if (answer.status != 0)
          return fail(transfer, fmt::format("{} does not start there: {}", plan.program,
                                            lines.empty() ? fmt::format("status {}", answer.status) : lines.back()));
        std::printf("%s: %s is %s\n", transfer.host.name.c_str(), plan.program.c_str(),
                    lines.empty() ? "" : lines.back().c_str());
      });
  return static_cast<int>(std::ranges::count(transfers, true, &Transfer::failed));
}

}  // namespace outrider
