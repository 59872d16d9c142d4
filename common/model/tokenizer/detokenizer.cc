#include "common/model/tokenizer/detokenizer.h"

#include <string_view>

#include "common/base/utf8.h"

namespace outrider {
namespace {

constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace

std::string StreamingDetokenizer::push(TokenId id) {
  if (skip_special_ && tokenizer_->is_special(id)) return {};
  if (const auto byte = tokenizer_->byte_value(id)) {
    pending_.push_back(static_cast<char>(*byte));
    return take_characters();
  }
  const std::string text = tokenizer_->plain_text(id);
  if (text.empty()) return {};
  // Other tokens are whole characters, so that held-back bytes cannot be completed any more.
  return finish() + text;
}

std::string StreamingDetokenizer::finish() {
  std::string text;
  for (std::size_t i = 0; i < pending_.size(); ++i) text += kReplacementCharacter;
  pending_.clear();
  return text;
}

/// Removes the decided bytes from the front of the held-back ones.
std::string StreamingDetokenizer::take_characters() {
  std::string text;
  while (!pending_.empty()) {
    const Utf8Scan scan = scan_utf8(pending_);
    if (scan.state == Utf8::kIncomplete) break;
    if (scan.state == Utf8::kValid) {
      text.append(pending_, 0, scan.length);
      pending_.erase(0, scan.length);
    } else {
      // One per byte, as in Hugging Face's ByteFallback.
      text += kReplacementCharacter;
      pending_.erase(0, 1);
    }
  }
  return text;
}

}  // namespace outrider
