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

/// Every message that two Outrider processes exchange. A message is a struct; its `fields` say once, in the order of
/// schemas/outrider.fbs, what travels and which values a receiver lets in (common/base/fields.h). What the codec writes
/// and reads, and what the tests print and draw, all comes from there.
namespace outrider {

/// Both sides of a connection must speak the same one. Raised when a message changes its meaning or gets a field that a
/// receiver must not ignore, such as a sampling parameter. Other optional fields do not raise it (schemas/README.md).
inline constexpr std::uint32_t kProtocolVersion = 13;

/// Limits of the frames of one message. A larger message is refused before it is read.
struct WireLimits {
  std::size_t header_bytes_max = 8u << 20;   ///< a prompt of 131,072 ids fits many times
  std::size_t tensor_bytes_max = 64u << 20;  ///< one donor tensor of one prefill chunk
  std::size_t tensors_max = 40;              ///< media of a prompt; else a hidden row, then K and V of two donors
  /// Of all frames: the pictures of a prompt, of which one client may leave 128 MiB waiting (AdmissionQueue), and a
  /// header.
  std::size_t message_bytes_max = 144u << 20;
};

/// Limits of what a message may say. Positions are bounded so that sums of a few cannot overflow anywhere.
inline constexpr std::size_t kTokensMax = 1u << 20;
inline constexpr std::size_t kWorkersMax = 256;  ///< that a Status lists
inline constexpr std::size_t kDonorsMax = 2;
inline constexpr std::size_t kMediaMax = 40;  ///< pictures, frames of videos and sounds of a prompt
inline constexpr Range<Position> kPositions{0, kTokensMax};
inline constexpr Range kDraftLengths{0, kDraftLengthMax};
inline constexpr Range kGuesses{0, kDraftAheadMax};
inline constexpr Count kTexts{0, kTokensMax};                                        ///< tokens of a sequence
inline constexpr Count kDrafts{0, static_cast<std::size_t>(kDraftLengthMax)};        ///< tokens of a round
inline constexpr Count kOutcomes{0, static_cast<std::size_t>(kDraftLengthMax) + 1};  ///< tokens that a round emits
inline constexpr Count kTokenSets{0, kSamplingListMax};                              ///< stop tokens, say
inline constexpr Count kNameBytes{0, 4096};                                          ///< text for people
inline constexpr Count kClientBytes{0, 256};                                       ///< a front end's name for a client
inline constexpr Count kScopeBytes{0, 512};                                        ///< who shares prefixes
inline constexpr Range<std::int64_t> kBytesPerPosition{0, std::int64_t{1} << 30};  ///< products are an int64
inline constexpr Range<std::int64_t> kWaitMs{0, std::int64_t{24} * 3600 * 1000};   ///< a day
inline constexpr Range<double> kSeconds{0, 1e9};
inline constexpr Range<double> kChances{0, 1};

/// Bytes that somebody keeps alive: a network frame, or an engine's copy. Immutable, cheap to copy.
class SharedBytes {
 public:
  SharedBytes() = default;
  SharedBytes(std::shared_ptr<const void> owner, std::span<const std::byte> bytes)
      : owner_(std::move(owner)), bytes_(bytes) {}
  std::span<const std::byte> bytes() const { return bytes_; }
  /// Whether the contents are the same.
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
/// What a message's field may hold that is a tensor.
struct Rank {
  std::size_t min = 0, max = min;
};
/// The last type that a tensor on the wire may have; those after it are only in files.
inline constexpr DType kLastWireDType = DType::kQ4_0;

/// What K/V rows and hidden rows are rounded to for a drafter (docs/protocol.md, "What crosses the wire"). Their
/// tensors say it by their type, and a drafter takes any of them. A sequence does not depend on it: the verifier's own
/// are exact.
enum class WireForm : std::uint8_t {
  kExact,  ///< as the verifier has them
  kInt8,   ///< Q8_0: 34 bytes for 32 numbers
  kInt4,   ///< Q4_0: 18 bytes for 32 numbers
  kAuto,   ///< in a Hello: the coordinator chooses by the time that bytes take (WireChoice)
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

/// What a drafter makes its drafts of, besides the tokens of a Draft.
enum class DraftInput : std::uint8_t {
  kTargetRows,  ///< donor K/V and hidden rows of its verifier: an assistant
  kTokens,      ///< token ids alone: a whole model, which has K/V of its own
};
inline const char* to_string(DraftInput input) {
  return std::array{"target rows", "tokens"}.at(static_cast<std::size_t>(input));
}

/// What a drafter has to know of the committed positions [from, to): donor K/V, one entry per donor in handshake order,
/// or the tokens there (DraftInput). from == to with neither means "nothing".
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
    v("tokens", m.tokens, kTexts);
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

/// What two nodes must agree on before they may work on the same text.
struct PairFacts {
  std::uint64_t backbone_fingerprint = 0;   ///< of the weights; 0: not known to this node
  std::uint64_t embedding_fingerprint = 0;  ///< of the target's embedding table, which both tiers hold
  std::int32_t hidden_size = 0;
  std::int32_t vocab_size = 0;
  Position context_max = 0;
  DType kv_dtype = DType::kF32;         ///< K/V rows as the verifier has them
  DType hidden_dtype = DType::kF32;     ///< the exported hidden row
  std::vector<DonorFacts> donors = {};  ///< sliding first, then full
  /// Tokenizer::fingerprint() of the target's; 0: not known to this node.
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
  bool operator==(const KvCost&) const = default;
};

/// What a worker takes at once. Of an assistant's drafter K/V are not counted.
struct Capacity {
  std::int64_t sessions_max = 256;
  KvCost kv_cost = {};
  /// K/V of all sessions together. What would not fit is refused before any of it is computed.
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

/// Processes that compute a verifier's backbone together.
inline constexpr Range<std::int32_t> kShards{1, 64};

/// Worker -> coordinator: takes part from now on.
struct Hello {
  Role role = Role::kVerifier;
  std::string name;  ///< for people: role, host and process id
  PairFacts facts;
  Capacity capacity = {};
  /// Of a verifier: all that its bits depend on. Where two say the same, either goes on with a text of the other's, and
  /// not a byte of the answer shows it (docs/numerics.md). Compared as it stands; empty: like no other.
  std::string numeric_class = {};
  WireForm wire = WireForm::kExact;  ///< of a drafter: what it wants its rows rounded to
  /// Of an encoder, and of a verifier with towers: all that the bits of its soft tokens depend on. Compared as it
  /// stands; empty: it encodes nothing.
  std::string encoding_class = {};
  /// Of a verifier: pictures and sounds for it are an encoder's to encode. Else it is asked to encode what no encoder
  /// has, or says why it does not.
  bool no_towers = false;
  /// Of a drafter. One that needs tokens alone has no donors and no hidden size among its facts.
  DraftInput needs = DraftInput::kTargetRows;
  /// Of a verifier: it is there as long as all of them are.
  std::int32_t shards = 1;
  bool shards_over_tcp = false;  ///< they are on several hosts
  /// Not on the wire: the coordinator's own endpoint says so of a worker on another machine that has no key.
  bool unproven = false;

