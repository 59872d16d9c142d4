#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "common/model/config.h"
#include "common/protocol/messages.h"

namespace outrider {

class WeightSource;

/// Where a pair's two checkpoints lie.
struct PairPaths {
  std::filesystem::path backbone, assistant;
};

/// DIR/backbone and DIR/assistant. An empty `dir` means the nano pair that ships with Outrider: beside
/// the program's build tree, or where it is installed.
PairPaths pair_paths(const std::filesystem::path& dir);

/// What a node that holds `backbone` tells the other side in the handshake.
PairFacts pair_facts(const TextConfig& config, const WeightSource& backbone);

}  // namespace outrider
