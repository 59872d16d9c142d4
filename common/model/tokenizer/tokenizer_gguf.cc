// Reads the tokenizer.ggml.* metadata that llama.cpp's converter writes for Gemma 4.
#include <map>
#include <optional>

#include <fmt/format.h>

#include "common/base/utf8.h"
#include "common/model/checkpoint/gguf.h"
#include "common/model/checkpoint/safetensors.h"
#include "common/model/tokenizer/tokenizer.h"
#include "common/model/tokenizer/tokenizer_builder.h"
#include "common/os/files.h"

namespace outrider {
namespace {

// ggml's token types; 5 means unused.
constexpr std::int64_t kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kByte = 6;

/// Returns true for `<|x>`, `<x|>` and `<|x|>`. The converter marks some of these controls as user defined, so that
/// llama.cpp prints them, and as normal those that tokenizer_config.json does not name; all are special, or users could
/// forge a tool call.
bool looks_like_control(std::string_view text) {
  return text.size() > 3 && text.front() == '<' && text.back() == '>' &&
         (text[1] == '|' || text[text.size() - 2] == '|');
}

}  // namespace

Result<Tokenizer> Tokenizer::from_gguf(const GgufMetadata& metadata) {
  const std::string name = metadata.file().string();
  const auto fail = [&](Errc code, std::string_view thing, std::string_view seen, std::string_view wanted) {
    return file_error(code, name, "tokenizer.ggml.{} is {}, want {}", thing, seen, wanted);
  };
  ASSIGN_OR_RETURN(const auto model, metadata.get<std::string_view>("tokenizer.ggml.model"));
  if (model != "gemma4") return fail(Errc::kUnsupported, "model", quote(model), "\"gemma4\"");
  ASSIGN_OR_RETURN(const auto add_space_prefix, metadata.find<bool>("tokenizer.ggml.add_space_prefix"));
  if (add_space_prefix.value_or(false)) return fail(Errc::kUnsupported, "add_space_prefix", "true", "false");

  ASSIGN_OR_RETURN(const auto tokens, metadata.get<std::vector<std::string_view>>("tokenizer.ggml.tokens"));
  ASSIGN_OR_RETURN(const auto types, metadata.get<std::vector<std::int64_t>>("tokenizer.ggml.token_type"));
  ASSIGN_OR_RETURN(const auto merges, metadata.get<std::vector<std::string_view>>("tokenizer.ggml.merges"));
  if (tokens.empty() || tokens.size() > Builder::kVocabSizeMax) {
    return fail(Errc::kMalformed, "tokens", fmt::format("an array of {}", tokens.size()),
                fmt::format("one of 1 to {}", Builder::kVocabSizeMax));
  }
  if (types.size() != tokens.size()) {
    return fail(Errc::kMalformed, "token_type", fmt::format("an array of {}", types.size()),
                fmt::format("one of {}, as tokens", tokens.size()));
  }

  Builder builder(name);
  std::map<std::string, TokenId> called_normal;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (!is_utf8(tokens[i]))
      return fail(Errc::kMalformed, fmt::format("tokens[{}]", i), quote(tokens[i]), "valid UTF-8");
    builder.add_token(tokens[i], i);
    const auto id = static_cast<TokenId>(i);
    if (types[i] == kUnknown || types[i] == kControl || types[i] == kUserDefined) {
      builder.add_added_token(id, types[i] != kUserDefined || looks_like_control(tokens[i]), /*normalized=*/false);
    } else if (types[i] == kNormal && looks_like_control(tokens[i])) {
      called_normal.emplace(tokens[i], id);
    } else if (types[i] == kByte) {
      const std::optional<std::uint8_t> byte = builder.tokenizer.byte_value(id);
      if (!byte)
        return fail(Errc::kMalformed, fmt::format("tokens[{}]", i), quote(tokens[i]),
                    "<0xNN>, as its token_type is byte");
      builder.tokenizer.byte_ids_[*byte] = id;
    }
  }
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const auto pair = Builder::split_merge(merges[i]);
    if (!pair) return fail(Errc::kMalformed, fmt::format("merges[{}]", i), quote(merges[i]), "\"LEFT RIGHT\"");
    if (const auto missing = builder.add_merge(pair->first, pair->second)) {
      return fail(Errc::kMalformed, fmt::format("merges[{}]", i), quote(merges[i]),
                  fmt::format("made of tokens, which {} is not", quote(*missing)));
    }
    if (merges[i].ends_with('>')) called_normal.erase(std::string(pair->first).append(pair->second));  // a text
  }
  for (const auto& [text, id] : called_normal) builder.add_added_token(id, /*special=*/true, /*normalized=*/false);

  ASSIGN_OR_RETURN(const auto unknown, metadata.find<std::int64_t>("tokenizer.ggml.unknown_token_id"));
  if (unknown) {
    if (*unknown < 0 || *unknown >= std::ssize(tokens)) {
      return fail(Errc::kMalformed, "unknown_token_id", fmt::format("{}", *unknown),
                  fmt::format("from 0 to {}", tokens.size() - 1));
    }
    builder.tokenizer.unknown_id_ = static_cast<TokenId>(*unknown);
    builder.tokenizer.fuse_unknown_ = true;
  }
  if (builder.missing_bytes() > 0 && !unknown) {
    return fail(
        Errc::kMalformed, "unknown_token_id", "missing",
        fmt::format("a token for unknown characters, as {} of 256 byte tokens are missing", builder.missing_bytes()));
  }
  builder.tokenizer.normalizer_.push_back({" ", "\u2581"});
  builder.tokenizer.decoder_.push_back({"\u2581", " "});
  return std::move(builder).finish();
}

}  // namespace outrider
