// Reads tokenizer.json: which parts of the format we support, and every complaint about the rest.
#include <algorithm>
#include <fstream>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/tokenizer/tokenizer.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

// Gemma has 2^18 tokens. The limit keeps one wrong id from asking for gigabytes.
constexpr std::uint64_t kVocabSizeMax = 1u << 22;

/// The value for a message: one line, cut short. Only scalars are printed, since a nested value may
/// be deep enough to overflow the stack of a recursive printer.
std::string show(const Json& value) {
  constexpr std::size_t kBytesMax = 80;
  if (value.is_structured()) {
    return fmt::format("{} of {}", value.is_array() ? "an array" : "an object", value.size());
  }
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  if (text.size() > kBytesMax) text = text.substr(0, kBytesMax) + "...";
  return text;
}

/// The member of an object; a shared null where there is none, or `object` is something else.
const Json& member(const Json& object, const char* key) {
  static const Json kNull;
  if (!object.is_object()) return kNull;
  const auto found = object.find(key);
  return found == object.end() ? kNull : *found;
}

const std::string* as_string(const Json& value) { return value.get_ptr<const std::string*>(); }

bool is_string(const Json& value, std::string_view wanted) {
  const std::string* const string = as_string(value);
  return string != nullptr && *string == wanted;
}

bool is_true(const Json& value) { return value.is_boolean() && value.get<bool>(); }

}  // namespace

class Tokenizer::Parser {
 public:
  explicit Parser(std::string_view name) { tokenizer_.name_ = name; }

  Result<Tokenizer> parse(std::string_view text) {
    // A wrong file is an expected failure, so without exceptions; the parser does not recurse.
    const Json root = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (root.is_discarded()) return malformed("the file", "not JSON", "a JSON object");
    if (!root.is_object()) return malformed("the file", show(root), "a JSON object");

    const Json& model = member(root, "model");
    RETURN_IF_ERROR(check_model(model));
    RETURN_IF_ERROR(read_vocab(member(model, "vocab")));
    RETURN_IF_ERROR(read_added_tokens(member(root, "added_tokens")));
    RETURN_IF_ERROR(read_merges(member(model, "merges")));
    RETURN_IF_ERROR(read_fallbacks(model));
    RETURN_IF_ERROR(read_normalizer(member(root, "normalizer")));
    RETURN_IF_ERROR(check_pre_tokenizer(member(root, "pre_tokenizer")));
    RETURN_IF_ERROR(read_decoder(member(root, "decoder")));
    finish_added_tokens();
    return std::move(tokenizer_);
  }

 private:
  Error fail(Errc code, std::string_view thing, std::string_view seen,
             std::string_view wanted) const {
    return {code, fmt::format("{}: {} is {}, want {}", tokenizer_.name_, thing, seen, wanted)};
  }
  Error malformed(std::string_view thing, std::string_view seen, std::string_view wanted) const {
    return fail(Errc::kMalformed, thing, seen, wanted);
  }
  Error unsupported(std::string_view thing, std::string_view seen, std::string_view wanted) const {
    return fail(Errc::kUnsupported, thing, seen, wanted);
  }

