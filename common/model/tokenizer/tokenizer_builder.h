#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/model/tokenizer/tokenizer.h"

namespace outrider {

/// Private to this room: builds a Tokenizer from a file format's data, in this order: tokens, added tokens, merges,
/// then the rest. Error messages are the format's: the builder only reports success.
class Tokenizer::Builder {
 public:
  // Gemma has 2^18 tokens. The limit keeps one wrong id from allocating gigabytes.
  static constexpr std::uint64_t kVocabSizeMax = 1u << 22;
  // Length of an added token. It bounds the comparison at each byte of a text.
  static constexpr std::size_t kAddedBytesMax = 256;

  explicit Builder(std::string_view name) {
    tokenizer.name_ = name;
    tokenizer.byte_ids_.fill(kNoToken);
  }

  /// @return false if the id is taken. @pre id < kVocabSizeMax.
  bool add_token(std::string_view text, std::size_t id);

  /// Splits the token out of texts before any merging.
  /// @param special  a control, not text
  /// @param normalized  matched after the normalizer has run
  void add_added_token(TokenId id, bool special, bool normalized);

  /// Splits a merge that is written in one line, "LEFT RIGHT"; none for another line.
  static std::optional<std::pair<std::string_view, std::string_view>> split_merge(std::string_view line);

  /// Adds the next merge by rank. @return none if left, right and their sum are tokens; else the text that is not
  std::optional<std::string> add_merge(std::string_view left, std::string_view right);

  /// Number of bytes without a token: if there are any, the tokenizer needs an unknown token.
  std::size_t missing_bytes() const;

  /// @return kUnsupported if an added token is longer than kAddedBytesMax as matched
  Result<Tokenizer> finish() &&;

  Tokenizer tokenizer;  ///< as built so far; what needs no check is set in it

 private:
  std::vector<bool> taken_;  // by id; a token's text does not show it, since "" is a token too
};

}  // namespace outrider
