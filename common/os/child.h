#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/os/descriptor.h"

namespace outrider {

/// A process of this machine that may have ended: numbers are reused, a number and start time together are not.
struct ProcessId {
  pid_t pid = 0;
  std::uint64_t start = 0;  ///< from /proc/PID/stat, ticks after the machine's start

  bool alive() const;
  /// Sends a signal, unless the process has ended. @return true if it was alive
  bool signal(int number) const;
};

/// Returns the process that has this number now; start is 0 if there is none.
ProcessId identify(pid_t pid);

/// A command's first word for this program itself, whatever has become of its file.
inline constexpr const char* kThisProgram = "/proc/self/exe";

/// A child process that does not outlive this one: it gets SIGTERM when the thread that started it ends, and its
/// standard input, if held open, ends then too. Its number is not reused while this object lives.
class Child {
 public:
  /// @param log  file that gets its output, appended @param keep_stdin_open  give it a pipe; else it has no input
  static Result<Child> start(const std::vector<std::string>& command, const std::filesystem::path& log,
                             bool keep_stdin_open);
  /// The same without input. It shares our standard error.
  /// @param out  descriptor for its standard output; remains the caller's
  /// @param environment  additional variables
  static Result<Child> start(const std::vector<std::string>& command, int out,
                             const std::map<std::string, std::string>& environment);
  Child(Child&& other) noexcept;
  Child& operator=(Child&& other) noexcept;
  /// Kills it and all processes that it has started, if it still runs.
  ~Child();

  ProcessId id() const { return id_; }
  /// Writes to its standard input, which must be held; at most 64 KiB before it reads.
  Result<void> write(const std::string& text);
  /// Closes its standard input.
  void release_stdin();
  /// Signals it and all processes that it has started, unless it has ended.
  void signal(int number);
  /// Returns its exit status once it has ended; 128 plus the signal's number if it was killed.
  std::optional<int> poll();

 private:
  Child(ProcessId id, Descriptor held_stdin) : id_(id), stdin_(std::move(held_stdin)) {}

  ProcessId id_;
  Descriptor stdin_;
  std::optional<int> status_;
};

/// Output and exit status of a command.
struct Captured {
  int status = 0;
  std::string out;  ///< standard output and standard error
};

/// Runs commands concurrently, each for at most `seconds`, and until `stopped` returns true; one that takes longer is
/// killed, with status 124. @return one per command, in order
std::vector<Captured> run_all(const std::vector<std::vector<std::string>>& commands, int seconds,
                              const std::function<bool()>& stopped = {});

}  // namespace outrider
