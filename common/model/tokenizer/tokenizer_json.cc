// Reads tokenizer.json: which parts of the format we support, and every complaint about the rest.
#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/json_fields.h"
#include "common/model/checkpoint/model_files.h"
#include "common/model/tokenizer/tokenizer.h"
#include "common/model/tokenizer/tokenizer_builder.h"
#include "common/os/files.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

const std::string* as_string(const Json& value) { return value.get_ptr<const std::string*>(); }

}  // namespace

class Tokenizer::Parser {
 public:
  explicit Parser(std::string_view name) : builder_(name) {}

  Result<Tokenizer> parse(std::string_view text) {
    // Parsed without exceptions, since a wrong file is an expected failure; the parser does not recurse.
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
    return std::move(builder_).finish();
  }

 private:
  Error fail(Errc code, std::string_view thing, std::string_view seen, std::string_view wanted) const {
    return file_error(code, built().name_, "{} is {}, want {}", thing, seen, wanted);
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
    if (type != "BPE") return unsupported("model.type", show(type), "\"BPE\"");
    for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
      const Json& value = member(model, key);
      if (!value.is_null() && value != "") {
        return unsupported(fmt::format("model.{}", key), show(value), "null");
      }
    }
    const Json& ignore_merges = member(model, "ignore_merges");
    if (ignore_merges == true) return unsupported("model.ignore_merges", "true", "false");
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
    if (!id_value.is_number_unsigned() || id_value.get<std::uint64_t>() >= Builder::kVocabSizeMax) {
      return malformed(fmt::format("the id of token {}", show(token)), show(id_value),
                       fmt::format("an integer in [0, {})", Builder::kVocabSizeMax));
    }
    const auto index = id_value.get<std::size_t>();
    if (!builder_.add_token(token, index)) {
      return malformed(fmt::format("the id of token {}", show(token)), show(id_value),
                       fmt::format("an id other than that of {}",
                                   show(std::string(built().token_text(static_cast<TokenId>(index))))));
    }
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
      if (member(added, key) == true) {
        return unsupported(fmt::format("{} of added token {}", key, show(content)), "true", "false");
      }
    }

    // An added token mostly repeats a token of the vocabulary, and then must agree with it.
    const Json& id = member(added, "id");
    const auto known = built().find(*text);
    if (!known) {
      RETURN_IF_ERROR(add_token(*text, id));
    } else if (!id.is_number_unsigned() || id.get<std::uint64_t>() != static_cast<std::uint64_t>(*known)) {
      return malformed(fmt::format("the id of added token {}", show(content)), show(id),
                       fmt::format("its id in the vocabulary, {}", *known));
    }

    builder_.add_added_token(*built().find(*text), member(added, "special") == true,
                             member(added, "normalized") == true);
    return {};
  }

  Result<void> read_merges(const Json& merges) {
    if (!merges.is_array() || merges.empty()) {
      return malformed("model.merges", show(merges), "an array of pairs of tokens");
    }
    for (std::size_t rank = 0; rank < merges.size(); ++rank) RETURN_IF_ERROR(read_merge(rank, merges[rank]));
    return {};
  }

  Result<void> read_merge(std::size_t rank, const Json& merge) {
    const auto pair = merge_pair(merge);
    if (!pair) {
      return malformed(fmt::format("model.merges[{}]", rank), show(merge), "\"LEFT RIGHT\" or [\"LEFT\", \"RIGHT\"]");
    }
    if (const auto missing = builder_.add_merge(pair->first, pair->second)) {
      return malformed(fmt::format("a token of model.merges[{}]", rank), show(*missing), "one of model.vocab");
    }
    return {};
  }

  /// Parses both forms of Hugging Face, the older one first.
  static std::optional<std::pair<std::string_view, std::string_view>> merge_pair(const Json& merge) {
    if (const std::string* const line = as_string(merge)) return Builder::split_merge(*line);
    if (!merge.is_array() || merge.size() != 2) return std::nullopt;
    const std::string* const left = as_string(merge[0]);
    const std::string* const right = as_string(merge[1]);
    if (left == nullptr || right == nullptr) return std::nullopt;
    return std::pair<std::string_view, std::string_view>(*left, *right);
  }

  Result<void> read_fallbacks(const Json& model) {
    const Json& unk_token = member(model, "unk_token");
    if (!unk_token.is_null()) {
      const std::string* const text = as_string(unk_token);
      const auto id = text == nullptr ? std::nullopt : built().find(*text);
      if (!id) return malformed("model.unk_token", show(unk_token), "null or one of model.vocab");
      builder_.tokenizer.unknown_id_ = *id;
      builder_.tokenizer.fuse_unknown_ = member(model, "fuse_unk") == true;
    }
    if (member(model, "byte_fallback") == true) {
      for (unsigned byte = 0; byte < 256; ++byte) {
        const auto id = built().find(fmt::format("<0x{:02X}>", byte));
        if (id) builder_.tokenizer.byte_ids_[byte] = *id;
      }
    }
    if (builder_.missing_bytes() > 0 && built().unknown_id_ == kNoToken) {
      return malformed("model.unk_token", "null",
                       fmt::format("a token for unknown characters, as {} of 256 byte tokens are missing or unused",
                                   builder_.missing_bytes()));
    }
    return {};
  }

  /// Reads a Replace of a plain string, in the normalizer or the decoder.
  Result<Replacement> read_replace(std::string_view where, const Json& replace) const {
    const Json& type = member(replace, "type");
    if (type != "Replace") {
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
    std::vector<Replacement>& read = builder_.tokenizer.normalizer_;
    if (member(normalizer, "type") != "Sequence") {
      ASSIGN_OR_RETURN(read.emplace_back(), read_replace("normalizer", normalizer));
      return {};
    }
    const Json& steps = member(normalizer, "normalizers");
    if (!steps.is_array()) return malformed("normalizer.normalizers", show(steps), "an array");
    for (const Json& step : steps) {
      ASSIGN_OR_RETURN(read.emplace_back(), read_replace("normalizer.normalizers[]", step));
    }
    return {};
  }

  /// Gemma's file has a split at spaces, of which its normalizer leaves none. No pre-tokenizer is run, so that this
  /// must hold.
  Result<void> check_pre_tokenizer(const Json& pre_tokenizer) const {
    if (pre_tokenizer.is_null()) return {};
    const Json& type = member(pre_tokenizer, "type");
    if (type != "Split") {
      return unsupported("pre_tokenizer.type", show(type), "null or \"Split\"");
    }
    const Json& pattern = member(member(pre_tokenizer, "pattern"), "String");
    if (!pattern.is_string() || member(pre_tokenizer, "invert") == true) {
      return unsupported("pre_tokenizer.pattern",
                         pattern.is_string() ? "inverted" : show(member(pre_tokenizer, "pattern")),
                         "{\"String\": TEXT}, not inverted");
    }
    bool occurs = true;
    for (const auto& [from, to] : built().normalizer_) {
      if (from == *as_string(pattern)) occurs = false;
      if (to.find(*as_string(pattern)) != std::string::npos) occurs = true;
    }
    // With a longer text, a later replacement could join its parts.
    if (occurs || as_string(pattern)->size() != 1) {
      return unsupported("pre_tokenizer.pattern", show(pattern),
                         "one byte that the normalizer replaces, so that the split never happens");
    }
    return {};
  }

  Result<void> read_decoder(const Json& decoder) {
    constexpr std::string_view kWanted = "a Sequence of Replace, ..., ByteFallback, Fuse";
    const Json& type = member(decoder, "type");
    if (type != "Sequence") return unsupported("decoder.type", show(type), kWanted);
    const Json& steps = member(decoder, "decoders");
    if (!steps.is_array()) return malformed("decoder.decoders", show(steps), "an array");
    const std::size_t count = steps.size();
    if (count < 2 || member(steps[count - 2], "type") != "ByteFallback" || member(steps[count - 1], "type") != "Fuse") {
      return unsupported("decoder.decoders", "another sequence", kWanted);
    }
    for (std::size_t i = 0; i + 2 < count; ++i) {
      ASSIGN_OR_RETURN(builder_.tokenizer.decoder_.emplace_back(), read_replace("decoder.decoders[]", steps[i]));
    }
    return {};
  }

  const Tokenizer& built() const { return builder_.tokenizer; }

  Builder builder_;
};

