#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "verifier-node/tcp_shards.h"

namespace outrider {

/// Shards that gather over TCP, by their ranks. @param first, others  what they have for keys
inline std::vector<std::unique_ptr<Shards>> tcp_group(int count, const Security& first = {},
                                                      const Security& others = {}) {
  const auto listener = ShardListener::listen("tcp://127.0.0.1:*", first).value();
  std::vector<std::unique_ptr<Shards>> group(static_cast<std::size_t>(count));
  std::vector<std::thread> joining;
  for (int i = 1; i < count; ++i) {
    joining.emplace_back([&] {
      JoinedShard joined = join_shards(listener->address(), others, 7, {}).value().value();
      group[static_cast<std::size_t>(joined.task.place.rank)] = std::move(joined.shards);
    });
  }
  group[0] = listener->gather_group({.place = {0, count}}, 7, {}).value();
  for (std::thread& thread : joining) thread.join();
  return group;
}

}  // namespace outrider
