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
  std::filesystem::path backbone = {};  ///< checkpoint directory, of which only the towers are loaded
  WeightType weight_type = WeightType::kBf16;
  std::string join = {};  ///< the coordinator's address
  WorkerOptions worker = {};
  int threads = 0;          ///< 0: every core
  EncoderConfig core = {};  ///< soft_tokens is set once the towers are loaded
};

template <class Visitor>
void declare_options(Visitor&& visit, EncoderOptions& options) {
  declare_options(visit, options.worker);
  visit("--threads", options.threads, {"Threads of the towers; 0: every core", {0, kThreadsMax}});
  visit("--exit-when-refused", options.core.link.exit_when_refused, kExitWhenRefused);
}

/// Loads a model's towers, joins the coordinator and encodes media until `stop` (then Ok), or until an error at the
/// start or a final refusal. After `stop` it takes nothing new, and finishes its work. One thread does everything (ADR
/// 3): messages and heartbeats are handled between the steps of a large picture.
/// @return kUnsupported for a model without towers
Result<void> run_encoder(TransportContext& context, const EncoderOptions& options, std::stop_token stop);

}  // namespace outrider
