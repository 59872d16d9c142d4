#pragma once

namespace outrider {

/// The commit that this program was built from, with -dirty where the tree had changes; empty: the tree had no history.
extern const char* const kBuildCommit;

}  // namespace outrider
