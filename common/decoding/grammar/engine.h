#pragma once

#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <xgrammar/xgrammar.h>

#include "common/base/result.h"

namespace outrider {

/// It collects XGrammar's warnings on this thread while it lives: XGrammar warns of what it will ignore.
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

/// Processor time that this thread has had.
double thread_seconds();

/// A call of XGrammar has used up its budget. What it worked on is of no use any more.
struct EngineSpent : std::runtime_error {
  EngineSpent() : std::runtime_error("interrupted") {}
};

/// Bounds the calls of XGrammar on this thread while this object lives, by EngineSpent. A call that is short is not
/// even measured.
class EngineBudget {
 public:
  /// @param may_go_on  is asked now and then; gets the seconds of processor time that have gone by
  explicit EngineBudget(std::function<bool(double seconds)> may_go_on);
  ~EngineBudget();
  EngineBudget(const EngineBudget&) = delete;
  EngineBudget& operator=(const EngineBudget&) = delete;
  double seconds() const;

 private:
  friend void engine_steps_are_over();
  std::function<bool(double)> may_go_on_;
  double start_ = -1;  ///< of the time that is measured; below 0: none yet
  EngineBudget* outer_;
};

/// Runs one call of XGrammar, whose errors are exceptions.
/// @return kInvalidArgument for what it refuses, and for what it would ignore. Throws EngineSpent.
template <typename Call>
auto engine_call(const char* what, Call&& call) -> Result<decltype(call())> {
  const EngineWarnings warnings;
  try {
    auto value = call();
    if (!warnings.texts().empty()) return Error{Errc::kUnsupported, std::string(what) + ": " + warnings.texts()[0]};
    return value;
  } catch (const EngineSpent&) {
    throw;
  } catch (const std::bad_alloc&) {
    return Error{Errc::kUnsupported, std::string(what) + " takes more memory than there is"};
  } catch (const std::exception& error) {
    return Error{Errc::kInvalidArgument, std::string(what) + ": " + error.what()};
  }
}

/// The grammar of a text in EBNF, in which an escape \xHH has two digits at most, as everywhere else: XGrammar takes
/// all that follow. Throws, so wants an engine_call().
xgrammar::Grammar read_ebnf(const std::string& text);
/// Its text. XGrammar writes escapes that it would itself misread.
std::string write_ebnf(const xgrammar::Grammar& grammar);
/// `text` with \u00HH for each \xHH.
std::string with_exact_escapes(const std::string& text);

}  // namespace outrider
