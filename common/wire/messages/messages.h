#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/fields.h"
#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/compute/tensor/tensor.h"
#include "common/decoding/drafting/draft_policy.h"
#include "common/decoding/sampling/distribution.h"
#include "common/decoding/sampling/logprobs.h"
#include "common/decoding/sampling/params.h"

/// The messages between Outrider processes. A message is a struct. Its `fields` state once, in the order of
/// schemas/outrider.fbs, the fields on the wire and the values that a receiver accepts (common/base/fields.h). The
/// codec, the printers and the tests' generators derive from them.
namespace outrider {

/// Version that both sides of a connection must share. Raised when a message changes its meaning or gets a field that a
/// receiver must not ignore, such as a sampling parameter. Other optional fields do not raise it (schemas/README.md).
inline constexpr std::uint32_t kProtocolVersion = 15;

/// Limits of the frames of one message. A larger message is refused before it is read.
struct WireLimits {
  std::size_t header_bytes_max = 8u << 20;   ///< a prompt of 131,072 ids fits many times
  std::size_t tensor_bytes_max = 64u << 20;  ///< one donor tensor of one prefill chunk
  std::size_t tensors_max = 40;              ///< media of a prompt; else a hidden row, then K and V of two donors
  /// Of all frames: a header, and a prompt's pictures, of which one client may have 128 MiB queued (AdmissionQueue).
  std::size_t message_bytes_max = 144u << 20;
};

/// Limits of message contents. Positions are bounded so that sums of a few cannot overflow.
inline constexpr std::size_t kTokensMax = 1u << 20;
inline constexpr std::size_t kWorkersMax = 256;  ///< workers in a Status
inline constexpr std::size_t kDonorsMax = 2;
inline constexpr std::size_t kMediaMax = 40;  ///< pictures, frames of videos and sounds of a prompt
inline constexpr Range<Position> kPositions{0, kTokensMax};
inline constexpr Range kDraftLengths{0, kDraftLengthMax};
inline constexpr Range kGuesses{0, kDraftAheadMax};
inline constexpr Count kSequence{0, kTokensMax};                                     ///< tokens of a sequence
inline constexpr Count kDrafts{0, static_cast<std::size_t>(kDraftLengthMax)};        ///< tokens of a round
inline constexpr Count kOutcomes{0, static_cast<std::size_t>(kDraftLengthMax) + 1};  ///< tokens that a round emits
inline constexpr Count kTokenSets{0, kSamplingListMax};                              ///< for example stop tokens
inline constexpr Count kWorkerNameBytes{0, 256};  ///< shorter than kNameBytes by what the coordinator adds
inline constexpr Count kNameBytes{0, 4096};                                          ///< names and messages for people
inline constexpr Count kClientBytes{0, 256};                                       ///< a front end's name for a client
inline constexpr Verbatim kScopeBytes{512};  ///< of a prefix-sharing scope, in which a request's salt may be any bytes
inline constexpr Range<std::int64_t> kBytesPerPosition{0, std::int64_t{1} << 30};  ///< products are an int64
inline constexpr Range<std::int64_t> kWaitMs{0, std::int64_t{24} * 3600 * 1000};   ///< a day
inline constexpr Range<double> kSeconds{0, 1e9};
inline constexpr Range<double> kChances{0, 1};

/// Bytes with shared ownership: of a network frame, or of an engine's copy. Immutable, cheap to copy.
class SharedBytes {
 public:
  SharedBytes() = default;
  SharedBytes(std::shared_ptr<const void> owner, std::span<const std::byte> bytes)
      : owner_(std::move(owner)), bytes_(bytes) {}
  std::span<const std::byte> bytes() const { return bytes_; }
  /// Compares contents.
  bool operator==(const SharedBytes& other) const {
    return std::equal(bytes_.begin(), bytes_.end(), other.bytes_.begin(), other.bytes_.end());
  }

 private:
  std::shared_ptr<const void> owner_;
  std::span<const std::byte> bytes_;
};

/// A tensor on the wire: travels in a frame of its own. shape.size() <= 3, row-major, contiguous.
struct WireTensor {
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  SharedBytes data;
  bool operator==(const WireTensor&) const = default;
};
/// Allowed ranks of a message's tensor.
struct Rank {
  std::size_t min = 0, max = min;
};
/// Last type that a tensor on the wire may have; the types after it occur in files only.
inline constexpr DType kLastWireDType = DType::kQ4_0;

/// Rounding of K/V rows and hidden rows for a drafter (docs/protocol.md, "What crosses the wire"). The type of a tensor
/// shows its form, and a drafter accepts every form. Rounding does not change the answer: the verifier's own rows are
/// exact.
enum class WireForm : std::uint8_t {
  kExact,  ///< the verifier's own type
  kInt8,   ///< Q8_0: 34 bytes for 32 numbers
  kInt4,   ///< Q4_0: 18 bytes for 32 numbers
  kAuto,   ///< in a Hello: the coordinator chooses by transfer time (WireChoice)
};
inline const char* to_string(WireForm form) {
  return std::array{"exact", "int8", "int4", "auto"}.at(static_cast<std::size_t>(form));
}

/// Committed K/V rows of one donor layer: positions [first, first + rows). Sliding donors leave out
/// rows that no future draft can see, so `first` may lie beyond the delta's `from`.
struct DonorDelta {
  Position first = 0;
  WireTensor key, value;  ///< [rows, num_key_value_heads, head_dim], as the target caches them or in a WireForm

  bool operator==(const DonorDelta&) const = default;
  static void fields(auto& v, auto& m) {
    v("first", m.first, kPositions);
    v("key", m.key, Rank{3});
    v("value", m.value, Rank{3});
  }
};

/// Input of a drafter, besides the tokens of a Draft.
enum class DraftInput : std::uint8_t {
  kTargetRows,  ///< donor K/V and hidden rows of its verifier: an assistant
  kTokens,      ///< token ids alone: a whole model, which has K/V of its own
};
inline const char* to_string(DraftInput input) {
  return std::array{"target rows", "tokens"}.at(static_cast<std::size_t>(input));
}

/// Drafter input for the committed positions [from, to): donor K/V, one entry per donor in handshake order, or the
/// tokens there (DraftInput). Rows come to a drafter with their tokens. from == to with neither means "nothing".
struct KvRows {
  Position from = 0, to = 0;
  std::vector<DonorDelta> donors = {};
  std::vector<TokenId> tokens = {};
  bool empty() const { return from == to; }

