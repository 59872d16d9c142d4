#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "common/base/result.h"

namespace outrider {

/// Exit status of a role or a batch that would do well to be started again: nothing was wrong with it. (EX_TEMPFAIL)
inline constexpr int kExitAgain = 75;

using WallTime = std::chrono::system_clock::time_point;

/// Before a deadline: when nothing new is begun any more, and when what still runs is cut off.
inline constexpr std::chrono::seconds kDrainBefore{60}, kCutOffBefore{5};

/// Every --deadline takes these forms, as its help says.
inline constexpr const char* kDeadlineForms =
    "a local time (2026-11-22T19:00:00), a duration from now (90s, 15m, 2h), or slurm: when Slurm ends this job";

/// @param text  as kDeadlineForms says; "slurm" asks squeue. Empty: never.
/// @return none for never; kInvalidArgument for another text, kUnavailable where Slurm does not say.
Result<std::optional<WallTime>> parse_deadline(const std::string& text);

}  // namespace outrider
