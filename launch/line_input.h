#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "launch/interrupt.h"

namespace outrider {

/// Lines that a person types, or that come through a pipe.
class LineInput {
 public:
  enum class Got { kLine, kInterrupt, kEnd };

  virtual ~LineInput() = default;
  /// Waits for a line, without its end. kInterrupt: `interrupt` was requested, and is cleared.
  virtual Got next(Interrupt& interrupt, std::string& line) = 0;
  /// It sets the text before the lines of a person from here on.
  virtual void set_prompt(const std::string&) {}
};

/// The standard input as it comes.
std::unique_ptr<LineInput> plain_lines();

/// A person at a terminal: lines are edited, recalled and completed (libedit; ~/.editrc is heeded).
/// @param words  what a line can begin with, for Tab
/// @param history  the lines of earlier times, of which the last 1,000 are kept, readable by this user alone; a line
///   that begins with a space is kept nowhere. Empty, or a file that cannot be written: this time's only.
std::unique_ptr<LineInput> edited_lines(const std::string& prompt, std::vector<std::string> words,
                                        std::filesystem::path history);

/// @return the place of a program's history: $XDG_STATE_HOME/outrider/NAME, else ~/.local/state/outrider/NAME. Empty if
/// there is no home.
std::filesystem::path history_file(const std::string& name);

}  // namespace outrider