  bool operator==(const KvRows&) const = default;
  static void fields(auto& v, auto& m) {
    v("from", m.from, kPositions);
    v("to", m.to, kPositions);
    v("donors", m.donors, Count{0, kDonorsMax});
    v("tokens", m.tokens, kSequence);
  }
  Result<void> settle() const;
};

enum class Role : std::uint8_t { kVerifier, kDrafter, kEncoder };
inline constexpr Role kLastRole = Role::kEncoder;
inline const char* to_string(Role role) {
  return std::array{"verifier", "drafter", "encoder"}.at(static_cast<std::size_t>(role));
}

struct DonorFacts {
  bool sliding = false;
  std::int32_t layer = 0;
  std::int32_t num_key_value_heads = 0;
  std::int32_t head_dim = 0;
  std::int32_t sliding_window = 0;  ///< 0 for full attention

  bool operator==(const DonorFacts&) const = default;
  static void fields(auto& v, auto& m) {
    v("sliding", m.sliding);
    v("layer", m.layer, kNatural);
    v("num_key_value_heads", m.num_key_value_heads, kNatural);
    v("head_dim", m.head_dim, kNatural);
    v("sliding_window", m.sliding_window, kNatural);
  }
};

/// Facts that two nodes must agree on before they may work on the same sequence.
struct PairFacts {
  std::uint64_t backbone_fingerprint = 0;   ///< of the weights; 0: unknown to this node
  std::uint64_t embedding_fingerprint = 0;  ///< of the target's embedding table, which both tiers load
  std::int32_t hidden_size = 0;
  std::int32_t vocab_size = 0;
  Position context_max = 0;
  DType kv_dtype = DType::kF32;         ///< type of the verifier's K/V rows
  DType hidden_dtype = DType::kF32;     ///< type of the exported hidden row
  std::vector<DonorFacts> donors = {};  ///< sliding first, then full
  /// Tokenizer::fingerprint() of the target's; 0: unknown to this node.
  std::uint64_t tokenizer_fingerprint = 0;

  bool operator==(const PairFacts&) const = default;
  static void fields(auto& v, auto& m) {
    v("backbone_fingerprint", m.backbone_fingerprint);
    v("embedding_fingerprint", m.embedding_fingerprint);
    v("hidden_size", m.hidden_size, kNatural);
    v("vocab_size", m.vocab_size, kNatural);
    v("context_max", m.context_max, kPositions);
    v("kv_dtype", m.kv_dtype, kLastWireDType);
    v("hidden_dtype", m.hidden_dtype, kLastWireDType);
    v("donors", m.donors, Count{0, kDonorsMax});
    v("tokenizer_fingerprint", m.tokenizer_fingerprint);
  }
};

// ---- connection ----

/// Memory of K/V rows: full layers keep every position, sliding layers the last ring_rows.
struct KvCost {
  std::int64_t bytes_per_position = 0;
  std::int64_t ring_bytes_per_position = 0;
  std::int64_t ring_rows = 0;
  std::int64_t bytes(Position positions) const {
    return positions * bytes_per_position + std::min<Position>(positions, ring_rows) * ring_bytes_per_position;
  }
  /// Returns the number of positions that fit into `bytes`.
  Position positions(std::int64_t bytes) const {
    const std::int64_t first = bytes_per_position + ring_bytes_per_position;  // while the rings are not full
    if (first > 0 && bytes / first < ring_rows) return bytes / first;
    return bytes_per_position > 0 ? (bytes - ring_rows * ring_bytes_per_position) / bytes_per_position
                                  : std::numeric_limits<Position>::max();
  }
  bool operator==(const KvCost&) const = default;
};

/// Concurrent work that a worker accepts. An assistant drafter's K/V are not counted.
struct Capacity {
  std::int64_t sessions_max = 256;
  KvCost kv_cost = {};
  /// K/V of all sessions together. A session that would not fit is refused before any of it is computed.
  std::int64_t kv_bytes_max = std::numeric_limits<std::int64_t>::max();

  bool operator==(const Capacity&) const = default;
  static void fields(auto& v, auto& m) {
    v("sessions_max", m.sessions_max, kNatural);
    v("bytes_per_position", m.kv_cost.bytes_per_position, kBytesPerPosition);
    v("ring_bytes_per_position", m.kv_cost.ring_bytes_per_position, kBytesPerPosition);
    v("ring_rows", m.kv_cost.ring_rows, kPositions);
    v("kv_bytes_max", m.kv_bytes_max, kNatural);
  }
};

/// Number of processes that compute a verifier's backbone together.
inline constexpr Range<std::int32_t> kShards{1, 64};

/// Worker -> coordinator: asks to join.
struct Hello {
  Role role = Role::kVerifier;
  std::string name;  ///< for people: role, host and process id
  PairFacts facts;
  Capacity capacity = {};
  /// Verifiers only: everything that the bits depend on. Verifiers of equal class can take over each other's sequences
  /// without changing a byte (docs/numerics.md). Compared as a string; empty: equal to no other.
  std::string numeric_class = {};
  WireForm wire = WireForm::kExact;  ///< drafters only: wanted rounding of rows
  /// Encoders, and verifiers with towers: everything that the bits of soft tokens depend on. Compared as a string;
  /// empty: encodes nothing.
  std::string encoding_class = {};
  /// Verifiers only: an encoder must encode its pictures and sounds. Otherwise the verifier encodes what no encoder
  /// takes, or reports why it cannot.
  bool no_towers = false;
  /// Drafters only. A drafter that needs tokens alone has no donors and no hidden size in its facts.
  DraftInput needs = DraftInput::kTargetRows;
  /// Verifiers only: number of shards. The verifier is lost when one of them is.
  std::int32_t shards = 1;
  bool shards_over_tcp = false;  ///< the shards run on several hosts
  /// Not on the wire: set by the coordinator's endpoint for a worker on another machine without a key.
  bool unproven = false;

