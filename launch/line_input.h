#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "launch/interrupt.h"

namespace outrider {

/// Lines that a person types, or from a pipe.
class LineInput {
 public:
  enum class Got { kLine, kInterrupt, kEnd };

  virtual ~LineInput() = default;
  /// Waits for a line, without its end. kInterrupt: `interrupt` was requested, and is cleared.
  virtual Got next(Interrupt& interrupt, std::string& line) = 0;
  /// Sets the prompt of the following lines.
  virtual void set_prompt(const std::string&) {}
};

/// Reads the standard input as it is.
std::unique_ptr<LineInput> plain_lines();

/// Reads from a person at a terminal, with editing, recall and completion (libedit; ~/.editrc applies).
/// @param words  possible first words of a line, for Tab
/// @param history  file of the last 1,000 lines, readable by this user alone; lines that begin with a space are
/// not kept. Empty, or not writable: only this session's
std::unique_ptr<LineInput> edited_lines(const std::string& prompt, std::vector<std::string> words,
                                        std::filesystem::path history);

/// @return the file of a program's history: $XDG_STATE_HOME/outrider/NAME, else ~/.local/state/outrider/NAME. Empty if
/// there is no home
std::filesystem::path history_file(const std::string& name);

}  // namespace outrider
