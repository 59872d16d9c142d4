#pragma once

#include <memory>
#include <string>

#include "common/model/gemma4/assistant.h"
#include "common/model/gemma4/backbone.h"

namespace outrider {

/// A model pair of a published shape (lab/shapes.h), or nano's, in random weights.
struct ShapeModels {
  std::string name;
  int layers_of_shape;  ///< the published number, whatever `layers` says
  TextConfig backbone_config;
  AssistantConfig assistant_config;
  std::shared_ptr<const WeightSource> backbone_weights, assistant_weights;

  std::unique_ptr<Backbone> backbone(std::int64_t rows_max) const;
  std::unique_ptr<Assistant> assistant() const;
};

/// @param layers of the backbone, in the published pattern; 0: all. Throws the line for a person.
ShapeModels shape_models(const std::string& name, WeightType type, int layers);

/// Positions [cache.length(), end) with random K/V: what a forward costs does not depend on their values.
void fill_context(KvCache& cache, Position end);
/// The same for an assistant's copy of the donors' rows.
void fill_context(DonorReplica& replica, Position end);

}  // namespace outrider
