#include "launch/line_input.h"

#include <fcntl.h>
#include <histedit.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cwchar>
#include <fstream>
#include <utility>

#include "common/os/descriptor.h"
#include "common/os/host.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;

constexpr int kPollMs = 100;
constexpr std::size_t kHistoryLines = 1000;

/// Waits for a byte of the standard input. @return false: interrupted
bool wait_for_input(const Interrupt& interrupt) {
  while (!interrupt.requested()) {
    pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    if (poll(&input, 1, kPollMs) > 0) return true;  // below 0 after a signal: then the loop checks `interrupt`
  }
  return false;
}

/// Reads lines without std::getline, which Ctrl-C could not interrupt.
class PlainLines final : public LineInput {
 public:
  Got next(Interrupt& interrupt, std::string& line) override {
    while (true) {
      if (interrupt.requested()) {
        interrupt.clear();
        return Got::kInterrupt;
      }
      if (const std::size_t end = buffer_.find('\n'); end != buffer_.npos) {
        line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        return Got::kLine;
      }
      if (!wait_for_input(interrupt)) continue;
      char bytes[4096];
      const ssize_t got = read(STDIN_FILENO, bytes, sizeof bytes);
      if (got < 0 && errno == EINTR) continue;
      if (got > 0) {
        buffer_.append(bytes, static_cast<std::size_t>(got));
        continue;
      }
      line = std::exchange(buffer_, {});
      return line.empty() ? Got::kEnd : Got::kLine;
    }
  }

 private:
  std::string buffer_;
};

/// Lines of earlier sessions, one per line of a file that grows, and is truncated at twice the kept number.
class HistoryFile {
 public:
  explicit HistoryFile(fs::path path) : path_(std::move(path)) {}

  std::vector<std::string> load() const {
    std::vector<std::string> lines;
    std::ifstream file(path_);
    for (std::string line; std::getline(file, line);) lines.push_back(std::move(line));
    if (lines.size() <= kHistoryLines) return lines;
    const bool cut = lines.size() > 2 * kHistoryLines;
    lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(kHistoryLines));
    if (cut) {
      std::string text;
      for (const std::string& line : lines) text += line + "\n";
      write(text, O_TRUNC);
    }
    return lines;
  }
  void add(const std::string& line) const { write(line + "\n", O_APPEND); }

 private:
  /// Another chat may write at the same time, so that one call writes a whole line.
  void write(const std::string& text, int how) const {
    if (path_.empty()) return;
    std::error_code ignored;  // chat continues without a history
    fs::create_directories(path_.parent_path(), ignored);
    const Descriptor file(open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | how, S_IRUSR | S_IWUSR));
    if (file < 0) return;
    fchmod(file, S_IRUSR | S_IWUSR);
    [[maybe_unused]] const ssize_t written = ::write(file, text.data(), text.size());
  }

  const fs::path path_;
};

class EditedLines final : public LineInput {
 public:
  EditedLines(std::string prompt, std::vector<std::string> words, fs::path kept)
      : prompt_(std::move(prompt)), words_(std::move(words)), file_(std::move(kept)) {
    setlocale(LC_CTYPE, "");  // for multibyte characters
    edit_ = el_init("outrider", stdin, stdout, stderr);
    history_ = history_init();
    HistEvent event;
    history(history_, &event, H_SETSIZE, static_cast<int>(kHistoryLines));
    history(history_, &event, H_SETUNIQUE, 1);
    for (const std::string& line : file_.load()) history(history_, &event, H_ENTER, line.c_str());
    el_set(edit_, EL_CLIENTDATA, this);
    el_set(
        edit_, EL_PROMPT, +[](EditLine* edit) { return self(edit)->prompt_.data(); });
    el_set(edit_, EL_EDITOR, "emacs");
    el_set(edit_, EL_HIST, ::history, history_);
    el_set(
        edit_, EL_GETCFN, +[](EditLine* edit, wchar_t* c) { return self(edit)->read_character(c); });
    el_set(
        edit_, EL_ADDFN, "complete", "Complete a command",
        +[](EditLine* edit, int) { return static_cast<int>(self(edit)->complete()); });
    el_set(edit_, EL_BIND, "^I", "complete", nullptr);
    el_set(edit_, EL_BIND, "^R", "em-inc-search-prev", nullptr);
    el_source(edit_, nullptr);
  }
  ~EditedLines() override {
    history_end(history_);
    el_end(edit_);
  }
  EditedLines(const EditedLines&) = delete;
  EditedLines& operator=(const EditedLines&) = delete;

