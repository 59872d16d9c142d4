#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/base/result.h"
#include "common/compute/kernels/shards.h"
#include "common/os/descriptor.h"

namespace outrider {

/// Shards of one host, which gather through memory that all of them have mapped (ADR 17). Each shard writes its
/// columns into one of its two slots in turn and increments its count; the others wait for the count and copy. A shard
/// that has seen all counts of one gather may write the next: by then no other shard reads the slot before.
class SharedMemoryShards final : public Shards {
 public:
  /// Creates memory for `count` shards: an anonymous file, which lives as long as a descriptor of it.
  static Result<Descriptor> create(int count);
  /// @param memory  from create(), in this process or the one that started it
  static Result<std::unique_ptr<SharedMemoryShards>> join(int memory, ShardPlace place);
  ~SharedMemoryShards() override;

 private:
  struct Post;
  SharedMemoryShards(ShardPlace place, std::byte* memory) : Shards(place), memory_(memory) {}
  Post& post(int rank) const;
  float* slot(int rank) const;
  void gather_piece(Matrix<float> rows, Columns own) override;
  void wait_for(Post& post) const;

  std::byte* memory_;
};

}  // namespace outrider
