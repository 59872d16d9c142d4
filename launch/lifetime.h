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

/// It ends a program that runs until it is told to end.
struct Lifetime {
  bool with_stdin = false;  ///< the end of its standard input does: whoever started it is gone
  std::string deadline;     ///< as parse_deadline() takes it

  void add_to(Command& command);
  void add_deadline_to(Command& command);

  /// Runs a role until it ends by itself or is told to: SIGTERM, SIGINT, and SIGUSR1 and SIGUSR2, which batch systems
  /// send before a time limit, or kDrainBefore the deadline. It may then finish what it has begun; a second signal, or
  /// kCutOffBefore the deadline, ends the process at once with status 143. @return kInvalidArgument for a deadline that
  /// is none. Must be called before other threads exist, since it blocks these signals for them.
  Result<void> run(const std::function<Result<void>(std::stop_token)>& role) const;
};

}  // namespace outrider
