#pragma once

namespace outrider {

/// Counts XGrammar's steps on this thread. XGrammar has no cancellation, so its internal checks, which a release leaves
/// out, serve as one (XGRAMMAR_DCHECK): cmake/OutriderXGrammar.cmake includes this file in its sources.
extern __thread int engine_steps_left;
/// Throws EngineSpent when an EngineBudget (engine.h) is exhausted.
void engine_steps_are_over();

inline void engine_step() {
  if (--engine_steps_left <= 0) engine_steps_are_over();
}

}  // namespace outrider

#ifdef XGRAMMAR_DCHECK
#undef XGRAMMAR_DCHECK
#define XGRAMMAR_DCHECK(x) \
  for (::outrider::engine_step(); false;) XGRAMMAR_ICHECK(x)
#endif
