#include "lab/shape_models.h"

#include <algorithm>

#include "common/base/random.h"
#include "common/pair/pair_files.h"
#include "lab/random_weights.h"
#include "lab/shapes.h"
#include "launch/command_support.h"

namespace outrider {
namespace {

/// Values of a normed row: root mean square 1.
std::vector<float> random_row(std::size_t size, CounterRng& rng) {
  std::vector<float> row(size);
  for (float& x : row) x = static_cast<float>(rng.uniform() * 2 - 1) * 1.73f;
  return row;
}

void fill(LayerKv& layer, Position first, Position end) {
  constexpr std::size_t kRows = 61;  // a prime: rows repeat, but not in step with anything
  CounterRng rng(61);
  const auto width = static_cast<std::size_t>(layer.num_key_value_heads() * layer.head_dim());
  std::vector<std::vector<float>> rows;
  for (std::size_t i = 0; i <= kRows; ++i) rows.push_back(random_row(width, rng));
  layer.reserve(end);
  for (Position p = first; p < end; ++p)
    layer.write(p, rows[static_cast<std::size_t>(p) % kRows], rows[static_cast<std::size_t>(p) % kRows + 1]);
}

}  // namespace

ShapeModels shape_models(const std::string& name, WeightType type, int layers) {
  ShapeModels models{.name = name,
                     .layers_of_shape = 0,
                     .backbone_config = {},
                     .assistant_config = {},
                     .backbone_weights = random_weights(type, "random " + name),
                     .assistant_weights = random_weights(type, "random " + name + " assistant")};
  if (name == "nano") {
    const PairPaths nano = or_throw(pair_paths({}));
    models.backbone_config = or_throw(load_text_config(open_model(nano.backbone)));
    models.assistant_config = or_throw(load_assistant_config(open_model(nano.assistant)));
    models.layers_of_shape = models.backbone_config.num_hidden_layers;
    if (layers != 0 && layers != models.layers_of_shape) {
      throw CommandError("--layers {} of nano, wanted all {}: its layers do not repeat", layers,
                         models.layers_of_shape);
    }
    return models;
  }
  Result<ModelShape> known = published_shape(name);
  if (!known) throw std::runtime_error(known.error().message + ", or nano");
  ModelShape shape = *known;
  models.layers_of_shape = shape.num_hidden_layers;
  if (layers > shape.num_hidden_layers)
    throw CommandError("--layers {} of {}, which has {}", layers, name, shape.num_hidden_layers);
  if (layers > 0) shape = reduced(shape, layers);
  models.backbone_config = or_throw(parse_text_config(backbone_config_json(shape), name));
  models.assistant_config = or_throw(parse_assistant_config(assistant_config_json(shape), name));
  return models;
}

std::unique_ptr<Backbone> ShapeModels::backbone(std::int64_t rows_max) const {
  return or_throw(Backbone::load(backbone_config, backbone_weights, rows_max));
}

std::unique_ptr<Assistant> ShapeModels::assistant() const {
  return or_throw(Assistant::load(assistant_config, assistant_weights, backbone_config, *backbone_weights));
}

void fill_context(KvCache& cache, Position end) {
  const Position first = cache.length();
  while (cache.length() < end) cache.extend(std::min<std::int64_t>(cache.rows_max(), end - cache.length()));
  for (std::size_t i = 0; i < cache.layer_count(); ++i) fill(cache.layer(i), first, end);
}

void fill_context(DonorReplica& replica, Position end) {
  fill(replica.sliding, replica.length, end);
  fill(replica.full, replica.length, end);
  replica.length = end;
}

}  // namespace outrider
