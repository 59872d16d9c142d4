#pragma once

#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <xgrammar/xgrammar.h>

#include "common/base/result.h"

namespace outrider {

/// Collects XGrammar's warnings on this thread while it lives: XGrammar warns about whatever it ignores.
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

/// Returns the processor time of this thread.
double thread_seconds();

/// Thrown when a call of XGrammar exceeds its budget. The objects of that call are then unusable.
struct EngineSpent : std::runtime_error {
  EngineSpent() : std::runtime_error("interrupted") {}
};

/// Bounds the processor time of XGrammar's calls on this thread while it lives, by EngineSpent. Short calls are not
/// even measured.
class EngineBudget {
 public:
  /// @param may_go_on  called now and then with the processor time used, in seconds
  explicit EngineBudget(std::function<bool(double seconds)> may_go_on);
  ~EngineBudget();
  EngineBudget(const EngineBudget&) = delete;
  EngineBudget& operator=(const EngineBudget&) = delete;
  double seconds() const;

 private:
  friend void engine_steps_are_over();
  std::function<bool(double)> may_go_on_;
  double start_ = -1;  ///< of the measured time; below 0: not started
  EngineBudget* outer_;
};

/// Runs one call of XGrammar, and converts its exceptions.
/// @return kInvalidArgument for input that it refuses or would ignore. Throws EngineSpent.
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

/// Parses EBNF. Escapes \xHH have two digits at most, as elsewhere, while XGrammar would take all that follow. Throws,
/// and so must be inside an engine_call().
xgrammar::Grammar read_ebnf(const std::string& text);
/// Returns the grammar's EBNF, without the escapes that XGrammar would itself misread.
std::string write_ebnf(const xgrammar::Grammar& grammar);
/// Returns `text` with \u00HH in place of each \xHH.
std::string with_exact_escapes(const std::string& text);

}  // namespace outrider
