#pragma once

#include <filesystem>
#include <stop_token>
#include <string>

#include "common/kernels/linear.h"
#include "common/protocol/drafter_core.h"
#include "common/transport/endpoint.h"

namespace outrider {

struct DrafterOptions {
  std::filesystem::path assistant;
  std::filesystem::path backbone;  ///< the target's checkpoint: config and embedding table only are read
  WeightType weight_type = WeightType::kBf16;
  int threads = 1;  ///< small layers are faster on one thread (design/onednn.md section 8)
  std::string join;
  DrafterConfig core;
};

/// Loads the assistant, joins the coordinator and drafts until `stop` (then Ok) or until it cannot
/// start or is refused (then the reason). A draft takes milliseconds, so it runs in the loop.
Result<void> run_drafter(TransportContext& context, const DrafterOptions& options, std::stop_token stop);

}  // namespace outrider
