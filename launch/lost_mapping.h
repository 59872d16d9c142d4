#pragma once

namespace outrider {

/// A model's file that shrinks while it is mapped, or whose disk fails, ends the program (SIGBUS) when the lost part is
/// read. From here on it ends with a line that names the file, and status 1.
void explain_lost_mappings();

}  // namespace outrider
