#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "common/compute/kernels/team.h"
#include "verifier-node/sequences.h"
#include "verifier-node/shared_memory_shards.h"

namespace outrider {

/// Threads that are all shards of a model but the first, which is the test's.
class FollowingShards {
 public:
  /// @param load  a shard's model; called by one thread at a time. One shard: nobody follows
  FollowingShards(int count, const std::function<std::unique_ptr<Backbone>(Shards*)>& load) {
    if (count == 1) return;
    const Descriptor memory = SharedMemoryShards::create(count).value();
    first_ = SharedMemoryShards::join(memory, {0, count}).value();
    for (int rank = 1; rank < count; ++rank) {
      others_.push_back(SharedMemoryShards::join(memory, {rank, count}).value());
      others_.back()->set_watch([this] {
        if (over_) throw std::runtime_error("the test is over");
      });
      auto sequences = std::make_unique<Sequences>(load(others_.back().get()));
      threads_.emplace_back([sequences = std::move(sequences)] {
        set_team_size(1);
        try {
          sequences->follow();
        } catch (const std::runtime_error&) {
        }
      });
    }
  }
  ~FollowingShards() {
    over_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  /// Null: there is but one.
  Shards* first() { return first_.get(); }

 private:
  std::unique_ptr<SharedMemoryShards> first_;
  std::vector<std::unique_ptr<SharedMemoryShards>> others_;
  std::vector<std::thread> threads_;
  std::atomic<bool> over_ = false;
};

}  // namespace outrider
