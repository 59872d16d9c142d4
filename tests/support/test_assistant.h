#pragma once

#include <memory>
#include <span>

#include "common/model/gemma4/assistant.h"
#include "tests/support/model_at.h"
#include "tests/support/test_pairs.h"

namespace outrider {

inline std::unique_ptr<Assistant> load_assistant(const TestPair& pair, std::int64_t draft_vocabulary = 0) {
  const ModelFiles backbone = model_at(in_source(pair.backbone));
  return Assistant::load(model_at(in_source(pair.assistant)), load_text_config(backbone).value(),
                         *open_weights(backbone, pair.type).value(), pair.type, draft_vocabulary)
      .value();
}

}  // namespace outrider
