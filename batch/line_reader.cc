#include "batch/line_reader.h"

namespace outrider {

Result<std::optional<LineReader::Line>> LineReader::next() {
  constexpr std::size_t kChunkBytes = 1u << 20;
  Line line{.text = {}, .offset = offset_, .ended = false};
  line_.clear();
  while (!line.ended) {
    if (taken_ == chunk_.size()) {
      ASSIGN_OR_RETURN(chunk_, file_.read_at(offset_, kChunkBytes));
      taken_ = 0;
      on_bytes_(chunk_);
      if (chunk_.empty()) break;
    }
    const std::string_view rest = std::string_view(chunk_).substr(taken_);
    const std::string_view piece = rest.substr(0, rest.find('\n'));
    line.ended = piece.size() < rest.size();
    line.too_long = line.too_long || line_.size() + piece.size() > line_bytes_max_;
    if (!line.too_long) line_ += piece;
    const std::size_t taken = piece.size() + (line.ended ? 1 : 0);
    taken_ += taken;
    offset_ += taken;
  }
  if (offset_ == line.offset) return std::optional<Line>();
  if (!line.too_long) line.text = line_;
  return std::optional(line);
}

}  // namespace outrider
