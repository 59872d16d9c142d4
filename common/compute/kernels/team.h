#pragma once

#include <cstdint>

namespace outrider {

// The threads that share the work of forward passes, and of packing (ADR 12). Every thread has a team of its own:
// itself, and workers that it starts when it first has work for them, which end with it. So two engines of one process
// never wait for each other's.

/// How many threads share the calling thread's work from now on.
/// @pre threads >= 1
void set_team_size(int threads);

/// What set_team_size() said; before, OMP_NUM_THREADS, or the cores that this process may use: the affinity mask, or
/// fewer where cgroups grant it less time (granted_cores(), rounded down).
int team_size();

namespace detail {
using TeamWork = void(const void* work, std::int64_t begin, std::int64_t end);
void team_run(std::int64_t count, std::int64_t grain, TeamWork* call, const void* work) noexcept;
}  // namespace detail

/// work(begin, end) for pieces of `grain` items, the last of fewer, which together are [0, count). Returns when all are
/// finished. The calling thread takes pieces too and waits for those alone that somebody has begun, never for a worker
/// that has none: a worker that is late, or whose core is taken away, is not needed. Which thread gets a piece is
/// chance, so a result must not depend on it. Called in a piece, all is one piece of the calling thread.
/// An exception in `work` ends the program.
/// @param grain as much as makes some microseconds: a piece costs a tenth of one, and a team that sleeps is woken for
///        two of them
template <typename Work>
void team_run(std::int64_t count, std::int64_t grain, const Work& work) {
  detail::team_run(
      count, grain,
      [](const void* of, std::int64_t begin, std::int64_t end) { (*static_cast<const Work*>(of))(begin, end); }, &work);
}

/// work(i) for each of [0, count), `grain` of them a piece.
template <typename Work>
void team_for(std::int64_t count, std::int64_t grain, const Work& work) {
  team_run(count, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) work(i);
  });
}

}  // namespace outrider
