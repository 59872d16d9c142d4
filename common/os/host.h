#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace outrider {

/// Returns the bytes that this process could still use without swapping: the kernel's MemAvailable, or the memory left
/// in its cgroups (version 1 or 2), if that is less. None if unknown.
/// @param root  parent of proc and sys; another one for tests
std::optional<std::int64_t> available_memory_bytes(const std::filesystem::path& root = "/");
/// Returns the same in MiB; the largest number of them if it is unknown.
std::int64_t free_mib();

/// Returns the cores granted by the process's CPU cgroups (version 1 or 2), as set by `docker run --cpus` and
/// Kubernetes' limits; none if unlimited. @param root  as above
std::optional<double> granted_cores(const std::filesystem::path& root = "/");

/// Returns the number of memory nodes (NUMA) with cores that the calling thread may use, at least 1.
/// @param root  as above
int memory_node_count(const std::filesystem::path& root = "/");
/// Returns share `rank` of `count` of the calling thread's cores, distributed by memory node: whole nodes if there are
/// as many shares as nodes and each node has as many cores as the others. Empty if there are fewer cores than shares.
std::vector<int> share_of_cores(int rank, int count, const std::filesystem::path& root = "/");
/// Binds the calling thread, and threads that it starts later, to its share of the cores, and memory that they touch
/// first to the nodes of these cores. Memory that it has touched alone moves there. Where the kernel refuses to bind
/// memory (seccomp), that is logged.
void use_share_of_cores(int rank, int count);

/// Returns the program's folder in one of the XDG base directories. Empty if neither variable is an absolute path.
/// @param variable  of the directory, such as XDG_STATE_HOME @param below_home  its default, such as .local/state
std::filesystem::path user_folder(const char* variable, const char* below_home);
/// Returns the folder of files that may be lost: OUTRIDER_CACHE, else `outrider` in XDG_CACHE_HOME or in ~/.cache.
/// Empty if none of these variables is an absolute path.
std::filesystem::path cache_folder();

/// Returns the fields of /proc/PID/stat from the third on, the state (proc(5)); empty: no such process.
/// @param pid  a number, or "self"
std::vector<std::string> process_stat(std::string_view pid);

/// Requests time slices of a tenth of a millisecond for the calling thread, and threads that it starts later, so that
/// beside other busy threads they do not wait several milliseconds for each. Their shares of time do not change. Linux
/// supports it since 6.12; before, nothing changes.
void take_short_turns();

}  // namespace outrider
