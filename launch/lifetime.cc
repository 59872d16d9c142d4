#include "launch/lifetime.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <optional>
#include <thread>

#include <fmt/format.h>

#include "common/base/check.h"
#include "common/os/descriptor.h"
#include "launch/cluster/deadline.h"
#include "launch/command_line.h"

namespace outrider {
namespace {

/// Reads all pending input. @return false at the end of the input
bool more_to_read(int fd) {
  char ignored[4096];
  const ssize_t count = read(fd, ignored, sizeof ignored);
  return count > 0 || (count < 0 && (errno == EINTR || errno == EAGAIN));
}

/// Milliseconds until a time, for poll(). Bounded, since poll() has another clock.
int poll_until(WallTime time) {
  constexpr std::chrono::milliseconds kLookAgain{10'000};
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(time - std::chrono::system_clock::now());
  return static_cast<int>(std::clamp(left, std::chrono::milliseconds(0), kLookAgain).count());
}

[[noreturn]] void end_at_once() { _exit(128 + SIGTERM); }

/// Requests a stop at the first signal, before the deadline and, if wanted, at the end of standard input; ends the
/// process at the next signal and at the deadline. Returns once `ended` is readable.
void watch(int signals, int ended, bool with_stdin, std::optional<WallTime> deadline, std::stop_source stop) {
  enum { kSignal, kEnded, kStdin, kCount };
  pollfd fds[kCount] = {{signals, POLLIN, 0}, {ended, POLLIN, 0}, {with_stdin ? STDIN_FILENO : -1, POLLIN, 0}};
  bool drains = false;
  while (true) {
    const std::optional<WallTime> next = deadline ? *deadline - (drains ? kCutOffBefore : kDrainBefore) : deadline;
    const int found = poll(fds, kCount, next ? poll_until(*next) : -1);
    if (next && std::chrono::system_clock::now() >= *next) {
      if (drains && fds[kEnded].revents == 0) end_at_once();
      drains = true;
      stop.request_stop();
    }
    if (found <= 0) continue;  // a time-out, or another signal
    if (fds[kEnded].revents != 0) return;
    if (fds[kSignal].revents != 0) {
      signalfd_siginfo signal;
      if (read(signals, &signal, sizeof signal) == sizeof signal && !stop.request_stop()) end_at_once();
    }
    if (fds[kStdin].revents != 0 && !more_to_read(STDIN_FILENO)) {
      stop.request_stop();
      fds[kStdin].fd = -1;
    }
  }
}

}  // namespace

void Lifetime::add_to(Command& command) {
  command.add_flag("--exit-with-stdin", with_stdin,
                   "End as after SIGTERM when standard input ends, because the process that started this one is gone");
}

void Lifetime::add_deadline_to(Command& command) {
  command.add_option("--deadline", deadline,
                     fmt::format("End as after SIGTERM a minute before this time: {}", kDeadlineForms));
}

Result<void> Lifetime::run(const std::function<Result<void>(std::stop_token)>& role) const {
  const Result<std::optional<WallTime>> until = parse_deadline(deadline);
  if (!until) return until.error();
  // Blocked before any other thread exists, so that only the watch sees them.
  sigset_t wanted;
  sigemptyset(&wanted);
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGUSR2}) sigaddset(&wanted, signal);
  CHECK(pthread_sigmask(SIG_BLOCK, &wanted, nullptr) == 0);
  const Descriptor signals(signalfd(-1, &wanted, SFD_CLOEXEC)), ended(eventfd(0, EFD_CLOEXEC));
  CHECK(signals >= 0 && ended >= 0, "errno {}", errno);
  std::stop_source stop;
  std::thread watcher([&] { watch(signals, ended, with_stdin, *until, stop); });
  const Result<void> result = no_throw([&] { return role(stop.get_token()); });
  CHECK(eventfd_write(ended, 1) == 0);
  watcher.join();
  return result;
}

}  // namespace outrider
