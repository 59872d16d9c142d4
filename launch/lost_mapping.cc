#include "launch/lost_mapping.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace outrider {
namespace {

// Everything below runs in a signal handler, on a thread that was anywhere: no memory is taken, no lock.

void say(std::string_view text) {
  if (::write(STDERR_FILENO, text.data(), text.size()) < 0) return;  // nobody is there to be told
}

/// A number in base 16 at the beginning of a text, which loses it.
std::uintptr_t take_hex(std::string_view& text) {
  std::uintptr_t value = 0;
  for (; !text.empty(); text.remove_prefix(1)) {
    const char c = text.front();
    if (c >= '0' && c <= '9')
      value = 16 * value + static_cast<std::uintptr_t>(c - '0');
    else if (c >= 'a' && c <= 'f')
      value = 16 * value + static_cast<std::uintptr_t>(c - 'a') + 10;
    else
      break;
  }
  return value;
}

/// Says the name of the file of a line of /proc/self/maps if it is mapped at `address`. @return whether it is.
bool say_if_there(std::string_view line, std::uintptr_t address) {
  const std::uintptr_t begin = take_hex(line);
  if (!line.starts_with('-')) return false;
  line.remove_prefix(1);
  const std::uintptr_t end = take_hex(line);
  const std::size_t name = line.find('/');
  if (address < begin || address >= end || name == line.npos) return false;
  say(line.substr(name));
  return true;
}

void say_file_at(std::uintptr_t address) {
  const int maps = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  std::array<char, 8192> bytes;
  std::size_t have = 0;
  bool said = false;
  while (maps >= 0 && !said) {
    const ssize_t got = ::read(maps, bytes.data() + have, bytes.size() - have);
    if (got <= 0) break;
    have += static_cast<std::size_t>(got);
    std::string_view rest(bytes.data(), have);
    for (std::size_t end = 0; !said && (end = rest.find('\n')) != rest.npos; rest.remove_prefix(end + 1))
      said = say_if_there(rest.substr(0, end), address);
    if (rest.size() == bytes.size()) break;  // a line that long
    std::memmove(bytes.data(), rest.data(), rest.size());
    have = rest.size();
  }
  if (!said) say("a mapped file");
}

void on_lost_mapping(int, siginfo_t* info, void*) {
  say("outrider: ");
  say_file_at(reinterpret_cast<std::uintptr_t>(info->si_addr));
  say(": a part that was there is gone: the file was cut short while it was in use, or its disk failed\n");
  ::_exit(1);
}

}  // namespace

void explain_lost_mappings() {
  struct sigaction action {};
  action.sa_sigaction = on_lost_mapping;
  action.sa_flags = SA_SIGINFO | SA_RESETHAND;
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace outrider