  Got next(Interrupt& interrupt, std::string& line) override {
    interrupt_ = &interrupt;
    int count = 0;
    const char* const typed = el_gets(edit_, &count);
    interrupt_ = nullptr;
    if (interrupt.requested()) {
      interrupt.clear();
      el_reset(edit_);
      return Got::kInterrupt;
    }
    if (typed == nullptr || count <= 0) return Got::kEnd;
    line.assign(typed, static_cast<std::size_t>(count));
    if (line.ends_with('\n')) line.pop_back();
    if (!line.empty() && line[0] != ' ') {
      HistEvent event;
      history(history_, &event, H_ENTER, line.c_str());
      file_.add(line);
    }
    return Got::kLine;
  }

  void set_prompt(const std::string& prompt) override { prompt_ = prompt; }

 private:
  static EditedLines* self(EditLine* edit) {
    EditedLines* lines = nullptr;
    el_get(edit, EL_CLIENTDATA, &lines);
    return lines;
  }

  /// libedit's EL_GETCFN: returns 1 with a character, 0 at the end, -1 for an error.
  int read_character(wchar_t* c) {
    std::mbstate_t state{};
    while (true) {
      if (!wait_for_input(*interrupt_)) return -1;
      char byte = 0;
      const ssize_t got = read(STDIN_FILENO, &byte, 1);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return static_cast<int>(got);
      const std::size_t size = std::mbrtowc(c, &byte, 1, &state);
      if (size == static_cast<std::size_t>(-2)) continue;  // an incomplete character
      if (size == static_cast<std::size_t>(-1)) {          // of another encoding: dropped
        state = {};
        continue;
      }
      if (size == 0) *c = L'\0';
      return 1;
    }
  }

  unsigned char complete() {
    const LineInfo* const info = el_line(edit_);
    const std::string typed(info->buffer, info->cursor);
    std::vector<std::string> fitting;
    for (const std::string& word : words_)
      if (!typed.empty() && word.starts_with(typed)) fitting.push_back(word);
    if (fitting.empty()) return CC_REFRESH_BEEP;
    std::string common = fitting[0];
    for (const std::string& word : fitting)
      while (!word.starts_with(common)) common.pop_back();
    if (common.size() > typed.size()) {
      el_insertstr(edit_, common.c_str() + typed.size());
      return CC_REFRESH;
    }
    if (fitting.size() == 1) return CC_REFRESH;
    std::fputc('\n', stdout);
    for (const std::string& word : fitting) std::printf("%s  ", word.c_str());
    std::fputc('\n', stdout);
    return CC_REDISPLAY;
  }

  std::string prompt_;
  const std::vector<std::string> words_;
  const HistoryFile file_;
  Interrupt* interrupt_ = nullptr;  ///< within next()
  EditLine* edit_;
  History* history_;
};

}  // namespace

std::unique_ptr<LineInput> plain_lines() { return std::make_unique<PlainLines>(); }

std::unique_ptr<LineInput> edited_lines(const std::string& prompt, std::vector<std::string> words, fs::path history) {
  return std::make_unique<EditedLines>(prompt, std::move(words), std::move(history));
}

fs::path history_file(const std::string& name) {
  const fs::path folder = user_folder("XDG_STATE_HOME", ".local/state");
  return folder.empty() ? folder : folder / name;
}

}  // namespace outrider
