#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "common/base/result.h"

namespace outrider {

/// Exit status of a role or a batch that did not fail, and should be started again (EX_TEMPFAIL).
inline constexpr int kExitAgain = 75;

using WallTime = std::chrono::system_clock::time_point;

/// Times before a deadline at which nothing new is begun, and at which running work is cut off.
inline constexpr std::chrono::seconds kDrainBefore{60}, kCutOffBefore{5};

/// The forms of every --deadline, for its help.
inline constexpr const char* kDeadlineForms =
    "a local time (2026-11-22T19:00:00), a duration from now (90s, 15m, 2h), or slurm: when Slurm ends this job";

/// @param text  see kDeadlineForms; "slurm" asks squeue. Empty: never
/// @return none for never; kInvalidArgument for another text, kUnavailable if Slurm does not know
Result<std::optional<WallTime>> parse_deadline(const std::string& text);

}  // namespace outrider
