#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "common/model/config.h"
#include "common/protocol/messages.h"

namespace outrider {

class WeightSource;

/// Where a pair's two checkpoints lie.
struct PairPaths {
  std::filesystem::path backbone;
  std::filesystem::path assistant;  ///< empty: there is none
};

/// The assistant of a backbone by itself, where one lies beside it under its published name: "NAME-assistant", of a
/// GGUF file "NAME-assistant.gguf". Empty: there is none.
std::filesystem::path assistant_beside(const std::filesystem::path& backbone);

/// What DIR/pair.json names, else DIR/backbone and DIR/assistant; of a model by itself (a Hugging Face directory, a
/// .gguf file or a directory with one, a pack; also what is not there, for whoever opens it says so) that model with
/// assistant_beside() it. An empty `dir` means the nano pair that ships with Outrider: beside the program's build tree,
/// or where it is installed.
/// @return kMalformed for a pair.json that cannot be used, kMismatch where a pack beside it is another than
///   the one that it was written for.
Result<PairPaths> pair_paths(const std::filesystem::path& dir);

/// The text of a pair.json: `target` and `draft` name directories beside it.
std::string pair_json(const TextConfig& target, const AssistantConfig& draft, std::uint64_t target_fingerprint,
                      std::uint64_t draft_fingerprint, DType bridge_dtype);

/// What a node that holds `backbone` tells the other side in the handshake.
PairFacts pair_facts(const TextConfig& config, const WeightSource& backbone);

/// What a node of this process calls itself, "drafter-HOST-PID": in containers the process id alone is always 1.
/// @param what  "drafter"
std::string node_name(const std::string& what);

}  // namespace outrider
