#pragma once

#include <cstddef>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/os/child.h"
#include "launch/cluster/process_plan.h"

namespace outrider {

/// The way by which commands reach a host. A step of Slurm's goes to the node of the host's name, in the job that this
/// process is in.
enum class Backend { kLocal, kSsh, kSrun };
/// Their names, in this order.
inline constexpr std::initializer_list<const char*> kBackendNames = {"local", "ssh", "srun"};
inline const char* to_string(Backend backend) { return kBackendNames.begin()[static_cast<std::size_t>(backend)]; }
/// @return none for another name
std::optional<Backend> backend_named(std::string_view name);

/// @return ssh's command line for a host, without the address. ssh asks no questions, gives up on a host that is silent
/// for 15 s, and makes no terminal.
std::vector<std::string> ssh_words(const Host& host);

/// The command of this machine that runs `command` on `host`. Its standard input is that of the command.
std::vector<std::string> command_on(Backend backend, const Host& host, const std::vector<std::string>& command);

/// A file that a command of another host needs, and its option.
using SentFile = std::pair<std::string, std::string>;

/// The same; elsewhere the command's process prints a line before it begins, for announced_process(), and first
/// reads the files from its standard input: the contents one after the other. They are there, for nobody else to read,
/// as long as the process.
std::vector<std::string> announced_command_on(Backend backend, const Host& host,
                                              const std::vector<std::string>& command,
                                              const std::vector<SentFile>& files = {});
std::optional<ProcessId> announced_process(std::string_view output);

/// The command that sends a signal to a process of `host`, if that is still the same one. Status 0: it was alive.
/// @param signal  as kill takes it: "TERM", "0"
std::vector<std::string> signal_command(Backend backend, const Host& host, const ProcessId& process,
                                        const std::string& signal);
/// The same for a process of this machine that leads a group, and for its group, also when it has ended itself.
std::vector<std::string> signal_group_command(const ProcessId& leader, const std::string& signal);

}  // namespace outrider
