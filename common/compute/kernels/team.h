#pragma once

#include <cstdint>

namespace outrider {

// The threads that share the work of forward passes, and of packing (ADR 12). Every thread has a team of its own:
// itself, and workers that are started with its first work and end with it. So two engines of one process never wait
// for each other.

/// Sets the number of threads that share the calling thread's work. @pre threads >= 1
void set_team_size(int threads);

/// Returns the number set by set_team_size(); by default OMP_NUM_THREADS, or the cores that this process may use: the
/// affinity mask, or fewer if cgroups grant less time (granted_cores(), rounded down).
int team_size();

namespace detail {
using TeamWork = void(const void* work, std::int64_t begin, std::int64_t end);
void team_run(std::int64_t count, std::int64_t grain, TeamWork* call, const void* work) noexcept;
}  // namespace detail

/// Calls work(begin, end) for pieces of `grain` items (the last may have fewer) that cover [0, count). Returns when all
/// are finished. The calling thread takes pieces too, and waits only for pieces that were begun, never for an idle
/// worker: a late worker, or one whose core is taken away, is not needed. Which thread gets a piece is arbitrary, so
/// results must not depend on it. A nested call is one piece of the calling thread. An exception in `work` ends the
/// program.
/// @param grain  some microseconds of work: a piece costs a tenth of one, and a sleeping team is woken for two pieces
template <typename Work>
void team_run(std::int64_t count, std::int64_t grain, const Work& work) {
  detail::team_run(
      count, grain,
      [](const void* of, std::int64_t begin, std::int64_t end) { (*static_cast<const Work*>(of))(begin, end); }, &work);
}

/// Calls work(i) for each of [0, count), `grain` of them per piece.
template <typename Work>
void team_for(std::int64_t count, std::int64_t grain, const Work& work) {
  team_run(count, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) work(i);
  });
}

}  // namespace outrider
