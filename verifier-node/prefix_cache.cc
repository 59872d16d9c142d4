#include "verifier-node/prefix_cache.h"

#include <algorithm>

#include "common/wire/messages/media_bytes.h"

namespace outrider {
namespace {

/// Returns the positions below `end` up to the first medium that only one of two sequences has.
Position same_media(std::span<const WireMedium> a, std::span<const WireMedium> b, Position end) {
  for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    const Position first = std::min(i < a.size() ? a[i].first : end, i < b.size() ? b[i].first : end);
    if (first >= end) return end;
    if (i >= a.size() || i >= b.size() || a[i] != b[i]) return first;
  }
  return end;
}

}  // namespace

void PrefixSearch::offer(const Text& text) {
  if (text.scope != scope_) return;
  const Position same = std::ranges::mismatch(prompt_, text.tokens).in1 - prompt_.begin();
  const Position common = same_media(media_, text.media, same);
  common_ = std::max(common_, common);
  if (text.under_way && common > text.have) soon_ = std::max(soon_, common);
  const Position usable = std::min(common, text.have);
  // As in KvCache::holds: rings written up to `written` still have the rows that a sequence of this length needs.
  const bool held = ring_rows_ == 0 || text.written <= ring_rows_ || usable + rows_max_ >= text.written;
  if (usable > best_ && held) best_ = usable, from_ = text.id, written_ = text.written;
}

void PrefixCache::offer_all(PrefixSearch& search) const {
  for (const KeptText& text : texts_)
    search.offer({.id = text.id,
                  .scope = text.scope,
                  .tokens = text.tokens,
                  .have = std::ssize(text.tokens),
                  .written = text.written,
                  .media = text.media});
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
  if (text == texts_.end()) return false;  // of a session in progress
  if (!text->shared && std::ssize(text->tokens) == length) {
    erase(text);  // the new sequence continues it, and will contain all of it
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
