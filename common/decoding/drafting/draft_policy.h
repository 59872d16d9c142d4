#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>

namespace outrider {

/// Policy that decides a session's draft lengths (policies.h). 2 to 4 are policies that are no longer offered.
enum class DraftPolicy : std::uint8_t {
  kFixed = 0,  ///< the length in the request
  kAuto = 1,   ///< goodput under the governor
  kTree = 5,   ///< token trees with the number of drafts in the request
};
inline constexpr DraftPolicy kLastDraftPolicy = DraftPolicy::kTree;
inline const char* to_string(DraftPolicy policy) {
  return std::array{"fixed", "auto", "heuristic", "ucb1", "thompson", "tree"}.at(static_cast<std::size_t>(policy));
}

inline bool is_offered(DraftPolicy policy) {
  return policy == DraftPolicy::kFixed || policy == DraftPolicy::kAuto || policy == DraftPolicy::kTree;
}

/// Origin of a round's drafts.
enum class DraftSource : std::uint8_t {
  kAssistant,  ///< the drafter, over the wire
  kNgram,      ///< the coordinator itself, from the sequence so far (ngram.h)
  kTable,      ///< the coordinator itself, from a table of the model's answers (draft_table.h)
};
inline constexpr DraftSource kLastDraftSource = DraftSource::kTable;
inline constexpr std::size_t kDraftSources = static_cast<std::size_t>(kLastDraftSource) + 1;
/// Returns true for the coordinator's own sources: their drafts cost rows, but no wait.
inline bool is_looked_up(DraftSource source) { return source != DraftSource::kAssistant; }
inline const char* to_string(DraftSource source) {
  return std::array{"assistant", "ngram", "table"}.at(static_cast<std::size_t>(source));
}

/// The looked-up sources in the order in which they are tried: tables propose less often, and are wrong less often.
inline constexpr std::array kLookUps = {DraftSource::kTable, DraftSource::kNgram};

/// Sources that extend the assistant's drafts under kFixed and kTree.
struct AddedSources {
  bool ngram = false, table = false;
  bool any() const { return ngram || table; }
  bool operator==(const AddedSources&) const = default;
};

/// Longest draft of any policy and any message.
inline constexpr int kDraftLengthMax = 32;
/// Most outcomes of a round for which a drafter drafts ahead.
inline constexpr int kDraftAheadMax = 8;

/// One round, as measured by the coordinator. Times in seconds.
struct RoundOutcome {
  DraftSource source = DraftSource::kAssistant;
  int drafted = 0;   ///< drafts that reached the verifier; 0: a plain round
  int accepted = 0;  ///< of these
  /// By source: drafts at the end of `drafted` that were looked up after those of `source`, in the order of kLookUps.
  std::array<int, kDraftSources> behind = {};
  double draft_s = 0;            ///< time of the assistant's forward passes
  double draft_passes = 0;       ///< number of these passes; 0: one pass, of one row, per draft
  double draft_pass_rows = 0;    ///< rows per pass, including other sequences'
  double draft_wire_s = 0;       ///< request for drafts until their arrival, less draft_s
  double draft_waited_s = 0;     ///< draft_wire_s of a request that waited for other sequences' drafts
  double verify_s = 0;           ///< the forward pass of batch_rows rows
  int batch_rows = 0;            ///< drafted + 1, and other sequences' rows
  std::int64_t pass = 0;         ///< the verifier's number of that pass, shared by its sequences; 0: not reported
  double waited_s = 0;           ///< wait for that pass to begin
  double round_s = 0;            ///< the whole round, emission to emission
  std::int64_t draft_bytes = 0;  ///< of the request for drafts
  int draft_rows = 0;            ///< K/V rows in that request
  bool ahead = false;            ///< drafted while the previous round was verified
  struct Tree {
    int chain = 0, accepted = 0;  ///< drafts along its first choices, and accepted ones of these
    bool operator==(const Tree&) const = default;
  };
  std::optional<Tree> tree = {};  ///< set when the drafts of `source` are a token tree
  bool operator==(const RoundOutcome&) const = default;
  /// Returns the time spent on drafts, or waiting for those that came too late.
  double drafting_s() const { return draft_s + draft_wire_s + draft_waited_s; }
  /// Returns the number of drafts from `source`.
  int own() const { return drafted - std::accumulate(behind.begin(), behind.end(), 0); }
};

}  // namespace outrider
