#include "lab/experiment/journal.h"

#include <fcntl.h>

#include <string>
#include <string_view>
#include <utility>

#include "common/os/files.h"

namespace outrider {
namespace {

/// @param whole  receives the end of the last complete line
Result<std::vector<Json>> parse_lines(std::string_view text, const std::filesystem::path& path, std::size_t& whole) {
  std::vector<Json> lines;
  whole = 0;
  for (std::size_t end; (end = text.find('\n', whole)) != std::string_view::npos; whole = end + 1) {
    lines.push_back(parse_ordered(text.substr(whole, end - whole)));
    if (!lines.back().is_object()) return file_error(Errc::kMalformed, path, "line {} is no JSON object", lines.size());
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
  ASSIGN_OR_RETURN(DurableFile file, DurableFile::open(path, O_RDWR | O_CREAT));
  RETURN_IF_ERROR(file.lock());
  CellJournal journal(std::move(file));
  ASSIGN_OR_RETURN(journal.bytes_, journal.file_.size());
  ASSIGN_OR_RETURN(const std::string text, journal.file_.read_at(0, journal.bytes_));
  std::size_t whole = 0;
  ASSIGN_OR_RETURN(journal.lines_, parse_lines(text, path, whole));
  RETURN_IF_ERROR(journal.truncate(whole));
  return journal;
}

Result<void> CellJournal::append(const std::vector<Json>& lines) {
  std::string text;
  for (const Json& line : lines) text += line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  RETURN_IF_ERROR(file_.write_at(bytes_, text));
  RETURN_IF_ERROR(file_.sync());
  lines_.insert(lines_.end(), lines.begin(), lines.end());
  bytes_ += text.size();
  return {};
}

Result<void> CellJournal::truncate(std::uint64_t bytes) {
  if (bytes > bytes_)
    return file_error(Errc::kMalformed, file_.path(), "is {} bytes long, wanted at least {}", bytes_, bytes);
  RETURN_IF_ERROR(file_.cut_to(bytes));
  bytes_ = bytes;
  return {};
}

}  // namespace outrider