  bool operator==(const Hello&) const = default;
  static void fields(auto& v, auto& m) {
    v("role", m.role, kLastRole);
    v("name", m.name, kWorkerNameBytes);
    v("facts", m.facts);
    v("capacity", m.capacity);
    v("numeric_class", m.numeric_class, kNameBytes);
    v("wire", m.wire, WireForm::kAuto);
    v("encoding_class", m.encoding_class, kNameBytes);
    v("no_towers", m.no_towers);
    v("needs", m.needs, DraftInput::kTokens);
    v("shards", m.shards, kShards, 1);
    v("shards_over_tcp", m.shards_over_tcp);
  }
};

/// Coordinator -> worker: the worker has joined.
struct Welcome {
  /// Number of this membership; each join gets the next one, also after the worker was given up. A worker whose number
  /// changes forgets all of its sessions, since the coordinator has none of them.
  std::uint64_t membership = 0;

  bool operator==(const Welcome&) const = default;
  static void fields(auto& v, auto& m) { v("membership", m.membership); }
};

/// Either way: this connection cannot be used.
struct Refuse {
  Errc code = Errc::kMismatch;
  std::string message;

  bool operator==(const Refuse&) const = default;
  static void fields(auto& v, auto& m) {
    v("code", m.code, Errc::kIo);
    v("message", m.message, kNameBytes);
  }
};

/// Coordinator -> an unknown worker: send Hello again. With a client's session it is the last message of that session:
/// the coordinator is about to end, and the client should ask the next one.
struct WhoAreYou {
  bool operator==(const WhoAreYou&) const = default;
  static void fields(auto&, auto&) {}
};

/// Both ways, every heartbeat interval. With a session and round, it tells that a resent request is in work at its
/// verifier.
struct Heartbeat {
  /// The coordinator's clock. A worker returns a value above 0 at once, which gives the coordinator the round trip. A
  /// worker's own heartbeats have 0.
  std::int64_t sent_ns = 0;

  bool operator==(const Heartbeat&) const = default;
  static void fields(auto& v, auto& m) { v("sent_ns", m.sent_ns, kNatural); }
};

/// Worker -> coordinator: send no new sessions. Repeated in place of heartbeats.
struct Drain {
  bool operator==(const Drain&) const = default;
  static void fields(auto&, auto&) {}
};

// ---- one session ----

/// A picture, a frame of a video (also a picture), or a sound in a prompt.
struct WireMedium {
  Position first = 0;  ///< of its soft tokens, whose number follows from its size; the prompt may have any tokens there
  /// U8 [height, width, 3]: a picture at the vision tower's input size (gemma4.md 8.1). F32 [samples]: a sound at the
  /// audio tower's input rate (9.1). F32 [count, hidden_size]: soft tokens of either, made by an encoder.
  WireTensor content;
  bool together = false;  ///< of soft tokens: all of them attend to each other (SoftTokens)

  bool is_sound() const { return content.dtype == DType::kF32 && content.shape.size() == 1; }
  bool is_encoded() const { return content.dtype == DType::kF32 && content.shape.size() == 2; }
  bool operator==(const WireMedium&) const = default;
  static void fields(auto& v, auto& m) {
    v("first", m.first, kPositions);
    v("content", m.content, Rank{1, 3});
    v("together", m.together);
  }
};

/// Bytes of a prompt's pictures and sounds. They stay in memory for as long as the prompt does.
inline std::int64_t media_bytes(std::span<const WireMedium> media) {
  std::size_t bytes = 0;
  for (const WireMedium& medium : media) bytes += medium.content.data.bytes().size();
  return static_cast<std::int64_t>(bytes);
}

/// Soft tokens of a picture or a sound.
struct SoftTokens {
  std::int64_t count = 0;
  bool together = false;  ///< they attend to each other, so that one forward pass must hold all of them
};

/// Coordinator -> encoder: make soft tokens of this medium. The message's base is its first position. A session has one
/// Encode outstanding at a time.
struct Encode {
  WireMedium medium;
  std::string cache_scope = {};  ///< as in Generate: soft tokens are reused within a scope

  bool operator==(const Encode&) const = default;
  static void fields(auto& v, auto& m) {
    v("medium", m.medium);
    v("cache_scope", m.cache_scope, kScopeBytes);
  }
};

/// Encoder -> coordinator: answers an Encode.
struct Encoded {
  WireMedium medium;           ///< its soft tokens
  std::int64_t encode_ns = 0;  ///< time of the towers; 0: the soft tokens were cached

  bool operator==(const Encoded&) const = default;
  static void fields(auto& v, auto& m) {
    v("medium", m.medium);
    v("encode_ns", m.encode_ns, kNatural);
  }
};

/// Coordinator -> verifier: opens a session with its prompt, or continues a session of another verifier. Its base is 0.
/// The Verdict's next_token follows all of its tokens.
struct Prefill {
  std::vector<TokenId> tokens;
  std::int64_t answered = 0;             ///< tokens at the end that belong to the answer; the others are the prompt
  std::optional<Position> kv_from = {};  ///< as in Verify; the rows are sent while the tokens are computed
  Position positions_max = 0;            ///< upper bound of the session's K/V rows; 0: unknown
  SamplingParams sampling = {};          ///< of the whole session
  std::vector<TokenId> stop_ids = {};    ///< masked by min_tokens, or end a grammar; empty without either
  std::string cache_scope = {};        ///< as in Generate
  std::vector<WireMedium> media = {};  ///< in the prompt's order
  WireForm wire = WireForm::kExact;    ///< as in Verify

  bool operator==(const Prefill&) const = default;
  static void fields(auto& v, auto& m) {
    v("tokens", m.tokens, Count{1, kTokensMax});
    v("answered", m.answered, kPositions);
    v("kv_from", m.kv_from, kPositions);
    v("positions_max", m.positions_max, kNatural);
    v("sampling", m.sampling);
    v("stop_ids", m.stop_ids, kTokenSets);
    v("cache_scope", m.cache_scope, kScopeBytes);
    v("media", m.media, Count{0, kMediaMax});
    v("wire", m.wire, WireForm::kInt4);
  }
};

/// Verifier -> coordinator -> drafter, while a prompt is computed: its donor rows so far. Coordinator -> drafter:
/// tokens that a token-only drafter lacks; the prompt's are sent as soon as the sequence gets the drafter.
struct KvChunk {
  KvRows kv;