  static constexpr const char* kName = "hello";
  bool operator==(const Hello&) const = default;
  static void fields(auto& v, auto& m) {
    v("role", m.role, kLastRole);
    v("name", m.name, kNameBytes);
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

/// Coordinator -> worker: the worker is in the books.
struct Welcome {
  /// Each worker that joins gets the next number, also one that was given up and comes back. A worker that gets another
  /// number than before forgets all of its sessions: the coordinator knows of none here.
  std::uint64_t membership = 0;

  static constexpr const char* kName = "welcome";
  bool operator==(const Welcome&) const = default;
  static void fields(auto& v, auto& m) { v("membership", m.membership); }
};

/// Either way: this connection is of no use.
struct Refuse {
  Errc code = Errc::kMismatch;
  std::string message;

  static constexpr const char* kName = "refuse";
  bool operator==(const Refuse&) const = default;
  static void fields(auto& v, auto& m) {
    v("code", m.code, Errc::kIo);
    v("message", m.message, kNameBytes);
  }
};

/// Coordinator -> a worker that it does not know: say Hello again. With a client's session, as the last word on it: the
/// coordinator is about to end, ask the next one.
struct WhoAreYou {
  static constexpr const char* kName = "who_are_you";
  bool operator==(const WhoAreYou&) const = default;
  static void fields(auto&, auto&) {}
};

/// Both ways, every heartbeat interval. With the session and round of a request that a verifier was sent again: it is
/// in work.
struct Heartbeat {
  /// The coordinator's clock. A worker that gets one above 0 sends it back at once, and the coordinator
  /// then knows the round trip. A worker's own heartbeats have 0.
  std::int64_t sent_ns = 0;

  static constexpr const char* kName = "heartbeat";
  bool operator==(const Heartbeat&) const = default;
  static void fields(auto& v, auto& m) { v("sent_ns", m.sent_ns, kNatural); }
};

/// Worker -> coordinator: give me no new sessions.
struct Drain {
  static constexpr const char* kName = "drain";
  bool operator==(const Drain&) const = default;
  static void fields(auto&, auto&) {}
};

// ---- one session ----

/// A picture, a frame of a video, which is a picture too, or a sound in a prompt.
struct WireMedium {
  Position first = 0;  ///< of its soft tokens, whose number follows from its size; the prompt's tokens there may be any
  /// U8 [height, width, 3]: a picture in the size in which the vision tower sees it (gemma4.md 8.1). F32 [samples]: a
  /// sound as the audio tower hears it (9.1). F32 [count, hidden_size]: the soft tokens that an encoder has made of
  /// either.
  WireTensor content;
  bool together = false;  ///< of soft tokens: each is seen by all of them (SoftTokens)

  bool is_sound() const { return content.dtype == DType::kF32 && content.shape.size() == 1; }
  bool is_encoded() const { return content.dtype == DType::kF32 && content.shape.size() == 2; }
  bool operator==(const WireMedium&) const = default;
  static void fields(auto& v, auto& m) {
    v("first", m.first, kPositions);
    v("content", m.content, Rank{1, 3});
    v("together", m.together);
  }
};

/// Coordinator -> encoder: make soft tokens of this. The message's base is its first position. A session has one out at
/// a time.
struct Encode {
  WireMedium medium;
  std::string cache_scope = {};  ///< as Generate's: soft tokens are reused within it

  static constexpr const char* kName = "encode";
  bool operator==(const Encode&) const = default;
  static void fields(auto& v, auto& m) {
    v("medium", m.medium);
    v("cache_scope", m.cache_scope, kScopeBytes);
  }
};

/// Encoder -> coordinator: answers an Encode.
struct Encoded {
  WireMedium medium;           ///< its soft tokens
  std::int64_t encode_ns = 0;  ///< of the towers; 0: they were there

  static constexpr const char* kName = "encoded";
  bool operator==(const Encoded&) const = default;
  static void fields(auto& v, auto& m) {
    v("medium", m.medium);
    v("encode_ns", m.encode_ns, kNatural);
  }
};

/// Coordinator -> verifier: opens a session with its prompt, or goes on with one that another verifier had. Its base is
/// 0. The Verdict's next_token follows all of its tokens.
struct Prefill {
  std::vector<TokenId> tokens;
  std::int64_t answered = 0;             ///< so many at their end are the answer's; the others are the prompt
  std::optional<Position> kv_from = {};  ///< as in Verify; the rows come while the tokens are computed
  Position positions_max = 0;            ///< K/V rows that the whole session can come to need; 0: not known
  SamplingParams sampling = {};          ///< of the whole session
  std::vector<TokenId> stop_ids = {};    ///< what min_tokens masks and a grammar ends with; empty without either
  /// The verifier may reuse no K/V of another sequence for this prompt: only the Verifys that follow would bring all of
  /// its rows to a drafter.
  bool compute_all = false;
  std::string cache_scope = {};        ///< as Generate's
  std::vector<WireMedium> media = {};  ///< in the prompt's order
  WireForm wire = WireForm::kExact;    ///< as Verify's

  static constexpr const char* kName = "prefill";
  bool operator==(const Prefill&) const = default;
  static void fields(auto& v, auto& m) {
    v("tokens", m.tokens, Count{1, kTokensMax});
    v("answered", m.answered, kPositions);
    v("kv_from", m.kv_from, kPositions);
    v("positions_max", m.positions_max, kNatural);
    v("sampling", m.sampling);
    v("stop_ids", m.stop_ids, kTokenSets);
    v("compute_all", m.compute_all);
    v("cache_scope", m.cache_scope, kScopeBytes);
    v("media", m.media, Count{0, kMediaMax});
    v("wire", m.wire, WireForm::kInt4);
  }
};

/// Verifier -> coordinator -> drafter, while a prompt is computed: its donor rows so far. Coordinator -> drafter: the
/// tokens that one which needs tokens does not have yet, a prompt's as soon as the sequence has the drafter.
struct KvChunk {
  KvRows kv;

  static constexpr const char* kName = "kv_chunk";
  bool operator==(const KvChunk&) const = default;
  static void fields(auto& v, auto& m) { v("kv", m.kv); }
};

/// Verifier -> coordinator -> client, while a prompt is computed: log-probabilities of its next tokens, each given
/// those before it. All but the first token's come before the Verdict and the Tokens that answer the prompt.
struct PromptScores {
  Position first = 0;                   ///< of the first of these tokens in the prompt
  std::vector<TokenLogprobs> logprobs;  ///< as many alternatives each

  static constexpr const char* kName = "prompt_scores";
  bool operator==(const PromptScores&) const = default;
  static void fields(auto& v, auto& m) {
    v("first", m.first, kPositions);
    v("logprobs", m.logprobs, kTexts);
  }
};

/// Coordinator -> drafter: draft. The message's base is the position of `token`.
struct Draft {
  TokenId token = 0;  ///< the last emitted token
  std::int32_t draft_length = 0;
  /// [hidden_size]: the target's row that produced `token`, after the final norm. Where the session goes on from drafts
  /// that nobody verifies, it is instead the `state` of the last Candidates, in f32. None for a drafter that needs
  /// tokens alone.
  std::optional<WireTensor> hidden = {};
  /// The session's: what it forbids would be lost. In the first Draft that a drafter gets of the session, and in the
  /// one after a NeedKv; later it is known there. None, and not known: the drafter takes the most probable tokens.
  std::optional<SamplingParams> sampling = {};
  std::int64_t index = 0;       ///< place of the first draft in the answer
  bool want_state = false;      ///< Candidates::state is wanted: drafting goes on from these drafts
  bool want_q = false;          ///< Candidates::q is wanted under every rule; changes no draft
  bool sampling_known = false;  ///< `sampling` came before
  /// Where what may be chosen depends on the answer (SamplingParams::follows_answer): its tokens up to `index`. With
  /// `sampling` all of them, else those that follow the last Draft that was answered, at least.
  std::vector<TokenId> answer = {};
  /// The ways in which this round may end for which the drafter is to draft ahead, the most probable first, each
  /// draft_length tokens. It sends them unasked, each in Candidates with `after`, while it has nothing else to do.
  std::int32_t ahead = 0;
  /// Drafts that are being verified already. The drafter goes along them instead of choosing its own, and sends only
  /// what it drafts ahead.
  std::vector<TokenId> known = {};
  /// The drafts are to be a token tree, of at most draft_length tokens: those that are the most likely to be kept, as
  /// the drafter sees it. Else a chain.
  bool tree = false;
  /// Of a tree: what is less likely to be kept than this is not worth a row.
  double worth = 0;
  /// What ends the answer, so that nothing is drafted behind it: the session's, and known where `sampling` is. Empty:
  /// what ends the model's own.
  std::vector<TokenId> stop_ids = {};

  static constexpr const char* kName = "draft";
  bool operator==(const Draft&) const = default;
  static void fields(auto& v, auto& m) {
    v("token", m.token, kNatural);
    v("draft_length", m.draft_length, kDraftLengths);
    v("hidden", m.hidden, Rank{1});
    v("sampling", m.sampling);
    v("index", m.index, kPositions);
    v("want_state", m.want_state);
    v("want_q", m.want_q);
    v("sampling_known", m.sampling_known);
    v("answer", m.answer, kTexts);
    v("ahead", m.ahead, kGuesses);
    v("known", m.known, kDrafts);
    v("tree", m.tree);
    v("worth", m.worth, kChances);
    v("stop_ids", m.stop_ids, kTokenSets);
  }
};

/// Drafter -> coordinator: the drafts. Coordinator -> client: the answer to a Step that asked for drafts.
struct Candidates {
  std::vector<TokenId> tokens;
  std::int64_t draft_ns = 0;  ///< spent in assistant forwards, which other sequences may have shared
  /// One distribution for each draft, of at most kDraftTopK tokens, or none at all. Which distribution it is depends on
  /// the session's rule (SamplingRule) and on the Draft:
  /// - kRejection: the one that the draft was drawn from. The verifier needs it.
  /// - kMatch, if the Draft wants q: the one that kRejection would have drawn from.
  /// - drafts that are the most probable tokens (temperature 0, or kTypical), if the Draft wants q: the drafter's
  ///   probabilities at temperature 1, without filters.
  /// - else none.
  std::vector<Distribution> q = {};
  /// [hidden_size] f32: the assistant's own row after the last draft. There if the Draft wants it.
  std::optional<WireTensor> state = {};
  /// Drafted ahead: the round that begins at the message's base is taken to emit these tokens, and the drafts follow
  /// them. Empty: the drafts that the Draft asked for.
  std::vector<TokenId> after = {};
  std::vector<std::int32_t> depths = {};  ///< where the drafts are a tree (TokenTree): of each; children by one q
  std::int64_t passes = 0;                ///< the forwards of draft_ns
  std::int64_t pass_rows = 0;             ///< of all of them: this sequence's and others'

  static constexpr const char* kName = "candidates";
  bool operator==(const Candidates&) const = default;
  static void fields(auto& v, auto& m) {
    v("tokens", m.tokens, kDrafts);
    v("draft_ns", m.draft_ns, kNatural);
    v("q", m.q, kDrafts);
    v("state", m.state, Rank{1});
    v("after", m.after, kOutcomes);
    v("depths", m.depths, kDrafts, kDraftLengths);
    v("passes", m.passes, kNatural);
    v("pass_rows", m.pass_rows, kNatural);
  }
};

/// Drafter -> coordinator, instead of Candidates: rows are missing.
struct NeedKv {
  /// Committed rows that the replica holds; the next one is wanted first. Where it holds all of them, it has yet to
  /// compute its own K/V of so many that this round is not worth the wait.
  Position have = 0;

  static constexpr const char* kName = "need_kv";
  bool operator==(const NeedKv&) const = default;
  static void fields(auto& v, auto& m) { v("have", m.have, kPositions); }
};

/// Coordinator -> verifier: verify drafts. The message's base is the position of tokens[0].
struct Verify {
  std::vector<TokenId> tokens;  ///< the last emitted token, then the drafts
  /// First position whose donor rows the drafter still needs: the Verdict brings those from here to its end, with the
  /// hidden row. None: there is no drafter to send them to, and the Verdict brings neither.
  std::optional<Position> kv_from = {};
  std::vector<Distribution> q = {};       ///< what each draft was drawn from (kRejection); empty: the drafts must match
  std::vector<std::int32_t> depths = {};  ///< where the drafts are a tree (TokenTree): of each
  WireForm wire = WireForm::kExact;       ///< that the drafter wants of the rows

  static constexpr const char* kName = "verify";
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
  TokenId next_token = 0;                 ///< the bonus token, or the replacement of the first rejected draft
  Position committed = 0;                 ///< K/V rows valid from now on
  std::optional<WireTensor> hidden = {};  ///< [hidden_size], the row that produced next_token; if K/V were wanted
  KvRows kv = {};                         ///< as the Verify's kv_from asks; of a Prefill those not yet sent as chunks
  std::int64_t verify_ns = 0;             ///< the forward pass that held these rows
  /// Of the accepted drafts and next_token, if the session wants them; as many alternatives each.
  std::vector<TokenLogprobs> logprobs = {};
  Position cached_tokens = 0;   ///< of a Prefill: tokens that were not computed, because their K/V were there
  std::int64_t waited_ns = 0;   ///< by the Verify, for the forward pass to begin
  std::int64_t batch_rows = 0;  ///< of that pass: this sequence's and others'
  std::int32_t row = 0;         ///< where the drafts are a tree: of the last one kept (TokenTree); 0: none was
  std::int64_t pass = 0;        ///< the verifier's number of that pass; 0: not told

  static constexpr const char* kName = "verdict";
  bool operator==(const Verdict&) const = default;
  static void fields(auto& v, auto& m) {
    v("accepted", m.accepted, kDraftLengths);
    v("next_token", m.next_token, kNatural);
    v("committed", m.committed, kPositions);
    v("hidden", m.hidden, Rank{1});
    v("kv", m.kv);
    v("verify_ns", m.verify_ns, kNatural);
    v("logprobs", m.logprobs, kTexts);
    v("cached_tokens", m.cached_tokens, kPositions);
    v("waited_ns", m.waited_ns, kNatural);
    v("batch_rows", m.batch_rows, kNatural);
    v("row", m.row, kDraftLengths);
    v("pass", m.pass, kNatural);
  }
  Result<void> settle() const;
};

/// Client -> coordinator: nobody wants more tokens.
struct Cancel {
  /// The answer is its first `keep` tokens, and finished: Done follows, with kStop. None: the request failed, with
  /// kCancelled.
  std::optional<std::int64_t> keep = {};

  static constexpr const char* kName = "cancel";
  bool operator==(const Cancel&) const = default;
  static void fields(auto& v, auto& m) { v("keep", m.keep, kNatural); }
};

/// Coordinator -> workers: forget the session.
struct Free {
  static constexpr const char* kName = "free";
  bool operator==(const Free&) const = default;
  static void fields(auto&, auto&) {}
};

/// Worker -> coordinator, coordinator -> client: this request has no other answer.
struct Failed {
  Errc code = Errc::kInvalidArgument;
  std::string message;

  static constexpr const char* kName = "failed";
  bool operator==(const Failed&) const = default;
  static void fields(auto& v, auto& m) {
    v("code", m.code, Errc::kIo);
    v("message", m.message, kNameBytes);
  }
};

// ---- clients ----

/// Client -> coordinator: answer this prompt. The message's session is the client's own number for the request.
struct Generate {
  std::vector<TokenId> prompt;
  std::int64_t max_tokens = 0;
  /// Of every round (DraftPolicy::kFixed), or the most that the policy may choose of one source; 0: plain decoding.
  std::int32_t draft_length = 0;
  std::vector<TokenId> stop_ids = {};  ///< at most kSamplingListMax; empty: only max_tokens and the context end it
  std::int64_t wait_ms = 0;            ///< how long to wait for a verifier to join
  bool stepwise = false;               ///< after the first token, every round waits for the client's Steps
  SamplingParams sampling = {};
  bool unverified = false;  ///< refused: every answer is verified. It keeps its place on the wire
  DraftPolicy policy = DraftPolicy::kFixed;
  bool report_rounds = false;  ///< Tokens say how their round went
  /// A max_tokens that no verifier has the K/V memory for is lowered to what the roomiest can hold, not refused.
  bool shorten = false;
  /// Whose turn it is, where a front end asks for others: an address, say. The front end's own choice, and the same for
  /// all of its peers. Empty: the peer asks for itself.
  std::string on_behalf_of = {};
  /// K/V of a prompt's start are reused among sequences of the same scope only: how much of a prompt was there, and how
  /// soon its first token comes, tells nothing of the sequences of others. Empty: all who say nothing share.
  std::string cache_scope = {};
  /// Ways in which a round may end for which drafts are made while it is verified; none: as many as pay.
  std::optional<std::int32_t> draft_ahead = {};
  /// So many tokens at the prompt's end are the answer's, which another coordinator began: this one goes on with it.
  /// `max_tokens` is the whole answer's.
  std::int64_t answered = 0;
  /// Of an answer that has begun: whose verifiers may go on with it, as Tokens said.
  std::string numeric_class = {};
  std::string verifier_name = {};           ///< likewise: which has its K/V, if it is still there
  std::uint64_t tokenizer_fingerprint = 0;  ///< of the tokenizer that made the prompt; 0: not known
  /// A fixed length too is under the governor (common/decoding/drafting), but where drafts have a say in the sequence.
  bool governed = false;
  std::vector<WireMedium> media = {};  ///< in the prompt's order; the verifier's towers make soft tokens of them
  /// What the coordinator looks up and verifies beside the assistant's drafts, at most as many: of kFixed and kTree,
  /// and nothing is then drafted ahead.
  AddedSources added = {};
  std::string encoding_class = {};  ///< of an answer that has begun: who may make its soft tokens, as Tokens said

  static constexpr const char* kName = "generate";
  bool operator==(const Generate&) const = default;
  static void fields(auto& v, auto& m) {
    v("prompt", m.prompt, kTexts);
    v("max_tokens", m.max_tokens, kNatural);
    v("draft_length", m.draft_length, kDraftLengths);
    v("stop_ids", m.stop_ids, kTokenSets);
    v("wait_ms", m.wait_ms, kWaitMs);
    v("stepwise", m.stepwise);
    v("sampling", m.sampling);
    v("unverified", m.unverified);
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

/// How a round went.
struct RoundReport {
  std::int32_t draft_length = 0;          ///< as the policy chose it
  std::vector<TokenId> drafts = {};       ///< those that reached the verifier
  RoundOutcome outcome = {};              ///< its `pass` does not travel
  std::vector<std::int32_t> depths = {};  ///< where they are a tree (TokenTree): of each
  std::string drafter = {};               ///< the name of who made them, with its first drafts and when it changes

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
  /// Sets outcome.drafted, which is the number of drafts.
  Result<void> settle();
};

/// Coordinator -> client: the next tokens of the answer.
struct Tokens {
  std::int64_t index = 0;  ///< of tokens[0] in the answer
  std::vector<TokenId> tokens;
  std::vector<TokenLogprobs> logprobs = {};  ///< of each, if the request wants them; as many alternatives each
  std::optional<RoundReport> round = {};     ///< if asked for, and not with the first token
  // What another coordinator must know to go on with this answer; with its first token, and when it changes.
  std::string numeric_class = {}, verifier_name = {};  ///< its verifier's, and the verifier's name (Hello)
  std::int64_t max_tokens = 0;                         ///< to which the request's was lowered; 0: it was not
  std::string encoding_class = {};                     ///< with numeric_class: of who made its soft tokens (Hello)

  static constexpr const char* kName = "tokens";
  bool operator==(const Tokens&) const = default;
  static void fields(auto& v, auto& m) {
    v("index", m.index, kPositions);
    v("tokens", m.tokens, kTexts);
    v("logprobs", m.logprobs, kTexts);
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

/// The counter of /metrics that a field of RequestMetrics is added to, under vLLM's name where it has such. What is
/// kept in nanoseconds is counted in seconds, and a list by the index of its entries.
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

/// What the coordinator looked up in one source of its own (DraftSource), in a request.
struct LookedUp {
  std::int64_t rounds = 0;  ///< of drafting_rounds: RoundOutcome::source was this one
  std::int64_t drafted_tokens = 0, accepted_tokens = 0;
  bool operator==(const LookedUp&) const = default;
};

/// Sums over a request, kept by the coordinator; those over one that was resumed are its last coordinator's, but for
/// the times that its client took. Durations in nanoseconds.
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
  LookedUp ngram, table;
  std::int64_t cached_prompt_tokens = 0;  ///< of the prompt: their K/V were those of an earlier text
  std::int64_t queue_ns = 0;              ///< of prefill_ns: in the line, until a verifier was given the prompt
  std::int64_t failovers = 0;             ///< times that it went on at another verifier
  std::int64_t inexact_failovers = 0;     ///< of these: its bytes may differ from an undisturbed answer's
  std::int64_t failover_ns = 0;           ///< from when a verifier was missed until another had caught up
  std::int64_t ahead_rounds = 0;  ///< of drafting_rounds: the drafts were made while the one before was verified
  std::int64_t resumes = 0;       ///< times that its client took it to another coordinator, or to a restarted one
  std::int64_t resume_ns = 0;     ///< from the lost coordinator's last word until the sequence went on
  std::int64_t encode_ns = 0;     ///< of prefill_ns: an encoder's towers, as it measured them
  std::int64_t wire_bytes_to_encoder = 0;
  std::int64_t vain_drafts = 0;  ///< made ahead for ends that rounds did not come to, as far as they got here

  /// Of drafting_rounds: drafts were asked of the assistant, what draft_ns was spent on.
  std::int64_t assistant_rounds() const { return drafting_rounds - ngram.rounds - table.rounds - ahead_rounds; }

  bool operator==(const RequestMetrics&) const = default;
  /// For people: only the counts per position are bounded.
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
/// Adds one request's to the sums of several; the lists of positions become as long as the longest.
void add(RequestMetrics& sum, const RequestMetrics& one);

/// Coordinator -> client: the answer is complete.
struct Done {
  FinishReason reason = FinishReason::kStop;
  RequestMetrics metrics;

  static constexpr const char* kName = "done";
  bool operator==(const Done&) const = default;
  static void fields(auto& v, auto& m) {
    v("reason", m.reason, FinishReason::kLength);
    v("metrics", m.metrics);
  }
};

/// Client -> coordinator: who is there?
struct StatusRequest {
  static constexpr const char* kName = "status_request";
  bool operator==(const StatusRequest&) const = default;
  static void fields(auto&, auto&) {}
};

/// A worker as its coordinator sees it.
struct WorkerStatus {
  Role role = Role::kVerifier;
  std::string name;  ///< of its Hello; no two of a Status are the same
  std::int32_t sessions = 0;
  bool draining = false;
  std::int64_t rtt_ns = 0;  ///< round trip of a heartbeat, smoothed; 0: not measured yet
  /// Of one that computes K/V: set aside for its sessions, and all that it has.
  std::int64_t kv_bytes = 0, kv_bytes_max = 0;
  // A drafter's reputation (coordinator-node/reputation.h).
  double yield = 0;              ///< share of its rounds whose first draft held, of late
  std::int64_t late_rounds = 0;  ///< that it was asked for drafts in and had none in time, since it joined
  bool paused = false;           ///< it is given no sequences for a while, since others' drafts hold
  std::int32_t shards = 1;       ///< these two are of its Hello
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

/// Sequences whose verifier left them, since the coordinator started.
struct FailoverCounts {
  std::int64_t exact = 0;      ///< went on at another of its numeric class, or had no token yet
  std::int64_t inexact = 0;    ///< went on, but their bytes may differ from an undisturbed answer's
  std::int64_t failed = 0;     ///< none took them
  std::int64_t resume_ns = 0;  ///< of those that went on: from when a verifier was missed until another had caught up
  std::int64_t resumed = 0;    ///< sequences that another coordinator had begun, and that went on here

  bool operator==(const FailoverCounts&) const = default;
  static void fields(auto& v, auto& m) {
    v("exact", m.exact, kNatural);
    v("inexact", m.inexact, kNatural);
    v("failed", m.failed, kNatural);
    v("resume_ns", m.resume_ns, kNatural);
    v("resumed", m.resumed, kNatural);
  }
};

/// Answers that were chosen to be verified again (coordinator-node/auditor.h), since the coordinator started.
struct AuditCounts {
  std::int64_t same = 0;       ///< another verifier chose the same tokens
  std::int64_t different = 0;  ///< it chose another: one of the two is wrong
  std::int64_t skipped = 0;    ///< no other verifier of the class had room, or it left
  std::int64_t tokens = 0;     ///< of answers, that were verified again

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
  std::int32_t sessions = 0;               ///< open ones, those that wait included
  std::int32_t waiting = 0;                ///< for their turn
  std::vector<WorkerStatus> workers = {};  ///< at most kWorkersMax of them
  FailoverCounts failovers = {};
  AuditCounts audits = {};
  std::int32_t encoders = 0;

  static constexpr const char* kName = "status";
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
  }
};

/// Client -> coordinator: one half of a stepwise session's next round. A Failed with kInvalidArgument
/// refuses this step alone; any other ends the session.
struct Step {
  std::int32_t draft_length = 0;  ///< above 0: draft that many; the answer is Candidates, perhaps none
  std::vector<TokenId> drafts;    ///< else: verify these, perhaps none; the answer is Tokens

  static constexpr const char* kName = "step";
  bool operator==(const Step&) const = default;
  static void fields(auto& v, auto& m) {
    v("draft_length", m.draft_length, kDraftLengths);
    v("drafts", m.drafts, kDrafts);
  }
};

/// In the order of the schema's union, to whose end new messages go.
using Body = std::variant<Hello, Welcome, Refuse, WhoAreYou, Heartbeat, Drain, Prefill, KvChunk, Draft, Candidates,
                          NeedKv, Verify, Verdict, Cancel, Free, Failed, Generate, Tokens, Done, StatusRequest, Status,
                          Step, PromptScores, Encode, Encoded>;

/// Session, round and base position name the exchange that a message belongs to, so that a
/// duplicate or late one is recognised and dropped. Connection messages leave them 0.
struct Message {
  SessionId session{};
  RoundId round{};
  Position base = 0;
  Body body;
  bool operator==(const Message&) const = default;
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
