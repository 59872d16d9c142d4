#pragma once

namespace outrider {

/// The commit that this program was built from, with -dirty if the tree had changes; empty: no history.
extern const char* const kBuildCommit;

}  // namespace outrider
