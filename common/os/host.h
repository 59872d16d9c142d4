#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace outrider {

/// Bytes that this process could still take without swapping: the kernel's MemAvailable, or what the
/// process's memory cgroups (version 1 or 2) leave, if that is less. None if nothing says.
/// @param root where proc and sys lie; another one for tests.
std::optional<std::int64_t> available_memory_bytes(const std::filesystem::path& root = "/");

/// Cores whose time the process's CPU cgroups (version 1 or 2) grant it, as `docker run --cpus` and Kubernetes' limits
/// set it; none where nothing bounds it. @param root as above.
std::optional<double> granted_cores(const std::filesystem::path& root = "/");

/// The host's memories (NUMA nodes) that have cores, at least 1. @param root as above.
int memory_node_count(const std::filesystem::path& root = "/");
/// Of the cores that the calling thread may use, those that are share `rank` of `count` if all are dealt out by memory
/// node: a whole node's where there are as many shares as nodes. Empty where there are fewer cores than shares.
std::vector<int> share_of_cores(int rank, int count, const std::filesystem::path& root = "/");
/// Binds the calling thread, and those that it starts from now on, to its share of the cores. What they touch first
/// then lies in their node's memory, as the kernel has it by default.
void use_share_of_cores(int rank, int count);

/// What /proc/PID/stat says of a process from its third field on, the state (proc(5)); empty: there is no such process.
/// @param pid  a number, or "self"
std::vector<std::string> process_stat(std::string_view pid);

/// Asks the kernel to give the calling thread, and those that it starts from now on, their shares of cores in turns of
/// a tenth of a millisecond, so that beside others that are busy they do not wait several for each. The shares are the
/// same. Linux has it since 6.12; before, nothing changes.
void take_short_turns();

}  // namespace outrider
