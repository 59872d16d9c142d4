#pragma once

#include "common/base/fields.h"

namespace outrider {

/// Limit of --threads: more than any machine has; OpenMP would try to start them all.
inline constexpr int kThreadsMax = 1024;

/// Describes a node's option to users. Each node declares its options once, beside their struct, with
///
///     template <class Visitor>
///     void declare_options(Visitor&& visit, XOptions& options) { visit("--threads", options.threads, {"help"}); ... }
///
/// which defines the command line of the role and of the commands that start a cluster, the arguments of a child
/// process, and the manual.
struct OptionInfo {
  const char* help;
  Range<double> range = kFinite;  ///< of numbers
  bool of_cluster = false;        ///< also an option of commands that start a cluster
  const char* word_for_0 = nullptr;  ///< of a whole number that may also be this word, outside its range
};

/// An option of every worker.
inline constexpr OptionInfo kExitWhenRefused{
    "End when the coordinator refuses this model, instead of asking again ever more rarely"};

}  // namespace outrider
