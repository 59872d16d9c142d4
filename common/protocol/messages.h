#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/policy/policies.h"
#include "common/sampling/distribution.h"
#include "common/sampling/logprobs.h"
#include "common/sampling/params.h"
#include "common/tensor/tensor.h"

namespace outrider {

/// Both sides of a connection must speak the same one. Raised when a message changes its meaning;
/// adding an optional field does not raise it (schemas/README.md).
inline constexpr std::uint32_t kProtocolVersion = 5;

/// Limits that hold before a field is believed. A frame or count beyond them is malformed.
struct WireLimits {
  std::size_t header_bytes_max = 8u << 20;   ///< a prompt of 131,072 ids fits many times
  std::size_t tensor_bytes_max = 64u << 20;  ///< one donor tensor of one prefill chunk
  std::size_t tensors_max = 5;               ///< hidden row, then K and V of two donors
  std::size_t tokens_max = 1u << 20;
  std::size_t workers_max = 256;  ///< that a Status lists
  std::int32_t draft_length_max = kDraftLengthMax;
};

/// Bytes that somebody keeps alive: a network frame, or an engine's copy. Immutable, cheap to copy.
class SharedBytes {
 public:
  SharedBytes() = default;
  SharedBytes(std::shared_ptr<const void> owner, std::span<const std::byte> bytes)
      : owner_(std::move(owner)), bytes_(bytes) {}
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::shared_ptr<const void> owner_;
  std::span<const std::byte> bytes_;
};

/// A tensor on the wire: travels in a frame of its own. shape.size() <= 3, row-major, contiguous.
struct WireTensor {
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  SharedBytes data;
};

/// Committed K/V rows of one donor layer: positions [first, first + rows). Sliding donors leave out
/// rows that no future draft can see, so `first` may lie beyond the delta's `from`.
struct DonorDelta {
  Position first = 0;
  WireTensor key, value;  ///< [rows, num_key_value_heads, head_dim], as the target caches them
};

/// Donor K/V of the committed positions [from, to), one entry per donor in handshake order.
/// from == to with no entries means "nothing".
struct KvRows {
  Position from = 0, to = 0;
  std::vector<DonorDelta> donors;
  bool empty() const { return from == to; }
};

enum class Role : std::uint8_t { kVerifier, kDrafter };

struct DonorFacts {
  bool sliding = false;
  std::int32_t layer = 0;
  std::int32_t num_key_value_heads = 0;
  std::int32_t head_dim = 0;
  std::int32_t sliding_window = 0;  ///< 0 for full attention
  bool operator==(const DonorFacts&) const = default;
};

/// What two nodes must agree on before they may work on the same text.
struct PairFacts {
  std::uint64_t backbone_fingerprint = 0;   ///< of the weights; 0: not known to this node
  std::uint64_t embedding_fingerprint = 0;  ///< of the target's embedding table, which both tiers hold
  std::int32_t hidden_size = 0;
  std::int32_t vocab_size = 0;
  Position context_max = 0;
  DType kv_dtype = DType::kF32;         ///< K/V rows as the verifier sends them
  DType hidden_dtype = DType::kF32;     ///< the exported hidden row
  std::vector<DonorFacts> donors = {};  ///< sliding first, then full
  bool operator==(const PairFacts&) const = default;
};

// ---- connection ----

/// What K/V rows take: every position in the full layers, the last ring_rows of them in the sliding ones.
struct KvCost {
  std::int64_t bytes_per_position = 0;
  std::int64_t ring_bytes_per_position = 0;
  std::int64_t ring_rows = 0;
  std::int64_t bytes(Position positions) const {
    return positions * bytes_per_position + std::min<Position>(positions, ring_rows) * ring_bytes_per_position;
  }
  /// The most that cost no more than `bytes`.
  Position positions(std::int64_t bytes) const {
    const std::int64_t first = bytes_per_position + ring_bytes_per_position;  // while the rings are not full
    if (first > 0 && bytes / first < ring_rows) return bytes / first;
    return bytes_per_position > 0 ? (bytes - ring_rows * ring_bytes_per_position) / bytes_per_position
                                  : std::numeric_limits<Position>::max();
  }
};

/// What a worker takes at once. Of a drafter only sessions_max is heeded: K/V of its sessions are not counted.
struct Capacity {
  std::int64_t sessions_max = 256;
  KvCost kv_cost = {};
  /// K/V of all sessions together. What would not fit is refused before any of it is computed.
  std::int64_t kv_bytes_max = std::numeric_limits<std::int64_t>::max();
};

struct Hello {  ///< worker -> coordinator
  Role role = Role::kVerifier;
  std::string name;  ///< for people: role, host and process id
  PairFacts facts;
  Capacity capacity = {};
};
struct Welcome {  ///< coordinator -> worker
  /// The next number for each worker that joins, also for one that was given up and comes back. Another than before:
  /// the coordinator knows of no session here, forget them all.
  std::uint64_t membership = 0;
};
struct Refuse {  ///< either way: this connection is of no use
  Errc code = Errc::kMismatch;
  std::string message;
};
struct WhoAreYou {};  ///< coordinator -> an unknown worker: say Hello again
struct Heartbeat {    ///< both ways, every heartbeat interval
  /// The coordinator's clock. A worker that gets one above 0 sends it back at once, and the coordinator
  /// then knows the round trip. A worker's own heartbeats have 0.
  std::int64_t sent_ns = 0;
};
struct Drain {};  ///< worker -> coordinator: give me no new sessions

// ---- one session ----

struct Prefill {  ///< coordinator -> verifier; round 0, base 0
  std::vector<TokenId> tokens;
  bool want_kv = false;                ///< stream donor rows while it runs
  Position positions_max = 0;          ///< K/V rows that the whole session can come to need; 0: not known
  SamplingParams sampling = {};        ///< of the whole session
  std::vector<TokenId> stop_ids = {};  ///< what sampling.min_tokens masks; empty without it
  bool compute_all = false;            ///< reuse no K/V: only later Verifys would bring all of their rows to a drafter
};
struct KvChunk {  ///< verifier -> coordinator -> drafter while a prefill runs
  KvRows kv;
};
struct Draft {        ///< coordinator -> drafter; base is the position of `token`
  TokenId token = 0;  ///< the last emitted token
  std::int32_t draft_length = 0;
  /// [hidden_size], the target row that produced `token`, after the final norm; or a Candidates' state, in f32.
  WireTensor hidden;
  KvRows kv;                                    ///< must end at base
  std::optional<SamplingParams> sampling = {};  ///< none: draft greedily
  std::int64_t index = 0;                       ///< of the first draft in the answer
  bool want_state = false;                      ///< the drafts are to be gone on from, unverified
  bool want_q = false;  ///< Candidates::q under every rule, for the rejection log; changes no draft
};
struct Candidates {  ///< drafter -> coordinator; coordinator -> client, for a Step
  std::vector<TokenId> tokens;
  std::int64_t draft_ns = 0;  ///< spent in assistant forwards
  /// At most kDraftTopK tokens each. For kRejection: what each token was drawn from. If wanted, also under kMatch: what
  /// kRejection would draw from; and where drafts are the likeliest tokens (greedy, kTypical): the drafter's scores at
  /// temperature 1 without filters.
  std::vector<Distribution> q = {};
  std::optional<WireTensor> state =
      {};  ///< [hidden_size] f32, the assistant's own row after the last token, if it is wanted
};
struct NeedKv {       ///< drafter -> coordinator instead of Candidates
  Position have = 0;  ///< committed rows that the replica holds
};
struct Verify {                          ///< coordinator -> verifier; base is the position of tokens[0]
  std::vector<TokenId> tokens;           ///< the last emitted token, then the drafts
  std::optional<Position> kv_from = {};  ///< send donor rows from here on; none: send no hidden row and no K/V
  std::vector<Distribution> q = {};      ///< of each draft; empty: the drafts must match
};
struct Verdict {                          ///< verifier -> coordinator; answers Prefill (accepted 0) and Verify
  std::int32_t accepted = 0;              ///< drafts kept
  TokenId next_token = 0;                 ///< the bonus token, or the replacement of the first rejected draft
  Position committed = 0;                 ///< K/V rows valid from now on
  std::optional<WireTensor> hidden = {};  ///< [hidden_size], the row that produced next_token
  KvRows kv = {};
  std::int64_t verify_ns = 0;  ///< the forward pass that held these rows
  std::vector<TokenLogprobs> logprobs =
      {};  ///< of the accepted drafts and next_token, if the session wants them; as many alternatives each
  Position cached_tokens = 0;  ///< of a Prefill: so many of its tokens were not computed, their K/V were there
};
/// client -> coordinator: nobody wants more tokens. With `keep` the answer is its first `keep` tokens, and finished:
/// Done follows, with kStop. Without, the request failed: kCancelled.
struct Cancel {
  std::optional<std::int64_t> keep = {};
};
struct Free {};  ///< coordinator -> workers: forget the session
struct Failed {  ///< worker -> coordinator, coordinator -> client
  Errc code = Errc::kInvalidArgument;
  std::string message;
};

// ---- clients ----

struct Generate {  ///< client -> coordinator; session is the client's own request number
  std::vector<TokenId> prompt;
  std::int64_t max_tokens = 0;
  std::int32_t draft_length =
      0;  ///< of every round (DraftPolicy::kFixed), or the most that the policy may choose; 0: plain decoding
  std::vector<TokenId> stop_ids = {};  ///< at most kSamplingListMax; empty: only max_tokens and the context end it
  std::int64_t wait_ms = 0;            ///< how long to wait for a verifier to join
  bool stepwise = false;               ///< after the first token, every round waits for the client's Steps
  SamplingParams sampling = {};
  /// After the first token the answer is the drafter's own, draft_length tokens a round, which nobody verifies.
  bool unverified = false;
  DraftPolicy policy = DraftPolicy::kFixed;
  bool report_rounds = false;  ///< Tokens say how their round went
  std::string on_behalf_of = {};  ///< whom a front end asks for, in a name of its own
  bool shorten =
      false;  ///< lower max_tokens to what the verifier with the most K/V memory can hold, instead of refusing
};
/// client -> coordinator: one half of a stepwise session's next round. A Failed with kInvalidArgument
/// refuses this step alone; any other ends the session.
struct Step {
  std::int32_t draft_length = 0;  ///< above 0: draft that many; the answer is Candidates, perhaps none
  std::vector<TokenId> drafts;    ///< else: verify these, perhaps none; the answer is Tokens
};
/// How a round went.
struct RoundReport {
  std::int32_t draft_length = 0;     ///< as the policy chose it
  std::vector<TokenId> drafts = {};  ///< those that reached the verifier
  RoundOutcome outcome = {};         ///< its `arm` does not travel
};
struct Tokens {            ///< coordinator -> client
  std::int64_t index = 0;  ///< of tokens[0] in the answer
  std::vector<TokenId> tokens;
  std::vector<TokenLogprobs> logprobs = {};  ///< of each, if the request wants them; as many alternatives each
  std::optional<RoundReport> round = {};     ///< if asked for, and not with the first token
};
enum class FinishReason : std::uint8_t { kStop, kLength };

/// Sums over a request, kept by the coordinator. Durations in nanoseconds.
struct RequestMetrics {
  std::int64_t rounds = 0;           ///< verifies, not counting the prefill
  std::int64_t drafting_rounds = 0;  ///< of these, with at least one draft
  std::int64_t drafted_tokens = 0;
  std::int64_t accepted_tokens = 0;
  std::vector<std::int64_t> drafted_per_position, accepted_per_position;
  std::int64_t prefill_ns = 0;                    ///< request to first token
  std::int64_t decode_ns = 0;                     ///< first token to last
  std::int64_t draft_ns = 0;                      ///< assistant forwards, as the drafter measured them
  std::int64_t verify_ns = 0;                     ///< backbone forwards of verifies, as the verifier measured them
  std::int64_t wire_ns = 0;                       ///< request to answer at the coordinator, less the two above
  std::int64_t wire_bytes_to_drafter = 0;         ///< rounds: hidden rows, K/V deltas, headers
  std::int64_t wire_bytes_to_drafter_prompt = 0;  ///< the prompt's K/V, sent once
  std::int64_t wire_bytes_to_verifier = 0;
  std::int64_t ngram_rounds = 0;  ///< of drafting_rounds: drafts were the coordinator's own (DraftSource::kNgram)
  std::int64_t ngram_drafted_tokens = 0, ngram_accepted_tokens = 0;
  std::int64_t cached_prompt_tokens = 0;  ///< of the prompt: their K/V were those of an earlier text

