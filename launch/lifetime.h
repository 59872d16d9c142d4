#pragma once

#include <functional>
#include <stop_token>
#include <string>

#include "common/base/result.h"

namespace CLI {
class App;
}

namespace outrider {

using Command = CLI::App;

/// Ends a program that runs until it is asked to end.
struct Lifetime {
  bool with_stdin = false;  ///< ends with its standard input: the starter is gone
  std::string deadline;     ///< see parse_deadline()

  void add_to(Command& command);
  void add_deadline_to(Command& command);

  /// Runs a role until it ends by itself or is asked to: by SIGTERM, SIGINT, and SIGUSR1 and SIGUSR2, which batch
  /// systems send before a time limit, or at kDrainBefore the deadline. It may then finish its work; a second signal,
  /// or kCutOffBefore the deadline, ends the process at once with status 143.
  /// @return kInvalidArgument for an invalid deadline. Must be called before other threads exist, since it blocks these
  /// signals for them.
  Result<void> run(const std::function<Result<void>(std::stop_token)>& role) const;
};

}  // namespace outrider
