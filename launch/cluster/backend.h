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

/// The way in which commands reach a host. A Slurm step runs on the node with the host's name, in this process's job.
enum class Backend { kLocal, kSsh, kSrun };
/// Their names, in this order.
inline constexpr std::initializer_list<const char*> kBackendNames = {"local", "ssh", "srun"};
inline const char* to_string(Backend backend) { return kBackendNames.begin()[static_cast<std::size_t>(backend)]; }
/// @return none for another name
std::optional<Backend> backend_named(std::string_view name);

/// @return ssh's command line for a host, without the address. ssh asks no questions, gives up on a host that is silent
/// for 15 s, and allocates no terminal
std::vector<std::string> ssh_words(const Host& host);

/// Returns the local command that runs `command` on `host`, with its standard input.
std::vector<std::string> command_on(Backend backend, const Host& host, const std::vector<std::string>& command);

/// A file for a command on another host, and its option.
using SentFile = std::pair<std::string, std::string>;

/// The same; on another host the process first reads the files from its standard input, concatenated, and prints a line
/// for announced_process(). The files are private, and exist as long as the process.
std::vector<std::string> announced_command_on(Backend backend, const Host& host,
                                              const std::vector<std::string>& command,
                                              const std::vector<SentFile>& files = {});
std::optional<ProcessId> announced_process(std::string_view output);

/// Returns the command that sends a signal to a process of `host`, if it is still the same one. Status 0: it was alive.
/// @param signal  for kill: "TERM", "0"
std::vector<std::string> signal_command(Backend backend, const Host& host, const ProcessId& process,
                                        const std::string& signal);
/// The same for a local group leader and its group, even after the leader has ended.
std::vector<std::string> signal_group_command(const ProcessId& leader, const std::string& signal);

}  // namespace outrider
