#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"

namespace outrider {

class GgufMetadata;
class ModelFiles;

/// Byte-pair encoding with byte fallback, as described by a Hugging Face tokenizer.json or a GGUF. Gives the ids of
/// Hugging Face tokenizers without the post-processor: callers add `<bos>` themselves.
///
/// Two kinds of token never result from merges. Added tokens are split out of the text first, longest match first.
/// Special tokens (the added tokens that control the model) result only if encode() is asked to parse them.
///
/// Immutable after loading: thread-safe.
class Tokenizer {
 public:
  /// Loads the model's tokenizer.json, or else its GGUF's.
  /// @return kNotFound if it has neither, kIo for a file that cannot be read; else as parse() and from_gguf()
  static Result<Tokenizer> load(const ModelFiles& files);

  /// @param name_for_errors  begins every error message, and is name()
  /// @return kMalformed for a violation of the format, kUnsupported for a well-formed tokenizer of another kind
  /// (another model, normalizer, pre-tokenizer or decoder than Gemma's)
  static Result<Tokenizer> parse(std::string_view json, std::string_view name_for_errors);

  /// Reads the tokenizer.ggml.* keys that llama.cpp's converter writes for Gemma 4 (model `gemma4`). Its control tokens
  /// are special, and so are user-defined ones that look like controls (`<|x>`, `<x|>`); other user-defined tokens are
  /// added and not special. @return kNotFound for a missing key, kMalformed or kUnsupported as parse()
  static Result<Tokenizer> from_gguf(const GgufMetadata& metadata);

  /// Returns a tokenizer.json that parse() reads back as an equal tokenizer.
  std::string to_json() const;

  /// Encodes any bytes; those that are not UTF-8 become byte tokens one by one.
  ///
  /// @param parse_special  false treats special tokens as plain text: for untrusted text, which must not open a turn.
  /// Other added tokens (newline runs, HTML tags) are plain text to the model too, and are always matched. O(n log n)
  /// in the bytes of `text`
  std::vector<TokenId> encode(std::string_view text, bool parse_special = true) const;

  /// Returns valid UTF-8: a byte token outside a character becomes U+FFFD. The inverse of encode() for valid UTF-8
  /// without U+2581, which stands for the space. Ids outside the vocabulary are skipped.
  ///
  /// Differs from Hugging Face in one case: there, one invalid byte turns its whole run of byte tokens into U+FFFD,
  /// valid characters included, which a stream cannot do.
  std::string decode(std::span<const TokenId> ids, bool skip_special) const;

  /// One more than the largest id.
  std::int64_t vocab_size() const { return static_cast<std::int64_t>(tokens_.size()); }

  /// The token as the vocabulary spells it (U+2581 for a space); empty if there is no such token.
  std::string_view token_text(TokenId id) const;

  /// Returns the token's share of decoded text, except for byte tokens; empty if there is no such token.
  std::string plain_text(TokenId id) const;

  /// Returns the byte of a byte token `<0xNN>`; nullopt for every other token.
  std::optional<std::uint8_t> byte_value(TokenId id) const;

  /// The id of a token in the vocabulary's spelling, added tokens included.
  std::optional<TokenId> find(std::string_view token) const;

  /// Returns true for added tokens that the file marks as special: controls, not text.
  bool is_special(TokenId id) const;

  /// Hash of the ids' meanings: equal for two files of one vocabulary, whatever their format. Never 0. O(vocabulary).
  std::uint64_t fingerprint() const;

  /// The file, or parse()'s `name_for_errors`.
  const std::string& name() const { return name_; }

 private:
  class Builder;  // fills the members below
  class Parser;   // reads a tokenizer.json, in tokenizer_json.cc

  using Rank = std::uint32_t;
  static constexpr Rank kNoMerge = UINT32_MAX;
  static constexpr TokenId kNoToken = -1;

  struct Token {
    std::string text;  // empty if the vocabulary has no token with this id
    bool special = false;
  };
  struct AddedToken {
    std::string text;
    TokenId id;
    bool special;
  };
  struct Replacement {
    std::string from;  // never empty
    std::string to;
  };
  struct StringHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
  };

  Tokenizer() = default;

  static std::uint64_t pair_key(TokenId left, TokenId right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
  }
  Rank merge_rank(TokenId left, TokenId right) const;

  static std::string replace_all(std::string_view text, std::span<const Replacement> replacements);
  static const AddedToken* longest_match(std::span<const AddedToken> sorted, std::string_view text, bool parse_special);
  template <typename OnText>
  static void split_added(std::span<const AddedToken> sorted, std::string_view text, bool parse_special,
                          std::vector<TokenId>& ids, const OnText& on_text);
  void append_characters(std::string_view text, std::vector<TokenId>& ids) const;
  void merge_pairs(std::vector<TokenId>& ids) const;

  std::string name_;
  std::vector<Token> tokens_;  // by id
  std::unordered_map<std::string, TokenId, StringHash, std::equal_to<>> ids_;

  // Merges by rank; the lowest rank in a text is merged first. No merge results in a special token.
  std::unordered_map<std::uint64_t, Rank> ranks_;
  std::vector<TokenId> merged_;

  // kNoToken if missing or switched off. Either all bytes or the unknown token exist, so that every text has an
  // encoding.
  std::array<TokenId, 256> byte_ids_{};
  TokenId unknown_id_ = kNoToken;
  bool fuse_unknown_ = false;

  // Sorted by text, without repeats. The second kind is matched after normalization.
  std::vector<AddedToken> added_;
  std::vector<AddedToken> added_normalized_;

  std::vector<Replacement> normalizer_;
  std::vector<Replacement> decoder_;
};

}  // namespace outrider
