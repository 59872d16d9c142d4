#pragma once

namespace outrider {

/// Counts the steps of XGrammar on this thread. It asks nobody whether it may go on, so its own internal checks, which
/// a release leaves out, are made to (XGRAMMAR_DCHECK): cmake/OutriderXGrammar.cmake includes this in its sources.
extern __thread int engine_steps_left;
/// Throws EngineSpent where an EngineBudget (engine.h) is used up.
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
