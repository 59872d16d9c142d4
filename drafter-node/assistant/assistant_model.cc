#include <utility>

#include "common/base/check.h"
#include "common/model/checkpoint/model_files.h"
#include "common/model/checkpoint/pack.h"
#include "common/model/gemma4/assistant.h"
#include "common/model/gemma4/draft_vocabulary.h"
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
  explicit AssistantSequence(DonorReplica made) : replica(std::move(made)) {}
  void extend(const KvRows& rows) override { append(replica, rows); }
  Position length() const override { return replica.length; }

  DonorReplica replica;
};

class AssistantModel final : public DraftModel {
 public:
  explicit AssistantModel(std::unique_ptr<Assistant> assistant) : assistant_(std::move(assistant)) {}
  DraftTraits traits() const override { return {}; }
  std::int64_t vocab_size() const override { return assistant_->config().text.vocab_size; }
  std::unique_ptr<DraftSequence> open() const override {
    return std::make_unique<AssistantSequence>(assistant_->make_replica());
  }
  bool step_each(std::span<const DraftPoint> points, const VisitPoint& visit, const std::function<void()>&) override {
    std::vector<DraftNode> nodes;
    for (const DraftPoint& point : points) {
      nodes.push_back({point.path.back(), point.state, static_cast<const AssistantSequence*>(point.sequence)->replica,
                       point.goes_on});
    }
    assistant_->step_each(nodes, visit);
    return true;
  }

 private:
  std::unique_ptr<Assistant> assistant_;
};

}  // namespace

std::unique_ptr<DraftModel> make_draft_model(std::unique_ptr<Assistant> assistant) {
  return std::make_unique<AssistantModel>(std::move(assistant));
}

Result<LoadedDrafter> load_assistant_drafter(const DrafterOptions& options) {
  if (options.worker.verify_weights) RETURN_IF_ERROR(verify_packs({options.assistant}));
  ASSIGN_OR_RETURN(DraftTarget target, open_target(options));
  ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::open(options.assistant));
  ASSIGN_OR_RETURN(const std::vector<TokenId> vocabulary,
                   draft_vocabulary(options.draft_vocabulary, options.assistant, target.config.vocab_size));
  ASSIGN_OR_RETURN(std::unique_ptr<Assistant> assistant,
                   Assistant::load(files, target.config, *target.weights, options.weight_type, vocabulary));
  for (const std::string& note : assistant->config().text.notes) {
    log_warn("event=metadata_overruled model={} note=\"{}\"", options.assistant.string(), note);
  }
  target.drafter.model = make_draft_model(std::move(assistant));
  target.drafter.path = options.assistant.string();
  return std::move(target.drafter);
}

}  // namespace outrider
