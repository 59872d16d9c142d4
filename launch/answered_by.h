#pragma once

#include "batch/journal.h"
#include "launch/command_support.h"

namespace outrider {

/// A batch's results depend on these where a cluster answers: the model, and the program.
/// @param name  what clients call the model
/// @param here  the weights are in this process, and known
Manifest answered_by(const ModelFlags& model, const PairPaths& pair, const std::string& name, bool here);

}  // namespace outrider
