#include "common/decoding/grammar/engine.h"

#include <time.h>

#include <algorithm>
#include <cctype>
#include <stdexcept>
#include <utility>

#include "common/decoding/grammar/engine_steps.h"

namespace outrider {
namespace {

thread_local EngineWarnings* current_warnings = nullptr;
thread_local EngineBudget* current_budget = nullptr;

/// Some tenths of a millisecond.
constexpr int kStepsOfALook = 4096;

/// Returns one line, without the text of the failed check.
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

double thread_seconds() {
  timespec spent{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
  return static_cast<double>(spent.tv_sec) + 1e-9 * static_cast<double>(spent.tv_nsec);
}

__thread int engine_steps_left = kStepsOfALook;

void engine_steps_are_over() {
  engine_steps_left = kStepsOfALook;
  EngineBudget* const budget = current_budget;
  if (budget == nullptr) return;
  if (budget->start_ < 0) budget->start_ = thread_seconds();
  if (!budget->may_go_on_(budget->seconds())) throw EngineSpent();
}

EngineBudget::EngineBudget(std::function<bool(double seconds)> may_go_on)
    : may_go_on_(std::move(may_go_on)), outer_(std::exchange(current_budget, this)) {
  engine_steps_left = kStepsOfALook;
}
EngineBudget::~EngineBudget() { current_budget = outer_; }
double EngineBudget::seconds() const { return start_ < 0 ? 0 : thread_seconds() - start_; }

void note_engine_warning(std::string text) {
  constexpr std::size_t kMost = 8;
  if (current_warnings != nullptr && current_warnings->texts_.size() < kMost)
    current_warnings->texts_.push_back(brief(std::move(text)));
}

std::string with_exact_escapes(const std::string& text) {
  const auto is_hex = [&](std::size_t at) {
    return at < text.size() && std::isxdigit(static_cast<unsigned char>(text[at])) != 0;
  };
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = text[at] == '\\' ? 2 : 1;
    if (length == 2 && text.compare(at, 2, "\\x") == 0 && is_hex(at + 2)) {
      const std::size_t digits = is_hex(at + 3) ? 2 : 1;
      out += (digits == 2 ? "\\u00" : "\\u000") + text.substr(at + 2, digits);
      at += 2 + digits;
    } else {
      out += text.substr(at, length);
      at += length;
    }
  }
  return out;
}

xgrammar::Grammar read_ebnf(const std::string& text) { return xgrammar::Grammar::FromEBNF(with_exact_escapes(text)); }
std::string write_ebnf(const xgrammar::Grammar& grammar) { return with_exact_escapes(grammar.ToString()); }

}  // namespace outrider

// XGrammar is built with XGRAMMAR_LOG_CUSTOMIZE: its user defines these two functions, and it prints nothing itself.
namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw std::runtime_error(outrider::brief(message));
}
void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
  constexpr int kWarning = 2;
  if (level >= kWarning) outrider::note_engine_warning(message);
}

}  // namespace xgrammar
