#pragma once

#include "common/base/result.h"
#include "lab/experiment/plan.h"

namespace outrider {

/// The plan of `outrider launch` with which an arm of a cell is launched: that of the experiment, with the cell's axes
/// as counts and options of its roles. Plain and n-gram have no drafters; co-located ones are on the verifiers' hosts,
/// and nothing is added to their drafts.
/// @param launch  an object. @param axes  of which axis_of_this_machine() names none
/// @return kInvalidArgument, naming the key, where the plan says itself what an axis says, has commands of its own, or
///   has not one group of verifiers and one of drafters.
Result<Json> cell_plan(const Json& launch, const Axes& axes, ExperimentArm arm);

}  // namespace outrider
