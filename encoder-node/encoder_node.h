#pragma once

#include <filesystem>
#include <stop_token>
#include <string>

#include "common/base/option.h"
#include "common/compute/kernels/linear.h"
#include "common/wire/transport/endpoint.h"
#include "common/wire/transport/worker.h"
#include "encoder-node/encoder_core.h"

namespace outrider {

struct EncoderOptions {
  std::filesystem::path backbone = {};  ///< checkpoint directory, of which the towers alone are loaded
  WeightType weight_type = WeightType::kBf16;
  std::string join = {};  ///< the coordinator's address
  WorkerOptions worker = {};
  int threads = 0;          ///< 0: every core
  EncoderConfig core = {};  ///< what becomes of a medium is filled in once the towers are there
};

template <class Visitor>
void declare_options(Visitor&& visit, EncoderOptions& options) {
  declare_options(visit, options.worker);
  visit("--threads", options.threads, {"Threads of the towers; 0: every core", {0, kThreadsMax}});
  visit("--exit-when-refused", options.core.link.exit_when_refused, kExitWhenRefused);
}

/// Loads a model's towers, joins the coordinator and encodes pictures and sounds until `stop` (then Ok) or until it
/// cannot start, or is refused and not to try again (then the reason). After `stop` it takes nothing new, and ends what
/// it has. One thread does it all (ADR 3): messages and heartbeats go on between the steps of a large picture.
/// @return kUnsupported for a model that has no towers.
Result<void> run_encoder(TransportContext& context, const EncoderOptions& options, std::stop_token stop);

}  // namespace outrider
