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

/// A sequence whose K/V are there.
struct KeptText {
  SessionId id{};
  std::vector<TokenId> tokens;         ///< of the positions [0, size)
  Position written = 0;                ///< end of the rows ever written: a ring has lost what lies far before it
  bool shared = false;                 ///< the start of several sequences: it stays for the next one
  std::string scope = {};              ///< as its Prefill's cache_scope
  std::vector<WireMedium> media = {};  ///< likewise; where they are the tokens do not count
};

/// Finds the sequence that has most of a prompt's start, among those offered of its scope.
class PrefixSearch {
 public:
  /// @param prompt, scope, media  outlive the search.
  /// @param ring_rows rows of a sliding layer's ring; 0: there is none. @param rows_max of one forward.
  PrefixSearch(std::span<const TokenId> prompt, std::string_view scope, std::int64_t ring_rows, std::int64_t rows_max,
               std::span<const WireMedium> media = {})
      : prompt_(prompt), scope_(scope), ring_rows_(ring_rows), rows_max_(rows_max), media_(media) {}

  /// A sequence whose K/V are here, or will be.
  struct Text {
    SessionId id;
    std::string_view scope;
    std::span<const TokenId> tokens;
    Position have = 0;       ///< so many tokens have K/V
    Position written = 0;    ///< as KeptText's
    bool under_way = false;  ///< the other tokens will have theirs soon
    std::span<const WireMedium> media = {};
  };
  void offer(const Text& text);

  SessionId from() const { return from_; }
  Position written() const { return written_; }
  Position best() const { return best_; }      ///< positions that can be had from `from`
  Position soon() const { return soon_; }      ///< positions that a sequence under way has or will have
  Position common() const { return common_; }  ///< positions that some text has in common, though its rings may not

 private:
  std::span<const TokenId> prompt_;
  std::string_view scope_;
  std::int64_t ring_rows_, rows_max_;
  std::span<const WireMedium> media_;
  SessionId from_{};
  Position written_ = 0, best_ = 0, soon_ = 0, common_ = 0;
};

/// Books on the K/V of sequences that have ended, and of starts of sequences: kept while nobody else needs the memory.
/// The rows themselves are the engine's. Pure.
class PrefixCache {
 public:
  explicit PrefixCache(const KvCost& cost) : cost_(cost) {}

  void offer_all(PrefixSearch& search) const;
  /// Its text is the one used last.
  void keep(KeptText text);
  /// A prompt continues the first `length` positions of a sequence, which thereby is the one used last; one that it
  /// continues whole, and no other will, leaves the cache. @return whether it left: its rows may be taken, not copied.
  bool use(SessionId id, Position length);
  /// @return whether it was there.
  bool drop(SessionId id);
  /// Drops those used longest ago until the rest fits. @return which.
  std::vector<SessionId> trim(std::int64_t bytes_max, std::int64_t texts_max);
  std::int64_t bytes() const { return bytes_; }

 private:
  using Texts = std::list<KeptText>;
  Texts::iterator find(SessionId id);
  /// Of its K/V rows, pictures and sounds.
  std::int64_t bytes_of(const KeptText& text) const;
  void erase(Texts::iterator text);

  KvCost cost_;
  Texts texts_;  ///< used longest ago first
  std::int64_t bytes_ = 0;
};

}  // namespace outrider
