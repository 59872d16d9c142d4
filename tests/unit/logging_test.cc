#include "common/os/logging.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/os/json_lines.h"

namespace outrider {
namespace {

/// stderr as a pipe, until the end of this object.
class StderrPipe {
 public:
  StderrPipe() : before_(dup(STDERR_FILENO)) {
    EXPECT_EQ(pipe2(ends_, O_CLOEXEC), 0);
    EXPECT_EQ(fcntl(ends_[0], F_SETFL, O_NONBLOCK), 0);
    dup2(ends_[1], STDERR_FILENO);
  }
  ~StderrPipe() {
    dup2(before_, STDERR_FILENO);
    for (const int fd : {before_, ends_[0], ends_[1]}) close(fd);
  }
  std::string read_all() {
    std::string all(1 << 20, '\0');
    std::size_t size = 0;
    for (ssize_t n = 1; n > 0; size += static_cast<std::size_t>(std::max<ssize_t>(n, 0)))
      n = read(ends_[0], all.data() + size, all.size() - size);
    all.resize(size);
    return all;
  }

 private:
  int before_, ends_[2] = {-1, -1};
};

// A supervisor that does not read its child's stderr must not stop it.
TEST(Logging, NeverWaitsForItsReaderAndSaysWhatWasLost) {
  StderrPipe pipe;
  init_logging("test", "info");
  constexpr int kLines = 20'000;
  for (int i = 0; i < kLines; ++i) log_info("line {}", i);
  const std::string first = pipe.read_all();
  EXPECT_NE(first.find("line 0\n"), std::string::npos);
  const auto kept = std::count(first.begin(), first.end(), '\n');
  EXPECT_LT(kept, kLines) << "the pipe took all of them: this test shows nothing";
  log_info("after");
  const std::string rest = pipe.read_all();
  EXPECT_TRUE(rest.starts_with("(" + std::to_string(kLines - kept) + " lines of this log were lost")) << rest;
  EXPECT_NE(rest.find("after\n"), std::string::npos) << rest;
}

// A name in a file or from a peer would move the cursor, or look like another line.
TEST(Logging, ALineHasNothingThatATerminalWouldObey) {
  StderrPipe pipe;
  init_logging("test", "info");
  log_warn("name={}", "\x1b[2Ja\nevent=b");
  EXPECT_TRUE(pipe.read_all().ends_with("name=?[2Ja?event=b\n"));
}

TEST(Logging, RefusesAWordThatIsNoLevel) {
  setenv("OUTRIDER_LOG", "verbose", 1);
  EXPECT_THROW(init_logging("test", "info"), std::runtime_error);
  for (const char* level : {"info", "warn", "error", "off"}) {
    setenv("OUTRIDER_LOG", level, 1);
    EXPECT_NO_THROW(init_logging("test", "info")) << level;
  }
  unsetenv("OUTRIDER_LOG");
}

TEST(JsonLines, HaveTheFieldsOfTheirText) {
  const auto line = [](const std::string& text, std::size_t bytes_max = 4000) {
    return nlohmann::json::parse(json_log_line("t", "serve", "warn", text, bytes_max));
  };
  EXPECT_EQ(line(R"(event=request_failed path=/v1/x reason="no "such" thing" times=3)"),
            (nlohmann::json{{"time", "t"},
                            {"name", "serve"},
                            {"level", "warn"},
                            {"event", "request_failed"},
                            {"path", "/v1/x"},
                            {"reason", "no \"such\" thing"},
                            {"times", "3"}}));
  EXPECT_EQ(line("a drafter did not answer")["message"], "a drafter did not answer");
  EXPECT_EQ(line("session=7 silent for 120 s; dropped")["session"], "7") << "as of a Notice of any role";
  EXPECT_EQ(line("event=x level=mine (3 more)")["message"], "(3 more)");
  EXPECT_EQ(line("event=x level=mine")["level"], "warn");
  EXPECT_EQ(line("reason=\"no end")["reason"], "no end");
  EXPECT_EQ(line("reason=\"\xff\"")["reason"], "\xef\xbf\xbd");
  EXPECT_LE(json_log_line("t", "n", "l", "event=" + std::string(9000, 'x') + " reason=y", 4000).size(), 4000u);
  EXPECT_EQ(line("event=" + std::string(9000, 'x') + " reason=y")["reason"], "y");
}

TEST(Logging, AReminderComesAtOnceAndAgainEachMinuteWhileItLasts) {
  using std::chrono::seconds;
  Reminder reminder;
  TimePoint now{};
  const auto minutes_said = [&](const std::string& text, int seconds_long) {
    std::vector<int> said;
    for (int second = 0; second < seconds_long; ++second, now += seconds(1))
      if (reminder.is_due(text, now)) said.push_back(second);
    return said;
  };
  EXPECT_EQ(minutes_said("", 100), std::vector<int>{});
  EXPECT_EQ(minutes_said("refused", 150), (std::vector<int>{0, 60, 120}));
  EXPECT_EQ(minutes_said("no such name", 70), (std::vector<int>{0, 60})) << "another reason";
  EXPECT_EQ(minutes_said("", 5), std::vector<int>{});
  EXPECT_EQ(minutes_said("refused", 5), std::vector<int>{0}) << "it had gone";
}

TEST(Logging, CutsALineThatAPipeWouldNotTakeAtOnce) {
  StderrPipe pipe;
  init_logging("test", "info");
  log_info("{}", std::string(100'000, 'x'));
  log_info("next");
  const std::string text = pipe.read_all();
  EXPECT_LT(text.size(), 5'000u);
  EXPECT_NE(text.find("xxx...\n"), std::string::npos);
  EXPECT_NE(text.find("next\n"), std::string::npos);
}

}  // namespace
}  // namespace outrider
