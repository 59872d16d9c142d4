#pragma once

#include <array>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "coordinator-node/worker.h"

namespace outrider {

/// Speed of sequences by their drafters' input. Older rounds count less.
class DrafterSpeeds {
 public:
  /// Counts a round with drafts of such a drafter.
  void count(DraftInput needs, int tokens, double seconds);
  /// Returns the fastest kind's speed relative to this kind's; 0.5 if this kind was not tried recently, so that it is
  /// tried again.
  double slowness(DraftInput needs) const;

 private:
  struct Speed {
    double rounds = 0, tokens = 0, seconds = 0;
    bool tried() const { return rounds >= 40 && seconds > 0; }
    double value() const { return tokens / seconds; }
    void fade(double keep) { rounds *= keep, tokens *= keep, seconds *= keep; }
  };
  std::array<Speed, 2> speeds_ = {};
};

/// The joined workers, their capacity, and their lateness. The caller passes the time.
class Fleet {
 public:
  explicit Fleet(std::uint64_t first_membership) : next_membership_(first_membership) {}

  using Workers = std::map<PeerId, Worker>;
  const Workers& workers() const { return workers_; }
  /// Returns the worker of a peer; nullptr for an unknown peer, and for "".
  Worker* find(const PeerId& peer);
  Worker& at(const PeerId& peer) { return workers_.at(peer); }
  /// Returns the facts that all workers must match: the kept ones, or else a verifier's; nullptr without either.
  const PairFacts* facts() const;
  /// Fixes these facts for all later workers; the first call decides.
  void keep_facts(const PairFacts& facts);

  /// A sequence's requirements of a verifier.
  struct Requirements {
    std::optional<std::string> numeric_class = {};  ///< none: any; "" matches none
    Position context_min = 0;
    Position memory_min = 0;  ///< positions whose K/V its memory must hold beside the media; 0: it may refuse them
    std::string name = {};    ///< of the preferred verifier
    bool only_name = false;   ///< accept no other
    std::string except = {};  ///< excluded verifier
    bool media = false;       ///< the sequence has media that are not encoded yet
    /// With media: class of the verifier or encoder that must encode them; empty: any.
    std::string encoding_class = {};
    std::int64_t media_bytes = 0;                  ///< of all its media, which a verifier keeps beside the K/V
    Position prompt = 0;                           ///< number of its tokens
    std::span<const std::uint64_t> prefixes = {};  ///< of the prompt (hash_prefixes)
    /// Verifiers whose room earlier sequences wait for, so that this sequence gets none of it. choose_verifier() adds
    /// the verifiers that this sequence waits for. Null: no sequence waits.
    std::set<PeerId>* awaited = nullptr;
  };
  /// Returns true if a matching verifier takes sessions.
  bool has_verifier(const Requirements& wanted) const;

  /// Adds a worker, or updates one that says Hello again. A new drafter gets the worst reputation under its key.
  Worker& join(const PeerId& peer, const Hello& hello, TimePoint now);
  /// Removes a worker. @return the worker; empty for an unknown peer
  Workers::node_type remove(const PeerId& peer);
  /// Returns the workers that were silent for longer than `timeout`.
  std::vector<PeerId> silent(Duration timeout, TimePoint now) const;

  /// Returns a drafter that answers; nullptr for one that is suspect, paused or gone.
  Worker* usable_drafter(const PeerId& peer);
  /// Returns the best drafter with room: the one with the fewest sessions relative to its yield (Reputation), its link
  /// and its kind's speed; "" if there is none.
  PeerId choose_drafter(const DrafterRequirements& requirements = {}) const;
  /// Returns an encoder with room for the sequences of a verifier, the one with the fewest sessions; "" if there is
  /// none. Its soft tokens have the bits of the verifier's own towers, if it has any.
  /// @param encoding_class  see Requirements
  PeerId choose_encoder(const Hello& verifier, const std::string& encoding_class) const;
  /// Returns true if there is such an encoder, with room or without.
  bool has_encoder(const Hello& verifier, const std::string& encoding_class) const;
  /// Returns the number of drafters with sessions; 1 if none has.
  int drafters_at_work() const;
  /// Counts a round in which a drafter was asked for drafts. Ignores an unknown peer, and "".
  /// @param accepted  its first draft was accepted
  /// @return a message if the drafter is paused for it
  std::optional<std::string> count_round(const PeerId& drafter, bool accepted, TimePoint now);

  /// A verifier for a sequence, and the sequence's maximal K/V rows there.
  struct Offer {
    PeerId verifier;
    Position positions = 0;
    bool refuses = false;  ///< beyond its total memory: its refusal says best what is missing
  };
  /// Chooses among the verifiers with room for `positions`, or for their whole context: the preferred one, or the one
  /// with the least load relative to its speed. The load includes this sequence, and its prompt without known prefixes.
  /// With media, a verifier without towers needs an encoder with room.
  /// @return none while no verifier has the room
  std::optional<Offer> choose_verifier(Position positions, const Requirements& wanted) const;
  /// Returns the longest answer to such a prompt that fits the largest verifier's memory if empty; below 1: the prompt
  /// does not fit.
  std::int64_t max_tokens_that_fit(const Requirements& wanted) const;

  /// Returns true if this warning about a peer is to be logged: of each text the first in kRepeat, and of a peer
  /// kWarningsMax at most.
  bool is_news(const PeerId& peer, const std::string& text, TimePoint now);
  /// Adds the workers to a Status.
  void describe(Status& status) const;

  DrafterSpeeds speeds = {};

 private:
  /// Returns true if a worker is a verifier for such a sequence, room aside.
  bool takes(const Worker& worker, const Requirements& wanted) const;
  static constexpr Duration kRepeat = std::chrono::minutes(1);
  static constexpr std::size_t kReportedMax = 1024, kWarningsMax = 16, kDepartedMax = 1024;

  Workers workers_;
  std::optional<PairFacts> facts_;              ///< fixed by keep_facts()
  std::map<PeerId, std::map<std::string, TimePoint>> reported_;  ///< recent warnings, and when each was logged
  /// By key: the worst drafter that has left, if it is worse than a new one. When full, the best one is dropped.
  std::map<std::string, Reputation> departed_;
  std::uint64_t next_membership_;
};

/// Returns true if another drafter of the present kinds, or a first drafter, could draft for such a sequence.
bool more_drafters_help(const Fleet& fleet, const DrafterRequirements& requirements);

}  // namespace outrider
