#include "common/protocol/prefix_cache.h"

#include <algorithm>

#include "common/protocol/media_bytes.h"

namespace outrider {
namespace {

/// Positions below `end` up to where one of two texts has a picture or a sound that the other has not.
Position same_media(std::span<const WireMedium> a, std::span<const WireMedium> b, Position end) {
  for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    const Position first = std::min(i < a.size() ? a[i].first : end, i < b.size() ? b[i].first : end);
    if (first >= end) return end;
    if (i >= a.size() || i >= b.size() || a[i] != b[i]) return first;
  }
  return end;
}

}  // namespace

void PrefixSearch::offer(SessionId id, std::string_view scope, std::span<const TokenId> tokens, Position have,
                         Position written, bool under_way, std::span<const WireMedium> media) {
  if (scope != scope_) return;
  const Position same =
      std::mismatch(prompt_.begin(), prompt_.end(), tokens.begin(), tokens.end()).first - prompt_.begin();
  const Position common = same_media(media_, media, same);
  common_ = std::max(common_, common);
  if (under_way && common > have) soon_ = std::max(soon_, common);
  const Position usable = std::min(common, have);
  // As KvCache::holds: whether rings that were written up to `written` still have what a text of this length needs.
  const bool held = ring_rows_ == 0 || written <= ring_rows_ || usable + rows_max_ >= written;
  if (usable > best_ && held) best_ = usable, from_ = id, written_ = written;
}

void PrefixCache::offer_all(PrefixSearch& search) const {
  for (const KeptText& text : texts_)
    search.offer(text.id, text.scope, text.tokens, std::ssize(text.tokens), text.written, false, text.media);
}

std::int64_t PrefixCache::bytes_of(const KeptText& text) const {
  return cost_.bytes(text.written) + media_bytes(text.media);
}

void PrefixCache::keep(KeptText text) {
  bytes_ += bytes_of(text);
  texts_.push_back(std::move(text));
}

bool PrefixCache::use(SessionId id, Position length) {
  const auto text = find(id);
  if (text == texts_.end()) return false;  // of a session that goes on
  if (!text->shared && std::ssize(text->tokens) == length) {
    erase(text);  // a conversation goes on: the new text will be all of the old one and more
    return true;
  }
  texts_.splice(texts_.end(), texts_, text);
  return false;
}

bool PrefixCache::drop(SessionId id) {
  const auto text = find(id);
  if (text == texts_.end()) return false;
  erase(text);
  return true;
}

std::vector<SessionId> PrefixCache::trim(std::int64_t bytes_max, std::int64_t texts_max) {
  std::vector<SessionId> dropped;
  while (!texts_.empty() && (bytes_ > bytes_max || std::ssize(texts_) > texts_max)) {
    dropped.push_back(texts_.front().id);
    erase(texts_.begin());
  }
  return dropped;
}

PrefixCache::Texts::iterator PrefixCache::find(SessionId id) {
  return std::find_if(texts_.begin(), texts_.end(), [&](const KeptText& text) { return text.id == id; });
}

void PrefixCache::erase(Texts::iterator text) {
  bytes_ -= bytes_of(*text);
  texts_.erase(text);
}

}  // namespace outrider
