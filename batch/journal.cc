#include "batch/journal.h"

#include <fcntl.h>

#include <array>
#include <cinttypes>
#include <cstdio>
#include <utility>

#include <fmt/format.h>

#include "batch/hash.h"
#include "common/base/json_fields.h"
#include "common/base/text.h"

namespace outrider {
namespace {
using Json = nlohmann::json;

// {"xxh3":"0123456789abcdef","line":7,"ok":true,"tokens":[1,2,3,4,5,6],"result":{...}}
constexpr std::string_view kMagic = "{\"xxh3\":\"";
constexpr std::size_t kHashDigits = 16;
constexpr std::size_t kHeadBytes = kMagic.size() + kHashDigits;

/// @param rest  of the object, from the comma after the checksum on
std::string with_checksum(std::string_view rest) { return fmt::format("{}{:016x}{}\n", kMagic, hash64(rest), rest); }

/// Returns the rest, if the line is complete.
std::optional<std::string_view> checked(std::string_view line) {
  if (line.size() <= kHeadBytes || !line.starts_with(kMagic)) return std::nullopt;
  const std::string_view rest = line.substr(kHeadBytes);
  const auto hash = to_number<std::uint64_t>(line.substr(kMagic.size(), kHashDigits), 16);
  return hash == hash64(rest) ? std::optional(rest) : std::nullopt;
}

std::string entry_text(std::uint32_t line, bool ok, const BatchTokens& tokens, std::string_view result) {
  return fmt::format("\",\"line\":{},\"ok\":{},\"tokens\":[{},{},{},{},{},{}],\"result\":{}}}", line + 1, ok,
                     tokens.prompt, tokens.completion, tokens.drafted, tokens.accepted, tokens.cached, tokens.reasoning,
                     result);
}

/// @param offset  of the text in the journal
std::optional<JournalEntry> parse_entry(std::string_view text, std::uint64_t offset) {
  constexpr std::size_t kHeadBytesMax = 200;  // seven numbers and their names
  const std::string head(text.substr(0, kHeadBytesMax));
  JournalEntry entry;
  BatchTokens& tokens = entry.tokens;
  std::array<char, 6> ok{};
  int end = 0, more = 0;
  std::sscanf(head.c_str(),
              "\",\"line\":%" SCNu32 ",\"ok\":%5[a-z],\"tokens\":[%" SCNd64 ",%" SCNd64 ",%" SCNd64 ",%" SCNd64 "%n",
              &entry.line, ok.data(), &tokens.prompt, &tokens.completion, &tokens.drafted, &tokens.accepted, &end);
  // Journals of earlier versions have four numbers.
  std::sscanf(head.c_str() + end, ",%" SCNd64 ",%" SCNd64 "%n", &tokens.cached, &tokens.reasoning, &more);
  constexpr std::string_view kResult = "],\"result\":";
  end += more;
  if (end == 0 || entry.line == 0 || !text.substr(static_cast<std::size_t>(end)).starts_with(kResult) ||
      !text.ends_with('}'))
    return std::nullopt;
  end += static_cast<int>(kResult.size());
  --entry.line;
  entry.ok = std::string_view(ok.data()) == "true";
  entry.offset = offset + static_cast<std::size_t>(end);
  entry.length = static_cast<std::uint32_t>(text.size() - static_cast<std::size_t>(end) - 1);
  return entry;
}

std::string manifest_text(const Manifest& manifest) {
  return with_checksum(fmt::format("\",\"manifest\":{}}}", to_text(Json(manifest))));
}

Error not_a_journal(const std::filesystem::path& path) {
  return {Errc::kMalformed, "{}: not a journal of outrider batch", path.string()};
}

std::optional<Manifest> parse_manifest(std::string_view line) {
  const std::optional<std::string_view> rest = checked(line);
  if (!rest) return std::nullopt;
  const Json json = parse_json(line);
  const Json& fields = member(json, "manifest");
  if (!fields.is_object()) return std::nullopt;
  Manifest manifest;
  for (const auto& [key, value] : fields.items()) manifest[key] = value.is_string() ? value.get<std::string>() : "";
  return manifest;
}

struct CompleteLines {
  Manifest manifest = {};
  std::uint64_t end = 0;  ///< of them; 0: not even the manifest is complete
};
Result<CompleteLines> read_lines(const DurableFile& file, const OnEntry& on_entry) {
  CompleteLines read;
  constexpr std::size_t kResultBytesMax = 1u << 30;  // a result may be longer than any line of an input
  LineReader reader(file, kResultBytesMax);
  while (true) {
    ASSIGN_OR_RETURN(const std::optional<LineReader::Line> line, reader.next());
    if (!line || !line->ended) return read;
    if (read.end == 0) {
      std::optional<Manifest> manifest = parse_manifest(line->text);
      if (!manifest) return not_a_journal(file.path());
      read.manifest = std::move(*manifest);
    } else {
      const std::optional<std::string_view> rest = checked(line->text);
      const std::optional<JournalEntry> entry = rest ? parse_entry(*rest, line->offset + kHeadBytes) : std::nullopt;
      if (!entry) return read;
      on_entry(*entry);
    }
    read.end = line->offset + line->text.size() + 1;
  }
}

}  // namespace

Result<void> check_same_job(const Manifest& journal, const Manifest& now, const std::filesystem::path& path) {
  Manifest keys = journal;
  keys.insert(now.begin(), now.end());
  for (const auto& [key, ignored] : keys) {
    const auto value = [&](const Manifest& manifest) {
      const auto at = manifest.find(key);
      return at == manifest.end() ? std::string("nothing") : fmt::format("'{}'", at->second);
    };
    if (value(journal) != value(now)) {
      return Error(Errc::kMismatch, "{}: was begun with {} {}, now it is {}; --restart discards it", path.string(), key,
                   value(journal), value(now));
    }
  }
  return {};
}

Result<std::unique_ptr<Journal>> Journal::open(const std::filesystem::path& path, const Manifest& manifest,
                                               bool restart, const OnEntry& on_entry, OnEntry on_committed) {
  ASSIGN_OR_RETURN(DurableFile file, DurableFile::open(path, O_RDWR | O_CREAT));
  RETURN_IF_ERROR(file.lock());
  if (restart) RETURN_IF_ERROR(file.cut_to(0));
  ASSIGN_OR_RETURN(const std::uint64_t size, file.size());
  // Another kind of file may be a user's, and must not be cut.
  ASSIGN_OR_RETURN(const std::string head, file.read_at(0, kMagic.size()));
  if (head != kMagic.substr(0, head.size())) return not_a_journal(path);
  ASSIGN_OR_RETURN(const CompleteLines read, read_lines(file, on_entry));
  std::uint64_t end = read.end;
  if (end > 0) RETURN_IF_ERROR(check_same_job(read.manifest, manifest, path));
  if (end < size) RETURN_IF_ERROR(file.cut_to(end));
  const std::uint64_t torn_bytes = size - end;
  if (end == 0) {
    const std::string text = manifest_text(manifest);
    RETURN_IF_ERROR(file.write_at(0, text));
    end = text.size();
  }
  RETURN_IF_ERROR(file.sync());
  RETURN_IF_ERROR(sync_folder_of(path));
  std::unique_ptr<Journal> journal(new Journal(std::move(file), end, std::move(on_committed)));
  journal->torn_bytes_ = torn_bytes;
  journal->thread_ = std::jthread([raw = journal.get()] { raw->commit_until_closed(); });
  return journal;
}

Result<Manifest> Journal::read(const DurableFile& file, const OnEntry& on_entry) {
  ASSIGN_OR_RETURN(CompleteLines read, read_lines(file, on_entry));
  if (read.end == 0) return not_a_journal(file.path());
  return std::move(read.manifest);
}

Journal::~Journal() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

Result<void> Journal::append(std::uint32_t line, bool ok, const BatchTokens& tokens, std::string_view result) {
  constexpr std::size_t kUnwrittenBytesMax = 16u << 20;
  const std::string text = with_checksum(entry_text(line, ok, tokens, result));
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return error_ || unwritten_.size() < kUnwrittenBytesMax; });
  if (error_) return *error_;
  entries_.push_back({.line = line,
                      .ok = ok,
                      .tokens = tokens,
                      .offset = end_ + text.size() - 2 - result.size(),
                      .length = static_cast<std::uint32_t>(result.size())});
  end_ += text.size();
  unwritten_ += text;
  changed_.notify_all();
  return {};
}

Result<void> Journal::state() const {
  const std::lock_guard lock(mutex_);
  return error_ ? Result<void>(*error_) : Result<void>();
}

bool Journal::has_uncommitted() const {
  const std::lock_guard lock(mutex_);
  return !error_ && (committing_ || !unwritten_.empty());
}

void Journal::commit_until_closed() {
  std::unique_lock lock(mutex_);
  std::uint64_t written = end_ - unwritten_.size();
  while (true) {
    changed_.wait(lock, [&] { return closed_ || !unwritten_.empty(); });
    if (unwritten_.empty()) return;
    const std::string bytes = std::exchange(unwritten_, {});
    const std::vector<JournalEntry> entries = std::exchange(entries_, {});
    committing_ = true;
    lock.unlock();
    Result<void> done = file_.write_at(written, bytes);
    if (done) done = file_.sync();
    if (done) {
      written += bytes.size();
      for (const JournalEntry& entry : entries) on_committed_(entry);
    } else {
      (void)file_.cut_to(written);  // otherwise the next start does
    }
    lock.lock();
    committing_ = false;
    if (!done) error_ = done.error();
    changed_.notify_all();
    if (error_) return;
  }
}

}  // namespace outrider
