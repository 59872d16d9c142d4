#pragma once

#include "batch/journal.h"
#include "launch/model_flags.h"

namespace outrider {

/// Returns what a batch's results depend on when a cluster answers: the model, and the program.
/// @param name  the model's name for clients
/// @param here  the weights are in this process, and known
Manifest answered_by(const ModelFlags& model, const PairPaths& pair, const std::string& name, bool here);

}  // namespace outrider
