#include "common/transport/codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "schemas/outrider_generated.h"

namespace outrider {
namespace {

using flatbuffers::FlatBufferBuilder;
using flatbuffers::Offset;

// Enums cross by number. Whoever inserts an enumerator in the middle learns here that the wire
// does not follow.
template <typename Wire, typename Ours>
constexpr bool same(Wire wire, Ours ours) {
  return static_cast<int>(wire) == static_cast<int>(ours);
}
static_assert(same(wire::DType::F32, DType::kF32) && same(wire::DType::BF16, DType::kBf16) &&
              same(wire::DType::I8, DType::kI8) && same(wire::DType::I32, DType::kI32) &&
              same(wire::DType::I64, DType::kI64) && same(wire::DType::U8, DType::kU8));
static_assert(same(wire::Role::Verifier, Role::kVerifier) && same(wire::Role::Drafter, Role::kDrafter));
static_assert(same(wire::FinishReason::Stop, FinishReason::kStop) &&
              same(wire::FinishReason::Length, FinishReason::kLength));
static_assert(same(wire::SamplingRule::Match, SamplingRule::kMatch) &&
              same(wire::SamplingRule::Rejection, SamplingRule::kRejection) &&
              same(wire::SamplingRule::Typical, SamplingRule::kTypical));
static_assert(same(wire::DraftPolicy::Fixed, DraftPolicy::kFixed) &&
              same(wire::DraftPolicy::Auto, DraftPolicy::kAuto) &&
              same(wire::DraftPolicy::Heuristic, DraftPolicy::kHeuristic) &&
              same(wire::DraftPolicy::Ucb1, DraftPolicy::kUcb1) &&
              same(wire::DraftPolicy::Thompson, DraftPolicy::kThompson));
static_assert(same(wire::DraftSource::Assistant, DraftSource::kAssistant) &&
              same(wire::DraftSource::Ngram, DraftSource::kNgram));
static_assert(same(wire::ErrorCode::InvalidArgument, Errc::kInvalidArgument) &&
              same(wire::ErrorCode::NotFound, Errc::kNotFound) && same(wire::ErrorCode::Malformed, Errc::kMalformed) &&
              same(wire::ErrorCode::Unsupported, Errc::kUnsupported) &&
              same(wire::ErrorCode::Mismatch, Errc::kMismatch) &&
              same(wire::ErrorCode::VersionMismatch, Errc::kVersionMismatch) &&
              same(wire::ErrorCode::Timeout, Errc::kTimeout) && same(wire::ErrorCode::PeerGone, Errc::kPeerGone) &&
              same(wire::ErrorCode::OutOfRange, Errc::kOutOfRange) &&
              same(wire::ErrorCode::Unavailable, Errc::kUnavailable) &&
              same(wire::ErrorCode::Cancelled, Errc::kCancelled) && same(wire::ErrorCode::Io, Errc::kIo));

/// Bytes that `shape` and `dtype` ask for; none for a negative extent or more than `bytes_max`.
template <typename Extents>
std::optional<std::size_t> tensor_bytes(const Extents& shape, DType dtype, std::size_t bytes_max) {
  std::size_t bytes = size_bytes(dtype);
  for (const std::int64_t extent : shape) {
    // Each extent alone is bounded too, or a zero would hide an absurd one beside it.
    if (extent < 0 || static_cast<std::uint64_t>(extent) > bytes_max) return std::nullopt;
    const auto factor = static_cast<std::size_t>(extent);
    if (factor != 0 && bytes > bytes_max / factor) return std::nullopt;
    bytes *= factor;
  }
  return bytes;
}

// ---- encode ----

/// A header under construction and the frames that will follow it.
struct Writer {
  FlatBufferBuilder builder;
  std::vector<Offset<wire::TensorFacts>> tensors;
  Frames frames = Frames(1);  // [0] is the header, filled in last

