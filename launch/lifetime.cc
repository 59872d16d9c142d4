#include "launch/lifetime.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <thread>

#include <CLI/CLI.hpp>

#include "common/base/check.h"

namespace outrider {
namespace {

/// Reads what has come. @return false at the end of the input.
bool more_to_read(int fd) {
  char ignored[4096];
  const ssize_t count = read(fd, ignored, sizeof ignored);
  return count > 0 || (count < 0 && (errno == EINTR || errno == EAGAIN));
}

/// Asks `stop` to stop at the first signal and, if wanted, at the end of standard input; ends the process at the next
/// signal. Returns once `ended` is readable.
void watch(int signals, int ended, bool with_stdin, std::stop_source stop) {
  enum { kSignal, kEnded, kStdin, kCount };
  pollfd fds[kCount] = {{signals, POLLIN, 0}, {ended, POLLIN, 0}, {with_stdin ? STDIN_FILENO : -1, POLLIN, 0}};
  while (true) {
    if (poll(fds, kCount, -1) < 0) continue;  // interrupted by a signal that is none of ours
    if (fds[kEnded].revents != 0) return;
    if (fds[kSignal].revents != 0) {
      signalfd_siginfo signal;
      if (read(signals, &signal, sizeof signal) == sizeof signal && !stop.request_stop()) _exit(128 + SIGTERM);
    }
    if (fds[kStdin].revents != 0 && !more_to_read(STDIN_FILENO)) {
      stop.request_stop();
      fds[kStdin].fd = -1;
    }
  }
}

}  // namespace

void Lifetime::add_to(CLI::App& command) {
  command.add_flag("--exit-with-stdin", with_stdin,
                   "End, as upon SIGTERM, at the end of standard input: whoever held it is gone");
}

Result<void> Lifetime::run(const std::function<Result<void>(std::stop_token)>& role) const {
  // Blocked before any other thread exists, so that only the watch sees them.
  sigset_t wanted;
  sigemptyset(&wanted);
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGUSR2}) sigaddset(&wanted, signal);
  CHECK(pthread_sigmask(SIG_BLOCK, &wanted, nullptr) == 0);
  const int signals = signalfd(-1, &wanted, SFD_CLOEXEC), ended = eventfd(0, EFD_CLOEXEC);
  CHECK(signals >= 0 && ended >= 0, "errno {}", errno);
  std::stop_source stop;
  std::thread watcher(watch, signals, ended, with_stdin, stop);
  const Result<void> result = no_throw([&] { return role(stop.get_token()); });
  CHECK(eventfd_write(ended, 1) == 0);
  watcher.join();
  close(signals);
  close(ended);
  return result;
}

}  // namespace outrider