  bool operator==(const KvChunk&) const = default;
  static void fields(auto& v, auto& m) { v("kv", m.kv); }
};

/// Verifier -> coordinator -> client, while a prompt is computed: log-probabilities of its next tokens, each given the
/// tokens before it. All but the first token's are sent before the Verdict and the Tokens that answer the prompt.
struct PromptScores {
  Position first = 0;                   ///< position in the prompt of the first of these tokens
  std::vector<TokenLogprobs> logprobs;  ///< all with the same number of alternatives

  bool operator==(const PromptScores&) const = default;
  static void fields(auto& v, auto& m) {
    v("first", m.first, kPositions);
    v("logprobs", m.logprobs, kSequence);
  }
};

/// Coordinator -> drafter: requests drafts. The message's base is the position of `token`.
struct Draft {
  TokenId token = 0;  ///< the last emitted token
  std::int32_t draft_length = 0;
  /// [hidden_size]: the target's row that produced `token`, after the final norm, as the Verdict brought it: in the
  /// model's own type, or rounded to a WireForm. The drafter goes on from its own states. None for a drafter that needs
  /// tokens alone.
  std::optional<WireTensor> hidden = {};
  /// The session's: a draft that they forbid would be rejected. Sent with the drafter's first Draft of the session and
  /// after a NeedKv; later `sampling_known` is set. With neither, the drafter takes the most probable tokens.
  std::optional<SamplingParams> sampling = {};
  std::int64_t index = 0;       ///< index of the first draft in the answer
  bool want_q = false;          ///< asks for Candidates::q under every rule; changes no draft
  bool sampling_known = false;  ///< `sampling` was sent earlier
  /// The answer's tokens up to `index`, if the choice depends on them (SamplingParams::follows_answer). With `sampling`
  /// all of them, else at least those since the last answered Draft.
  std::vector<TokenId> answer = {};
  /// Number of possible outcomes of this round for which to draft ahead, the most probable first, draft_length tokens
  /// each. The drafter sends each unasked, in Candidates with `after`, while it is otherwise idle.
  std::int32_t ahead = 0;
  /// Drafts that are already being verified. The drafter follows them instead of choosing its own, and sends only its
  /// drafts ahead.
  std::vector<TokenId> known = {};
  /// Asks for a token tree of at most draft_length tokens: those that the drafter expects to be kept most likely.
  /// Otherwise a chain.
  bool tree = false;
  /// Of a tree: the least probability of being kept for which a token gets a row.
  double worth = 0;
  /// The tokens that end the answer; nothing is drafted after them. The session's, sent whenever `sampling` is. Empty:
  /// the model's own.
  std::vector<TokenId> stop_ids = {};
  /// Asks for passes of half of the drafting sequences, since the verifier is to verify one half while the drafter
  /// drafts for the other. Otherwise a pass is for all that have asked. Changes no draft.
  bool halves = false;

  bool operator==(const Draft&) const = default;
  static void fields(auto& v, auto& m) {
    v("token", m.token, kNatural);
    v("draft_length", m.draft_length, kDraftLengths);
    v("hidden", m.hidden, Rank{1});
    v("sampling", m.sampling);
    v("index", m.index, kPositions);
    v("want_q", m.want_q);
    v("sampling_known", m.sampling_known);
    v("answer", m.answer, kSequence);
    v("ahead", m.ahead, kGuesses);
    v("known", m.known, kDrafts);
    v("tree", m.tree);
    v("worth", m.worth, kChances);
    v("stop_ids", m.stop_ids, kTokenSets);
    v("halves", m.halves);
  }
};

/// Drafter -> coordinator: the drafts. Coordinator -> client: the answer to a Step that asked for drafts.
struct Candidates {
  std::vector<TokenId> tokens;
  std::int64_t draft_ns = 0;  ///< time of the assistant's forward passes, which other sequences may have shared
  /// One distribution for each draft, of at most kDraftTopK tokens, or none at all. Which distribution it is depends on
  /// the session's rule (SamplingRule) and on the Draft:
  /// - kRejection: the one that the draft was drawn from. The verifier needs it.
  /// - kMatch, if the Draft wants q: the one that kRejection would have drawn from.
  /// - drafts that are the most probable tokens (temperature 0, or kTypical), if the Draft wants q: the drafter's
  ///   probabilities at temperature 1, without filters.
  /// - else none.
  std::vector<Distribution> q = {};
  /// Drafted ahead: the drafts assume that the round at the message's base emits these tokens, and follow them. Empty:
  /// the drafts that the Draft asked for.
  std::vector<TokenId> after = {};
  std::vector<std::int32_t> depths = {};  ///< of each draft in a tree (TokenTree); children share one q
  std::int64_t passes = 0;                ///< forward passes in draft_ns
  std::int64_t pass_rows = 0;             ///< rows of these passes: this sequence's and others'

  bool operator==(const Candidates&) const = default;
  static void fields(auto& v, auto& m) {
    v("tokens", m.tokens, kDrafts);
    v("draft_ns", m.draft_ns, kNatural);
    v("q", m.q, kDrafts);
    v("after", m.after, kOutcomes);
    v("depths", m.depths, kDrafts, kDraftLengths);
    v("passes", m.passes, kNatural);
    v("pass_rows", m.pass_rows, kNatural);
  }
};

/// Drafter -> coordinator, instead of Candidates: rows are missing.
struct NeedKv {
  /// Committed rows of the replica; the next row is wanted first. A replica with all of them has yet to compute its own
  /// K/V, of so many rows that this round should not wait.
  Position have = 0;

  bool operator==(const NeedKv&) const = default;
  static void fields(auto& v, auto& m) { v("have", m.have, kPositions); }
};

/// Coordinator -> verifier: verifies drafts. The message's base is the position of tokens[0]. Of a round that the
/// verifier has answered only session and round count: it sends the verdict again.
struct Verify {
  std::vector<TokenId> tokens;  ///< the last emitted token, then the drafts
  /// First position whose donor rows the drafter needs: the Verdict carries the rows from here to its end, and the
  /// hidden row. None: there is no drafter, and the Verdict carries neither.
  std::optional<Position> kv_from = {};
  std::vector<Distribution> q = {};       ///< the distribution of each draft (kRejection); empty: drafts must match
  std::vector<std::int32_t> depths = {};  ///< of a token tree (TokenTree): depth of each draft
  WireForm wire = WireForm::kExact;       ///< wanted rounding of the rows

