#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "common/compute/kernels/isa.h"
#include "common/os/host.h"
#include "launch/command_line.h"
#include "launch/commit.h"

namespace outrider {

// The commands listed in the rooms' CMakeLists.txt; cmake writes these functions. A command's callback throws
// std::runtime_error with a one-line message, or ExitStatus.
void add_launch_commands(Command& app);
void add_lab_commands(Command& app);

}  // namespace outrider

namespace {

/// Gives large blocks pages of their own, which are returned when freed. glibc would take blocks of up to 32 MiB from
/// its heap once one of them has been freed, and an aligned block does not fit the hole of an equal one (glibc 2.36).
/// Packing experts, thousands of matrices of 2 and 4 MiB through a buffer of the same size, would then waste a third of
/// their memory.
void map_large_blocks() { mallopt(M_MMAP_THRESHOLD, 1 << 20); }

/// @return true if standard output is a pipe without readers, as behind `| head` after its last line
bool nobody_reads() {
  pollfd out{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  return poll(&out, 1, /*timeout=*/0) == 1 && (out.revents & POLLERR) != 0;
}

/// Flushes the output.
/// @return the exit status of a program that was to end with `status`: an error if output was lost. A pipe without
/// readers is no error to a person, and the status is that of programs ended by SIGPIPE
int ended(int status) {
  std::cout.flush();
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good()) return status;
  if (nobody_reads()) return status == 0 ? 128 + SIGPIPE : status;
  std::fprintf(stderr, "outrider: not all of the output could be written\n");
  return status == 0 ? 1 : status;
}

// ---- truncation of a mapped file ----

// Everything below runs in a signal handler, on any thread: no memory is allocated, no lock taken.

void print(std::string_view text) {
  if (::write(STDERR_FILENO, text.data(), text.size()) < 0) return;  // there is no reader
}

/// Prints the file of a line of /proc/self/maps if it is mapped at `address`. @return true if it is
bool print_if_mapped(std::string_view line, std::uintptr_t address) {
  std::uintptr_t begin = 0, end = 0;
  const std::size_t dash = line.find('-'), name = line.find('/');
  if (dash == line.npos || name == line.npos) return false;
  std::from_chars(line.data(), line.data() + dash, begin, 16);
  std::from_chars(line.data() + dash + 1, line.data() + line.size(), end, 16);
  if (address < begin || address >= end) return false;
  print(line.substr(name));
  return true;
}

void print_file_at(std::uintptr_t address) {
  const int maps = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  std::array<char, 8192> bytes;
  std::size_t have = 0;
  bool printed = false;
  while (maps >= 0 && !printed) {
    const ssize_t got = ::read(maps, bytes.data() + have, bytes.size() - have);
    if (got <= 0) break;
    have += static_cast<std::size_t>(got);
    std::string_view rest(bytes.data(), have);
    for (std::size_t end = 0; !printed && (end = rest.find('\n')) != rest.npos; rest.remove_prefix(end + 1))
      printed = print_if_mapped(rest.substr(0, end), address);
    if (rest.size() == bytes.size()) break;  // the line is too long
    std::memmove(bytes.data(), rest.data(), rest.size());
    have = rest.size();
  }
  if (!printed) print("a mapped file");
}

void on_lost_mapping(int, siginfo_t* info, void*) {
  print("outrider: ");
  print_file_at(reinterpret_cast<std::uintptr_t>(info->si_addr));
  print(": a part that was there is gone: the file was cut short while it was in use, or its disk failed\n");
  ::_exit(1);
}

/// Reading a lost part of a mapped model file, which shrank or whose disk fails, ends the program (SIGBUS). After this
/// call the program ends with a line that names the file, and status 1.
void explain_lost_mappings() {
  struct sigaction action {};
  action.sa_sigaction = on_lost_mapping;
  action.sa_flags = SA_SIGINFO | SA_RESETHAND;
  sigaction(SIGBUS, &action, nullptr);
}

/// Opens the closed ones of the three standard descriptors, so that no file or socket becomes one. Writes to a closed
/// output still fail.
void open_standard_descriptors() {
  for (int descriptor = 0; descriptor <= 2; ++descriptor)
    if (::fcntl(descriptor, F_GETFD) == -1) ::open("/dev/null", O_RDONLY);  // takes the lowest free number
}

/// Process 1 of a container gets no signal that it does not handle: SIGINT and SIGTERM end it, as they end others.
void let_signals_end_a_container() {
  if (::getpid() != 1) return;
  for (const int number : {SIGINT, SIGTERM}) std::signal(number, [](int signal) { ::_exit(128 + signal); });
}

}  // namespace

int main(int argc, char** argv) {
  let_signals_end_a_container();
  open_standard_descriptors();
  map_large_blocks();
  const std::string commit = outrider::kBuildCommit;
  const bool changed = commit.ends_with("-dirty");
  CLI::App app("Outrider: distributed two-tier speculative decoding for Gemma 4", "outrider");
  app.set_version_flag("--version",
                       fmt::format(OUTRIDER_VERSION " ({}{}{}{})", commit.substr(0, 8), changed ? "-dirty" : "",
                                   commit.empty() ? "" : ", ", outrider::to_string(outrider::detect_isa())));
  app.require_subcommand();
  app.formatter(outrider::help_formatter());
  outrider::add_launch_commands(app);
  outrider::add_lab_commands(app);
  std::signal(SIGPIPE, SIG_IGN);
  // A parent may have left it ignored, and then no child's end would be seen.
  std::signal(SIGCHLD, SIG_DFL);
  outrider::take_short_turns();  // all threads alike: messages must not wait for computation
  explain_lost_mappings();
  app.preparse_callback([](std::size_t) {
    outrider::active_isa();  // reports a bad OUTRIDER_ISA or OUTRIDER_GEMM here, not on another thread
    outrider::active_gemm();
  });
  return ended(outrider::run_command_line(app, argc, argv));
}