  /// Adds a tensor's frame. @return its number.
  std::uint32_t add(const WireTensor& tensor) {
    const std::size_t size = tensor.data.bytes().size();
    CHECK(tensor_bytes(tensor.shape, tensor.dtype, std::numeric_limits<std::size_t>::max()) == size,
          "{} bytes for a {} tensor of shape [{}]", size, to_string(tensor.dtype), fmt::join(tensor.shape, ", "));
    tensors.push_back(
        wire::CreateTensorFacts(builder, static_cast<wire::DType>(tensor.dtype), builder.CreateVector(tensor.shape)));
    frames.push_back(tensor.data);
    return static_cast<std::uint32_t>(frames.size() - 1);
  }
};

Offset<wire::KvRows> write(Writer& writer, const KvRows& kv) {
  std::vector<Offset<wire::DonorDelta>> donors;
  for (const DonorDelta& donor : kv.donors) {
    const std::uint32_t key = writer.add(donor.key);
    const std::uint32_t value = writer.add(donor.value);
    donors.push_back(wire::CreateDonorDelta(writer.builder, donor.first, key, value));
  }
  return wire::CreateKvRows(writer.builder, kv.from, kv.to, writer.builder.CreateVector(donors));
}

Offset<wire::PairFacts> write(Writer& writer, const PairFacts& facts) {
  std::vector<Offset<wire::DonorFacts>> donors;
  for (const DonorFacts& donor : facts.donors) {
    donors.push_back(wire::CreateDonorFacts(writer.builder, donor.sliding, donor.layer, donor.num_key_value_heads,
                                            donor.head_dim, donor.sliding_window));
  }
  return wire::CreatePairFacts(writer.builder, facts.backbone_fingerprint, facts.embedding_fingerprint,
                               facts.hidden_size, facts.vocab_size, facts.context_max,
                               static_cast<wire::DType>(facts.kv_dtype), static_cast<wire::DType>(facts.hidden_dtype),
                               writer.builder.CreateVector(donors));
}

Offset<wire::RequestMetrics> write(Writer& writer, const RequestMetrics& metrics) {
  return wire::CreateRequestMetrics(writer.builder, metrics.rounds, metrics.drafting_rounds, metrics.drafted_tokens,
                                    metrics.accepted_tokens, writer.builder.CreateVector(metrics.drafted_per_position),
                                    writer.builder.CreateVector(metrics.accepted_per_position), metrics.prefill_ns,
                                    metrics.decode_ns, metrics.draft_ns, metrics.verify_ns, metrics.wire_ns,
                                    metrics.wire_bytes_to_drafter, metrics.wire_bytes_to_drafter_prompt,
                                    metrics.wire_bytes_to_verifier, metrics.ngram_rounds, metrics.ngram_drafted_tokens,
                                    metrics.ngram_accepted_tokens, metrics.cached_prompt_tokens);
}

Offset<wire::Hello> write(Writer& writer, const Hello& hello) {
  const auto name = writer.builder.CreateString(hello.name);
  const auto facts = write(writer, hello.facts);
  const Capacity& capacity = hello.capacity;
  return wire::CreateHello(
      writer.builder, static_cast<wire::Role>(hello.role), name, facts,
      wire::CreateCapacity(writer.builder, capacity.sessions_max, capacity.kv_cost.bytes_per_position,
                           capacity.kv_cost.ring_bytes_per_position, capacity.kv_cost.ring_rows,
                           capacity.kv_bytes_max));
}

Offset<wire::Welcome> write(Writer& writer, const Welcome& welcome) {
  return wire::CreateWelcome(writer.builder, welcome.membership);
}

Offset<wire::Refuse> write(Writer& writer, const Refuse& refuse) {
  return wire::CreateRefuse(writer.builder, static_cast<wire::ErrorCode>(refuse.code),
                            writer.builder.CreateString(refuse.message));
}

Offset<wire::WhoAreYou> write(Writer& writer, const WhoAreYou&) { return wire::CreateWhoAreYou(writer.builder); }

Offset<wire::Heartbeat> write(Writer& writer, const Heartbeat& heartbeat) {
  return wire::CreateHeartbeat(writer.builder, heartbeat.sent_ns);
}

Offset<wire::Drain> write(Writer& writer, const Drain&) { return wire::CreateDrain(writer.builder); }

Offset<wire::Sampling> write(Writer& writer, const SamplingParams& sampling) {
  std::vector<wire::LogitBias> logit_bias;
  for (const LogitBias& entry : sampling.logit_bias) logit_bias.emplace_back(entry.token, entry.bias);
  return wire::CreateSampling(
      writer.builder, sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, sampling.repetition_penalty,
      sampling.presence_penalty, sampling.frequency_penalty, writer.builder.CreateVectorOfStructs(logit_bias),
      writer.builder.CreateVector(sampling.suppress_tokens), sampling.min_tokens, sampling.seed,
      static_cast<wire::SamplingRule>(sampling.rule),
      sampling.logprobs ? flatbuffers::Optional<std::int32_t>(*sampling.logprobs) : flatbuffers::nullopt);
}

/// Absent where there are none.
Offset<wire::Logprobs> write(Writer& writer, const std::vector<TokenLogprobs>& logprobs) {
  if (logprobs.empty()) return {};
  std::vector<float> chosen, top;
  std::vector<TokenId> top_ids;
  for (const TokenLogprobs& token : logprobs) {
    CHECK(token.top.size() == logprobs[0].top.size(), "{} alternatives, then {}", logprobs[0].top.size(),
          token.top.size());
    chosen.push_back(token.logprob);
    for (const Logprob& entry : token.top) {
      top_ids.push_back(entry.token);
      top.push_back(entry.logprob);
    }
  }
  const auto chosen_at = writer.builder.CreateVector(chosen);
  const auto top_ids_at = writer.builder.CreateVector(top_ids);
  return wire::CreateLogprobs(writer.builder, chosen_at, top_ids_at, writer.builder.CreateVector(top));
}

Offset<wire::Prefill> write(Writer& writer, const Prefill& prefill) {
  const auto tokens = writer.builder.CreateVector(prefill.tokens);
  const auto sampling = write(writer, prefill.sampling);
  return wire::CreatePrefill(writer.builder, tokens, prefill.want_kv, prefill.positions_max, sampling,
                             writer.builder.CreateVector(prefill.stop_ids), prefill.compute_all);
}

Offset<wire::KvChunk> write(Writer& writer, const KvChunk& chunk) {
  return wire::CreateKvChunk(writer.builder, write(writer, chunk.kv));
}

Offset<wire::Draft> write(Writer& writer, const Draft& draft) {
  const std::uint32_t hidden = writer.add(draft.hidden);
  const auto kv = write(writer, draft.kv);
  const auto sampling = draft.sampling ? write(writer, *draft.sampling) : Offset<wire::Sampling>();
  return wire::CreateDraft(writer.builder, draft.token, draft.draft_length, hidden, kv, sampling, draft.index,
                           draft.want_state, draft.want_q);
}

/// Absent where there are none.
Offset<flatbuffers::Vector<Offset<wire::Distribution>>> write(Writer& writer,
                                                              const std::vector<Distribution>& distributions) {
  std::vector<Offset<wire::Distribution>> tables;
  for (const Distribution& distribution : distributions) {
    const auto ids = writer.builder.CreateVector(distribution.ids);
    tables.push_back(wire::CreateDistribution(writer.builder, ids, writer.builder.CreateVector(distribution.weights)));
  }
  if (tables.empty()) return {};
  return writer.builder.CreateVector(tables);
}

Offset<wire::Candidates> write(Writer& writer, const Candidates& candidates) {
  const auto tokens = writer.builder.CreateVector(candidates.tokens);
  const auto q = write(writer, candidates.q);
  return wire::CreateCandidates(writer.builder, tokens, candidates.draft_ns, q,
                                candidates.state ? writer.add(*candidates.state) : 0);
}

Offset<wire::NeedKv> write(Writer& writer, const NeedKv& need) { return wire::CreateNeedKv(writer.builder, need.have); }

Offset<wire::VerifyDraft> write(Writer& writer, const Verify& verify) {
  const auto tokens = writer.builder.CreateVector(verify.tokens);
  const auto q = write(writer, verify.q);
  return wire::CreateVerifyDraft(
      writer.builder, tokens,
      verify.kv_from ? flatbuffers::Optional<std::int64_t>(*verify.kv_from) : flatbuffers::nullopt, q);
}

Offset<wire::Verdict> write(Writer& writer, const Verdict& verdict) {
  const std::uint32_t hidden = verdict.hidden ? writer.add(*verdict.hidden) : 0;
  const auto kv = write(writer, verdict.kv);
  return wire::CreateVerdict(writer.builder, verdict.accepted, verdict.next_token, verdict.committed, hidden, kv,
                             verdict.verify_ns, write(writer, verdict.logprobs), verdict.cached_tokens);
}

Offset<wire::Cancel> write(Writer& writer, const Cancel& cancel) {
  return wire::CreateCancel(writer.builder,
                            cancel.keep ? flatbuffers::Optional<std::int64_t>(*cancel.keep) : flatbuffers::nullopt);
}

Offset<wire::Free> write(Writer& writer, const Free&) { return wire::CreateFree(writer.builder); }

Offset<wire::Failed> write(Writer& writer, const Failed& failed) {
  return wire::CreateFailed(writer.builder, static_cast<wire::ErrorCode>(failed.code),
                            writer.builder.CreateString(failed.message));
}

Offset<wire::Generate> write(Writer& writer, const Generate& generate) {
  return wire::CreateGenerate(writer.builder, writer.builder.CreateVector(generate.prompt), generate.max_tokens,
                              generate.draft_length, writer.builder.CreateVector(generate.stop_ids), generate.wait_ms,
                              generate.stepwise, write(writer, generate.sampling), generate.unverified,
                              static_cast<wire::DraftPolicy>(generate.policy), generate.report_rounds,
                              generate.shorten);
}

Offset<wire::Step> write(Writer& writer, const Step& step) {
  return wire::CreateStep(writer.builder, step.draft_length, writer.builder.CreateVector(step.drafts));
}

Offset<wire::Round> write(Writer& writer, const RoundReport& round) {
  const RoundOutcome& outcome = round.outcome;
  return wire::CreateRound(writer.builder, static_cast<wire::DraftSource>(outcome.source), round.draft_length,
                           writer.builder.CreateVector(round.drafts), outcome.accepted, outcome.draft_s,
                           outcome.draft_wire_s, outcome.verify_s, outcome.round_s, outcome.draft_bytes,
                           outcome.draft_rows);
}

Offset<wire::Tokens> write(Writer& writer, const Tokens& tokens) {
  const auto ids = writer.builder.CreateVector(tokens.tokens);
  const auto logprobs = write(writer, tokens.logprobs);
  return wire::CreateTokens(writer.builder, tokens.index, ids, logprobs,
                            tokens.round ? write(writer, *tokens.round) : Offset<wire::Round>());
}

Offset<wire::Done> write(Writer& writer, const Done& done) {
  return wire::CreateDone(writer.builder, static_cast<wire::FinishReason>(done.reason), write(writer, done.metrics));
}

Offset<wire::StatusRequest> write(Writer& writer, const StatusRequest&) {
  return wire::CreateStatusRequest(writer.builder);
}

Offset<wire::Status> write(Writer& writer, const Status& status) {
  std::vector<Offset<wire::WorkerStatus>> workers;
  for (const WorkerStatus& worker : status.workers) {
    workers.push_back(wire::CreateWorkerStatus(writer.builder, static_cast<wire::Role>(worker.role),
                                               writer.builder.CreateString(worker.name), worker.sessions,
                                               worker.draining, worker.rtt_ns, worker.kv_bytes, worker.kv_bytes_max));
  }
  return wire::CreateStatus(writer.builder, status.verifiers, status.drafters, status.sessions, status.waiting,
                            writer.builder.CreateVector(workers));
}

template <typename Table>
constexpr wire::Body body_type(Offset<Table>) {
  return wire::BodyTraits<Table>::enum_value;
}

// ---- decode ----

/// Reads fields of a verified header. The first thing found wrong is kept and makes the whole
/// message an error; reading may go on after it, and always stays within the frames.
constexpr std::size_t kTextBytesMax = 4096;
/// A day. As nanoseconds it is far from overflow.
constexpr std::int64_t kWaitMsMax = 24 * 3600 * 1000;

class Reader {
 public:
  Reader(const wire::Envelope& envelope, std::span<const SharedBytes> frames, const WireLimits& limits)
      : envelope_(envelope), frames_(frames), limits_(limits), used_(frames.size(), false) {
    const std::size_t described = envelope.tensors() ? envelope.tensors()->size() : 0;
    if (described != frames.size() - 1) {
      fail(Errc::kMalformed, "{} tensor frames came, the header describes {}", frames.size() - 1, described);
    }
  }

