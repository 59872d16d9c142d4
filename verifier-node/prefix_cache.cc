#include "verifier-node/prefix_cache.h"

#include <algorithm>

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

void PrefixSearch::offer(const Sequence& sequence) {
  if (sequence.scope != scope_) return;
  const Position same = std::ranges::mismatch(prompt_, sequence.tokens).in1 - prompt_.begin();
  const Position common = same_media(media_, sequence.media, same);
  common_ = std::max(common_, common);
  if (sequence.under_way && common > sequence.have) soon_ = std::max(soon_, common);
  const Position usable = std::min(common, sequence.have);
  // As in KvCache::holds: rings written up to `written` still have the rows that a sequence of this length needs.
  const bool held = ring_rows_ == 0 || sequence.written <= ring_rows_ || usable + rows_max_ >= sequence.written;
  if (usable > best_ && held) best_ = usable, from_ = sequence.id, written_ = sequence.written;
}

void PrefixCache::offer_all(PrefixSearch& search) const {
  for (const KeptSequence& sequence : sequences_)
    search.offer({.id = sequence.id,
                  .scope = sequence.scope,
                  .tokens = sequence.tokens,
                  .have = std::ssize(sequence.tokens),
                  .written = sequence.written,
                  .media = sequence.media});
}

std::int64_t PrefixCache::bytes_of(const KeptSequence& sequence) const {
  return cost_.bytes(sequence.written) + media_bytes(sequence.media);
}

void PrefixCache::keep(KeptSequence sequence) {
  bytes_ += bytes_of(sequence);
  sequences_.push_back(std::move(sequence));
}

bool PrefixCache::use(SessionId id, Position length) {
  const auto sequence = find(id);
  if (sequence == sequences_.end()) return false;  // of a session in progress
  if (!sequence->shared && std::ssize(sequence->tokens) == length) {
    erase(sequence);  // the new sequence continues it, and will contain all of it
    return true;
  }
  sequences_.splice(sequences_.end(), sequences_, sequence);
  return false;
}

bool PrefixCache::rename(SessionId id, SessionId to) {
  const auto sequence = find(id);
  if (sequence == sequences_.end()) return false;
  sequence->id = to;
  return true;
}

std::vector<SessionId> PrefixCache::trim(std::int64_t bytes_max, std::int64_t sequences_max) {
  std::vector<SessionId> dropped;
  while (!sequences_.empty() && (bytes_ > bytes_max || std::ssize(sequences_) > sequences_max)) {
    dropped.push_back(sequences_.front().id);
    erase(sequences_.begin());
  }
  return dropped;
}

PrefixCache::List::iterator PrefixCache::find(SessionId id) {
  return std::find_if(sequences_.begin(), sequences_.end(),
                      [&](const KeptSequence& sequence) { return sequence.id == id; });
}

void PrefixCache::erase(List::iterator sequence) {
  bytes_ -= bytes_of(*sequence);
  sequences_.erase(sequence);
}

}  // namespace outrider
