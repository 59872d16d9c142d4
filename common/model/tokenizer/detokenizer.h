#pragma once

#include <string>

#include "common/base/ids.h"
#include "common/model/tokenizer/tokenizer.h"

namespace outrider {

/// Decodes tokens incrementally. The pieces, joined, are Tokenizer::decode() of all tokens.
///
/// Every piece is valid UTF-8: bytes of an incomplete character are held back, three at most. The tokenizer must
/// outlive the stream.
class StreamingDetokenizer {
 public:
  StreamingDetokenizer(const Tokenizer& tokenizer, bool skip_special)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  /// @return the text that `id` completes, often the token's own, sometimes none. An id outside the vocabulary, or a
  /// skipped special token, has no effect.
  std::string push(TokenId id);

  /// Ends the text; push() starts a new one.
  /// @return U+FFFD for each byte held back.
  std::string finish();

 private:
  std::string take_characters();

  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string pending_;  // between calls: empty, or the first bytes of a valid character
};

}  // namespace outrider