  /// Of drafting_rounds: drafts were the assistant's, what draft_ns was spent on.
  std::int64_t assistant_rounds() const { return drafting_rounds - ngram_rounds; }
};
/// Adds one request's to the sums of several; the lists of positions become as long as the longest.
void add(RequestMetrics& sum, const RequestMetrics& one);
struct Done {  ///< coordinator -> client
  FinishReason reason = FinishReason::kStop;
  RequestMetrics metrics;
};
struct StatusRequest {};  ///< client -> coordinator
/// A worker as its coordinator sees it.
struct WorkerStatus {
  Role role = Role::kVerifier;
  std::string name;  ///< of its Hello; no two of a Status are the same
  std::int32_t sessions = 0;
  bool draining = false;
  std::int64_t rtt_ns = 0;  ///< round trip of a heartbeat, smoothed; 0: not measured yet
  /// Of a verifier: K/V set aside for its sessions, and all that it has.
  std::int64_t kv_bytes = 0, kv_bytes_max = 0;
};
struct Status {
  std::int32_t verifiers = 0, drafters = 0;
  std::int32_t sessions = 0;               ///< open ones, those that wait included
  std::int32_t waiting = 0;                ///< for a verifier that has room
  std::vector<WorkerStatus> workers = {};  ///< at most WireLimits::workers_max of them
};

using Body =
    std::variant<Hello, Welcome, Refuse, WhoAreYou, Heartbeat, Drain, Prefill, KvChunk, Draft, Candidates, NeedKv,
                 Verify, Verdict, Cancel, Free, Failed, Generate, Tokens, Done, StatusRequest, Status, Step>;

/// Session, round and base position name the exchange that a message belongs to, so that a
/// duplicate or late one is recognised and dropped. Connection messages leave them 0.
struct Message {
  SessionId session{};
  RoundId round{};
  Position base = 0;
  Body body;
};

/// Short name of the body's type, for logs and errors.
const char* name_of(const Message& message);

/// Opaque name of a connected peer, unique while the transport lives. A worker's coordinator is "".
using PeerId = std::string;

struct Outgoing {
  PeerId to;
  Message message;
};

}  // namespace outrider
