#pragma once

#include <string>

#include "common/model/backbone.h"

namespace outrider {

/// What the bits of this backbone's rows depend on, in one line: type, instruction set, who multiplies, versions of
/// this program, its compiler and libraries, fingerprint of the weights, and a hash of what the model makes of a few
/// fixed tokens here, which shows what the list leaves out (docs/numerics.md).
/// Costs a forward pass of 16 rows.
std::string numeric_class(Backbone& backbone);

}  // namespace outrider
