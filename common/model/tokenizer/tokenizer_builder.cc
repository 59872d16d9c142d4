#include "common/model/tokenizer/tokenizer_builder.h"

#include <algorithm>

namespace outrider {

bool Tokenizer::Builder::add_token(std::string_view text, std::size_t id) {
  CHECK(id < kVocabSizeMax, "token id {}, wanted less than {}", id, kVocabSizeMax);
  if (id >= taken_.size()) {
    taken_.resize(id + 1);
    tokenizer.tokens_.resize(id + 1);
  }
  if (taken_[id]) return false;
  taken_[id] = true;
  tokenizer.tokens_[id].text = text;
  tokenizer.ids_.emplace(text, static_cast<TokenId>(id));
  return true;
}

void Tokenizer::Builder::add_added_token(TokenId id, bool special, bool normalized) {
  Token& token = tokenizer.tokens_[static_cast<std::size_t>(id)];
  token.special = special;
  auto& kind = normalized ? tokenizer.added_normalized_ : tokenizer.added_;
  kind.push_back({token.text, id, special});
}

std::optional<std::pair<std::string_view, std::string_view>> Tokenizer::Builder::split_merge(std::string_view line) {
  const std::size_t space = line.find(' ');  // the only space: tokens have U+2581 instead
  if (space == line.npos || line.rfind(' ') != space) return std::nullopt;
  return std::pair(line.substr(0, space), line.substr(space + 1));
}

std::optional<std::string> Tokenizer::Builder::add_merge(std::string_view left, std::string_view right) {
  const auto rank = static_cast<Rank>(tokenizer.merged_.size());
  std::string merged(left);
  merged += right;
  const auto left_id = tokenizer.find(left), right_id = tokenizer.find(right), merged_id = tokenizer.find(merged);
  if (!left_id) return std::string(left);
  if (!right_id) return std::string(right);
  if (!merged_id) return merged;
  tokenizer.merged_.push_back(*merged_id);
  if (!tokenizer.is_special(*merged_id)) {
    // The last of repeated pairs counts, as in Hugging Face.
    tokenizer.ranks_.insert_or_assign(pair_key(*left_id, *right_id), rank);
  }
  return std::nullopt;
}

std::size_t Tokenizer::Builder::missing_bytes() const {
  return static_cast<std::size_t>(std::ranges::count(tokenizer.byte_ids_, kNoToken));
}

Result<Tokenizer> Tokenizer::Builder::finish() && {
  const auto check_length = [&](const AddedToken& token) -> Result<void> {
    if (token.text.size() <= kAddedBytesMax) return {};
    return Error(Errc::kUnsupported, "{}: added token {} ({:?}...) has {} bytes, want at most {}", tokenizer.name_,
                 token.id, token.text.substr(0, 40), token.text.size(), kAddedBytesMax);
  };
  for (const AddedToken& token : tokenizer.added_) RETURN_IF_ERROR(check_length(token));
  for (AddedToken& token : tokenizer.added_normalized_) {
    RETURN_IF_ERROR(check_length(token));
    token.text = replace_all(token.text, tokenizer.normalizer_);
    RETURN_IF_ERROR(check_length(token));
  }
  for (auto* tokens : {&tokenizer.added_, &tokenizer.added_normalized_}) {
    std::ranges::stable_sort(*tokens, {}, &AddedToken::text);
    const auto repeats = std::ranges::unique(*tokens, {}, &AddedToken::text);
    tokens->erase(repeats.begin(), repeats.end());
    // An added token that normalizes to nothing would match everywhere.
    std::erase_if(*tokens, [](const AddedToken& token) { return token.text.empty(); });
  }
  return std::move(tokenizer);
}

}  // namespace outrider
