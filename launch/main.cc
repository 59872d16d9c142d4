#include <malloc.h>
#include <poll.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdio>
#include <iostream>
#include <string>

#include <fmt/format.h>

#include "common/compute/kernels/isa.h"
#include "common/os/host.h"
#include "launch/command_line.h"
#include "launch/commit.h"
#include "launch/lost_mapping.h"

namespace outrider {

// The commands that the rooms' CMakeLists.txt list: cmake writes these. A command's callback throws std::runtime_error
// with the one line that a person needs, or ExitStatus.
void add_launch_commands(Command& app);
void add_lab_commands(Command& app);

}  // namespace outrider

namespace {

/// glibc takes blocks of up to 32 MiB from its heap once one of them has been freed, and an aligned block does
/// not fit the hole that its like has left (glibc 2.36). Packing experts, thousands of matrices of 2 and
/// 4 MiB through a buffer of the same size, then wasted a third of their memory. Large blocks get pages
/// of their own instead, and give them back.
void map_large_blocks() { mallopt(M_MMAP_THRESHOLD, 1 << 20); }

/// Whether standard output is a pipe that nobody reads any more, as that of `| head` once it has had its lines.
bool nobody_reads() {
  pollfd out{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  return poll(&out, 1, /*timeout=*/0) == 1 && (out.revents & POLLERR) != 0;
}

/// The exit status, of a program that was to end with `status`: what it printed may not have arrived. Where nobody
/// reads it, that is no error to a person, and the status is that of others which SIGPIPE ends.
int ended(int status) {
  std::cout.flush();
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good()) return status;
  if (nobody_reads()) return status == 0 ? 128 + SIGPIPE : status;
  std::fprintf(stderr, "outrider: not all of the output could be written\n");
  return status == 0 ? 1 : status;
}

}  // namespace

int main(int argc, char** argv) {
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
  outrider::take_short_turns();  // all threads alike: who waits for a message is not to wait for who computes
  outrider::explain_lost_mappings();
  app.preparse_callback([](std::size_t) {
    outrider::active_isa();  // a bad OUTRIDER_ISA or OUTRIDER_GEMM is said here, not on some thread
    outrider::active_gemm();
  });
  return ended(outrider::run_command_line(app, argc, argv));
}
