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

/// A process of this machine that may long be gone: its number is used again, its number and start together are not.
struct ProcessId {
  pid_t pid = 0;
  std::uint64_t start = 0;  ///< as in /proc/PID/stat, ticks after the machine's start

  bool alive() const;
  /// Sends a signal, unless it is gone. @return whether it was alive.
  bool signal(int number) const;
};

/// The process that has this number now; start is 0 if there is none.
ProcessId identify(pid_t pid);

/// As a command's first word: this program itself, whatever has become of its file.
inline constexpr const char* kThisProgram = "/proc/self/exe";

/// A child process that does not outlive this one: it gets SIGTERM when the thread that started it ends, and it holds
/// the other end of its standard input, if that is wanted, which ends then too. Its number is nobody else's as long as
/// this object lives.
class Child {
 public:
  /// @param log  file that gets its output, appended
  /// @param hold_stdin  give it a pipe; else it has no input
  static Result<Child> start(const std::vector<std::string>& command, const std::filesystem::path& log,
                             bool hold_stdin);
  /// The same without input. Its errors go where ours do.
  /// @param out  descriptor that gets the rest of its output; it stays the caller's
  /// @param environment  variables that it gets besides ours
  static Result<Child> start(const std::vector<std::string>& command, int out,
                             const std::map<std::string, std::string>& environment);
  Child(Child&& other) noexcept;
  Child& operator=(Child&& other) noexcept;
  /// Kills it and all that it has started, if it still runs.
  ~Child();

  ProcessId id() const { return id_; }
  /// To its standard input, which must be held; at most 64 KiB before it reads.
  Result<void> write(const std::string& text);
  /// Ends its standard input.
  void release_stdin();
  /// To it and all that it has started, unless it has ended.
  void signal(int number);
  /// Its exit status once it has ended, 128 and the signal's number if it was killed.
  std::optional<int> poll();

 private:
  Child(ProcessId id, Descriptor held_stdin) : id_(id), stdin_(std::move(held_stdin)) {}

  ProcessId id_;
  Descriptor stdin_;
  std::optional<int> status_;
};

/// What a command printed and how it ended.
struct Captured {
  int status = 0;
  std::string out;  ///< with what it printed as errors
};

/// Runs commands side by side, each for at most `seconds`, and until `stopped` says so; one that takes longer is killed
/// and has status 124.
/// @return one of each, in order.
std::vector<Captured> run_all(const std::vector<std::vector<std::string>>& commands, int seconds,
                              const std::function<bool()>& stopped = {});

}  // namespace outrider
