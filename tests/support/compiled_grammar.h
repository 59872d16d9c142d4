#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "common/decoding/grammar/grammar.h"

namespace outrider {

/// Waits for a grammar.
inline Result<std::shared_ptr<const Grammar>> compiled(GrammarCompiler& compiler, const std::string& text) {
  const GrammarWait wait = compiler.want(text);
  for (;;) {
    ASSIGN_OR_RETURN(std::shared_ptr<const Grammar> grammar, wait());
    if (grammar != nullptr) return grammar;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace outrider