  Result<void> check_model(const Json& model) const {
    if (!model.is_object()) return malformed("model", show(model), "an object");
    const Json& type = member(model, "type");
    if (!is_string(type, "BPE")) return unsupported("model.type", show(type), "\"BPE\"");
    for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
      const Json& value = member(model, key);
      if (!value.is_null() && !is_string(value, "")) {
        return unsupported(fmt::format("model.{}", key), show(value), "null");
      }
    }
    const Json& ignore_merges = member(model, "ignore_merges");
    if (is_true(ignore_merges)) return unsupported("model.ignore_merges", "true", "false");
    return {};
  }

  Result<void> read_vocab(const Json& vocab) {
    if (!vocab.is_object() || vocab.empty()) {
      return malformed("model.vocab", show(vocab), "an object of tokens and their ids");
    }
    for (const auto& [token, id] : vocab.items()) RETURN_IF_ERROR(add_token(token, id));
    return {};
  }

  Result<void> add_token(const std::string& token, const Json& id_value) {
    if (!id_value.is_number_unsigned() || id_value.get<std::uint64_t>() >= kVocabSizeMax) {
      return malformed(fmt::format("the id of token {}", show(token)), show(id_value),
                       fmt::format("an integer in [0, {})", kVocabSizeMax));
    }
    const auto index = id_value.get<std::size_t>();
    if (index >= taken_.size()) {
      taken_.resize(index + 1);
      tokenizer_.tokens_.resize(index + 1);
    }
    if (taken_[index]) {
      return malformed(
          fmt::format("the id of token {}", show(token)), show(id_value),
          fmt::format("an id other than that of {}", show(tokenizer_.tokens_[index].text)));
    }
    taken_[index] = true;
    tokenizer_.tokens_[index].text = token;
    tokenizer_.ids_.emplace(token, static_cast<TokenId>(index));
    return {};
  }

  Result<void> read_added_tokens(const Json& added_tokens) {
    if (added_tokens.is_null()) return {};
    if (!added_tokens.is_array()) {
      return malformed("added_tokens", show(added_tokens), "an array");
    }
    for (const Json& added : added_tokens) RETURN_IF_ERROR(read_added_token(added));
    return {};
  }

  Result<void> read_added_token(const Json& added) {
    const Json& content = member(added, "content");
    const std::string* const text = as_string(content);
    if (text == nullptr || text->empty()) {
      return malformed("added_tokens[].content", show(content), "a string that is not empty");
    }
    for (const char* key : {"single_word", "lstrip", "rstrip"}) {
      if (is_true(member(added, key))) {
        return unsupported(fmt::format("{} of added token {}", key, show(content)), "true",
                           "false");
      }
    }

    // Mostly it repeats a token of the vocabulary, and then must agree with it.
    const Json& id = member(added, "id");
    const auto known = tokenizer_.find(*text);
    if (!known) {
      RETURN_IF_ERROR(add_token(*text, id));
    } else if (!id.is_number_unsigned() ||
               id.get<std::uint64_t>() != static_cast<std::uint64_t>(*known)) {
      return malformed(fmt::format("the id of added token {}", show(content)), show(id),
                       fmt::format("its id in the vocabulary, {}", *known));
    }

    const TokenId token = *tokenizer_.find(*text);
    const bool special = is_true(member(added, "special"));
    tokenizer_.tokens_[static_cast<std::size_t>(token)].special = special;
    auto& kind =
        is_true(member(added, "normalized")) ? tokenizer_.added_normalized_ : tokenizer_.added_;
    kind.push_back({*text, token, special});
    return {};
  }

  /// After the normalizer is known.
  void finish_added_tokens() {
    for (AddedToken& token : tokenizer_.added_normalized_) {
      token.text = replace_all(token.text, tokenizer_.normalizer_);
    }
    for (auto* tokens : {&tokenizer_.added_, &tokenizer_.added_normalized_}) {
      std::ranges::stable_sort(*tokens, {}, &AddedToken::text);
      const auto repeats = std::ranges::unique(*tokens, {}, &AddedToken::text);
      tokens->erase(repeats.begin(), repeats.end());
      // What a normalizer left nothing of would match everywhere.
      std::erase_if(*tokens, [](const AddedToken& token) { return token.text.empty(); });
    }
  }

  Result<void> read_merges(const Json& merges) {
    if (!merges.is_array() || merges.empty()) {
      return malformed("model.merges", show(merges), "an array of pairs of tokens");
    }
    tokenizer_.ranks_.reserve(merges.size());
    tokenizer_.merged_.reserve(merges.size());
    for (const Json& merge : merges) RETURN_IF_ERROR(read_merge(merge));
    return {};
  }

  Result<void> read_merge(const Json& merge) {
    const auto rank = static_cast<Rank>(tokenizer_.merged_.size());
    const auto pair = merge_pair(merge);
    if (!pair) {
      return malformed(fmt::format("model.merges[{}]", rank), show(merge),
                       "\"LEFT RIGHT\" or [\"LEFT\", \"RIGHT\"]");
    }
    const auto token_id = [&](const std::string& token) -> Result<TokenId> {
      if (const auto id = tokenizer_.find(token)) return *id;
      return malformed(fmt::format("a token of model.merges[{}]", rank), show(token),
                       "one of model.vocab");
    };
    const auto& [left, right] = *pair;
    ASSIGN_OR_RETURN(const TokenId left_id, token_id(left));
    ASSIGN_OR_RETURN(const TokenId right_id, token_id(right));
    ASSIGN_OR_RETURN(const TokenId merged_id, token_id(left + right));
    tokenizer_.merged_.push_back(merged_id);
    if (!tokenizer_.is_special(merged_id)) {
      // Where a pair repeats the last counts, as in Hugging Face's.
      tokenizer_.ranks_.insert_or_assign(pair_key(left_id, right_id), rank);
    }
    return {};
  }

  /// Both forms that Hugging Face writes, the older one first.
  static std::optional<std::pair<std::string, std::string>> merge_pair(const Json& merge) {
    if (const std::string* const line = as_string(merge)) {
      const std::size_t space = line->find(' ');
      if (space == std::string::npos || line->find(' ', space + 1) != std::string::npos) {
        return std::nullopt;
      }
      return std::pair{line->substr(0, space), line->substr(space + 1)};
    }
    if (!merge.is_array() || merge.size() != 2) return std::nullopt;
    const std::string* const left = as_string(merge[0]);
    const std::string* const right = as_string(merge[1]);
    if (left == nullptr || right == nullptr) return std::nullopt;
    return std::pair{*left, *right};
  }

  Result<void> read_fallbacks(const Json& model) {
    tokenizer_.fuse_unknown_ = is_true(member(model, "fuse_unk"));
    const Json& unk_token = member(model, "unk_token");
    if (!unk_token.is_null()) {
      const std::string* const text = as_string(unk_token);
      const auto id = text == nullptr ? std::nullopt : tokenizer_.find(*text);
      if (!id) return malformed("model.unk_token", show(unk_token), "null or one of model.vocab");
      tokenizer_.unknown_id_ = *id;
    }

    tokenizer_.byte_ids_.fill(kNoToken);
    if (is_true(member(model, "byte_fallback"))) {
      for (unsigned byte = 0; byte < 256; ++byte) {
        tokenizer_.byte_ids_[byte] =
            tokenizer_.find(fmt::format("<0x{:02X}>", byte)).value_or(kNoToken);
      }
    }
    const auto missing = std::ranges::count(tokenizer_.byte_ids_, kNoToken);
    if (missing > 0 && tokenizer_.unknown_id_ == kNoToken) {
      return malformed(
          "model.unk_token", "null",
          fmt::format(
              "a token for unknown characters, as {} of 256 byte tokens are missing or unused",
              missing));
    }
    return {};
  }

  /// A Replace of a plain string, in the normalizer or the decoder.
  Result<Replacement> read_replace(std::string_view where, const Json& replace) const {
    const Json& type = member(replace, "type");
    if (!is_string(type, "Replace")) {
      return unsupported(fmt::format("{}.type", where), show(type), "\"Replace\"");
    }
    const Json& pattern = member(replace, "pattern");
    const Json& from = member(pattern, "String");
    const Json& to = member(replace, "content");
    if (!from.is_string() || as_string(from)->empty()) {
      return unsupported(fmt::format("{}.pattern", where), show(from.is_null() ? pattern : from),
                         "{\"String\": TEXT} with a text that is not empty");
    }
    if (!to.is_string()) return malformed(fmt::format("{}.content", where), show(to), "a string");
    return Replacement{*as_string(from), *as_string(to)};
  }

  Result<void> read_normalizer(const Json& normalizer) {
    if (normalizer.is_null()) return {};
    if (!is_string(member(normalizer, "type"), "Sequence")) {
      ASSIGN_OR_RETURN(Replacement replacement, read_replace("normalizer", normalizer));
      tokenizer_.normalizer_.push_back(std::move(replacement));
      return {};
    }
    const Json& steps = member(normalizer, "normalizers");
    if (!steps.is_array()) return malformed("normalizer.normalizers", show(steps), "an array");
    for (const Json& step : steps) {
      ASSIGN_OR_RETURN(Replacement replacement, read_replace("normalizer.normalizers[]", step));
      tokenizer_.normalizer_.push_back(std::move(replacement));
    }
    return {};
  }

  /// Gemma's file asks for a split at spaces, of which its normalizer has left none. We run no
  /// pre-tokenizer, so insist on that.
  Result<void> check_pre_tokenizer(const Json& pre_tokenizer) const {
    if (pre_tokenizer.is_null()) return {};
    const Json& type = member(pre_tokenizer, "type");
    if (!is_string(type, "Split")) {
      return unsupported("pre_tokenizer.type", show(type), "null or \"Split\"");
    }
    const Json& pattern = member(member(pre_tokenizer, "pattern"), "String");
    if (!pattern.is_string() || is_true(member(pre_tokenizer, "invert"))) {
      return unsupported("pre_tokenizer.pattern",
                         pattern.is_string() ? "inverted" : show(member(pre_tokenizer, "pattern")),
                         "{\"String\": TEXT}, not inverted");
    }
    bool occurs = true;
    for (const auto& [from, to] : tokenizer_.normalizer_) {
      if (from == *as_string(pattern)) occurs = false;
      if (to.find(*as_string(pattern)) != std::string::npos) occurs = true;
    }
    // With a longer text, a later replacement could bring its parts together.
    if (occurs || as_string(pattern)->size() != 1) {
      return unsupported("pre_tokenizer.pattern", show(pattern),
                         "one byte that the normalizer replaces, so that the split never happens");
    }
    return {};
  }

  Result<void> read_decoder(const Json& decoder) {
    constexpr std::string_view kWanted = "a Sequence of Replace, ..., ByteFallback, Fuse";
    const Json& type = member(decoder, "type");
    if (!is_string(type, "Sequence")) return unsupported("decoder.type", show(type), kWanted);
    const Json& steps = member(decoder, "decoders");
    if (!steps.is_array()) return malformed("decoder.decoders", show(steps), "an array");
    const std::size_t count = steps.size();
    if (count < 2 || !is_string(member(steps[count - 2], "type"), "ByteFallback") ||
        !is_string(member(steps[count - 1], "type"), "Fuse")) {
      return unsupported("decoder.decoders", "another sequence", kWanted);
    }
    for (std::size_t i = 0; i + 2 < count; ++i) {
      ASSIGN_OR_RETURN(Replacement replacement, read_replace("decoder.decoders[]", steps[i]));
      tokenizer_.decoder_.push_back(std::move(replacement));
    }
    return {};
  }

  Tokenizer tokenizer_;
  std::vector<bool> taken_;  // By id; a token's text can not tell, as "" is a token too.
};

Result<Tokenizer> Tokenizer::parse(std::string_view json, std::string_view name_for_errors) {
  return Parser(name_for_errors).parse(json);
}

Result<Tokenizer> Tokenizer::load(const std::filesystem::path& path) {
  const auto fail = [&](Errc code, std::string_view what) {
    return Error{code, fmt::format("{}: {}", path.string(), what)};
  };
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return fail(Errc::kNotFound, "no such file, want a tokenizer.json");
  }
  // Of a directory, too, there is no size.
  const auto file_bytes = std::filesystem::file_size(path, error);
  if (error) return fail(Errc::kIo, error.message());
  std::string text(file_bytes, '\0');
  std::ifstream file(path, std::ios::binary);
  if (!file.read(text.data(), static_cast<std::streamsize>(text.size()))) {
    return fail(Errc::kIo, fmt::format("can not be read, want {} bytes", file_bytes));
  }
  return parse(text, path.string());
}

}  // namespace outrider
