#include "common/grammar/engine.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace outrider {
namespace {

thread_local EngineWarnings* current_warnings = nullptr;

/// One line, without the text of the check that failed.
std::string brief(std::string text) {
  const std::string_view mark = "Check failed: ";
  if (text.starts_with(mark)) {
    if (const std::size_t end = text.find(") is false: "); end != text.npos) text.erase(0, end + 12);
  }
  std::ranges::replace(text, '\n', ' ');
  constexpr std::size_t kLongest = 500;
  if (text.size() > kLongest) text.resize(kLongest);
  return text;
}

}  // namespace

EngineWarnings::EngineWarnings() : outer_(std::exchange(current_warnings, this)) {}
EngineWarnings::~EngineWarnings() { current_warnings = outer_; }

void note_engine_warning(std::string text) {
  constexpr std::size_t kMost = 8;
  if (current_warnings != nullptr && current_warnings->texts_.size() < kMost)
    current_warnings->texts_.push_back(brief(std::move(text)));
}

}  // namespace outrider

// XGrammar is built with XGRAMMAR_LOG_CUSTOMIZE: it leaves these two to its user, and prints nothing itself.
namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw std::runtime_error(outrider::brief(message));
}
void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
  constexpr int kWarning = 2;
  if (level >= kWarning) outrider::note_engine_warning(message);
}

}  // namespace xgrammar
