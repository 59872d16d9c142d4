#include "verifier-node/shared_memory_shards.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <thread>

#include "common/base/time.h"
#include "common/compute/kernels/team.h"
#include "common/os/files.h"
#include "common/wire/messages/messages.h"

namespace outrider {
namespace {

/// Floats per piece of a team's copying: some 3 us.
constexpr std::int64_t kCopiedPerPiece = 16 * 1024;

constexpr timespec kLook{.tv_sec = 0, .tv_nsec = 100'000'000};

/// std::atomic's own wait() works within one process only.
void sleep_on(std::atomic<std::uint32_t>& count, std::uint32_t seen) {
  syscall(SYS_futex, &count, FUTEX_WAIT, seen, &kLook, nullptr, 0);
}
void wake_all(std::atomic<std::uint32_t>& count) {
  syscall(SYS_futex, &count, FUTEX_WAKE, kShards.max, nullptr, nullptr, 0);
}

void copy(Matrix<const float> from, Matrix<float> to) {
  const std::int64_t width = to.size(1);
  if (width == 0) return;
  team_for(to.size(0), kCopiedPerPiece / width + 1,
           [&](std::int64_t r) { std::copy_n(from[r].data(), width, to[r].data()); });
}

}  // namespace

/// A shard's shared state.
struct SharedMemoryShards::Post {
  alignas(64) std::atomic<std::uint32_t> gathers;   ///< number of gathers with written columns
  alignas(64) std::atomic<std::uint32_t> sleepers;  ///< number of waiting shards
  struct {
    std::int64_t rows, width;
    Columns own;
  } written[2];  ///< the last ones, by the gather's number
};

namespace {
constexpr std::size_t kPostBytes = 256;
std::size_t memory_bytes(int count) {
  return static_cast<std::size_t>(count) * (kPostBytes + 2 * Shards::kPieceFloats * sizeof(float));
}
}  // namespace

Result<Descriptor> SharedMemoryShards::create(int count) {
  Descriptor memory(memfd_create("outrider shards", 0));  // inherited by processes that this one starts
  if (memory < 0 || ftruncate(memory, static_cast<off_t>(memory_bytes(count))) != 0)
    return system_error("memory of shards", "make");
  return memory;
}

Result<std::unique_ptr<SharedMemoryShards>> SharedMemoryShards::join(int memory, ShardPlace place) {
  void* const at = mmap(nullptr, memory_bytes(place.count), PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  if (at == MAP_FAILED) return system_error("memory of shards", "map");
  return std::unique_ptr<SharedMemoryShards>(new SharedMemoryShards(place, static_cast<std::byte*>(at)));
}

SharedMemoryShards::~SharedMemoryShards() { munmap(memory_, memory_bytes(place().count)); }

SharedMemoryShards::Post& SharedMemoryShards::post(int rank) const {
  static_assert(sizeof(Post) <= kPostBytes);
  return *reinterpret_cast<Post*>(memory_ + static_cast<std::size_t>(rank) * kPostBytes);
}

float* SharedMemoryShards::slot(int rank) const {
  auto* const slots = reinterpret_cast<float*>(memory_ + static_cast<std::size_t>(place().count) * kPostBytes);
  return slots + (2 * rank + gathers() % 2) * kPieceFloats;
}

void SharedMemoryShards::gather_piece(Matrix<float> rows, Columns own) {
  const std::int64_t count = rows.size(0), width = rows.size(1);
  Post& mine = post(place().rank);
  mine.written[gathers() % 2] = {count, width, own};
  copy(rows.columns(own.begin, own.count), {slot(place().rank), {count, own.count}});
  mine.gathers.store(gathers() + 1);
  if (mine.sleepers.load() != 0) wake_all(mine.gathers);
  for (int i = 1; i < place().count; ++i) {
    const int rank = (place().rank + i) % place().count;
    Post& theirs = post(rank);
    wait_for(theirs);
    const auto& written = theirs.written[gathers() % 2];
    CHECK(written.rows == count && written.width == width, "shard {} gathers [{}, {}], shard {} [{}, {}]", rank,
          written.rows, written.width, place().rank, count, width);
    copy(Matrix<const float>(slot(rank), {count, written.own.count}),
         rows.columns(written.own.begin, written.own.count));
  }
}

void SharedMemoryShards::wait_for(Post& theirs) const {
  // Another shard may already be one gather ahead.
  const auto has_come = [&](std::uint32_t written) { return static_cast<std::int32_t>(written - gathers()) > 0; };
  const TimePoint start = now();
  do {
    for (int i = 0; i < 64; ++i)
      if (has_come(theirs.gathers.load(std::memory_order_acquire))) return;
    std::this_thread::yield();  // for another shard, if there are more shards than cores
  } while (now() - start < kSpin);
  theirs.sleepers.fetch_add(1);
  for (std::uint32_t seen; !has_come(seen = theirs.gathers.load());) {
    sleep_on(theirs.gathers, seen);
    call_watch();
  }
  theirs.sleepers.fetch_sub(1);
}

}  // namespace outrider
