#include "common/compute/kernels/team.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

#include "common/base/check.h"
#include "common/base/time.h"
#include "common/os/host.h"

namespace outrider {
namespace {

/// Time of spinning before a waiting thread sleeps: longer than the steps between two jobs of a forward pass, and short
/// enough to free a core soon for other work. Waking a thread takes 5 to 50 us.
constexpr Duration kSpin = std::chrono::microseconds(50);

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  asm volatile("yield");
#endif
}

/// A partly granted core does not count: a process that has used up its time is stopped with all its threads.
int default_size() {
  const int cores = omp_get_max_threads();
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return cores;
  static const double granted = granted_cores().value_or(cores);
  return std::clamp(static_cast<int>(granted), 1, cores);
}

/// @return true if `is_over` became true within kSpin
template <typename IsOver>
bool spin_until(IsOver is_over) {
  constexpr int kLooksPerClock = 32;
  const TimePoint start = now();
  do {
    for (int i = 0; i < kLooksPerClock; ++i, relax())
      if (is_over()) return true;
  } while (now() - start < kSpin);
  return false;
}

/// A thread's own pieces, as long as no other thread has taken them: [next, end) of the job's. One word, so that
/// incrementing `next` claims that piece of the job stored there, even if it is a later job than expected: a claim
/// needs no generation.
class Share {
 public:
  void assign(std::uint64_t next, std::uint64_t end) { range_.store(next | end << 32, std::memory_order_release); }
  /// @return the piece, or -1
  std::int64_t claim() {
    if (!has_piece(range_.load(std::memory_order_relaxed))) return -1;
    const std::uint64_t range = range_.fetch_add(1, std::memory_order_acquire);
    return has_piece(range) ? static_cast<std::int64_t>(next(range)) : -1;
  }

 private:
  static std::uint64_t next(std::uint64_t range) { return range & 0xffffffff; }
  static bool has_piece(std::uint64_t range) { return next(range) < range >> 32; }
  alignas(64) std::atomic<std::uint64_t> range_{0};
};

class Team {
 public:
  static Team& mine() {
    thread_local Team team;
    return team;
  }
  ~Team() { dismiss(); }

  int size() const { return size_; }
  /// Surplus threads stay, and sleep until the team grows again. Missing threads are started, or tried again, when
  /// the size changes.
  void resize(int size) { size_ = size; }

  void run(std::int64_t count, std::int64_t grain, detail::TeamWork* call, const void* work) {
    const std::int64_t pieces = (count + grain - 1) / grain;
    if (pieces <= 1 || size_ == 1 || is_running_) {
      if (count > 0) call(work, 0, count);
      return;
    }
    if (active_.load(std::memory_order_relaxed) != size_) call_in();
    is_running_ = true;
    job_ = {count, grain, call, work};
    unfinished_.store(static_cast<int>(pieces), std::memory_order_relaxed);
    const std::int64_t each = pieces / size_, more = pieces % size_;
    std::int64_t next = 0;
    for (std::int64_t t = 0; t < size_; ++t) {
      const std::int64_t end = next + each + (t < more ? 1 : 0);
      shares_[static_cast<std::size_t>(t)].assign(static_cast<std::uint64_t>(next), static_cast<std::uint64_t>(end));
      next = end;
    }
    jobs_.fetch_add(1);
    wake(pieces - 1);
    help(0);
    const auto is_finished = [&] { return unfinished_.load(std::memory_order_acquire) == 0; };
    if (!is_finished() && !spin_until(is_finished)) {
      for (int left; (left = unfinished_.load(std::memory_order_acquire)) != 0;) unfinished_.wait(left);
    }
    is_running_ = false;
  }

 private:
  struct Job {
    std::int64_t count, grain;
    detail::TeamWork* call;
    const void* work;
  };

  void wake(std::int64_t wanted) {
    const int asleep = asleep_.load();
    if (asleep == 0) return;
    if (wanted >= asleep) return jobs_.notify_all();
    while (wanted-- > 0) jobs_.notify_one();
  }

  /// Takes pieces: first those of thread `self`, which were its own in the last job, then others'.
  void help(std::size_t self) {
    int finished = 0;
    for (std::size_t i = 0; i < shares_.size(); ++i) {
      Share& share = shares_[(self + i) % shares_.size()];
      for (std::int64_t piece; (piece = share.claim()) >= 0; ++finished) {
        const std::int64_t begin = piece * job_.grain;
        job_.call(job_.work, begin, std::min(begin + job_.grain, job_.count));
      }
    }
    if (finished > 0 && unfinished_.fetch_sub(finished, std::memory_order_acq_rel) == finished)
      unfinished_.notify_one();
  }

  void be_worker(std::size_t self) {
    set_team_size(1);
    for (;;) {
      const std::uint32_t seen = jobs_.load();
      if (is_over_.load()) return;
      if (const int active = active_.load(); static_cast<int>(self) >= active) {
        if (!spin_until([&] { return active_.load(std::memory_order_relaxed) != active; })) active_.wait(active);
        continue;
      }
      help(self);
      if (spin_until([&] { return jobs_.load(std::memory_order_relaxed) != seen; })) continue;
      asleep_.fetch_add(1);
      jobs_.wait(seen);
      asleep_.fetch_sub(1);
    }
  }

  /// Activates size_ threads, and no others.
  void call_in() {
    if (std::ssize(shares_) < size_) {
      dismiss();
      shares_ = std::vector<Share>(static_cast<std::size_t>(size_));
    }
    active_.store(size_);
    active_.notify_all();
    // Wakes all: a sleeping thread that is no longer active must not receive a notify_one() meant for an active one.
    jobs_.fetch_add(1);
    jobs_.notify_all();
    try {
      for (std::size_t self = workers_.size() + 1; self < shares_.size(); ++self)
        workers_.emplace_back([this, self] { be_worker(self); });
    } catch (const std::system_error&) {
      // A limit of processes or memory: the others take the pieces of the threads that cannot be started.
    }
  }

  void dismiss() {
    is_over_.store(true);
    active_.store(std::numeric_limits<int>::max());
    active_.notify_all();
    jobs_.fetch_add(1);
    jobs_.notify_all();
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
    is_over_.store(false);
  }

  int size_ = default_size();
  bool is_running_ = false;
  Job job_{};                                       ///< read by threads with a piece, written while none has one
  std::vector<Share> shares_;                       ///< one per thread ever needed; those of inactive threads are empty
  std::atomic<int> active_{0};                      ///< threads that take pieces, including the calling one
  alignas(64) std::atomic<int> unfinished_{0};      ///< pieces of the job
  alignas(64) std::atomic<std::uint32_t> jobs_{0};  ///< published jobs
  std::atomic<int> asleep_{0};                      ///< workers, including those about to sleep
  std::atomic<bool> is_over_{false};
  std::vector<std::thread> workers_;
};

}  // namespace

void set_team_size(int threads) {
  CHECK(threads >= 1, "a team of {}", threads);
  omp_set_num_threads(threads);
  Team::mine().resize(threads);
}

int team_size() { return Team::mine().size(); }

void detail::team_run(std::int64_t count, std::int64_t grain, TeamWork* call, const void* work) noexcept {
  DCHECK(grain >= 1, "grain {}", grain);
  Team::mine().run(count, grain, call, work);
}

}  // namespace outrider
