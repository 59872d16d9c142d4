#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "common/hub/hub.h"
#include "common/model/gemma4/config.h"
#include "common/wire/messages/messages.h"

namespace outrider {

class KvCache;
class WeightSource;

/// Where a pair's two checkpoints lie.
struct PairPaths {
  std::filesystem::path backbone;
  std::filesystem::path assistant;  ///< empty: there is none
};

/// What is wanted of a pair whose name is the hub's, and so may have to be fetched.
struct PairNeed {
  bool assistant = true;
  HubNeed files = HubNeed::kAll;  ///< of the backbone
};

/// The assistant of a backbone by itself, where one lies beside it under a name of assistant_names(), as a directory or
/// a GGUF file; of a backbone in a cache of the hub, in that cache. Empty: there is none.
std::filesystem::path assistant_beside(const std::filesystem::path& backbone);

/// What assistant_beside() looks for: names, or the hub's repositories.
std::vector<std::string> possible_assistants(const std::filesystem::path& backbone);

/// The assistant of a model of the hub's as the hub has it now, with a line on stderr where a published one cannot be
/// had. @param of_any_name  asks for NAME-assistant too, which need not exist. Empty: there is none
std::filesystem::path fetch_assistant(const HubSettings& hub, const HubName& backbone, bool of_any_name);

/// A model by itself with its assistant: of a path as assistant_beside() says; of a name of the hub's, which is no path
/// here, both in the cache, or fetched into it. A published assistant that cannot be fetched is missed with a line on
/// stderr. @return as fetch_from_hub()
Result<PairPaths> model_pair(const std::filesystem::path& model, const PairNeed& need = {});

/// What DIR/pair.json names, else DIR/backbone and DIR/assistant; of a model by itself (a Hugging Face directory, a
/// .gguf file or a directory with one, a pack, a name of the hub's; also what is not there, for whoever opens it says
/// so) model_pair(). An empty `dir` means the nano pair that ships with Outrider: beside the program's build tree, or
/// where it is installed.
/// @return kMalformed for a pair.json that cannot be used, kMismatch where a pack beside it is another than
///   the one that it was written for; and as model_pair().
Result<PairPaths> pair_paths(const std::filesystem::path& dir, const PairNeed& need = {});

/// The text of a pair.json: `target` and `draft` name directories beside it.
std::string pair_json(const TextConfig& target, const AssistantConfig& draft, std::uint64_t target_fingerprint,
                      std::uint64_t draft_fingerprint, DType bridge_dtype);

/// What a node that holds `backbone` tells the other side in the handshake.
PairFacts pair_facts(const TextConfig& config, const WeightSource& backbone);

/// Adds what positions take in a cache of this shape.
void add_kv_cost(const KvCache& cache, KvCost* cost);

/// What a node of this process calls itself, "drafter-HOST-PID": in containers the process id alone is always 1.
/// @param what  "drafter"
std::string node_name(const std::string& what);

}  // namespace outrider