Result<Tokenizer> Tokenizer::parse(std::string_view json, std::string_view name_for_errors) {
  return Parser(name_for_errors).parse(json);
}

Result<Tokenizer> Tokenizer::load(const ModelFiles& files) {
  ASSIGN_OR_RETURN(const auto json, files.tokenizer_json());
  if (json) return parse(json->text, json->name);
  if (files.gguf_metadata() != nullptr) return from_gguf(*files.gguf_metadata());
  return file_error(Errc::kNotFound, files.path(), "holds neither tokenizer.json nor a GGUF model");
}

std::string Tokenizer::to_json() const {
  Json vocab = Json::object(), added = Json::array(), merges = Json::array();
  for (std::size_t id = 0; id < tokens_.size(); ++id) {
    if (find(tokens_[id].text) == static_cast<TokenId>(id)) vocab[tokens_[id].text] = id;
  }
  for (const auto* const list : {&added_, &added_normalized_}) {
    for (const AddedToken& token : *list) {
      added.push_back({{"id", token.id},
                       {"content", token.text},
                       {"special", token.special},
                       {"normalized", list == &added_normalized_}});
    }
  }
  constexpr std::uint64_t kUnused = UINT64_MAX;  // a merge that gives a special token, or is repeated later
  std::vector<std::uint64_t> by_rank(merged_.size(), kUnused);
  for (const auto& [pair, rank] : ranks_) by_rank[rank] = pair;
  for (const std::uint64_t pair : by_rank) {
    if (pair == kUnused) continue;
    merges.push_back({tokens_[static_cast<std::size_t>(pair >> 32)].text,
                      tokens_[static_cast<std::size_t>(pair & UINT32_MAX)].text});
  }
  const auto replaces = [](std::span<const Replacement> replacements) {
    Json steps = Json::array();
    for (const auto& [from, to] : replacements)
      steps.push_back({{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}});
    return steps;
  };
  Json decoders = replaces(decoder_);
  decoders.push_back({{"type", "ByteFallback"}});
  decoders.push_back({{"type", "Fuse"}});
  const bool byte_fallback = std::ranges::any_of(byte_ids_, [](TokenId id) { return id != kNoToken; });
  const Json root = {{"version", "1.0"},
                     {"added_tokens", std::move(added)},
                     {"normalizer", {{"type", "Sequence"}, {"normalizers", replaces(normalizer_)}}},
                     {"pre_tokenizer", nullptr},
                     {"post_processor", nullptr},
                     {"decoder", {{"type", "Sequence"}, {"decoders", std::move(decoders)}}},
                     {"model",
                      {{"type", "BPE"},
                       {"unk_token", unknown_id_ == kNoToken ? Json() : Json(token_text(unknown_id_))},
                       {"fuse_unk", fuse_unknown_},
                       {"byte_fallback", byte_fallback},
                       {"vocab", std::move(vocab)},
                       {"merges", std::move(merges)}}}};
  return to_text(root);
}

}  // namespace outrider
