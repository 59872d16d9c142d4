#pragma once

#include <exception>
#include <string>
#include <vector>

#include <xgrammar/xgrammar.h>

#include "common/base/result.h"

namespace outrider {

/// What XGrammar has to say on this thread while this object lives: it reports what it will ignore as a warning.
class EngineWarnings {
 public:
  EngineWarnings();
  ~EngineWarnings();
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  friend void note_engine_warning(std::string text);
  std::vector<std::string> texts_;
  EngineWarnings* outer_;
};

/// Runs one call of XGrammar, whose errors are exceptions.
/// @return kInvalidArgument for what it refuses, and for what it would ignore.
template <typename Call>
auto engine_call(const char* what, Call&& call) -> Result<decltype(call())> {
  const EngineWarnings warnings;
  try {
    auto value = call();
    if (!warnings.texts().empty()) return Error{Errc::kUnsupported, std::string(what) + ": " + warnings.texts()[0]};
    return value;
  } catch (const std::bad_alloc&) {
    return Error{Errc::kOutOfRange, std::string(what) + " takes more memory than there is"};
  } catch (const std::exception& error) {
    return Error{Errc::kInvalidArgument, std::string(what) + ": " + error.what()};
  }
}

}  // namespace outrider