  const std::optional<Error>& error() const { return error_; }
  const WireLimits& limits() const { return limits_; }

  template <typename... Args>
  void fail(Errc code, fmt::format_string<Args...> format, Args&&... args) {
    if (!error_) error_ = Error{code, fmt::format(format, std::forward<Args>(args)...)};
  }

  template <typename T>
  T in_range(const char* what, T value, std::int64_t min, std::int64_t max) {
    if (value < min || value > max) {
      fail(Errc::kMalformed, "{} is {}, wanted {} to {}", what, value, min, max);
    }
    return value;
  }

  template <typename T>
  T not_negative(const char* what, T value) {
    return in_range(what, value, 0, std::numeric_limits<T>::max());
  }

  float finite(const char* what, float value) {
    if (!std::isfinite(value)) fail(Errc::kMalformed, "{} is {}, wanted a finite number", what, value);
    return value;
  }

  double seconds(const char* what, double value) {
    if (!(value >= 0 && value < 1e9)) fail(Errc::kMalformed, "{} is {}, wanted seconds from 0", what, value);
    return value;
  }

  /// Bounded, so that sums of positions cannot overflow anywhere.
  Position position(const char* what, std::int64_t value) {
    return in_range(what, value, 0, static_cast<std::int64_t>(limits_.tokens_max));
  }

