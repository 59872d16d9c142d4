#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "common/base/json_fields.h"
#include "common/compute/kernels/packed_matrix.h"
#include "common/model/checkpoint/checkpoint.h"
#include "common/model/gemma4/assistant.h"
#include "common/model/gemma4/backbone.h"
#include "common/os/files.h"
#include "lab/in_process_pair.h"
#include "lab/questions.h"
#include "launch/model_flags.h"

namespace outrider {
namespace {
namespace fs = std::filesystem;

/// Returns a golden folder's model: its own, or models/<name> of a parent (tests/goldens/README.md: nano).
PairPaths find_model(const fs::path& folder, const fs::path& model) {
  if (!model.empty()) return or_throw(pair_paths(model));
  if (fs::exists(folder / "backbone")) return or_throw(pair_paths(folder));
  const fs::path absolute = fs::canonical(folder);
  for (fs::path parent = absolute.parent_path(); parent != parent.root_path(); parent = parent.parent_path()) {
    if (const fs::path candidate = parent / "models" / absolute.filename(); fs::exists(candidate))
      return or_throw(pair_paths(candidate));
  }
  throw CommandError("{}: has no backbone/, and there is no models/{} above it; give --model", folder.string(),
                     absolute.filename().string());
}

std::vector<float> floats_of(const TensorEntry& entry) {
  std::vector<float> values(static_cast<std::size_t>(entry.element_count()));
  or_throw(read_f32(entry, values));
  return values;
}

/// Compares named tensors with the golden ones and prints a line each.
class Comparison {
 public:
  Comparison(const Checkpoint& golden, double bound) : golden_(golden), bound_(bound) {}

  void compare(const std::string& name, std::span<const float> ours) {
    const TensorEntry* entry = golden_.find(name);
    if (entry == nullptr) return;  // a folder may record less (unified-12b)
    compared_.insert(name);
    const std::vector<float> theirs = floats_of(*entry);
    if (ours.size() != theirs.size())
      return report(name, fmt::format("has {} elements, golden {}", ours.size(), theirs.size()), false);
    double largest = 0, error = 0;
    for (std::size_t i = 0; i < theirs.size(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(theirs[i])));
      const double difference = std::abs(static_cast<double>(ours[i]) - theirs[i]);
      error = std::isnan(difference) ? INFINITY : std::max(error, difference);
    }
    const double relative = largest == 0 ? error : error / largest;
    report(name, fmt::format("{:.2e}", relative), relative <= bound_);
  }
  void compare(const std::string& name, bool equal) { report(name, equal ? "equal" : "differ", equal); }

  /// Returns true if nothing exceeded its limit, and at least one tensor was compared.
  bool ok() const { return failed_ == 0 && !compared_.empty(); }
  std::size_t tensors_compared() const { return compared_.size(); }
  /// Returns golden tensors that were not compared: the pair lacks them, or the type omits them.
  std::vector<std::string> left_out() const {
    std::vector<std::string> names;
    for (const TensorEntry& entry : golden_.tensors()) {
      if (entry.name != "input_ids" && !compared_.contains(entry.name)) names.push_back(entry.name);
    }
    return names;
  }

 private:
  void report(const std::string& name, const std::string& what, bool ok) {
    failed_ += ok ? 0 : 1;
    std::printf("%-40s %s%s\n", name.c_str(), what.c_str(), ok ? "" : "  BEYOND THE BOUND");
  }
  const Checkpoint& golden_;
  double bound_;
  std::set<std::string> compared_;
  int failed_ = 0;
};

std::vector<float> to_vector(Matrix<const float> m) {
  std::vector<float> values;
  for (std::int64_t r = 0; r < m.size(0); ++r) values.insert(values.end(), m[r].span().begin(), m[r].span().end());
  return values;
}

/// Returns rows [0, n) of a cached layer in the goldens' form: [kv_heads, n, D].
std::pair<std::vector<float>, std::vector<float>> cached_rows(const LayerKv& layer, std::int64_t n) {
  const std::size_t bytes = static_cast<std::size_t>(n) * layer.row_bytes();
  std::vector<std::byte> raw[2] = {std::vector<std::byte>(bytes), std::vector<std::byte>(bytes)};
  layer.read_raw(0, n, raw[0].data(), raw[1].data());
  std::vector<float> out[2];
  for (int i = 0; i < 2; ++i) {
    const auto at = [&](std::int64_t index) {
      return layer.dtype() == DType::kF32 ? reinterpret_cast<const float*>(raw[i].data())[index]
                                          : to_float(reinterpret_cast<const Bf16*>(raw[i].data())[index]);
    };
    const std::int64_t heads = layer.num_key_value_heads(), dim = layer.head_dim();
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t r = 0; r < n; ++r) {
        for (std::int64_t d = 0; d < dim; ++d) out[i].push_back(at((r * heads + h) * dim + d));
      }
    }
  }
  return {std::move(out[0]), std::move(out[1])};
}

std::vector<TokenId> ids_of(const nlohmann::json& notes, const char* key) {
  const auto found = notes.find(key);
  return found != notes.end() && found->is_array() ? found->get<std::vector<TokenId>>() : std::vector<TokenId>();
}

