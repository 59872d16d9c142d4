#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>

namespace outrider {

/// Who decides the length of a session's drafts (policies.h).
enum class DraftPolicy : std::uint8_t {
  kFixed,      ///< the request: always the same length
  kAuto,       ///< goodput under the governor (make_auto_policy)
  kHeuristic,  ///< this and the next two are not offered any more (docs/policy.md)
  kUcb1,
  kThompson,
  kTree,  ///< token trees of as many drafts as the request says (tree_shape.h)
};
inline constexpr DraftPolicy kLastDraftPolicy = DraftPolicy::kTree;
inline const char* to_string(DraftPolicy policy) {
  return std::array{"fixed", "auto", "heuristic", "ucb1", "thompson", "tree"}.at(static_cast<std::size_t>(policy));
}

inline bool is_offered(DraftPolicy policy) {
  return policy == DraftPolicy::kFixed || policy == DraftPolicy::kAuto || policy == DraftPolicy::kTree;
}

/// Who proposes the drafts of a round.
enum class DraftSource : std::uint8_t {
  kAssistant,  ///< the drafter, over the wire
  kNgram,      ///< the coordinator itself, from the sequence so far (ngram.h)
  kTable,      ///< the coordinator itself, from a table of the model's answers (draft_table.h)
};
inline constexpr DraftSource kLastDraftSource = DraftSource::kTable;
inline constexpr std::size_t kDraftSources = static_cast<std::size_t>(kLastDraftSource) + 1;
/// Whether the coordinator has the drafts at once: they cost rows, and no wait.
inline bool is_looked_up(DraftSource source) { return source != DraftSource::kAssistant; }
inline const char* to_string(DraftSource source) {
  return std::array{"assistant", "ngram", "table"}.at(static_cast<std::size_t>(source));
}

/// Those that are looked up, where several of them are, in this order: a table says less, and errs less.
inline constexpr std::array kLookUps = {DraftSource::kTable, DraftSource::kNgram};

/// Sources that add to the drafts of the assistant, a fixed length's or a tree's.
struct AddedSources {
  bool ngram = false, table = false;
  bool any() const { return ngram || table; }
  bool operator==(const AddedSources&) const = default;
};

/// Longest draft that there is: no policy considers a longer one, and no message carries one.
inline constexpr int kDraftLengthMax = 32;
/// Most ways in which a round may end for which a drafter drafts ahead.
inline constexpr int kDraftAheadMax = 8;

/// One round as the coordinator saw it. Times in seconds.
struct RoundOutcome {
  DraftSource source = DraftSource::kAssistant;
  int drafted = 0;   ///< drafts that reached the verifier; 0: the round was plain
  int accepted = 0;  ///< of these
  /// Of the drafted, the last ones: so many were looked up behind the last draft of `source`, in the order of kLookUps.
  std::array<int, kDraftSources> behind = {};
  double draft_s = 0;            ///< assistant forwards
  double draft_passes = 0;       ///< so many; 0: one of a row for each draft
  double draft_pass_rows = 0;    ///< rows of each, those of other sequences too
  double draft_wire_s = 0;       ///< request for drafts to their arrival, less draft_s
  double draft_waited_s = 0;     ///< the same where the drafter had others' drafts to make first
  double verify_s = 0;           ///< the forward pass of batch_rows rows
  int batch_rows = 0;            ///< drafted + 1, and those of other sequences
  std::int64_t pass = 0;         ///< the verifier's number of that pass, which all of its sequences have; 0: not told
  double waited_s = 0;           ///< for that pass to begin
  double round_s = 0;            ///< all of it, emission to emission
  std::int64_t draft_bytes = 0;  ///< of the request for drafts
  int draft_rows = 0;            ///< K/V rows in it
  bool ahead = false;            ///< the drafts were made while the round before was verified
  struct Tree {
    int chain = 0, held = 0;  ///< drafts along its first choices, and how many of these held
    bool operator==(const Tree&) const = default;
  };
  std::optional<Tree> tree = {};  ///< the drafts are a token tree of `source`'s
  bool operator==(const RoundOutcome&) const = default;
  /// What the drafts took, or the wait for those that came too late.
  double drafting_s() const { return draft_s + draft_wire_s + draft_waited_s; }
  /// Drafts of `source`.
  int own() const { return drafted - std::accumulate(behind.begin(), behind.end(), 0); }
};

}  // namespace outrider