  std::int32_t draft_length(const char* what, std::int32_t value) {
    return in_range(what, value, 0, limits_.draft_length_max);
  }

  template <typename Ours, typename Wire>
  Ours enumerator(const char* what, Wire value) {
    return static_cast<Ours>(in_range(what, static_cast<int>(value), 0, static_cast<int>(Wire::MAX)));
  }

  /// Counts of a vector, or 0 if it is absent or too long to be read.
  template <typename T>
  std::uint32_t count(const char* what, const flatbuffers::Vector<T>* vector, std::size_t max) {
    if (vector == nullptr) return 0;
    if (vector->size() > max) {
      fail(Errc::kOutOfRange, "{} {}, at most {} allowed", vector->size(), what, max);
      return 0;
    }
    return vector->size();
  }

  /// A vector of numbers that are not negative.
  template <typename T>
  std::vector<T> list(const char* what, const flatbuffers::Vector<T>* vector, std::size_t max) {
    if (count(what, vector, max) == 0) return {};
    std::vector<T> values(vector->begin(), vector->end());
    if (const T least = *std::min_element(values.begin(), values.end()); least < 0) {
      fail(Errc::kMalformed, "{} among {}, wanted none below 0", least, what);
    }
    return values;
  }

  template <typename T>
  void equal_sizes(const char* what, const flatbuffers::Vector<T>* a, const flatbuffers::Vector<T>* b) {
    const auto size = [](const flatbuffers::Vector<T>* v) { return v == nullptr ? 0u : v->size(); };
    if (size(a) != size(b)) fail(Errc::kMalformed, "{} have {} and {} entries, wanted as many", what, size(a), size(b));
  }

  /// Names and messages are for people; a peer must not fill logs with them.
  std::string text(const char* what, const flatbuffers::String* string) {
    if (string == nullptr) return "";
    if (string->size() > kTextBytesMax) {
      fail(Errc::kOutOfRange, "{} bytes of {}, at most {} allowed", string->size(), what, kTextBytesMax);
      return "";
    }
    return string->str();
  }

  WireTensor tensor(const char* what, std::uint32_t frame, std::size_t rank) {
    if (frame == 0 || frame >= frames_.size() || error_) {
      fail(Errc::kMalformed, "{} is said to be in frame {}, wanted 1 to {}", what, frame, frames_.size() - 1);
      return {};
    }
    if (used_[frame]) fail(Errc::kMalformed, "{} is in frame {}, which is in use", what, frame);
    used_[frame] = true;

    const wire::TensorFacts& facts = *envelope_.tensors()->Get(frame - 1);
    WireTensor result;
    result.dtype = enumerator<DType>("dtype", facts.dtype());
    if (const auto* shape = facts.shape(); shape && shape->size() == rank) {
      result.shape.assign(shape->begin(), shape->end());
    } else {
      fail(Errc::kMalformed, "{} has rank {}, wanted {}", what, shape ? shape->size() : 0, rank);
    }
    result.data = frames_[frame];
    if (error_) return {};  // size_bytes() wants a known dtype
    if (tensor_bytes(result.shape, result.dtype, limits_.tensor_bytes_max) != result.data.bytes().size()) {
      fail(Errc::kMalformed, "{} has {} bytes, wanted those of {} [{}]", what, result.data.bytes().size(),
           to_string(result.dtype), fmt::join(result.shape, ", "));
    }
    return result;
  }

  void expect_all_tensors_used() {
    for (std::size_t frame = 1; frame < used_.size(); ++frame) {
      if (!used_[frame]) fail(Errc::kMalformed, "nothing refers to tensor frame {}", frame);
    }
  }

