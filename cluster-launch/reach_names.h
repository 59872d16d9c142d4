#pragma once

#include <initializer_list>

namespace outrider {

/// The names of Reach, in its order.
inline constexpr std::initializer_list<const char*> kReachNames = {"local", "ssh", "srun"};

}  // namespace outrider
