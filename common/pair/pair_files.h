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

/// Paths of a pair's two checkpoints.
struct PairPaths {
  std::filesystem::path backbone;
  std::filesystem::path assistant;  ///< empty: none
};

/// Options for a pair whose name is the hub's, and so may have to be fetched.
struct PairNeed {
  bool assistant = true;
  HubNeed files = HubNeed::kAll;  ///< of the backbone
};

/// Finds the assistant beside a backbone, under a name of assistant_names(), as a directory or a GGUF file, or as
/// mtp-NAME.gguf in a GGUF's folder; for a backbone in a cache of the hub, in that cache. Empty: there is none.
std::filesystem::path assistant_beside(const std::filesystem::path& backbone);

/// Returns the candidates of assistant_beside(): names, or the hub's repositories.
std::vector<std::string> possible_assistants(const std::filesystem::path& backbone);

/// Fetches the hub's present assistant of a model, with a line on stderr if a published one is not available.
/// @param of_any_name  also tries NAME-assistant, which may not exist. Empty: there is none
std::filesystem::path fetch_assistant(const HubSettings& hub, const HubName& backbone, bool of_any_name);

/// Returns a model with its assistant: for a path see assistant_beside(); for a name of the hub's, which is no path
/// here, both from the cache, or fetched into it. A published assistant that cannot be fetched is omitted, with a line
/// on stderr. @return errors as fetch_from_hub()
Result<PairPaths> model_pair(const std::filesystem::path& model, const PairNeed& need = {});

/// Returns the paths in DIR/pair.json, else DIR/backbone and DIR/assistant. For a single model (a Hugging Face
/// directory, a .gguf file or a directory with one, a pack, a name of the hub's; also a missing path, which is reported
/// when it is opened) returns model_pair(). An empty `dir` means the nano pair that ships with Outrider: beside the
/// program's build tree, or at its installed place.
/// @return kMalformed for an invalid pair.json, kMismatch if a pack beside it differs from the one that it was written
/// for; and as model_pair()
Result<PairPaths> pair_paths(const std::filesystem::path& dir, const PairNeed& need = {});

/// The text of a pair.json: `target` and `draft` name directories beside it.
std::string pair_json(const TextConfig& target, const AssistantConfig& draft, std::uint64_t target_fingerprint,
                      std::uint64_t draft_fingerprint, DType bridge_dtype);

/// Returns a node's facts about `backbone` for the handshake.
PairFacts pair_facts(const TextConfig& config, const WeightSource& backbone);

/// Adds the cost of positions in a cache of this shape.
void add_kv_cost(const KvCache& cache, KvCost* cost);
/// Returns the cost of positions in a cache of this shape.
KvCost kv_cost_of(const KvCache& cache);

/// Returns the default name of a node of this process, "drafter-HOST-PID"; the host is included because in containers
/// the process id alone is always 1. @param what  "drafter"
std::string node_name(const std::string& what);

}  // namespace outrider
