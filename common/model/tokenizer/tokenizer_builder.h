#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/model/tokenizer/tokenizer.h"

namespace outrider {

/// Private to this room: fills a Tokenizer from what a file format gives, in this order: tokens, added
/// tokens, merges, then the rest. Complaints are the format's: the builder only says whether it worked.
class Tokenizer::Builder {
 public:
  // Gemma has 2^18 tokens. The limit keeps one wrong id from asking for gigabytes.
  static constexpr std::uint64_t kVocabSizeMax = 1u << 22;
  // Of an added token. At each byte of a text as much of the text is compared at most.
  static constexpr std::size_t kAddedBytesMax = 256;

  explicit Builder(std::string_view name) {
    tokenizer_.name_ = name;
    tokenizer_.byte_ids_.fill(kNoToken);
  }

  /// @return false if the id is taken. @pre id < kVocabSizeMax.
  bool add_token(std::string_view text, std::size_t id);

  /// Has the token split out of texts before any merging.
  /// @param special     a control, not text.
  /// @param normalized  looked for after the normalizer has run.
  void add_added_token(TokenId id, bool special, bool normalized);

  /// The two sides of a merge that is written in one line, "LEFT RIGHT"; none of another line.
  static std::optional<std::pair<std::string_view, std::string_view>> split_merge(std::string_view line);

  /// The next merge by rank.
  /// @return none if left, right and their sum are tokens; else the one that is not.
  std::optional<std::string> add_merge(std::string_view left, std::string_view right);

  void set_unknown(TokenId id, bool fuse);
  void set_byte_token(std::uint8_t byte, TokenId id) { tokenizer_.byte_ids_[byte] = id; }
  /// Bytes without a token: then texts need an unknown token.
  std::size_t missing_bytes() const;
  bool has_unknown() const { return tokenizer_.unknown_id_ != kNoToken; }

  void add_normalizer(Replacement replacement) { tokenizer_.normalizer_.push_back(std::move(replacement)); }
  void add_decoder(Replacement replacement) { tokenizer_.decoder_.push_back(std::move(replacement)); }

  /// What has been built so far.
  const Tokenizer& tokenizer() const { return tokenizer_; }
  /// @return kUnsupported if an added token is longer than kAddedBytesMax, as it is looked for.
  Result<Tokenizer> finish() &&;

 private:
  Tokenizer tokenizer_;
  std::vector<bool> taken_;  // By id; a token's text can not tell, as "" is a token too.
};

}  // namespace outrider
