#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/base/check.h"
#include "common/model/checkpoint/model_files.h"
#include "common/model/checkpoint/pack.h"
#include "common/model/gemma4/assistant.h"
#include "common/os/durable_file.h"
#include "common/os/files.h"
#include "common/os/host.h"
#include "common/os/logging.h"
#include "drafter-node/families.h"

namespace outrider {
namespace {

void append(DonorReplica& replica, const KvRows& kv) {
  LayerKv* const layers[] = {&replica.sliding, &replica.full};
  CHECK(kv.donors.size() == std::size(layers));
  for (std::size_t i = 0; i < std::size(layers); ++i) {
    const DonorDelta& donor = kv.donors[i];
    LayerKv& layer = *layers[i];
    const std::int64_t count = kv.to - donor.first;
    if (donor.key.dtype == layer.dtype()) {
      layer.write_raw(donor.first, count, donor.key.data.bytes().data(), donor.value.data.bytes().data());
      continue;
    }
    layer.reserve(kv.to);
    const std::vector<float> k = to_floats(donor.key), v = to_floats(donor.value);
    const auto elements = static_cast<std::size_t>(layer.num_key_value_heads() * layer.head_dim());
    for (std::size_t row = 0; row < static_cast<std::size_t>(count); ++row) {
      layer.write(donor.first + static_cast<Position>(row), std::span(k).subspan(row * elements, elements),
                  std::span(v).subspan(row * elements, elements));
    }
  }
  replica.length = kv.to;
}

struct AssistantSequence final : DraftSequence {
  AssistantSequence(DonorReplica made, DraftVocabulary* learning)
      : replica(std::move(made)), vocabulary(learning) {}
  void extend(const KvRows& rows) override {
    const auto known = static_cast<std::size_t>(std::max<Position>(replica.length - rows.from, 0));
    if (vocabulary != nullptr && known < rows.tokens.size())
      vocabulary->learn(std::span(rows.tokens).subspan(known), is_answer);
    append(replica, rows);
  }
  Position length() const override { return replica.length; }

  DonorReplica replica;
  DraftVocabulary* vocabulary;  ///< the assistant's; null: none
  bool is_answer = false;       ///< the prompt is complete
};

/// Returns the file that keeps the draft vocabulary of a target, and of its quantized copies: they have one embedding
/// table. Empty: nowhere.
std::filesystem::path vocabulary_file(std::uint64_t embedding_fingerprint) {
  const std::filesystem::path cache = cache_folder();
  if (cache.empty()) return {};
  return cache / "draft-vocabulary" / fmt::format("{:016x}.txt", embedding_fingerprint);
}

class AssistantModel final : public DraftModel {
 public:
  /// @param kept  the draft vocabulary's file; empty: none
  AssistantModel(std::unique_ptr<Assistant> assistant, std::filesystem::path kept)
      : assistant_(std::move(assistant)), kept_(std::move(kept)) {
    if (assistant_->draft_vocabulary() == nullptr) kept_.clear();
    if (kept_.empty()) return;
    const Result<std::string> text = read_text(kept_);
    const Result<void> restored = text ? assistant_->draft_vocabulary()->restore(*text) : text.error();
    if (!restored && restored.error().code != Errc::kNotFound)  // not the first start
      log_warn("event=draft_vocabulary_ignored file={} error=\"{}\"", kept_.string(), restored.error().message);
    restored_ = assistant_->draft_vocabulary()->learned();
  }
  ~AssistantModel() override {
    // A drafter that learned nothing does not overwrite what another one learned.
    if (kept_.empty() || assistant_->draft_vocabulary()->learned() == restored_) return;
    std::error_code failed;  // replace_text() then says why
    create_directories(kept_.parent_path(), failed);
    permissions(kept_.parent_path(), std::filesystem::perms::owner_all, failed);
    if (const auto ok = replace_text(kept_, assistant_->draft_vocabulary()->to_text()); !ok)
      log_info("event=draft_vocabulary_not_kept error=\"{}\"", ok.error().message);
  }
  DraftTraits traits() const override { return {}; }
  std::int64_t vocab_size() const override { return assistant_->config().text.vocab_size; }
  std::unique_ptr<DraftSequence> open() const override {
    return std::make_unique<AssistantSequence>(assistant_->make_replica(), assistant_->draft_vocabulary());
  }
  bool step_each(std::span<const DraftPoint> points, const VisitPoint& visit, const std::function<void()>&) override {
    std::vector<DraftNode> nodes;
    for (const DraftPoint& point : points) {
      auto& sequence = *static_cast<AssistantSequence*>(point.sequence);
      sequence.is_answer = true;
      nodes.push_back({point.path.back(), point.state, sequence.replica, point.goes_on});
    }
    assistant_->step_each(nodes, visit);
    return true;
  }

 private:
  std::unique_ptr<Assistant> assistant_;
  std::filesystem::path kept_;
  std::int64_t restored_ = 0;  ///< DraftVocabulary::learned() at the start
};

}  // namespace

std::unique_ptr<DraftModel> make_draft_model(std::unique_ptr<Assistant> assistant, std::filesystem::path kept) {
  return std::make_unique<AssistantModel>(std::move(assistant), std::move(kept));
}

Result<LoadedDrafter> load_assistant_drafter(const DrafterOptions& options) {
  if (options.worker.verify_weights) RETURN_IF_ERROR(verify_packs({options.assistant}));
  ASSIGN_OR_RETURN(DraftTarget target, open_target(options));
  ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::open(options.assistant));
  ASSIGN_OR_RETURN(std::unique_ptr<Assistant> assistant,
                   Assistant::load(files, target.config, *target.weights, options.weight_type,
                                   options.draft_vocabulary));
  for (const std::string& note : assistant->config().text.notes) {
    log_warn("event=metadata_overruled model={} note=\"{}\"", options.assistant.string(), note);
  }
  target.drafter.step_bytes = assistant->weight_bytes();
  target.drafter.model =
      make_draft_model(std::move(assistant), vocabulary_file(target.weights->embedding_fingerprint()));
  target.drafter.path = options.assistant.string();
  return std::move(target.drafter);
}

}  // namespace outrider
