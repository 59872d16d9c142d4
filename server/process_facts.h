#pragma once

#include <cstdint>

namespace outrider {

/// What the system says of this process. What it does not say is 0.
struct ProcessFacts {
  double start_unix_s = 0;
  double cpu_s = 0;  ///< of all threads, in the system too
  std::int64_t resident_bytes = 0, virtual_bytes = 0;
  std::int64_t open_fds = 0, max_fds = 0;
};

ProcessFacts process_facts();

}  // namespace outrider
