#include "lab/experiment/journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "common/base/files.h"

namespace outrider {
namespace {

/// @param whole  where the last whole line ends
Result<std::vector<Json>> parse_lines(std::string_view text, const std::filesystem::path& path, std::size_t& whole) {
  std::vector<Json> lines;
  whole = 0;
  for (std::size_t end; (end = text.find('\n', whole)) != std::string_view::npos; whole = end + 1) {
    lines.push_back(Json::parse(text.substr(whole, end - whole), nullptr, /*allow_exceptions=*/false));
    if (!lines.back().is_object())
      return Error{Errc::kMalformed, fmt::format("{}: line {} is no JSON object", path.string(), lines.size())};
  }
  return lines;
}

}  // namespace

Result<std::vector<Json>> read_journal(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(const std::string text, read_text(path));
  std::size_t whole = 0;
  return parse_lines(text, path, whole);
}

Result<CellJournal> CellJournal::open(const std::filesystem::path& path) {
  CellJournal journal(path, ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  const auto failed = [&](const char* what) {
    return Error{Errc::kIo, fmt::format("{}: {}: {}", path.string(), what, std::strerror(errno))};
  };
  if (journal.file_ < 0) return failed("cannot be opened");
  if (flock(journal.file_, LOCK_EX | LOCK_NB) != 0) return failed("another process writes it");
  ASSIGN_OR_RETURN(const std::string text, read_text(path));
  std::size_t whole = 0;
  ASSIGN_OR_RETURN(journal.lines_, parse_lines(text, path, whole));
  journal.bytes_ = static_cast<std::int64_t>(text.size());
  RETURN_IF_ERROR(journal.truncate(static_cast<std::int64_t>(whole)));
  return journal;
}

CellJournal::CellJournal(CellJournal&& other) noexcept
    : path_(std::move(other.path_)),
      file_(std::exchange(other.file_, -1)),
      lines_(std::move(other.lines_)),
      bytes_(other.bytes_) {}

CellJournal::~CellJournal() {
  if (file_ >= 0) close(file_);
}

Result<void> CellJournal::failed(const char* what) const {
  return Error{Errc::kIo, fmt::format("{}: {}: {}", path_.string(), what, std::strerror(errno))};
}

Result<void> CellJournal::append(const std::vector<Json>& lines) {
  std::string text;
  for (const Json& line : lines) text += line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t written = write(file_, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return failed("cannot be written");
    done += static_cast<std::size_t>(written);
  }
  if (fsync(file_) != 0) return failed("fsync");
  lines_.insert(lines_.end(), lines.begin(), lines.end());
  bytes_ += static_cast<std::int64_t>(text.size());
  return {};
}

Result<void> CellJournal::truncate(std::int64_t bytes) {
  if (bytes > bytes_) {
    return Error{Errc::kMalformed,
                 fmt::format("{}: is {} bytes long, wanted at least {}", path_.string(), bytes_, bytes)};
  }
  if (ftruncate(file_, bytes) != 0) return failed("cannot be cut");
  bytes_ = bytes;
  return {};
}

Result<void> replace_file(const std::filesystem::path& path, std::string_view text) {
  const std::filesystem::path temporary = path.string() + ".tmp";
  RETURN_IF_ERROR(write_text(temporary, text));
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  if (error) return Error{Errc::kIo, fmt::format("{}: cannot be written: {}", path.string(), error.message())};
  return {};
}

}  // namespace outrider
