#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "common/base/time.h"

namespace outrider {

/// Returns the added time of a forward pass of `rows` rows, for measurements of larger models and slower hosts.
/// @param us  microseconds of passes of 1, 2, 4, 8, ... rows, which are interpolated; beyond the last the slope before
/// it continues. One value: every pass. Empty: none
Duration added_time(std::span<const double> us, std::int64_t rows);

/// Sleeps that long. Of n passes at once in this process each runs at 1/n of its speed, as on one machine's cores.
/// @param between_steps  called every few milliseconds, as between the layers of a pass
void add_time(std::span<const double> us, std::int64_t rows, const std::function<void()>& between_steps = [] {});

}  // namespace outrider