  bool operator==(const Verify&) const = default;
  static void fields(auto& v, auto& m) {
    v("tokens", m.tokens, Count{1, kDrafts.max + 1});
    v("kv_from", m.kv_from, kPositions);
    v("q", m.q, kDrafts);
    v("depths", m.depths, kDrafts, kDraftLengths);
    v("wire", m.wire, WireForm::kInt4);
  }
};

/// Verifier -> coordinator: answers a Prefill (then `accepted` is 0) and a Verify.
struct Verdict {
  std::int32_t accepted = 0;              ///< drafts kept
  TokenId next_token = 0;                 ///< the bonus token or the replacement of the first rejected draft; or a last
                                          ///< accepted draft, if no token can be chosen after it
  Position committed = 0;                 ///< number of valid K/V rows
  std::optional<WireTensor> hidden = {};  ///< [hidden_size], the row that produced next_token; if K/V were asked for
  KvRows kv = {};                         ///< from the Verify's kv_from on; of a Prefill, the rows not yet sent
  std::int64_t verify_ns = 0;             ///< time of the forward pass with these rows
  /// Of the accepted drafts and next_token, if the session asks for them; all with the same number of alternatives.
  std::vector<TokenLogprobs> logprobs = {};
  Position cached_tokens = 0;   ///< of a Prefill: tokens whose K/V were reused
  std::int64_t waited_ns = 0;   ///< time that the Verify waited for its forward pass
  std::int64_t batch_rows = 0;  ///< rows of that pass: this sequence's and others'
  std::int32_t row = 0;         ///< of a tree: row of the last kept draft (TokenTree); 0: none was kept
  std::int64_t pass = 0;        ///< the verifier's number of that pass; 0: not reported

  bool operator==(const Verdict&) const = default;
  static void fields(auto& v, auto& m) {
    v("accepted", m.accepted, kDraftLengths);
    v("next_token", m.next_token, kNatural);
    v("committed", m.committed, kPositions);
    v("hidden", m.hidden, Rank{1});
    v("kv", m.kv);
    v("verify_ns", m.verify_ns, kNatural);
    v("logprobs", m.logprobs, kSequence);
    v("cached_tokens", m.cached_tokens, kPositions);
    v("waited_ns", m.waited_ns, kNatural);
    v("batch_rows", m.batch_rows, kNatural);
    v("row", m.row, kDraftLengths);
    v("pass", m.pass, kNatural);
  }
  Result<void> settle() const;
};

/// Client -> coordinator: stop generating.
struct Cancel {
  /// The answer ends after its first `keep` tokens: Done follows, with kStop. None: the request fails with kCancelled.
  std::optional<std::int64_t> keep = {};

  bool operator==(const Cancel&) const = default;
  static void fields(auto& v, auto& m) { v("keep", m.keep, kNatural); }
};

/// Coordinator -> workers: forget the session.
struct Free {
  bool operator==(const Free&) const = default;
  static void fields(auto&, auto&) {}
};

/// Worker -> coordinator, coordinator -> client: the request failed and gets no other reply.
struct Failed {
  Errc code = Errc::kInvalidArgument;
  std::string message;

  bool operator==(const Failed&) const = default;
  static void fields(auto& v, auto& m) {
    v("code", m.code, Errc::kIo);
    v("message", m.message, kNameBytes);
  }
};

// ---- clients ----

/// Client -> coordinator: requests an answer. The message's session is the client's own number for the request.
struct Generate {
  std::vector<TokenId> prompt;
  std::int64_t max_tokens = 0;
  /// Drafts per round (DraftPolicy::kFixed), or the limit per source for the other policies; 0: plain decoding.
  std::int32_t draft_length = 0;
  std::vector<TokenId> stop_ids = {};  ///< at most kSamplingListMax; empty: only max_tokens and the context end it
  std::int64_t wait_ms = 0;            ///< time to wait for a verifier to join
  bool stepwise = false;               ///< after the first token, every round waits for the client's Step
  SamplingParams sampling = {};
  DraftPolicy policy = DraftPolicy::kFixed;
  bool report_rounds = false;  ///< Tokens carry a RoundReport
  /// A max_tokens that fits into no verifier's K/V memory is lowered to the largest that fits, not refused.
  bool shorten = false;
  /// The client that a front end asks for, an address for example: a name for fair queueing. The front end chooses it,
  /// and it is valid across all of its connections. Empty: the peer asks for itself.
  std::string on_behalf_of = {};
  /// Scope within which K/V of a common prompt prefix are reused. Cached-token counts and time to first token therefore
  /// reveal nothing about sequences of other scopes. Empty: shared by all requests without a scope.
  std::string cache_scope = {};
  /// Outcomes of a round for which to draft ahead while it is verified; none: chosen by the coordinator.
  std::optional<std::int32_t> draft_ahead = {};
  /// Number of tokens at the prompt's end that belong to the answer, which another coordinator began and this one
  /// continues. `max_tokens` counts the whole answer.
  std::int64_t answered = 0;
  /// Of a continued answer: the class of verifiers that may continue it, from Tokens.
  std::string numeric_class = {};
  std::string verifier_name = {};           ///< of a continued answer: the verifier with its K/V, if still there
  std::uint64_t tokenizer_fingerprint = 0;  ///< of the tokenizer that made the prompt; 0: unknown
  /// Puts a fixed length under the governor (common/decoding/drafting) too, unless drafts influence the answer.
  bool governed = false;
  std::vector<WireMedium> media = {};  ///< in the prompt's order; the verifier's towers make soft tokens of them
  /// Sources that the coordinator looks up and verifies beside the assistant's drafts; together they add draft_length
  /// drafts at most. For kFixed and kTree; nothing is then drafted ahead.
  AddedSources added = {};
  std::string encoding_class = {};  ///< of a continued answer: the class of its soft tokens, from Tokens

