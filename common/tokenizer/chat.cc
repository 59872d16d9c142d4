#include "common/tokenizer/chat.h"

#include <algorithm>
#include <array>
#include <string>

#include <fmt/format.h>

namespace outrider {
namespace {

Result<TokenId> control_token(const Tokenizer& tokenizer, std::string_view token) {
  const auto id = tokenizer.find(token);
  if (!id) {
    return Error{Errc::kNotFound,
                 fmt::format("{}: the vocabulary has no \"{}\", which the chat format needs",
                             tokenizer.name(), token)};
  }
  if (!tokenizer.is_special(*id)) {
    return Error{Errc::kMismatch,
                 fmt::format("{}: token \"{}\" ({}) is not special, want a special token, which "
                             "user text can not forge",
                             tokenizer.name(), token, *id)};
  }
  return *id;
}

/// The template trims with Python's str.strip(): these are the characters for which str.isspace().
constexpr auto kWhiteSpace = std::to_array<std::string_view>({
    "\t",           "\n",           "\v",           "\f",           "\r",
    "\x1C",         "\x1D",         "\x1E",         "\x1F",         " ",
    "\xC2\x85",     "\xC2\xA0",     "\xE1\x9A\x80", "\xE2\x80\x80", "\xE2\x80\x81",
    "\xE2\x80\x82", "\xE2\x80\x83", "\xE2\x80\x84", "\xE2\x80\x85", "\xE2\x80\x86",
    "\xE2\x80\x87", "\xE2\x80\x88", "\xE2\x80\x89", "\xE2\x80\x8A", "\xE2\x80\xA8",
    "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F", "\xE3\x80\x80",
});

std::string_view trim(std::string_view text) {
  const auto find = [](auto matches) { return std::ranges::find_if(kWhiteSpace, matches); };
  const auto starts = [&](std::string_view space) { return text.starts_with(space); };
  const auto ends = [&](std::string_view space) { return text.ends_with(space); };
  for (auto space = find(starts); space != kWhiteSpace.end(); space = find(starts)) {
    text.remove_prefix(space->size());
  }
  for (auto space = find(ends); space != kWhiteSpace.end(); space = find(ends)) {
    text.remove_suffix(space->size());
  }
  return text;
}

}  // namespace

Result<std::vector<TokenId>> render_user_turn(const Tokenizer& tokenizer,
                                              std::string_view user_text) {
  ASSIGN_OR_RETURN(const TokenId bos, control_token(tokenizer, "<bos>"));
  ASSIGN_OR_RETURN(const TokenId turn_begin, control_token(tokenizer, "<|turn>"));
  ASSIGN_OR_RETURN(const TokenId turn_end, control_token(tokenizer, "<turn|>"));

  std::vector<TokenId> prompt;
  const auto append_text = [&](std::string_view text) {
    const std::vector<TokenId> ids = tokenizer.encode(text, /*parse_special=*/false);
    prompt.insert(prompt.end(), ids.begin(), ids.end());
  };
  prompt.push_back(bos);
  prompt.push_back(turn_begin);
  // Why in one piece: merges cross the end of the role's line where the vocabulary has such tokens.
  append_text(fmt::format("user\n{}", trim(user_text)));
  prompt.push_back(turn_end);
  append_text("\n");
  prompt.push_back(turn_begin);
  append_text("model\n");
  return prompt;
}

}  // namespace outrider
