#pragma once

#include "common/base/result.h"
#include "lab/experiment/plan.h"

namespace outrider {

/// Returns the plan of `outrider launch` for an arm of a cell: the experiment's, with the cell's axes as counts and
/// options of its roles. Plain and n-gram have no drafters; co-located ones are on the verifiers' hosts, without an
/// added delay.
/// @param launch  an object
/// @param axes  axis_of_this_machine() must be none
/// @return kInvalidArgument with the key if the plan itself sets an axis's value, has commands, or does not have
/// one group of verifiers and one of drafters
Result<Json> cell_plan(const Json& launch, const Axes& axes, ExperimentArm arm);

}  // namespace outrider