  bool operator==(const Generate&) const = default;
  static void fields(auto& v, auto& m) {
    v("prompt", m.prompt, kSequence);
    v("max_tokens", m.max_tokens, kNatural);
    v("draft_length", m.draft_length, kDraftLengths);
    v("stop_ids", m.stop_ids, kTokenSets);
    v("wait_ms", m.wait_ms, kWaitMs);
    v("stepwise", m.stepwise);
    v("sampling", m.sampling);
    v("policy", m.policy, kLastDraftPolicy);
    v("report_rounds", m.report_rounds);
    v("shorten", m.shorten);
    v("on_behalf_of", m.on_behalf_of, kClientBytes);
    v("cache_scope", m.cache_scope, kScopeBytes);
    v("draft_ahead", m.draft_ahead, kGuesses);
    v("answered", m.answered, kPositions);
    v("numeric_class", m.numeric_class, kNameBytes);
    v("verifier_name", m.verifier_name, kNameBytes);
    v("tokenizer_fingerprint", m.tokenizer_fingerprint);
    v("governed", m.governed);
    v("media", m.media, Count{0, kMediaMax});
    v("add_ngram", m.added.ngram);
    v("add_table", m.added.table);
    v("encoding_class", m.encoding_class, kNameBytes);
  }
};

/// Outcome of one round.
struct RoundReport {
  std::int32_t draft_length = 0;          ///< the policy's choice
  std::vector<TokenId> drafts = {};       ///< the drafts that reached the verifier
  RoundOutcome outcome = {};              ///< its `pass` is not on the wire
  std::vector<std::int32_t> depths = {};  ///< of a token tree (TokenTree): depth of each draft
  std::string drafter = {};               ///< name of the drafter, with its first drafts and when it changes

  bool operator==(const RoundReport&) const = default;
  static void fields(auto& v, auto& m) {
    v("source", m.outcome.source, kLastDraftSource);
    v("draft_length", m.draft_length, kDraftLengths);
    v("drafts", m.drafts, kDrafts);
    v("accepted", m.outcome.accepted, kDraftLengths);
    v("draft_s", m.outcome.draft_s, kSeconds);
    v("draft_wire_s", m.outcome.draft_wire_s, kSeconds);
    v("verify_s", m.outcome.verify_s, kSeconds);
    v("round_s", m.outcome.round_s, kSeconds);
    v("draft_bytes", m.outcome.draft_bytes, kNatural);
    v("draft_rows", m.outcome.draft_rows, kNatural);
    v("ahead", m.outcome.ahead);
    v("draft_waited_s", m.outcome.draft_waited_s, kSeconds);
    v("batch_rows", m.outcome.batch_rows, kNatural);
    v("waited_s", m.outcome.waited_s, kSeconds);
    v("depths", m.depths, kDrafts, kDraftLengths);
    v("drafter", m.drafter, kNameBytes);
  }
  /// Sets outcome.drafted to the number of drafts.
  Result<void> settle();
};

/// Coordinator -> client: the next tokens of the answer.
struct Tokens {
  std::int64_t index = 0;  ///< index of tokens[0] in the answer
  std::vector<TokenId> tokens;
  std::vector<TokenLogprobs> logprobs = {};  ///< of each token, if requested; all with the same number of alternatives
  std::optional<RoundReport> round = {};     ///< if requested, and not with the first token
  // For a coordinator that continues this answer; with its first token, and after each change.
  std::string numeric_class = {}, verifier_name = {};  ///< of its verifier (Hello)
  std::int64_t max_tokens = 0;                         ///< the lowered max_tokens; 0: it was not lowered
  std::string encoding_class = {};                     ///< of its soft tokens (Hello); with numeric_class

  bool operator==(const Tokens&) const = default;
  static void fields(auto& v, auto& m) {
    v("index", m.index, kPositions);
    v("tokens", m.tokens, kSequence);
    v("logprobs", m.logprobs, kSequence);
    v("round", m.round);
    v("numeric_class", m.numeric_class, kNameBytes);
    v("verifier_name", m.verifier_name, kNameBytes);
    v("max_tokens", m.max_tokens, kNatural);
    v("encoding_class", m.encoding_class, kNameBytes);
  }
  Result<void> settle() const;
};

enum class FinishReason : std::uint8_t { kStop, kLength };
inline const char* to_string(FinishReason reason) { return reason == FinishReason::kStop ? "stop" : "length"; }

/// The counter of /metrics for a field of RequestMetrics, under vLLM's name if it has one. Nanoseconds are exported in
/// seconds, and lists by index.
struct Counted : Range<std::int64_t> {
  constexpr Counted(const char* counter_name, const char* help_text, const char* label_name = nullptr,
                    const char* label_value = nullptr)
      : Range{label_name != nullptr && label_value == nullptr ? 0 : std::numeric_limits<std::int64_t>::min(),
              std::numeric_limits<std::int64_t>::max()},
        name(counter_name),
        help(help_text),
        label(label_name),
        value(label_value) {}
  const char *name, *help;
  const char *label, *value;  ///< null: none; a list's label has its index as value
};

/// Lookups in one of the coordinator's own sources (DraftSource), for one request.
struct LookedUp {
  std::int64_t rounds = 0;  ///< of drafting_rounds: rounds with this RoundOutcome::source
  std::int64_t drafted_tokens = 0, accepted_tokens = 0;
  bool operator==(const LookedUp&) const = default;
};

/// Sums over a request, kept by the coordinator. After a resume they are the last coordinator's, except for the times
/// measured by the client. Durations in nanoseconds.
struct RequestMetrics {
  std::int64_t rounds = 0;           ///< verifies, not counting the prefill
  std::int64_t drafting_rounds = 0;  ///< rounds with at least one draft
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
  LookedUp ngram, table;
  std::int64_t cached_prompt_tokens = 0;  ///< tokens of the prompt whose K/V were reused
  std::int64_t queue_ns = 0;              ///< part of prefill_ns: waiting in the queue for a verifier
  std::int64_t failovers = 0;             ///< moves to another verifier
  std::int64_t inexact_failovers = 0;     ///< failovers after which bytes may differ from an undisturbed answer's
  std::int64_t failover_ns = 0;           ///< from the loss of a verifier until another had caught up
  std::int64_t ahead_rounds = 0;  ///< of drafting_rounds: rounds drafted while the previous one was verified
  std::int64_t resumes = 0;       ///< moves to another coordinator, or to a restarted one, by the client
  std::int64_t resume_ns = 0;     ///< from the lost coordinator's last message until the sequence continued
  std::int64_t encode_ns = 0;     ///< part of prefill_ns: the encoder's towers, as it measured them
  std::int64_t wire_bytes_to_encoder = 0;
  std::int64_t vain_drafts = 0;  ///< drafts ahead that arrived here for outcomes that did not occur

