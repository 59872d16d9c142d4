#include "common/os/child.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "common/base/time.h"
#include "common/os/files.h"
#include "common/os/host.h"

namespace outrider {
namespace {

/// Starts a command; its descriptors are duplicates of these. PATH is searched for a word without /.
Result<pid_t> spawn(const std::vector<std::string>& command, int in, int out, int err,
                    const std::map<std::string, std::string>& environment = {}) {
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  if (command[0] == kThisProgram) argv[0] = program_invocation_short_name;
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return system_error(command[0], "start");
  if (pid > 0) {
    setpgid(pid, pid);  // also in the child, in either order: from now on its group can be signalled
    return pid;
  }
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(1);
  setpgid(0, 0);  // a terminal's Ctrl-C is for this program, which ends its children in order
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  std::signal(SIGPIPE, SIG_DFL);
  dup2(in, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
  execvp(command[0].c_str(), argv.data());
  dprintf(STDERR_FILENO, "%s: %s\n", argv[0], std::strerror(errno));
  _exit(127);
}

}  // namespace

ProcessId identify(pid_t pid) {
  const std::vector<std::string> stat = process_stat(std::to_string(pid));
  constexpr std::size_t kState = 0, kStart = 19;
  if (stat.size() <= kStart || stat[kState] == "Z") return {pid, 0};
  return {pid, std::stoull(stat[kStart])};
}

bool ProcessId::alive() const { return start != 0 && identify(pid).start == start; }

bool ProcessId::signal(int number) const { return alive() && kill(pid, number) == 0; }

Result<Child> Child::start(const std::vector<std::string>& command, const std::filesystem::path& log,
                           bool keep_stdin_open) {
  const Descriptor out(open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (out < 0) return system_error(log, "open");
  int ends[2] = {-1, -1};
  if (keep_stdin_open ? pipe2(ends, O_CLOEXEC) != 0 : (ends[0] = open("/dev/null", O_RDONLY | O_CLOEXEC)) < 0)
    return system_error("standard input of a child", "open");
  const Descriptor in(ends[0]);
  Descriptor held(ends[1]);
  ASSIGN_OR_RETURN(const pid_t pid, spawn(command, in, out, out));
  return Child(identify(pid), std::move(held));
}

Result<Child> Child::start(const std::vector<std::string>& command, int out,
                           const std::map<std::string, std::string>& environment) {
  const Descriptor in(open("/dev/null", O_RDONLY | O_CLOEXEC));
  ASSIGN_OR_RETURN(const pid_t pid, spawn(command, in, out, STDERR_FILENO, environment));
  return Child(identify(pid), Descriptor());
}

Child::Child(Child&& other) noexcept
    : id_(std::exchange(other.id_, {})), stdin_(std::move(other.stdin_)), status_(other.status_) {}

Child& Child::operator=(Child&& other) noexcept {
  std::swap(id_, other.id_);
  std::swap(stdin_, other.stdin_);
  std::swap(status_, other.status_);
  return *this;
}

Child::~Child() {
  release_stdin();
  if (id_.pid == 0) return;
  signal(SIGKILL);
  waitpid(id_.pid, nullptr, 0);
}

Result<void> Child::write(const std::string& text) {
  if (::write(stdin_, text.data(), text.size()) == static_cast<ssize_t>(text.size())) return {};
  return system_error("standard input of a child", "write");
}

void Child::release_stdin() { stdin_ = Descriptor(); }

void Child::signal(int number) {
  if (!poll()) kill(-id_.pid, number);
}

std::optional<int> Child::poll() {
  siginfo_t info{};
  if (!status_ && waitid(P_PID, static_cast<id_t>(id_.pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
      info.si_pid == id_.pid)
    status_ = (info.si_code == CLD_EXITED ? 0 : 128) + info.si_status;
  return status_;
}

std::vector<Captured> run_all(const std::vector<std::vector<std::string>>& commands, int seconds,
                              const std::function<bool()>& stopped) {
  constexpr std::size_t kAtOnce = 32;
  std::vector<Captured> results(commands.size());
  for (std::size_t begin = 0; begin < commands.size(); begin += kAtOnce) {
    const std::size_t end = std::min(begin + kAtOnce, commands.size());
    std::vector<std::pair<pid_t, Descriptor>> running;
    const Descriptor in(open("/dev/null", O_RDONLY | O_CLOEXEC));
    for (std::size_t i = begin; i < end; ++i) {
      Descriptor out(memfd_create("output", MFD_CLOEXEC));  // a file, so that the command never waits for a reader
      const Result<pid_t> pid = spawn(commands[i], in, out, out);
      running.emplace_back(pid ? *pid : -1, std::move(out));
    }
    const TimePoint deadline = now() + std::chrono::seconds(seconds);
    for (std::size_t i = begin; i < end; ++i) {
      const auto& [pid, out] = running[i - begin];
      int status = 0;
      bool late = false;
      while (pid > 0 && waitpid(pid, &status, WNOHANG) == 0) {
        if ((now() > deadline || (stopped && stopped())) && !std::exchange(late, true)) kill(-pid, SIGKILL);
        usleep(5000);
      }
      results[i].status = late                  ? 124
                          : pid < 0             ? 126
                          : WIFSIGNALED(status) ? 128 + WTERMSIG(status)
                                                : WEXITSTATUS(status);
      struct stat facts {};
      fstat(out, &facts);
      results[i].out.resize(static_cast<std::size_t>(facts.st_size));
      if (pread(out, results[i].out.data(), results[i].out.size(), 0) < 0) results[i].out.clear();
    }
  }
  return results;
}

}  // namespace outrider
