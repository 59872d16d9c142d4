#include "batch/line_reader.h"

#include <algorithm>
#include <utility>

namespace outrider {

Result<bool> LineReader::read_more() {
  constexpr std::size_t kChunkBytes = 1u << 20;
  if (too_long_) {
    offset_ += buffer_.size();
    buffer_.clear();
    taken_ = searched_ = 0;
  } else if (taken_ > 0) {
    buffer_.erase(0, taken_);
    offset_ += taken_;
    searched_ -= taken_;
    taken_ = 0;
  }
  ASSIGN_OR_RETURN(const std::string bytes, file_.read_at(offset_ + buffer_.size(), kChunkBytes));
  on_bytes_(bytes);
  buffer_ += bytes;
  return !bytes.empty();
}

Result<std::optional<LineReader::Line>> LineReader::next() {
  while (true) {
    const std::size_t newline = buffer_.find('\n', searched_);
    const bool ended = newline != std::string::npos;
    if (!ended) {
      searched_ = buffer_.size();
      if (buffer_.size() - taken_ > line_bytes_max_) too_long_ = true;
      ASSIGN_OR_RETURN(const bool more, read_more());
      if (more) continue;
      if (!too_long_ && taken_ == buffer_.size()) return std::optional<Line>();
    }
    const std::size_t end = ended ? newline : buffer_.size();
    Line line{.text = std::string_view(buffer_).substr(taken_, end - taken_), .offset = line_offset_, .ended = ended};
    line.too_long = std::exchange(too_long_, false) || line.text.size() > line_bytes_max_;
    if (line.too_long) line.text = {};
    taken_ = searched_ = std::min(end + 1, buffer_.size());
    line_offset_ = offset_ + taken_;
    return std::optional(line);
  }
}

}  // namespace outrider