  /// Rounds whose drafts were requested from the assistant, in draft_ns.
  std::int64_t assistant_rounds() const { return drafting_rounds - ngram.rounds - table.rounds - ahead_rounds; }

  bool operator==(const RequestMetrics&) const = default;
  /// Printed for people only, so that only the counts per position are bounded.
  static void fields(auto& v, auto& m) {
    constexpr const char* kWireBytes = "Bytes of requests to workers";
    v("rounds", m.rounds, Counted{"rounds_total", "Verifying forward passes of answers"});
    v("drafting_rounds", m.drafting_rounds, Counted{"spec_decode_num_drafts_total", "Rounds with at least one draft"});
    v("drafted_tokens", m.drafted_tokens, Counted{"spec_decode_num_draft_tokens_total", "Drafts that were verified"});
    v("accepted_tokens", m.accepted_tokens,
      Counted{"spec_decode_num_accepted_tokens_total", "Drafts that were accepted"});
    v("drafted_per_position", m.drafted_per_position, kDrafts,
      Counted{"spec_decode_num_draft_tokens_per_pos_total", "Verified drafts by their position in the round, from 0",
              "position"});
    v("accepted_per_position", m.accepted_per_position, kDrafts,
      Counted{"spec_decode_num_accepted_tokens_per_pos_total", "Accepted drafts by their position in the round, from 0",
              "position"});
    v("prefill_ns", m.prefill_ns);
    v("decode_ns", m.decode_ns);
    v("draft_ns", m.draft_ns, Counted{"assistant_draft_seconds_total", "The assistant's forward passes of rounds"});
    v("verify_ns", m.verify_ns, Counted{"target_verify_seconds_total", "The backbone's forward passes of rounds"});
    v("wire_ns", m.wire_ns, Counted{"wire_seconds_total", "Rounds, less the forward passes: links and queues"});
    v("wire_bytes_to_drafter", m.wire_bytes_to_drafter, Counted{"wire_bytes_total", kWireBytes, "to", "drafter"});
    v("wire_bytes_to_drafter_prompt", m.wire_bytes_to_drafter_prompt,
      Counted{"wire_bytes_total", kWireBytes, "to", "drafter_prompt"});
    v("wire_bytes_to_verifier", m.wire_bytes_to_verifier, Counted{"wire_bytes_total", kWireBytes, "to", "verifier"});
    v("ngram_rounds", m.ngram.rounds,
      Counted{"spec_decode_num_ngram_drafts_total",
              "Of the rounds with drafts: looked up in the text itself, without the assistant"});
    v("ngram_drafted_tokens", m.ngram.drafted_tokens,
      Counted{"spec_decode_num_ngram_draft_tokens_total", "Of the verified drafts: looked up in the text itself"});
    v("ngram_accepted_tokens", m.ngram.accepted_tokens,
      Counted{"spec_decode_num_ngram_accepted_tokens_total", "Of the accepted drafts: looked up in the text itself"});
    v("cached_prompt_tokens", m.cached_prompt_tokens,
      Counted{"prefix_cache_hits_total", "Prompt tokens whose K/V were there"});
    v("queue_ns", m.queue_ns);
    v("failovers", m.failovers);
    v("inexact_failovers", m.inexact_failovers);
    v("failover_ns", m.failover_ns);
    v("ahead_rounds", m.ahead_rounds,
      Counted{"spec_decode_num_ahead_drafts_total",
              "Of the rounds with drafts: drafted while the round before was verified"});
    v("resumes", m.resumes,
      Counted{"resumes_total", "Times that an answer was taken to another coordinator, or to a restarted one"});
    v("resume_ns", m.resume_ns,
      Counted{"resume_seconds_total", "From a lost coordinator's last word until the answer went on"});
    v("table_rounds", m.table.rounds,
      Counted{"spec_decode_num_table_drafts_total",
              "Of the rounds with drafts: looked up in a table, without the assistant"});
    v("table_drafted_tokens", m.table.drafted_tokens,
      Counted{"spec_decode_num_table_draft_tokens_total", "Of the verified drafts: looked up in a table"});
    v("table_accepted_tokens", m.table.accepted_tokens,
      Counted{"spec_decode_num_table_accepted_tokens_total", "Of the accepted drafts: looked up in a table"});
    v("encode_ns", m.encode_ns, Counted{"encode_seconds_total", "Pictures and sounds in encoders"});
    v("wire_bytes_to_encoder", m.wire_bytes_to_encoder, Counted{"wire_bytes_total", kWireBytes, "to", "encoder"});
    v("vain_drafts", m.vain_drafts,
      Counted{"spec_decode_num_vain_draft_tokens_total",
              "Drafts made ahead of a verdict for ends that rounds did not come to"});
  }
  Result<void> settle() const;
};
/// Adds one request's metrics to a sum; lists of positions grow to the longest.
void add(RequestMetrics& sum, const RequestMetrics& one);

/// Coordinator -> client: the answer is complete.
struct Done {
  FinishReason reason = FinishReason::kStop;
  RequestMetrics metrics;

  bool operator==(const Done&) const = default;
  static void fields(auto& v, auto& m) {
    v("reason", m.reason, FinishReason::kLength);
    v("metrics", m.metrics);
  }
};

/// Client -> coordinator: asks for a Status.
struct StatusRequest {
  bool operator==(const StatusRequest&) const = default;
  static void fields(auto&, auto&) {}
};

/// A worker, as its coordinator sees it.
struct WorkerStatus {
  Role role = Role::kVerifier;
  std::string name;  ///< from its Hello; unique within a Status
  std::int32_t sessions = 0;
  bool draining = false;
  std::int64_t rtt_ns = 0;  ///< smoothed round trip of a heartbeat; 0: not measured yet
  /// Workers that compute K/V: memory reserved for sessions, and all of it.
  std::int64_t kv_bytes = 0, kv_bytes_max = 0;
  // A drafter's reputation (coordinator-node/reputation.h).
  double yield = 0;              ///< share of its recent rounds whose first draft was accepted
  std::int64_t late_rounds = 0;  ///< rounds since it joined for which its drafts came late or not at all
  bool paused = false;           ///< it is assigned no sequences for a while, since others draft better
  std::int32_t shards = 1;       ///< these two are from its Hello
  bool shards_over_tcp = false;