/// Compares every hidden state of the prompt, the logits and the shared K/V. The sequence then continues greedily.
void compare_prefill(Backbone& backbone, std::span<const TokenId> prompt, InProcessPair& text, Comparison& comparison) {
  const TextConfig& config = backbone.config();
  const std::int64_t n = std::ssize(prompt);
  std::map<std::string, std::vector<float>> hidden_states;
  const std::string last = fmt::format("layers.{}.output", config.num_hidden_layers - 1);
  const TraceSink trace = [&](const std::string& name, Matrix<const float> value) {
    if (name == "embedding") hidden_states["hidden_states.0"] = to_vector(value);
    if (name == "final_normed")
      hidden_states[fmt::format("hidden_states.{}", config.num_hidden_layers)] = to_vector(value);
    int layer = 0;
    if (name != last && std::sscanf(name.c_str(), "layers.%d.output", &layer) == 1 &&
        name == fmt::format("layers.{}.output", layer)) {
      hidden_states[fmt::format("hidden_states.{}", layer + 1)] = to_vector(value);
    }
  };
  const Backbone::Output& output = text.forward(prompt, n, &trace);
  for (int i = 0; i <= config.num_hidden_layers; ++i) {
    const std::string name = fmt::format("hidden_states.{}", i);
    comparison.compare(name, hidden_states.at(name));
  }
  Tensor logits(n, config.vocab_size);
  for (std::int64_t r = 0; r < n; ++r) std::copy_n(output.logits[r].data(), config.vocab_size, logits.view()[r].data());
  if (config.final_logit_softcapping > 0) softcap_in_place(logits.view(), config.final_logit_softcapping);
  comparison.compare("logits", to_vector(logits.view()));
  for (const auto& [kind, name] :
       {std::pair(AttentionKind::kSliding, "sliding_attention"), std::pair(AttentionKind::kFull, "full_attention")}) {
    const auto [k, v] = cached_rows(text.cache().layer(backbone.donor_cache(kind)), n);
    comparison.compare(fmt::format("shared_kv.{}.key", name), k);
    comparison.compare(fmt::format("shared_kv.{}.value", name), v);
  }
  text.keep(n - 1, static_cast<TokenId>(argmax(output.logits[n - 1].span())));
}

/// Compares six draft steps from the prompt's last hidden row. They follow the golden tokens, so that one rounding
/// difference in a lossy type does not count in every later step.
void compare_drafts(Assistant& assistant, const Checkpoint& golden, const nlohmann::json& notes, bool exact,
                    InProcessPair& text, Comparison& comparison) {
  const std::vector<TokenId> golden_drafts = ids_of(notes, "draft_tokens");
  std::vector<TokenId> drafts;
  TokenId token = notes.contains("draft_first_token") ? notes["draft_first_token"].get<TokenId>() : text.token();
  std::vector<float> state = text.hidden();
  for (std::size_t j = 0; golden.find(fmt::format("draft.{}.logits", j)) != nullptr; ++j) {
    const Assistant::Step step = assistant.draft_step(token, state, text.replica());
    // A lossy type may choose another centroid, and then scores other tokens.
    if (exact) comparison.compare(fmt::format("draft.{}.logits", j), step.logits);
    comparison.compare(fmt::format("draft.{}.hidden", j), step.state);
    drafts.push_back(step.token);
    state = step.state;
    token = j < golden_drafts.size() ? golden_drafts[j] : step.token;
  }
  if (exact && !golden_drafts.empty()) comparison.compare("draft token ids", drafts == golden_drafts);
}

bool parity(const fs::path& folder, const fs::path& model, WeightType type) {
  const Checkpoint golden = or_throw(Checkpoint::open(folder / "golden.safetensors"));
  const std::vector<TokenId> prompt = golden_prompt(golden);
  const fs::path notes_file = folder / "golden.json";
  nlohmann::json notes;
  if (fs::exists(notes_file))
    notes = or_throw(parse_json_object(or_throw(read_text(notes_file)), notes_file.string()));

  const PairPaths pair = find_model(folder, model);
  const std::unique_ptr<Backbone> backbone =
      or_throw(Backbone::load(open_model(pair.backbone), type, std::ssize(prompt)));
  std::unique_ptr<Assistant> assistant;
  if (fs::exists(pair.assistant))
    assistant = or_throw(Assistant::load(open_model(pair.assistant), backbone->config(), backbone->weights(), type));
  InProcessPair text(*backbone, assistant.get());
  Comparison comparison(golden, format_of(type).parity_bound);
  const bool exact = type == WeightType::kF32;
  compare_prefill(*backbone, prompt, text, comparison);
  if (exact && notes.contains("draft_first_token"))
    comparison.compare("first token", notes["draft_first_token"] == text.token());
  if (assistant) compare_drafts(*assistant, golden, notes, exact, text, comparison);
  if (const std::vector<std::string> names = comparison.left_out(); !names.empty()) {
    std::printf("not compared: %s\n", fmt::format("{}", fmt::join(names, ", ")).c_str());
  }
  std::printf("%s: %s, %zu tensors compared%s, %s, bound %.0e\n", folder.string().c_str(),
              comparison.ok() ? "ok" : "MISMATCH", comparison.tensors_compared(), assistant ? "" : ", no assistant",
              to_string(type), format_of(type).parity_bound);
  return comparison.ok();
}

}  // namespace

void add_parity_command(Command& app) {
  Command* command = app.add_subcommand("parity", "Compare with Hugging Face transformers, tensor by tensor");
  struct Flags {
    std::vector<fs::path> folders;
    fs::path model;
    std::string dtype = "f32";
  };
  auto flags = std::make_shared<Flags>();
  command->add_option("DIR", flags->folders, "Golden folders")->required();
  command->add_option("--model", flags->model,
                      "Directory with backbone/ and assistant/, if the golden folder has none");
  ModelFlags::add_dtype(*command, flags->dtype);
  command->callback([flags] {
    bool ok = true;
    for (const fs::path& folder : flags->folders)
      ok = parity(folder, flags->model, or_throw(parse_weight_type(flags->dtype))) && ok;
    if (!ok) throw ExitStatus(1);
  });
}

}  // namespace outrider