 private:
  const wire::Envelope& envelope_;
  std::span<const SharedBytes> frames_;
  const WireLimits& limits_;
  std::vector<bool> used_;  ///< by frame number
  std::optional<Error> error_;
};

/// Donors of one model: each has a K and a V, and one frame is the hidden row's.
std::size_t donors_max(const WireLimits& limits) { return limits.tensors_max / 2; }

DonorDelta read(Reader& reader, const wire::DonorDelta& table, const KvRows& kv) {
  DonorDelta donor;
  donor.first = reader.in_range("kv donor's first", table.first(), kv.from, kv.to);
  donor.key = reader.tensor("key", table.key(), 3);
  donor.value = reader.tensor("value", table.value(), 3);
  if (reader.error()) return donor;
  if (donor.key.shape != donor.value.shape || donor.key.dtype != donor.value.dtype) {
    reader.fail(Errc::kMalformed, "key is {} [{}], value is {} [{}], wanted the same", to_string(donor.key.dtype),
                fmt::join(donor.key.shape, ", "), to_string(donor.value.dtype), fmt::join(donor.value.shape, ", "));
  }
  if (const std::int64_t rows = donor.key.shape[0]; rows != kv.to - donor.first) {
    reader.fail(Errc::kMalformed, "kv donor has {} rows from {} on, wanted them to end at {}", rows, donor.first,
                kv.to);
  }
  return donor;
}

KvRows read(Reader& reader, const wire::KvRows& table) {
  KvRows kv;
  kv.from = reader.position("kv from", table.from());
  kv.to = reader.position("kv to", table.to());
  if (kv.from > kv.to) {
    reader.fail(Errc::kMalformed, "kv from is {}, wanted at most its to, {}", kv.from, kv.to);
  }
  const std::uint32_t donors = reader.count("kv donors", table.donors(), donors_max(reader.limits()));
  if (kv.empty() != (donors == 0)) {
    reader.fail(Errc::kMalformed, "kv [{}, {}) has {} donors, wanted {}", kv.from, kv.to, donors,
                kv.empty() ? "none" : "some");
  }
  for (std::uint32_t i = 0; i < donors && !reader.error(); ++i) {
    kv.donors.push_back(read(reader, *table.donors()->Get(i), kv));
  }
  return kv;
}

DonorFacts read(Reader& reader, const wire::DonorFacts& table) {
  return {.sliding = table.sliding(),
          .layer = reader.not_negative("layer", table.layer()),
          .num_key_value_heads = reader.not_negative("num_key_value_heads", table.num_key_value_heads()),
          .head_dim = reader.not_negative("head_dim", table.head_dim()),
          .sliding_window = reader.not_negative("sliding_window", table.sliding_window())};
}

PairFacts read(Reader& reader, const wire::PairFacts& table) {
  PairFacts facts;
  facts.backbone_fingerprint = table.backbone_fingerprint();
  facts.embedding_fingerprint = table.embedding_fingerprint();
  facts.hidden_size = reader.not_negative("hidden_size", table.hidden_size());
  facts.vocab_size = reader.not_negative("vocab_size", table.vocab_size());
  facts.context_max = reader.position("context_max", table.context_max());
  facts.kv_dtype = reader.enumerator<DType>("kv_dtype", table.kv_dtype());
  facts.hidden_dtype = reader.enumerator<DType>("hidden_dtype", table.hidden_dtype());
  const std::uint32_t donors = reader.count("donors", table.donors(), donors_max(reader.limits()));
  for (std::uint32_t i = 0; i < donors; ++i) {
    facts.donors.push_back(read(reader, *table.donors()->Get(i)));
  }
  return facts;
}

RequestMetrics read(Reader& reader, const wire::RequestMetrics& table) {
  const auto positions = static_cast<std::size_t>(reader.limits().draft_length_max);
  RequestMetrics metrics = {
      .rounds = table.rounds(),
      .drafting_rounds = table.drafting_rounds(),
      .drafted_tokens = table.drafted_tokens(),
      .accepted_tokens = table.accepted_tokens(),
      .drafted_per_position = reader.list("drafted_per_position", table.drafted_per_position(), positions),
      .accepted_per_position = reader.list("accepted_per_position", table.accepted_per_position(), positions),
      .prefill_ns = table.prefill_ns(),
      .decode_ns = table.decode_ns(),
      .draft_ns = table.draft_ns(),
      .verify_ns = table.verify_ns(),
      .wire_ns = table.wire_ns(),
      .wire_bytes_to_drafter = table.wire_bytes_to_drafter(),
      .wire_bytes_to_drafter_prompt = table.wire_bytes_to_drafter_prompt(),
      .wire_bytes_to_verifier = table.wire_bytes_to_verifier(),
      .ngram_rounds = table.ngram_rounds(),
      .ngram_drafted_tokens = table.ngram_drafted_tokens(),
      .ngram_accepted_tokens = table.ngram_accepted_tokens(),
      .cached_prompt_tokens = table.cached_prompt_tokens()};
  reader.equal_sizes("drafted_per_position and accepted_per_position", table.drafted_per_position(),
                     table.accepted_per_position());
  return metrics;
}

Capacity read(Reader& reader, const wire::Capacity& table) {
  constexpr std::int64_t kBytesMax = std::int64_t{1}
                                     << 30;  // of a position: a thousand of the longest texts are still an int64
  return {
      .sessions_max = reader.not_negative("sessions_max", table.sessions_max()),
      .kv_cost = {.bytes_per_position = reader.in_range("bytes_per_position", table.bytes_per_position(), 0, kBytesMax),
                  .ring_bytes_per_position =
                      reader.in_range("ring_bytes_per_position", table.ring_bytes_per_position(), 0, kBytesMax),
                  .ring_rows = reader.position("ring_rows", table.ring_rows())},
      .kv_bytes_max = reader.not_negative("kv_bytes_max", table.kv_bytes_max())};
}

Hello read(Reader& reader, const wire::Hello& table) {
  return {.role = reader.enumerator<Role>("role", table.role()),
          .name = reader.text("name", table.name()),
          .facts = read(reader, *table.facts()),
          .capacity = read(reader, *table.capacity())};
}

Welcome read(Reader&, const wire::Welcome& table) { return {.membership = table.membership()}; }

Refuse read(Reader& reader, const wire::Refuse& table) {
  return {.code = reader.enumerator<Errc>("code", table.code()), .message = reader.text("message", table.message())};
}

WhoAreYou read(Reader&, const wire::WhoAreYou&) { return {}; }
Heartbeat read(Reader& reader, const wire::Heartbeat& table) {
  return {reader.not_negative("sent_ns", table.sent_ns())};
}
Drain read(Reader&, const wire::Drain&) { return {}; }

SamplingParams read(Reader& reader, const wire::Sampling& table) {
  SamplingParams sampling{.temperature = reader.finite("temperature", table.temperature()),
                          .top_k = reader.not_negative("top_k", table.top_k()),
                          .top_p = reader.finite("top_p", table.top_p()),
                          .min_p = reader.finite("min_p", table.min_p()),
                          .repetition_penalty = reader.finite("repetition_penalty", table.repetition_penalty()),
                          .presence_penalty = reader.finite("presence_penalty", table.presence_penalty()),
                          .frequency_penalty = reader.finite("frequency_penalty", table.frequency_penalty()),
                          .suppress_tokens = reader.list("suppress_tokens", table.suppress_tokens(), kSamplingListMax),
                          .min_tokens = reader.not_negative("min_tokens", table.min_tokens()),
                          .seed = table.seed(),
                          .rule = reader.enumerator<SamplingRule>("rule", table.rule())};
  const std::uint32_t biases = reader.count("logit biases", table.logit_bias(), kSamplingListMax);
  for (std::uint32_t i = 0; i < biases; ++i) {
    const wire::LogitBias& entry = *table.logit_bias()->Get(i);
    sampling.logit_bias.push_back(
        {reader.not_negative("logit bias's token", entry.token()), reader.finite("logit bias", entry.bias())});
  }
  if (table.logprobs()) sampling.logprobs = reader.in_range("logprobs", *table.logprobs(), 0, kLogprobsMax);
  return sampling;
}

/// @param table may be null. @param tokens that it must tell of, if it is there.
std::vector<TokenLogprobs> read(Reader& reader, const wire::Logprobs* table, std::size_t tokens) {
  if (table == nullptr) return {};
  const std::uint32_t count = reader.count("logprobs", table->chosen(), reader.limits().tokens_max);
  if (count == 0 || count != tokens) {
    reader.fail(Errc::kMalformed, "{} logprobs for {} tokens, wanted as many or none", count, tokens);
    return {};
  }
  const std::vector<TokenId> ids =
      reader.list("alternatives", table->top_ids(), count * static_cast<std::size_t>(kLogprobsMax));
  const std::size_t values = table->top() == nullptr ? 0 : table->top()->size();
  if (ids.size() % count != 0 || values != ids.size()) {
    reader.fail(Errc::kMalformed, "{} alternatives with {} logprobs for {} tokens, wanted as many for each", ids.size(),
                values, count);
    return {};
  }
  const auto logprob = [&](const flatbuffers::Vector<float>& from, std::size_t i) {
    const float value = from.Get(static_cast<flatbuffers::uoffset_t>(i));
    if (!(std::isfinite(value) && value <= 0))
      reader.fail(Errc::kMalformed, "a logprob is {}, wanted a finite number of at most 0", value);
    return value;
  };
  std::vector<TokenLogprobs> logprobs(count);
  const std::size_t top = ids.size() / count;
  for (std::size_t i = 0; i < count; ++i) {
    logprobs[i].logprob = logprob(*table->chosen(), i);
    for (std::size_t j = i * top; j < (i + 1) * top; ++j)
      logprobs[i].top.push_back({ids[j], logprob(*table->top(), j)});
  }
  return logprobs;
}

Prefill read(Reader& reader, const wire::Prefill& table) {
  Prefill prefill{.tokens = reader.list("tokens", table.tokens(), reader.limits().tokens_max),
                  .want_kv = table.want_kv(),
                  .positions_max = reader.not_negative("positions_max", table.positions_max()),
                  .sampling = read(reader, *table.sampling()),
                  .stop_ids = reader.list("stop_ids", table.stop_ids(), kSamplingListMax),
                  .compute_all = table.compute_all()};
  if (prefill.tokens.empty()) reader.fail(Errc::kMalformed, "0 tokens, wanted at least 1");
  return prefill;
}

KvChunk read(Reader& reader, const wire::KvChunk& table) { return {read(reader, *table.kv())}; }

Draft read(Reader& reader, const wire::Draft& table) {
  Draft draft{.token = reader.not_negative("token", table.token()),
              .draft_length = reader.draft_length("draft_length", table.draft_length()),
              .hidden = reader.tensor("hidden", table.hidden(), 1),
              .kv = read(reader, *table.kv()),
              .index = reader.position("index", table.index()),
              .want_state = table.want_state(),
              .want_q = table.want_q()};
  if (table.sampling() != nullptr) draft.sampling = read(reader, *table.sampling());
  return draft;
}

std::vector<Distribution> read(Reader& reader, const flatbuffers::Vector<Offset<wire::Distribution>>* tables) {
  const std::uint32_t count =
      reader.count("distributions", tables, static_cast<std::size_t>(reader.limits().draft_length_max));
  std::vector<Distribution> distributions(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    const wire::Distribution& table = *tables->Get(i);
    const std::vector<TokenId> ids = reader.list("distribution's ids", table.ids(), kDraftTopK);
    const std::size_t weights = table.weights() == nullptr ? 0 : table.weights()->size();
    if (ids.empty() || weights != ids.size()) {
      reader.fail(Errc::kMalformed, "{} ids and {} weights in a distribution, wanted 1 to {}, as many", ids.size(),
                  weights, kDraftTopK);
      return {};
    }
    for (std::size_t j = 0; j < ids.size(); ++j) {
      const float weight = table.weights()->Get(static_cast<flatbuffers::uoffset_t>(j));
      if (!(weight >= 0 && weight <= 1))
        reader.fail(Errc::kMalformed, "a distribution's weight is {}, wanted 0 to 1", weight);
      if (j > 0 && ids[j] <= ids[j - 1])
        reader.fail(Errc::kMalformed, "a distribution has {} after {}, wanted ascending ids", ids[j], ids[j - 1]);
      distributions[i].add(ids[j], weight);
    }
    if (distributions[i].total <= 0) reader.fail(Errc::kMalformed, "a distribution's weights are all 0");
  }
  return distributions;
}

Candidates read(Reader& reader, const wire::Candidates& table) {
  const auto tokens_max = static_cast<std::size_t>(reader.limits().draft_length_max);
  Candidates candidates{.tokens = reader.list("tokens", table.tokens(), tokens_max),
                        .draft_ns = reader.not_negative("draft_ns", table.draft_ns()),
                        .q = read(reader, table.q())};
  if (table.state() != 0) candidates.state = reader.tensor("state", table.state(), 1);
  return candidates;
}

NeedKv read(Reader& reader, const wire::NeedKv& table) { return {reader.position("have", table.have())}; }

Verify read(Reader& reader, const wire::VerifyDraft& table) {
  const auto tokens_max = static_cast<std::size_t>(reader.limits().draft_length_max) + 1;
  Verify verify;
  verify.tokens = reader.list("tokens", table.tokens(), tokens_max);
  if (verify.tokens.empty()) reader.fail(Errc::kMalformed, "0 tokens, wanted at least 1");
  if (table.kv_from()) verify.kv_from = reader.position("kv_from", *table.kv_from());
  verify.q = read(reader, table.q());
  return verify;
}

Verdict read(Reader& reader, const wire::Verdict& table) {
  Verdict verdict;
  verdict.accepted = reader.draft_length("accepted", table.accepted());
  verdict.next_token = reader.not_negative("next_token", table.next_token());
  verdict.committed = reader.position("committed", table.committed());
  if (table.hidden() != 0) verdict.hidden = reader.tensor("hidden", table.hidden(), 1);
  verdict.kv = read(reader, *table.kv());
  verdict.verify_ns = reader.not_negative("verify_ns", table.verify_ns());
  verdict.logprobs = read(reader, table.logprobs(), static_cast<std::size_t>(std::max(0, verdict.accepted)) + 1);
  verdict.cached_tokens = reader.position("cached_tokens", table.cached_tokens());
  return verdict;
}

Cancel read(Reader& reader, const wire::Cancel& table) {
  Cancel cancel;
  if (table.keep()) cancel.keep = reader.not_negative("keep", *table.keep());
  return cancel;
}

Free read(Reader&, const wire::Free&) { return {}; }

Failed read(Reader& reader, const wire::Failed& table) {
  return {.code = reader.enumerator<Errc>("code", table.code()), .message = reader.text("message", table.message())};
}

Generate read(Reader& reader, const wire::Generate& table) {
  return {.prompt = reader.list("prompt tokens", table.prompt(), reader.limits().tokens_max),
          .max_tokens = reader.not_negative("max_tokens", table.max_tokens()),
          .draft_length = reader.draft_length("draft_length", table.draft_length()),
          .stop_ids = reader.list("stop_ids", table.stop_ids(), kSamplingListMax),
          .wait_ms = reader.in_range("wait_ms", table.wait_ms(), 0, kWaitMsMax),
          .stepwise = table.stepwise(),
          .sampling = read(reader, *table.sampling()),
          .unverified = table.unverified(),
          .policy = reader.enumerator<DraftPolicy>("policy", table.policy()),
          .report_rounds = table.report_rounds(),
          .shorten = table.shorten()};
}

Step read(Reader& reader, const wire::Step& table) {
  const auto drafts_max = static_cast<std::size_t>(reader.limits().draft_length_max);
  return {.draft_length = reader.draft_length("draft_length", table.draft_length()),
          .drafts = reader.list("drafts", table.drafts(), drafts_max)};
}

RoundReport read(Reader& reader, const wire::Round& table) {
  const std::int32_t draft_length_max = reader.limits().draft_length_max;
  RoundReport round{.draft_length = reader.draft_length("draft_length", table.draft_length()),
                    .drafts = reader.list("drafts", table.drafts(), static_cast<std::size_t>(draft_length_max))};
  const auto drafted = static_cast<std::int32_t>(round.drafts.size());
  round.outcome = {.source = reader.enumerator<DraftSource>("source", table.source()),
                   .drafted = drafted,
                   .accepted = reader.in_range("accepted", table.accepted(), 0, drafted),
                   .draft_s = reader.seconds("draft_s", table.draft_s()),
                   .draft_wire_s = reader.seconds("draft_wire_s", table.draft_wire_s()),
                   .verify_s = reader.seconds("verify_s", table.verify_s()),
                   .round_s = reader.seconds("round_s", table.round_s()),
                   .draft_bytes = reader.not_negative("draft_bytes", table.draft_bytes()),
                   .draft_rows = reader.not_negative("draft_rows", table.draft_rows())};
  return round;
}

Tokens read(Reader& reader, const wire::Tokens& table) {
  Tokens tokens{.index = reader.position("index", table.index()),
                .tokens = reader.list("tokens", table.tokens(), reader.limits().tokens_max)};
  tokens.logprobs = read(reader, table.logprobs(), tokens.tokens.size());
  if (table.round() != nullptr) tokens.round = read(reader, *table.round());
  return tokens;
}

Done read(Reader& reader, const wire::Done& table) {
  return {.reason = reader.enumerator<FinishReason>("reason", table.reason()),
          .metrics = read(reader, *table.metrics())};
}

StatusRequest read(Reader&, const wire::StatusRequest&) { return {}; }

WorkerStatus read(Reader& reader, const wire::WorkerStatus& table) {
  return {.role = reader.enumerator<Role>("role", table.role()),
          .name = reader.text("name", table.name()),
          .sessions = reader.not_negative("sessions", table.sessions()),
          .draining = table.draining(),
          .rtt_ns = reader.not_negative("rtt_ns", table.rtt_ns()),
          .kv_bytes = reader.not_negative("kv_bytes", table.kv_bytes()),
          .kv_bytes_max = reader.not_negative("kv_bytes_max", table.kv_bytes_max())};
}

Status read(Reader& reader, const wire::Status& table) {
  Status status{.verifiers = reader.not_negative("verifiers", table.verifiers()),
                .drafters = reader.not_negative("drafters", table.drafters()),
                .sessions = reader.not_negative("sessions", table.sessions()),
                .waiting = reader.not_negative("waiting", table.waiting())};
  const std::uint32_t workers = reader.count("workers", table.workers(), reader.limits().workers_max);
  for (std::uint32_t i = 0; i < workers; ++i) status.workers.push_back(read(reader, *table.workers()->Get(i)));
  return status;
}

Body read_body(Reader& reader, const wire::Envelope& envelope) {
  // The Verifier lets a type without a body pass.
  if (envelope.body() == nullptr) {
    reader.fail(Errc::kMalformed, "there is no body");
    return {};
  }
  switch (envelope.body_type()) {
    case wire::Body::Hello: return read(reader, *envelope.body_as_Hello());
    case wire::Body::Welcome: return read(reader, *envelope.body_as_Welcome());
    case wire::Body::Refuse: return read(reader, *envelope.body_as_Refuse());
    case wire::Body::WhoAreYou: return read(reader, *envelope.body_as_WhoAreYou());
    case wire::Body::Heartbeat: return read(reader, *envelope.body_as_Heartbeat());
    case wire::Body::Drain: return read(reader, *envelope.body_as_Drain());
    case wire::Body::Prefill: return read(reader, *envelope.body_as_Prefill());
    case wire::Body::KvChunk: return read(reader, *envelope.body_as_KvChunk());
    case wire::Body::Draft: return read(reader, *envelope.body_as_Draft());
    case wire::Body::Candidates: return read(reader, *envelope.body_as_Candidates());
    case wire::Body::NeedKv: return read(reader, *envelope.body_as_NeedKv());
    case wire::Body::Verify: return read(reader, *envelope.body_as_Verify());
    case wire::Body::Verdict: return read(reader, *envelope.body_as_Verdict());
    case wire::Body::Cancel: return read(reader, *envelope.body_as_Cancel());
    case wire::Body::Free: return read(reader, *envelope.body_as_Free());
    case wire::Body::Failed: return read(reader, *envelope.body_as_Failed());
    case wire::Body::Generate: return read(reader, *envelope.body_as_Generate());
    case wire::Body::Tokens: return read(reader, *envelope.body_as_Tokens());
    case wire::Body::Done: return read(reader, *envelope.body_as_Done());
    case wire::Body::StatusRequest: return read(reader, *envelope.body_as_StatusRequest());
    case wire::Body::Status: return read(reader, *envelope.body_as_Status());
    case wire::Body::Step: return read(reader, *envelope.body_as_Step());
    case wire::Body::NONE: break;
  }
  reader.fail(Errc::kMalformed, "body type is {}, wanted 1 to {}", static_cast<int>(envelope.body_type()),
              static_cast<int>(wire::Body::MAX));
  return {};
}

Result<void> check_sizes(std::span<const SharedBytes> frames, const WireLimits& limits) {
  if (frames.empty()) return Error{Errc::kMalformed, "no frames, wanted at least a header"};
  if (frames.size() - 1 > limits.tensors_max) {
    return Error{Errc::kOutOfRange,
                 fmt::format("{} or more tensor frames, at most {} allowed", frames.size() - 1, limits.tensors_max)};
  }
  for (std::size_t i = 0; i < frames.size(); ++i) {
    const std::size_t max = i == 0 ? limits.header_bytes_max : limits.tensor_bytes_max;
    if (const std::size_t size = frames[i].bytes().size(); size > max) {
      return Error{Errc::kOutOfRange, fmt::format("frame {} has {} bytes, at most {} allowed", i, size, max)};
    }
  }
  return {};
}

/// The envelope in `header`, which is 8-byte aligned, once its version and its structure are known
/// to be right.
Result<const wire::Envelope*> verified_envelope(std::span<const std::byte> header, const WireLimits& limits) {
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(header.data());
  // Far below FlatBuffers' defaults: the deepest path is envelope, body, kv rows, donor.
  constexpr flatbuffers::uoffset_t kDepthMax = 8;
  const auto tables_max = static_cast<flatbuffers::uoffset_t>(
      16 + 3 * limits.tensors_max + static_cast<std::size_t>(limits.draft_length_max) + limits.workers_max);

  flatbuffers::Verifier version_verifier(bytes, header.size(), kDepthMax, tables_max);
  if (!version_verifier.VerifyBuffer<wire::AnyEnvelope>(wire::EnvelopeIdentifier())) {
    return Error{Errc::kMalformed, fmt::format("header frame of {} bytes is not an {} envelope", header.size(),
                                               wire::EnvelopeIdentifier())};
  }
  const std::uint32_t version = flatbuffers::GetRoot<wire::AnyEnvelope>(bytes)->version();
  if (version != kProtocolVersion) {
    return Error{Errc::kVersionMismatch,
                 fmt::format("peer speaks protocol version {}, this node speaks {}", version, kProtocolVersion)};
  }

  flatbuffers::Verifier verifier(bytes, header.size(), kDepthMax, tables_max);
  if (!wire::VerifyEnvelopeBuffer(verifier)) {
    return Error{Errc::kMalformed, fmt::format("header frame of {} bytes failed verification", header.size())};
  }
  return wire::GetEnvelope(bytes);
}

}  // namespace

Frames encode(const Message& message) {
  Writer writer;
  FlatBufferBuilder& builder = writer.builder;
  const auto [type, body] = std::visit(
      [&](const auto& content) {
        const auto offset = write(writer, content);
        return std::pair(body_type(offset), offset.Union());
      },
      message.body);
  wire::FinishEnvelopeBuffer(
      builder, wire::CreateEnvelope(builder, kProtocolVersion, value(message.session), value(message.round),
                                    message.base, builder.CreateVector(writer.tensors), type, body));

  const auto header = std::make_shared<flatbuffers::DetachedBuffer>(builder.Release());
  writer.frames[0] = SharedBytes(header, std::as_bytes(std::span<const std::uint8_t>(header->data(), header->size())));
  return std::move(writer.frames);
}

Result<Message> decode(std::span<const SharedBytes> frames, const WireLimits& limits) {
  RETURN_IF_ERROR(check_sizes(frames, limits));

  // FlatBuffers reads fields in place, so they must lie where their types may.
  std::span<const std::byte> header = frames[0].bytes();
  std::vector<std::uint64_t> aligned;
  if (reinterpret_cast<std::uintptr_t>(header.data()) % alignof(std::uint64_t) != 0) {
    aligned.resize(header.size() / sizeof(std::uint64_t) + 1);
    std::memcpy(aligned.data(), header.data(), header.size());
    header = std::as_bytes(std::span(aligned)).first(header.size());
  }
  ASSIGN_OR_RETURN(const wire::Envelope* const envelope, verified_envelope(header, limits));

  Reader reader(*envelope, frames, limits);
  Message message;
  message.session = SessionId{envelope->session()};
  message.round = RoundId{envelope->round()};
  message.base = reader.position("base", envelope->base());
  message.body = read_body(reader, *envelope);
  reader.expect_all_tensors_used();
  if (reader.error()) {
    return Error{reader.error()->code,
                 fmt::format("{}: {}", wire::EnumNameBody(envelope->body_type()), reader.error()->message)};
  }
  return message;
}

}  // namespace outrider
