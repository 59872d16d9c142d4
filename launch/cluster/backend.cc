#include "launch/cluster/backend.h"

#include <algorithm>
#include <sstream>

#include <fmt/format.h>

namespace outrider {
namespace {

constexpr std::string_view kAnnounced = "outrider-launch process ";
/// Prints /proc/PID/stat from the state on: the name before it may contain spaces, and half of a character.
constexpr const char* kFromState = "LC_ALL=C sed \"s/.*) //\"";

/// @param script  of sh
std::vector<std::string> elsewhere(Backend backend, const Host& host, const std::string& script) {
  if (backend == Backend::kSrun)
    return {"srun",      "--overlap", "--nodes=1", "--ntasks=1", "--nodelist=" + host.address, "--kill-on-bad-exit=0",
            "--no-kill", "sh",        "-c",        script};
  std::vector<std::string> words = ssh_words(host);
  // The login shell there may be any; it gets one word in single quotes.
  words.insert(words.end(), {host.address, shell_line({"exec", "sh", "-c", script})});
  return words;
}

}  // namespace

std::optional<Backend> backend_named(std::string_view name) {
  const auto* const found = std::ranges::find(kBackendNames, name);
  if (found == kBackendNames.end()) return std::nullopt;
  return static_cast<Backend>(found - kBackendNames.begin());
}

std::vector<std::string> ssh_words(const Host& host) {
  std::vector<std::string> words = {"ssh", "-T"};
  words.insert(words.end(), host.ssh.begin(), host.ssh.end());  // first, since ssh keeps the first value of an option
  for (const char* option : {"BatchMode=yes", "ConnectTimeout=15", "ServerAliveInterval=5", "ServerAliveCountMax=3"})
    words.insert(words.end(), {"-o", option});
  return words;
}

std::vector<std::string> command_on(Backend backend, const Host& host, const std::vector<std::string>& command) {
  if (backend == Backend::kLocal) return command;
  return elsewhere(backend, host, "exec " + shell_line(command));
}

std::vector<std::string> announced_command_on(Backend backend, const Host& host,
                                              const std::vector<std::string>& command,
                                              const std::vector<SentFile>& files) {
  if (backend == Backend::kLocal) return command;
  std::string script, options;
  for (std::size_t i = 0; i < files.size(); ++i) {
    script += fmt::format("dd bs=1 count={} of=\"$f/{}\" 2>/dev/null; ", files[i].second.size(), i);
    options += fmt::format(" {} \"$f/{}\"", files[i].first, i);
  }
  if (!files.empty()) {
    // exec does not change a process's number and start: the waiting loop watches the command itself.
    script = "umask 077; f=$(mktemp -d); " + script +
             "(while kill -0 $$ 2>/dev/null; do sleep 1; done; rm -rf \"$f\") </dev/null >/dev/null 2>&1 & ";
  }
  script += fmt::format("echo \"{}$$ $(cut -d\" \" -f22 /proc/$$/stat)\"; exec {}{}", kAnnounced, shell_line(command),
                        options);
  return elsewhere(backend, host, script);
}

std::optional<ProcessId> announced_process(std::string_view output) {
  const std::size_t at = output.find(kAnnounced);
  if (at == output.npos) return {};
  std::istringstream numbers(std::string(output.substr(at + kAnnounced.size())));
  ProcessId process;
  if (!(numbers >> process.pid >> process.start) || numbers.eof()) return {};  // the end of the line is still to come
  return process;
}

std::vector<std::string> signal_command(Backend backend, const Host& host, const ProcessId& process,
                                        const std::string& signal) {
  // A process that has ended but was not reaped (state Z) is not alive.
  const std::string script = fmt::format(
      "case $({3} /proc/{0}/stat 2>/dev/null | cut -d\" \" -f1,20) in Z*) false ;; *\" {1}\") kill -{2} {0} ;; "
      "*) false ;; esac",
      process.pid, process.start, signal, kFromState);
  if (backend == Backend::kLocal) return {"sh", "-c", script};
  return elsewhere(backend, host, script);
}

std::vector<std::string> signal_group_command(const ProcessId& leader, const std::string& signal) {
  // While the group has members, no other process gets its number. A group that is also a session is not ours.
  const std::string script = fmt::format(
      "case $({3} /proc/{0}/stat 2>/dev/null | cut -d\" \" -f1,20) in \"\" | Z* | *\" {1}\") "
      "{3} /proc/[0-9]*/stat 2>/dev/null | cut -d\" \" -f1,3,4 | grep \"^[^Z] {0} \" | grep -qv \" {0}\\$\" && "
      "kill -s {2} -- -{0} ;; *) false ;; esac",
      leader.pid, leader.start, signal, kFromState);
  return {"sh", "-c", script};
}

}  // namespace outrider