  bool operator==(const WorkerStatus&) const = default;
  static void fields(auto& v, auto& m) {
    v("role", m.role, kLastRole);
    v("name", m.name, kNameBytes);
    v("sessions", m.sessions, kNatural);
    v("draining", m.draining);
    v("rtt_ns", m.rtt_ns, kNatural);
    v("kv_bytes", m.kv_bytes, kNatural);
    v("kv_bytes_max", m.kv_bytes_max, kNatural);
    v("yield", m.yield, Range<double>{0, 1});
    v("late_rounds", m.late_rounds, kNatural);
    v("paused", m.paused);
    v("shards", m.shards, kShards, 1);
    v("shards_over_tcp", m.shards_over_tcp);
  }
};

/// Sequences that lost their verifier, since the coordinator started.
struct FailoverCounts {
  std::int64_t exact = 0;      ///< continued at another of the same numeric class, or had no token yet
  std::int64_t inexact = 0;    ///< continued, but bytes may differ from an undisturbed answer's
  std::int64_t failed = 0;     ///< no verifier took them
  std::int64_t resume_ns = 0;  ///< of the continued ones: from the loss of a verifier until another had caught up
  std::int64_t resumed = 0;    ///< sequences begun by another coordinator that continued here

  bool operator==(const FailoverCounts&) const = default;
  static void fields(auto& v, auto& m) {
    v("exact", m.exact, kNatural);
    v("inexact", m.inexact, kNatural);
    v("failed", m.failed, kNatural);
    v("resume_ns", m.resume_ns, kNatural);
    v("resumed", m.resumed, kNatural);
  }
};

/// Answers that were sampled for another verification (coordinator-node/auditor.h), since the coordinator started.
struct AuditCounts {
  std::int64_t same = 0;       ///< another verifier chose the same tokens
  std::int64_t different = 0;  ///< it chose others: one of the two is wrong
  std::int64_t skipped = 0;    ///< no other verifier of the class had room, or it left
  std::int64_t tokens = 0;     ///< tokens of answers that were verified again

  bool operator==(const AuditCounts&) const = default;
  static void fields(auto& v, auto& m) {
    v("same", m.same, kNatural);
    v("different", m.different, kNatural);
    v("skipped", m.skipped, kNatural);
    v("tokens", m.tokens, kNatural);
  }
};

/// Coordinator -> client: answers a StatusRequest.
struct Status {
  std::int32_t verifiers = 0, drafters = 0;
  std::int32_t sessions = 0;               ///< open sessions, the queued ones included
  std::int32_t waiting = 0;                ///< queued sessions
  std::vector<WorkerStatus> workers = {};  ///< at most kWorkersMax
  FailoverCounts failovers = {};
  AuditCounts audits = {};
  std::int32_t encoders = 0;
  // Rounds that wanted a drafter's drafts, since the coordinator started.
  std::int64_t drafts_made = 0;    ///< a drafter answered in time
  std::int64_t drafts_missed = 0;  ///< its answer was late or unusable, or no drafter had room

  bool operator==(const Status&) const = default;
  static void fields(auto& v, auto& m) {
    v("verifiers", m.verifiers, kNatural);
    v("drafters", m.drafters, kNatural);
    v("sessions", m.sessions, kNatural);
    v("waiting", m.waiting, kNatural);
    v("workers", m.workers, Count{0, kWorkersMax});
    v("failovers", m.failovers);
    v("audits", m.audits);
    v("encoders", m.encoders, kNatural);
    v("drafts_made", m.drafts_made, kNatural);
    v("drafts_missed", m.drafts_missed, kNatural);
  }
};

/// Client -> coordinator: one half of a stepwise session's next round. A Failed with kInvalidArgument refuses this step
/// alone; any other ends the session.
struct Step {
  std::int32_t draft_length = 0;  ///< above 0: number of drafts to make; the reply is Candidates, perhaps empty
  std::vector<TokenId> drafts;    ///< else: drafts to verify, perhaps none; the reply is Tokens

  bool operator==(const Step&) const = default;
  static void fields(auto& v, auto& m) {
    v("draft_length", m.draft_length, kDraftLengths);
    v("drafts", m.drafts, kDrafts);
  }
};

/// In the order of the schema's union; new messages go to its end.
using Body = std::variant<Hello, Welcome, Refuse, WhoAreYou, Heartbeat, Drain, Prefill, KvChunk, Draft, Candidates,
                          NeedKv, Verify, Verdict, Cancel, Free, Failed, Generate, Tokens, Done, StatusRequest, Status,
                          Step, PromptScores, Encode, Encoded>;
/// Short names of the bodies, for logs and errors, in the same order.
inline constexpr auto kBodyNames = std::to_array<const char*>({
    "hello", "welcome", "refuse", "who_are_you", "heartbeat", "drain", "prefill", "kv_chunk", "draft", "candidates",
    "need_kv", "verify", "verdict", "cancel", "free", "failed", "generate", "tokens", "done", "status_request",
    "status", "step", "prompt_scores", "encode", "encoded"});
static_assert(kBodyNames.size() == std::variant_size_v<Body>);

/// Session, round and base position identify the exchange that a message belongs to, so that duplicate and late
/// messages are recognised and dropped. Connection messages leave them 0.
struct Message {
  SessionId session{};
  RoundId round{};
  Position base = 0;
  Body body;
  bool operator==(const Message&) const = default;
};

inline const char* name_of(const Message& message) { return kBodyNames[message.body.index()]; }

/// Opaque name of a connected peer, unique while the transport lives. Workers name their coordinator "".
using PeerId = std::string;

struct Outgoing {
  PeerId to;
  Message message;
};

}  // namespace outrider
