#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/wire/messages/messages.h"

namespace outrider {

/// A sequence with cached K/V.
struct KeptSequence {
  SessionId id{};
  std::vector<TokenId> tokens;         ///< of the positions [0, size)
  Position written = 0;                ///< end of the rows ever written: a ring has lost rows far before it
  bool shared = false;                 ///< common prefix of several sequences: stays for the next one
  std::string scope = {};              ///< see Prefill::cache_scope
  std::vector<WireMedium> media = {};  ///< see Prefill; the token ids at their positions do not count
};

/// Finds the sequence with the longest common prefix with a prompt, among the offered ones of its scope.
class PrefixSearch {
 public:
  /// @param prompt, scope, media  outlive the search
  /// @param ring_rows  rows of a sliding layer's ring; 0: no ring
  /// @param rows_max  of one forward
  PrefixSearch(std::span<const TokenId> prompt, std::string_view scope, std::int64_t ring_rows, std::int64_t rows_max,
               std::span<const WireMedium> media = {})
      : prompt_(prompt), scope_(scope), ring_rows_(ring_rows), rows_max_(rows_max), media_(media) {}

  /// A sequence whose K/V are here, or will be.
  struct Sequence {
    SessionId id;
    std::string_view scope;
    std::span<const TokenId> tokens;
    Position have = 0;       ///< tokens with K/V
    Position written = 0;    ///< see KeptSequence
    bool under_way = false;  ///< the other tokens will have K/V soon
    std::span<const WireMedium> media = {};
  };
  void offer(const Sequence& sequence);

  SessionId from() const { return from_; }
  Position written() const { return written_; }
  Position best() const { return best_; }      ///< positions reusable from `from`
  Position soon() const { return soon_; }      ///< positions that a sequence in progress has or will have
  Position common() const { return common_; }  ///< positions in common with some sequence, even if its rings lost them

 private:
  std::span<const TokenId> prompt_;
  std::string_view scope_;
  std::int64_t ring_rows_, rows_max_;
  std::span<const WireMedium> media_;
  SessionId from_{};
  Position written_ = 0, best_ = 0, soon_ = 0, common_ = 0;
};

/// Accounts for the K/V of ended sequences and of common prefixes, which are kept until the memory is needed. The
/// engine owns the rows themselves. Pure.
class PrefixCache {
 public:
  explicit PrefixCache(const KvCost& cost) : cost_(cost) {}

  void offer_all(PrefixSearch& search) const;
  /// Adds a sequence as the most recently used one.
  void keep(KeptSequence sequence);
  /// Reuses the first `length` positions of a sequence for a prompt. The sequence becomes the most recently used one,
  /// or leaves the cache if the prompt continues all of it and no other prompt shares it.
  /// @return true if the sequence left the cache: its rows may be moved, not copied
  bool use(SessionId id, Position length);
  /// Changes a sequence's number. @return true if the cache has it
  bool rename(SessionId id, SessionId to);
  /// Drops the least recently used sequences until the rest fits. @return the dropped ones
  std::vector<SessionId> trim(std::int64_t bytes_max, std::int64_t sequences_max);
  std::int64_t bytes() const { return bytes_; }

 private:
  using List = std::list<KeptSequence>;
  List::iterator find(SessionId id);
  /// Returns the bytes of a sequence's K/V rows and media.
  std::int64_t bytes_of(const KeptSequence& sequence) const;
  void erase(List::iterator sequence);

  KvCost cost_;
  List sequences_;  ///< least recently used first
  std::int64_t bytes_ = 0;
};

}  // namespace outrider
