#include "batch/input.h"

#include <fcntl.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

#include "batch/batch_line.h"
#include "common/base/text.h"

namespace outrider {
namespace {

constexpr std::uint32_t kTooLong = std::numeric_limits<std::uint32_t>::max();

struct NamedLine {
  Hash128 name;
  std::uint32_t line;
  auto operator<=>(const NamedLine&) const = default;
};

}  // namespace

Result<Shard> Shard::parse(const std::string& text) {
  const std::size_t slash = text.find('/');
  const auto index = to_number<std::uint32_t>(text.substr(0, slash)),
             count = to_number<std::uint32_t>(text.substr(slash + 1));
  // Indices of a Kubernetes Job's pods and of many job arrays begin with 0.
  if (slash != text.npos && index && count && *count >= 1 && *index <= *count)
    return Shard{*index == 0 ? *count : *index, *count};
  return Error(Errc::kInvalidArgument, "--shard is '{}', wanted I/N like 1/4 (0/4 is 4/4)", text);
}

Result<BatchInput> BatchInput::open(const std::filesystem::path& path, Order order) {
  ASSIGN_OR_RETURN(DurableFile file, DurableFile::open(path, O_RDONLY));
  BatchInput input(std::move(file), order);
  std::vector<NamedLine> names;
  StreamedHash hash;
  LineReader reader(input.file_, LineReader::kLineBytesMax, [&](std::string_view bytes) { hash.add(bytes); });
  while (true) {
    ASSIGN_OR_RETURN(const std::optional<LineReader::Line> line, reader.next());
    if (!line) break;
    const bool blank = !line->too_long && line->text.find_first_not_of(" \t\r") == line->text.npos;
    const auto length = static_cast<std::uint32_t>(line->text.size());
    if (input.lines() == kTooLong) return Error(Errc::kOutOfRange, "{}: too many lines", path.string());
    input.offsets_.push_back(line->offset);
    input.lengths_.push_back(line->too_long ? kTooLong : blank ? 0 : length);
    input.hashes_.push_back(blank || line->too_long ? 0 : hash64(line->text));
    if (order == Order::kPrefix) input.prefixes_.push_back(0);
    if (blank || line->too_long) continue;
    const auto parsed = parse_batch_line(line->text);
    if (parsed && order == Order::kPrefix) input.prefixes_.back() = prefix_key(*parsed);
    const std::string& custom_id = parsed ? parsed->custom_id : parsed.error().custom_id;
    if (!custom_id.empty()) names.push_back({hash128(custom_id), input.lines() - 1});
  }
  ASSIGN_OR_RETURN(input.bytes_, input.file_.size());
  input.hash_ = hash.value();
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names, {}, &NamedLine::name);
  if (twice == names.end()) return input;
  ASSIGN_OR_RETURN(const std::string text, input.read(twice->line));
  const auto parsed = parse_batch_line(text);
  return Error(Errc::kInvalidArgument, "{}: lines {} and {} have the same custom_id '{}'", path.string(),
               twice->line + 1, std::next(twice)->line + 1, parsed ? parsed->custom_id : parsed.error().custom_id);
}

Result<std::string> BatchInput::read(std::uint32_t line) const {
  if (lengths_[line] == kTooLong) return Error(Errc::kOutOfRange, "is longer than {} bytes", LineReader::kLineBytesMax);
  ASSIGN_OR_RETURN(std::string text, file_.read_at(offsets_[line], lengths_[line]));
  if (hash64(text) == hashes_[line]) return text;
  return Error(Errc::kMismatch, "{}: line {} is another than when the job began, wanted the file as it was",
               file_.path().string(), line + 1);
}

std::vector<std::uint32_t> BatchInput::to_send(const Shard& shard) const {
  std::vector<std::uint32_t> order(shard.end(lines()) - shard.begin(lines()));
  std::iota(order.begin(), order.end(), shard.begin(lines()));
  std::erase_if(order, [&](std::uint32_t line) { return blank(line); });
  if (order_ == Order::kInput) return order;
  std::ranges::sort(order, {}, [&](std::uint32_t line) { return std::tuple(prefixes_[line], line); });
  return order;
}

}  // namespace outrider
