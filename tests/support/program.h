#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/base/time.h"

namespace outrider {

/// Ends a test that would hang. Never a measure of speed: nothing that works comes near it.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr Duration kHang = std::chrono::seconds(1200);
#else
inline constexpr Duration kHang = std::chrono::seconds(600);
#endif

/// Polls until `condition` holds. @return false, when it still does not after `deadline`.
bool eventually(const std::function<bool()>& condition, Duration deadline = kHang);

/// One run of the outrider program. The destructor kills it, as does the end of the thread that
/// started it, and shows what it printed when the test has failed.
class Program {
 public:
  /// How a run ended: exactly one of them is set.
  struct End {
    std::optional<int> exit_code, signal;
  };

  /// What it reads from its standard input: this program's, or what write() gives it.
  enum class Input { kInherited, kWritten };

  /// @param fixed_lengths  a draft length that is a number is one: no clock changes it (--no-governor).
  explicit Program(std::vector<std::string> arguments, Input input = Input::kInherited, bool fixed_lengths = true);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  void send(int signal);
  /// To its standard input, which must be kWritten.
  void write(const std::string& text);
  /// Its standard input ends.
  void end_input();
  /// How it ended, or nothing while it runs.
  std::optional<End> poll();
  bool running() { return !poll(); }
  pid_t pid() const { return pid_; }
  /// Waits for the end. A program still running at the deadline fails the test and is killed.
  End wait(Duration deadline = kHang);

  /// All that it has printed so far.
  std::string out() const { return read(out_); }
  std::string err() const { return read(err_); }

 private:
  static std::string read(int file);

  std::string command_;
  pid_t pid_ = -1;
  int out_ = -1, err_ = -1, in_ = -1;
  std::optional<End> end_;
};

/// For EXPECT_EQ on ends: "exit 0", "signal 9".
std::string describe(const Program::End& end);

/// Lines of `text` that contain every one of `parts`.
std::vector<std::string> lines_with(const std::string& text, const std::vector<std::string>& parts);

}  // namespace outrider
