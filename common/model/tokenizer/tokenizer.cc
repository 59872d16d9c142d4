#include "common/model/tokenizer/tokenizer.h"

#include <algorithm>
#include <queue>
#include <utility>

#include "common/base/random.h"
#include "common/base/text.h"
#include "common/base/utf8.h"
#include "common/model/tokenizer/detokenizer.h"

namespace outrider {

std::vector<TokenId> Tokenizer::encode(std::string_view text, bool parse_special) const {
  std::vector<TokenId> ids;
  std::vector<TokenId> piece_ids;
  const auto encode_piece = [&](std::string_view piece) {
    piece_ids.clear();
    append_characters(piece, piece_ids);
    merge_pairs(piece_ids);
    ids.insert(ids.end(), piece_ids.begin(), piece_ids.end());
  };
  split_added(added_, text, parse_special, ids, [&](std::string_view raw) {
    const std::string normalized = replace_all(raw, normalizer_);
    split_added(added_normalized_, normalized, parse_special, ids, encode_piece);
  });
  return ids;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  // Uses the stream, so that both treat every invalid byte alike by construction.
  StreamingDetokenizer stream(*this, skip_special);
  std::string text;
  for (const TokenId id : ids) text += stream.push(id);
  return text += stream.finish();
}

std::string_view Tokenizer::token_text(TokenId id) const {
  if (id < 0 || id >= vocab_size()) return {};
  return tokens_[static_cast<std::size_t>(id)].text;
}

std::string Tokenizer::plain_text(TokenId id) const { return replace_all(token_text(id), decoder_); }

std::optional<std::uint8_t> Tokenizer::byte_value(TokenId id) const {
  const std::string_view text = token_text(id);
  if (text.size() != 6 || !text.starts_with("<0x") || text.back() != '>') return std::nullopt;
  std::uint8_t value = 0;
  return read_hex(text.substr(3, 2), {&value, 1}) ? std::optional(value) : std::nullopt;
}

std::optional<TokenId> Tokenizer::find(std::string_view token) const {
  const auto found = ids_.find(token);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

bool Tokenizer::is_special(TokenId id) const {
  return id >= 0 && id < vocab_size() && tokens_[static_cast<std::size_t>(id)].special;
}

Tokenizer::Rank Tokenizer::merge_rank(TokenId left, TokenId right) const {
  const auto found = ranks_.find(pair_key(left, right));
  return found == ranks_.end() ? kNoMerge : found->second;
}

std::string Tokenizer::replace_all(std::string_view text, std::span<const Replacement> replacements) {
  std::string result(text);
  for (const auto& [from, to] : replacements) result = replaced(result, from, to);
  return result;
}

/// Returns the longest token at the start of `text`; null if there is none. O(length * log count).
const Tokenizer::AddedToken* Tokenizer::longest_match(std::span<const AddedToken> sorted, std::string_view text,
                                                      bool parse_special) {
  const AddedToken* longest = nullptr;
  // Tokens that share the first `length` bytes of the text are adjacent; narrow the range.
  for (std::size_t length = 0; !sorted.empty(); ++length) {
    if (const AddedToken& shortest = sorted.front(); shortest.text.size() == length) {
      if (parse_special || !shortest.special) longest = &shortest;
      sorted = sorted.subspan(1);
    }
    if (length == text.size()) break;
    // Unsigned, as in std::string's order.
    const auto byte_at = [length](std::string_view s) { return static_cast<unsigned char>(s[length]); };
    const auto same =
        std::ranges::equal_range(sorted, byte_at(text), {}, [&](const AddedToken& t) { return byte_at(t.text); });
    sorted = {same.begin(), same.end()};
  }
  return longest;
}

/// Appends the ids of the added tokens in `text`, and calls on_text for each stretch between them, in order.
template <typename OnText>
void Tokenizer::split_added(std::span<const AddedToken> sorted, std::string_view text, bool parse_special,
                            std::vector<TokenId>& ids, const OnText& on_text) {
  std::size_t start = 0;  // of the stretch without added tokens
  std::size_t at = 0;
  while (at < text.size()) {
    const AddedToken* const match = longest_match(sorted, text.substr(at), parse_special);
    if (match == nullptr) {
      ++at;
      continue;
    }
    if (start < at) on_text(text.substr(start, at - start));
    ids.push_back(match->id);
    at += match->text.size();
    start = at;
  }
  if (start < at) on_text(text.substr(start));
}

/// Appends one id per character, or one per byte of a character that the vocabulary lacks.
void Tokenizer::append_characters(std::string_view text, std::vector<TokenId>& ids) const {
  bool after_unknown = false;
  while (!text.empty()) {
    const Utf8Scan scan = scan_utf8(text);
    const std::string_view character = text.substr(0, scan.state == Utf8::kValid ? scan.length : 1);
    text.remove_prefix(character.size());

    const auto byte_id = [this](char byte) { return byte_ids_[static_cast<unsigned char>(byte)]; };
    if (const auto id = find(character); id && !is_special(*id)) {
      ids.push_back(*id);
      after_unknown = false;
    } else if (std::ranges::find(character, kNoToken, byte_id) == character.end()) {
      std::ranges::transform(character, std::back_inserter(ids), byte_id);
      after_unknown = false;
    } else {
      if (!(fuse_unknown_ && after_unknown)) ids.push_back(unknown_id_);
      after_unknown = true;
    }
  }
}

namespace {

/// Positions where two symbols can be merged, in order of rank, then from left to right. A run of one character has few
/// ranks and is walked in order; one heap of all positions would access memory at random.
class Merges {
 public:
  using Rank = std::uint32_t;
  using Place = std::uint32_t;

  void add(Rank rank, Place place) {
    Places& places = of(rank);
    if (places.done == places.list.size()) {
      places.list.clear(), places.done = 0, places.sorted = true;
      ranks_.push(rank);
    }
    places.sorted = places.sorted && (places.list.empty() || places.list.back() <= place);
    places.list.push_back(place);
  }
  /// Removes and returns the next position.
  std::optional<std::pair<Rank, Place>> next() {
    if (ranks_.empty()) return std::nullopt;
    const Rank rank = ranks_.top();
    Places& places = of(rank);
    if (!places.sorted) std::sort(places.list.begin() + static_cast<std::ptrdiff_t>(places.done), places.list.end());
    places.sorted = true;
    const Place place = places.list[places.done++];
    if (places.done == places.list.size()) ranks_.pop();
    return std::pair(rank, place);
  }

 private:
  struct Places {
    std::vector<Place> list;
    std::size_t done = 0;  ///< number removed
    bool sorted = true;    ///< from `done` on
  };
  Places& of(Rank rank) {
    if (last_ == nullptr || rank != last_rank_) last_ = &places_[rank];
    last_rank_ = rank;
    return *last_;
  }

  std::unordered_map<Rank, Places> places_;
  std::priority_queue<Rank, std::vector<Rank>, std::greater<>> ranks_;  ///< ranks with positions
  Rank last_rank_ = 0;
  Places* last_ = nullptr;  ///< those of last_rank_
};

}  // namespace

/// Merges the pair of lowest rank, leftmost first, until no pair has a merge (Sennrich et al.
/// 2016), over a doubly linked list of symbols; there are no word boundaries, so that is the whole text.
void Tokenizer::merge_pairs(std::vector<TokenId>& ids) const {
  using Place = Merges::Place;
  constexpr Place kNone = UINT32_MAX;
  CHECK(ids.size() < kNone, "a text of {} characters", ids.size());
  struct Symbol {
    TokenId id;
    Rank rank;  // of the merge with the next symbol; kNoMerge once this one is part of another
    Place previous;
    Place next;
  };
  std::vector<Symbol> symbols(ids.size());
  Merges merges;
  const auto consider = [&](Place left) {
    Symbol& symbol = symbols[left];
    symbol.rank = symbol.next == kNone ? kNoMerge : merge_rank(symbol.id, symbols[symbol.next].id);
    if (symbol.rank != kNoMerge) merges.add(symbol.rank, left);
  };

  const auto count = static_cast<Place>(ids.size());
  for (Place i = 0; i < count; ++i) {
    symbols[i] = {
        .id = ids[i], .rank = kNoMerge, .previous = i == 0 ? kNone : i - 1, .next = i + 1 == count ? kNone : i + 1};
  }
  for (Place i = 0; i < count; ++i) consider(i);

  while (const auto merge = merges.next()) {
    const auto [rank, left] = *merge;
    Symbol& symbol = symbols[left];
    if (symbol.rank != rank) continue;  // one of the pair was merged elsewhere since
    Symbol& right = symbols[symbol.next];
    symbol.id = merged_[rank];
    symbol.next = right.next;
    right.rank = kNoMerge;
    if (symbol.next != kNone) symbols[symbol.next].previous = left;
    consider(left);
    if (symbol.previous != kNone) consider(symbol.previous);
  }

  // The first symbol is never the right one of a pair, so the list still starts there.
  ids.clear();
  for (Place i = symbols.empty() ? kNone : 0; i != kNone; i = symbols[i].next) ids.push_back(symbols[i].id);
}

std::uint64_t Tokenizer::fingerprint() const {
  constexpr std::string_view kBetween = "\xff";  // never in UTF-8
  std::uint64_t hash = fnv1a(std::string_view());
  for (const Token& token : tokens_) hash = fnv1a(kBetween, fnv1a(token.text, hash));
  return hash | 1;
}

}  // namespace outrider
