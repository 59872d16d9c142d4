#include "tests/support/program.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <regex>
#include <sstream>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace outrider {
namespace {
constexpr Duration kPollInterval = std::chrono::milliseconds(2);
}

bool eventually(const std::function<bool()>& condition, Duration deadline) {
  const TimePoint give_up = now() + deadline;
  while (!condition()) {
    if (now() > give_up) return false;
    std::this_thread::sleep_for(kPollInterval);
  }
  return true;
}

Program::Program(std::vector<std::string> arguments, Input input, bool fixed_lengths)
    : command_(fmt::format("outrider {}", fmt::join(arguments, " "))) {
  constexpr std::string_view kDrafting[] = {"run", "chat", "serve", "batch"};
  if (fixed_lengths && !arguments.empty() && std::ranges::find(kDrafting, arguments[0]) != std::end(kDrafting))
    arguments.insert(arguments.begin() + 1, "--no-governor");
  // Files, not pipes: nobody has to read for the program to go on.
  out_ = memfd_create("stdout", MFD_CLOEXEC);
  err_ = memfd_create("stderr", MFD_CLOEXEC);
  int in[2] = {-1, -1};
  if (input == Input::kWritten) {
    EXPECT_EQ(pipe2(in, O_CLOEXEC), 0) << std::strerror(errno);
    in_ = in[1];
  }
  arguments.insert(arguments.begin(), "outrider");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) {  // only what is safe after a fork of many threads
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(126);
    if (in[0] >= 0) dup2(in[0], STDIN_FILENO);
    dup2(out_, STDOUT_FILENO);
    dup2(err_, STDERR_FILENO);
    execv(OUTRIDER_PROGRAM, argv.data());
    _exit(127);
  }
  EXPECT_GT(pid_, 0) << "fork: " << std::strerror(errno);
  if (in[0] >= 0) close(in[0]);
}

Program::~Program() {
  if (running()) {
    send(SIGKILL);
    wait();
  }
  if (testing::Test::HasFailure()) {
    std::fprintf(stderr, "---- %.200s: %s\n%s%s----\n", command_.c_str(), describe(*end_).c_str(), out().c_str(),
                 err().c_str());
  }
  close(out_);
  close(err_);
  if (in_ >= 0) close(in_);
}

void Program::send(int signal) {
  if (!end_) kill(pid_, signal);
}

void Program::write(const std::string& text) {
  EXPECT_EQ(::write(in_, text.data(), text.size()), static_cast<ssize_t>(text.size())) << std::strerror(errno);
}

void Program::end_input() {
  close(in_);
  in_ = -1;
}

std::optional<Program::End> Program::poll() {
  int status = 0;
  if (!end_ && waitpid(pid_, &status, WNOHANG) == pid_) {
    end_ = WIFSIGNALED(status) ? End{.exit_code = {}, .signal = WTERMSIG(status)}
                               : End{.exit_code = WEXITSTATUS(status), .signal = {}};
  }
  return end_;
}

Program::End Program::wait(Duration deadline) {
  if (!eventually([&] { return !running(); }, deadline)) {
    ADD_FAILURE() << command_.substr(0, 200) << " was still running after " << to_seconds(deadline) << " s";
    send(SIGKILL);
    eventually([&] { return !running(); });
  }
  return *end_;
}

std::string Program::read(int file) {
  struct stat facts {};
  fstat(file, &facts);
  std::string text(static_cast<std::size_t>(facts.st_size), '\0');
  const ssize_t got = pread(file, text.data(), text.size(), 0);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(0, got)));
  // How far it is (common/os/progress.h) depends on how busy this machine is.
  if (text.find(" s left\n") == text.npos) return text;
  static const std::regex kProgress("outrider: [^\n]*: \\d+ of \\d+, \\d+ s left\n");
  return std::regex_replace(text, kProgress, "");
}

std::string describe(const Program::End& end) {
  return end.signal ? fmt::format("signal {}", *end.signal) : fmt::format("exit {}", *end.exit_code);
}

std::vector<std::string> lines_with(const std::string& text, const std::vector<std::string>& parts) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    if (std::ranges::all_of(parts, [&](const std::string& part) { return line.find(part) != line.npos; }))
      lines.push_back(line);
  }
  return lines;
}

}  // namespace outrider
