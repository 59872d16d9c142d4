#include "common/wire/transport/codec.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <random>
#include <string>

#include <flatbuffers/minireflect.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "schemas/outrider_generated.h"
#include "tests/support/message_fields.h"
#include "tests/support/message_text.h"

namespace outrider {
namespace {

// ---- valid messages of random content ----

constexpr WireLimits kLimits;

/// Draws messages that the codec must accept.
class RandomMessages : public MessageFields<RandomMessages> {
 public:
  using MessageFields::operator();

  explicit RandomMessages(std::uint64_t seed) : engine_(seed) {}

  std::int64_t integer(std::int64_t min, std::int64_t max) {
    return std::uniform_int_distribution<std::int64_t>(min, max)(engine_);
  }
  bool coin() { return integer(0, 1) == 1; }

  /// A message whose body is alternative `type` of Body.
  Message message(std::size_t type) {
    Message result{SessionId{engine_()}, RoundId{static_cast<std::uint32_t>(engine_())}, integer(0, kTokensMax),
                   body(type)};
    return result;
  }

  void operator()(const char*, std::uint64_t& field) { field = engine_(); }
  void operator()(const char*, std::int64_t& field) { field = static_cast<std::int64_t>(engine_()); }
  template <typename T>
  void operator()(const char* name, std::optional<T>& field, const auto&... allowed) {
    // 0 is a value, not "none".
    if (coin()) coin() ? (*this)(name, field.emplace(), allowed...) : void(field.emplace());
    if constexpr (std::is_same_v<T, WireTensor>) {
      if (field) (*this)(name, *field, allowed...);
    }
  }
  void operator()(const char*, std::string& field, Count count) {
    field.resize(length(count));
    for (char& c : field) c = static_cast<char>(integer(' ', '~'));
  }
  void operator()(const char*, std::string& field, Verbatim bytes) {
    field.resize(length({0, bytes.max}));
    for (char& c : field) c = static_cast<char>(integer(0, 255));
  }
  void operator()(const char*, WireTensor& field, Rank rank) {
    field.dtype = static_cast<DType>(integer(0, static_cast<int>(kLastWireDType)));
    field.shape.clear();
    const std::int64_t axes = integer(static_cast<std::int64_t>(rank.min), static_cast<std::int64_t>(rank.max));
    for (std::int64_t i = 0; i < axes; ++i) field.shape.push_back(integer(1, 9));
    field.shape.back() *= static_cast<std::int64_t>(block_elements(field.dtype));
    fill(field);
  }

 private:
  friend class MessageFields<RandomMessages>;

  std::int64_t below(std::int64_t count) { return integer(0, count - 1); }
  template <typename T, typename Limit>
  T number(const Range<Limit>& range) {
    if constexpr (std::is_floating_point_v<T>) {
      const double low = std::max<double>(range.min, -16), high = std::min<double>(range.max, 16);
      return static_cast<T>(low + (high - low) * static_cast<double>(integer(0, 1024)) / 1024);
    } else {
      // Small numbers and the largest one, where encodings differ.
      const auto most = std::min<std::int64_t>(range.max, std::numeric_limits<T>::max());
      return static_cast<T>(integer(0, 9) == 0 ? most
                                               : integer(range.min, coin() ? most : std::min<std::int64_t>(most, 300)));
    }
  }
  std::size_t length(Count count) {
    return static_cast<std::size_t>(
        integer(static_cast<std::int64_t>(count.min),
                std::min<std::int64_t>(static_cast<std::int64_t>(count.max), coin() ? 200 : 3)));
  }
  void fill(WireTensor& tensor) {
    std::size_t count = 1;
    for (const std::int64_t extent : tensor.shape) count *= static_cast<std::size_t>(extent);
    const std::size_t size = stored_bytes(tensor.dtype, count);
    const auto bytes = std::make_shared<std::vector<std::byte>>(size);
    for (std::byte& b : *bytes) b = static_cast<std::byte>(engine_());
    tensor.data = SharedBytes(bytes, *bytes);
  }

  // Fields that depend on each other.
  void settle(auto&) {}
  void settle(KvRows& kv) {
    kv.from = kv.to = integer(0, 1000);
    kv.donors.resize(static_cast<std::size_t>(integer(0, 2)));
    const bool tokens = kv.donors.empty() && integer(0, 1) == 1;
    if (!tokens) kv.tokens.clear();
    if (kv.donors.empty() && !tokens) return;
    kv.to += integer(1, 8);
    if (tokens) kv.tokens.resize(static_cast<std::size_t>(kv.to - kv.from), 3);
    for (DonorDelta& donor : kv.donors) {
      donor.first = integer(kv.from, kv.to);  // may leave no row
      (*this)("", donor.key, Rank{3});
      donor.key.shape[0] = kv.to - donor.first;
      donor.value = donor.key;
      fill(donor.key);
      fill(donor.value);
    }
  }
  void settle(Distribution& distribution) {
    const std::size_t count = distribution.ids.size();
    distribution.clear();
    TokenId id = 0;
    for (std::size_t i = 0; i < count; ++i) {
      distribution.add(id, static_cast<float>(integer(i == 0, 64)) / 64);
      id += static_cast<TokenId>(integer(1, 1000));
    }
  }
  /// Of so many tokens, as many alternatives each; or none.
  void settle(std::vector<TokenLogprobs>& logprobs, std::size_t tokens) {
    const auto top = static_cast<std::size_t>(integer(0, kLogprobsMax));
    logprobs.resize(coin() ? tokens : 0);
    for (TokenLogprobs& token : logprobs) {
      (*this)("", token.rank, Range{1, std::numeric_limits<std::int32_t>::max()});
      token.top.resize(top);
      for (Logprob& entry : token.top) (*this)("", entry);
    }
  }
  void settle(Verdict& m) { settle(m.logprobs, static_cast<std::size_t>(m.accepted) + 1); }
  void settle(Tokens& m) { settle(m.logprobs, m.tokens.size()); }
  void settle(PromptScores& m) { settle(m.logprobs, static_cast<std::size_t>(integer(0, 40))); }
  void settle(RoundReport& m) {
    m.outcome.drafted = static_cast<int>(m.drafts.size());
    m.outcome.accepted = static_cast<int>(integer(0, m.outcome.drafted));
  }
  void settle(RequestMetrics& m) { m.accepted_per_position.resize(m.drafted_per_position.size()); }

  std::mt19937_64 engine_;
};

// ---- the same message as flatc sees it ----
// Both sides become lines: the path of each field in order, whether it is there or not, then `path=value` for each
// value that is not 0. Names of enumerators are compared without case and '_'.

std::string plain(std::string name) {
  std::erase(name, '_');
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

/// The lines of a header, by the tables that flatc made of the schema alone.
class SchemaLines : public flatbuffers::IterationVisitor {
 public:
  std::vector<std::string> lines;

  void StartSequence() override { path_.emplace_back(); }
  void EndSequence() override { path_.pop_back(); }
  void Field(std::size_t, std::size_t, flatbuffers::ElementaryType, bool, const flatbuffers::TypeTable*,
             const char* name, const std::uint8_t*) override {
    path_.back() = name;
    lines.push_back(fmt::format("{}", fmt::join(path_, ".")));
  }
  void UType(std::uint8_t, const char* name) override { add(plain(name)); }
  void Bool(bool x) override { add(x); }
  void UChar(std::uint8_t x, const char* name) override {
    if (x != 0) add(plain(name));
  }
  void Int(std::int32_t x, const char*) override { add(x); }
  void UInt(std::uint32_t x, const char*) override { add(x); }
  void Long(std::int64_t x) override { add(x); }
  void ULong(std::uint64_t x) override { add(x); }
  void Float(float x) override { add(x); }
  void Double(double x) override { add(x); }
  void String(const flatbuffers::String* x) override { add(x->str()); }

 private:
  template <typename T>
  void add(const T& value) {
    if (value != T{}) lines.push_back(fmt::format("{}={}", fmt::join(path_, "."), value));
  }
  std::vector<std::string> path_;
};

/// The lines of a message, by its fields().
class FieldLines {
 public:
  explicit FieldLines(const Message& message) {
    path_ = {"body"};
    lines.push_back("body_type");
    lines.push_back("body_type=" + plain(name_of(message)));
    lines.push_back("body");
    std::visit([&](const auto& body) { body.fields(*this, body); }, message.body);
  }
  std::vector<std::string> lines;

  template <typename T>
  void operator()(const char* name, const T& field, const auto&... allowed) {
    path_.emplace_back(name);
    lines.push_back(fmt::format("{}", fmt::join(path_, ".")));
    add(field, allowed...);
    path_.pop_back();
  }

 private:
  template <typename T, typename Allowed = int>
  requires std::is_scalar_v<T> || Described<const T> || std::is_same_v<T, std::string>
  void add(const T& value, const Allowed& = {}, const std::type_identity_t<T>& absent = {}) {
    if constexpr (std::is_enum_v<T>) {
      if (value != T{}) lines.push_back(fmt::format("{}={}", fmt::join(path_, "."), plain(to_string(value))));
    } else if constexpr (Described<const T>) {
      T::fields(*this, value);
    } else {
      if (value != T{} && value != absent) lines.push_back(fmt::format("{}={}", fmt::join(path_, "."), value));
    }
  }
  void add(const WireTensor&, Rank) { add(++frame_); }
  template <typename T>
  void add(const std::optional<T>& value, const auto&... allowed) {
    if (value) add(*value, allowed...);
  }
  template <typename T>
  void add(const std::vector<T>& values, Count, const auto&...) {
    for (const T& value : values) add(value);
  }
  void add(const std::vector<TokenLogprobs>& logprobs, Count) {
    if (logprobs.empty()) return;
    (*this)("chosen", 0);
    path_.emplace_back("chosen");
    for (const TokenLogprobs& token : logprobs) add(token.logprob);
    path_.back() = "top_ids";
    lines.push_back(fmt::format("{}", fmt::join(path_, ".")));
    for (const TokenLogprobs& token : logprobs)
      for (const Logprob& entry : token.top) add(entry.token);
    path_.back() = "top";
    lines.push_back(fmt::format("{}", fmt::join(path_, ".")));
    for (const TokenLogprobs& token : logprobs)
      for (const Logprob& entry : token.top) add(entry.logprob);
    path_.back() = "ranks";
    lines.push_back(fmt::format("{}", fmt::join(path_, ".")));
    for (const TokenLogprobs& token : logprobs) add(token.rank);
    path_.pop_back();
  }

  std::vector<std::string> path_;
  int frame_ = 0;
};

// ---- frames made and mangled by hand ----

SharedBytes copy_of(std::span<const std::byte> bytes) {
  // Exactly as large as it claims, so that a sanitizer sees one byte too many.
  const std::shared_ptr<std::byte[]> copy(new std::byte[bytes.size()]);
  std::copy(bytes.begin(), bytes.end(), copy.get());
  return SharedBytes(copy, {copy.get(), bytes.size()});
}
SharedBytes zeros(std::size_t size) { return copy_of(std::vector<std::byte>(size)); }

using flatbuffers::FlatBufferBuilder;
using flatbuffers::Offset;

/// A header frame whose body `build` makes; `tensors` become its tensor facts.
template <typename Build>
SharedBytes header(wire::Body type, Build build, std::uint32_t version = kProtocolVersion,
                   const std::vector<std::vector<std::int64_t>>& shapes = {}, wire::DType dtype = wire::DType::F32) {
  FlatBufferBuilder builder;
  std::vector<Offset<wire::TensorFacts>> tensors;
  for (const auto& shape : shapes) {
    tensors.push_back(wire::CreateTensorFacts(builder, dtype, builder.CreateVector(shape)));
  }
  const Offset<void> body = build(builder);
  wire::FinishEnvelopeBuffer(
      builder, wire::CreateEnvelope(builder, version, 1, 2, 3, builder.CreateVector(tensors), type, body));
  return copy_of(std::as_bytes(std::span(builder.GetBufferPointer(), builder.GetSize())));
}

/// A Verdict whose hidden row is said to be in frame `hidden`, and one donor's K and V in others.
SharedBytes verdict_header(std::uint32_t hidden, std::uint32_t key, std::uint32_t value,
                           const std::vector<std::vector<std::int64_t>>& shapes) {
  return header(
      wire::Body::Verdict,
      [&](FlatBufferBuilder& builder) {
        std::vector<Offset<wire::DonorDelta>> donors{wire::CreateDonorDelta(builder, 0, key, value)};
        const auto kv = wire::CreateKvRows(builder, 0, 2, builder.CreateVector(donors));
        return wire::CreateVerdict(builder, 0, 0, 0, hidden, kv).Union();
      },
      kProtocolVersion, shapes);
}

WireTensor tensor_of(std::vector<std::int64_t> shape, DType dtype = DType::kF32) {
  std::size_t count = 1;
  for (const std::int64_t extent : shape) count *= static_cast<std::size_t>(extent);
  return {dtype, std::move(shape), zeros(stored_bytes(dtype, count))};
}

Verdict good_verdict() {
  return {.next_token = 7,
          .committed = 12,
          .hidden = tensor_of({8}),
          .kv = {10,
                 12,
                 {{10, tensor_of({2, 1, 4}), tensor_of({2, 1, 4})}, {11, tensor_of({1, 1, 8}), tensor_of({1, 1, 8})}}}};
}
Frames good_frames() { return encode({SessionId{1}, RoundId{2}, 12, good_verdict()}); }

// ---- tests ----

TEST(Codec, EveryMessageSurvivesTheWire) {
  for (std::size_t type = 0; type < std::variant_size_v<Body>; ++type) {
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
      RandomMessages random(seed);
      const Message sent = random.message(type);
      const Result<Message> received = decode(encode(sent));
      ASSERT_TRUE(received) << name_of(sent) << ", seed " << seed << ": " << received.error().message;
      ASSERT_EQ(sent, *received) << name_of(sent) << ", seed " << seed;
    }
  }
}

TEST(Codec, FlatcReadsWhatTheFieldsSay) {
  for (std::size_t type = 0; type < std::variant_size_v<Body>; ++type) {
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      const Message message = RandomMessages(seed).message(type);
      const SharedBytes header = encode(message)[0];
      const auto* const bytes = reinterpret_cast<const std::uint8_t*>(header.bytes().data());
      flatbuffers::Verifier verifier(bytes, header.bytes().size());
      ASSERT_TRUE(wire::VerifyEnvelopeBuffer(verifier)) << to_text(message);
      const wire::Envelope* const envelope = wire::GetEnvelope(bytes);
      EXPECT_EQ(envelope->session(), value(message.session));
      EXPECT_EQ(envelope->round(), value(message.round));
      EXPECT_EQ(envelope->base(), message.base);
      SchemaLines schema;
      flatbuffers::IterateFlatBuffer(bytes, wire::EnvelopeTypeTable(), &schema);
      const auto body = std::find(schema.lines.begin(), schema.lines.end(), "body_type");
      ASSERT_EQ(std::vector(body, schema.lines.end()), FieldLines(message).lines) << to_text(message);
    }
  }
}

// frames_v5.txt: a message as text, then its frames in hexadecimal, one a line, as version 5 wrote them before
// fields() did.
TEST(Codec, FramesRecordedEarlierReadTheSameOrAreRefused) {
  std::ifstream file(OUTRIDER_SOURCE_DIR "/tests/goldens/wire/frames_v5.txt");
  std::string line, text;
  Frames frames;
  std::size_t messages = 0;
  const auto check = [&] {
    if (frames.empty()) return;
    ++messages;
    const Result<Message> message = decode(std::exchange(frames, {}));
    if (kProtocolVersion == 5) {
      ASSERT_TRUE(message) << text << ": " << message.error().message;
      EXPECT_EQ(to_text(*message), text);
    } else {
      ASSERT_FALSE(message) << text;
      EXPECT_EQ(message.error().code, Errc::kVersionMismatch) << text;
    }
  };
  while (std::getline(file, line)) {
    if (!line.starts_with(' ')) {
      ASSERT_NO_FATAL_FAILURE(check());
      text = line;
      continue;
    }
    std::vector<std::byte> bytes;
    for (std::size_t i = 1; i + 1 < line.size(); i += 2)
      bytes.push_back(static_cast<std::byte>(std::stoi(line.substr(i, 2), nullptr, 16)));
    frames.push_back(copy_of(bytes));
  }
  ASSERT_NO_FATAL_FAILURE(check());
  EXPECT_EQ(messages, 22u);
}

TEST(Codec, TensorsAreNotCopied) {
  const Verdict verdict = good_verdict();
  const Frames frames = encode({SessionId{1}, RoundId{2}, 12, verdict});
  ASSERT_EQ(frames.size(), 6u);
  EXPECT_EQ(frames[1].bytes().data(), verdict.hidden->data.bytes().data());
  const Result<Message> received = decode(frames);
  ASSERT_TRUE(received);
  EXPECT_EQ(std::get<Verdict>(received->body).kv.donors[1].value.data.bytes().data(),
            verdict.kv.donors[1].value.data.bytes().data());
}

// Text for people loses them.
TEST(Codec, AGrammarKeepsItsLines) {
  Prefill prefill{.tokens = {1}};
  prefill.sampling.grammar = "root ::= a\n\ta ::= \"\\n\"\n";
  const Message message{.session = SessionId{1}, .body = prefill};
  const auto received = decode(encode(message));
  ASSERT_TRUE(received) << received.error().message;
  EXPECT_EQ(*received, message);
}

// Two salts that differ in what is not printable must not share prefixes.
TEST(Codec, AScopeKeepsItsBytes) {
  const std::string scope("key\n\x80\xff", 6);
  for (const Body& body :
       std::vector<Body>{Generate{.prompt = {1}, .cache_scope = scope}, Prefill{.tokens = {1}, .cache_scope = scope},
                         Encode{.medium = {.content = tensor_of({8})}, .cache_scope = scope}}) {
    const Message message{.session = SessionId{1}, .body = body};
    const auto received = decode(encode(message));
    ASSERT_TRUE(received) << received.error().message;
    EXPECT_EQ(*received, message);
  }
}

TEST(Codec, DecodesAHeaderAtAnyAddress) {
  const Frames good = good_frames();
  for (std::size_t offset = 1; offset < 8; ++offset) {
    std::vector<std::byte> shifted(offset);
    shifted.insert(shifted.end(), good[0].bytes().begin(), good[0].bytes().end());
    const SharedBytes holder = copy_of(shifted);
    Frames frames = good;
    frames[0] = SharedBytes(std::make_shared<SharedBytes>(holder), holder.bytes().subspan(offset));
    EXPECT_TRUE(decode(frames)) << "offset " << offset;
  }
}

// FlatBuffers checks where a vector's length lies, not whether its elements lie where their type may. Undefined, where
// they are read in place.
TEST(Codec, ReadsNumbersThatAStrangerPutAtAnyAddress) {
  const std::int64_t extent = 10;
  const auto hidden = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(extent));
  for (std::size_t padding = 0; padding < 16; ++padding) {
    FlatBufferBuilder builder;
    builder.CreateVector(std::vector<std::uint8_t>(padding));
    std::vector<std::uint8_t> raw(sizeof extent);
    std::memcpy(raw.data(), &extent, sizeof extent);
    const Offset<flatbuffers::Vector<std::int64_t>> shape(builder.CreateVector(raw).o);
    const std::vector<Offset<wire::TensorFacts>> tensors{
        wire::CreateTensorFacts(builder, static_cast<wire::DType>(DType::kU8), shape)};
    const auto body = wire::CreateDraft(builder, 0, 0, 1).Union();
    wire::FinishEnvelopeBuffer(builder, wire::CreateEnvelope(builder, kProtocolVersion, 1, 2, 3,
                                                             builder.CreateVector(tensors), wire::Body::Draft, body));
    builder.GetBufferPointer()[builder.GetSize() - shape.o] = 1;  // its length: one number, not eight bytes
    const Frames frames{copy_of(std::as_bytes(std::span(builder.GetBufferPointer(), builder.GetSize()))),
                        SharedBytes(hidden, *hidden)};
    const Result<Message> message = decode(frames);
    ASSERT_TRUE(message) << padding << ": " << message.error().message;
    EXPECT_EQ(std::get<Draft>(message->body).hidden.value().shape, std::vector{extent}) << padding;
  }
}

TEST(Codec, WhatAPeerSaysCannotWriteLinesOfItsOwn) {
  const std::string said =
      "a\nb\x1b[2J\x7f \xc3\xa9 \xc2\x9b"
      "31m \xff\xc3";
  const Result<Message> message = decode(encode({.body = Failed{Errc::kIo, said}}));
  ASSERT_TRUE(message);
  EXPECT_EQ(std::get<Failed>(message->body).message, "a?b?[2J? \xc3\xa9 ?31m ??");
}

/// One thing wrong with a message, and what decode must say.
struct Wrong {
  const char* name;
  std::function<Frames()> frames;
  Errc code;
  const char* message;  ///< part of the error's
};

template <typename T, typename Change>
std::function<Frames()> body_with(T body, Change change) {
  change(body);
  return [body] { return encode({SessionId{1}, RoundId{2}, 12, body}); };
}
template <typename Change>
std::function<Frames()> verdict_with(Change change) {
  return body_with(good_verdict(), change);
}
template <typename Change>
std::function<Frames()> draft_with(Change change) {
  return body_with(Draft{.hidden = tensor_of({8})}, change);
}
template <typename Change>
std::function<Frames()> frames_with(Change change) {
  return [change] {
    Frames frames = good_frames();
    change(frames);
    return frames;
  };
}

const std::int32_t kLong = kDraftLengthMax + 1;
const std::int64_t kFar = static_cast<std::int64_t>(kTokensMax) + 1;
const std::vector<std::vector<std::int64_t>> kShapes = {{4}, {2, 1, 4}, {2, 1, 4}};

constexpr Errc kBad = Errc::kMalformed, kBig = Errc::kOutOfRange;
std::vector<TokenId> tokens(std::size_t count) { return std::vector<TokenId>(count, 1); }
std::function<Frames()> hello(const auto& change) { return body_with(Hello{}, change); }
std::function<Frames()> verdict_frames(std::uint32_t hidden, std::uint32_t key, std::uint32_t value,
                                       const std::vector<std::vector<std::int64_t>>& shapes = kShapes) {
  return [=] { return Frames{verdict_header(hidden, key, value, shapes), zeros(16), zeros(32), zeros(32)}; };
}
Offset<void> draft_with_bare_hidden(FlatBufferBuilder& builder) { return wire::CreateDraft(builder, 0, 0, 1).Union(); }
std::function<Frames()> bare(wire::Body type, bool with_body) {
  return [=] {
    return Frames{header(type, [&](FlatBufferBuilder& builder) {
      return with_body ? wire::CreateHeartbeat(builder).Union() : Offset<void>();
    })};
  };
}

const std::vector<Wrong> kWrongs = {
    // frames
    {"no_frames", [] { return Frames{}; }, kBad, "no frames"},
    {"too_many_frames", frames_with([](Frames& f) { f.resize(kLimits.tensors_max + 2, zeros(1)); }), kBig,
     "41 or more tensor frames, at most 40"},
    {"header_too_large", frames_with([](Frames& f) { f[0] = zeros(kLimits.header_bytes_max + 1); }), kBig,
     "frame 0 has 8388609 bytes, at most 8388608"},
    {"message_too_large",
     [] {
       const SharedBytes tensor = zeros(kLimits.tensor_bytes_max);
       return Frames{zeros(8), tensor, tensor, tensor};
     },
     kBig, "4 frames have 201326600 bytes together, at most 150994944"},
    {"tensor_too_large", frames_with([](Frames& f) { f[1] = zeros(kLimits.tensor_bytes_max + 1); }), kBig,
     "frame 1 has 67108865 bytes, at most 67108864"},
    {"frame_missing", frames_with([](Frames& f) { f.pop_back(); }), kBad,
     "4 tensor frames came, the header describes 5"},
    {"frame_surplus",
     [] {
       Frames f = encode({{}, {}, 0, Heartbeat{}});
       f.push_back(zeros(4));
       return f;
     },
     kBad, "1 tensor frames came, the header describes 0"},
    {"frame_short", frames_with([](Frames& f) { f[1] = zeros(31); }), kBad,
     "hidden has 31 bytes, wanted those of F32 [8]"},
    {"frame_long", frames_with([](Frames& f) { f[1] = zeros(33); }), kBad, "hidden has 33 bytes"},
    // envelope
    {"empty_header", frames_with([](Frames& f) { f[0] = SharedBytes(); }), kBad, "of 0 bytes is not"},
    {"wrong_identifier", frames_with([](Frames& f) {
       std::vector<std::byte> bytes(f[0].bytes().begin(), f[0].bytes().end());
       bytes[4] = std::byte{'X'};
       f[0] = copy_of(bytes);
     }),
     kBad, "is not an ORP1 envelope"},
    {"other_version",
     [] {
       return Frames{header(
           wire::Body::Heartbeat, [](FlatBufferBuilder& builder) { return wire::CreateHeartbeat(builder).Union(); },
           kProtocolVersion + 1)};
     },
     Errc::kVersionMismatch, "version 16, this node speaks 15"},
    // A later version may change whatever it likes; only the version field must be found.
    {"other_version_with_another_body",
     [] {
       return Frames{
           header(
               static_cast<wire::Body>(99),
               [](FlatBufferBuilder& builder) { return Offset<void>(builder.CreateString("unlike a table").o); },
               kProtocolVersion + 1),
           zeros(3)};
     },
     Errc::kVersionMismatch, "version 16, this node speaks 15"},
    {"unknown_body_type", bare(static_cast<wire::Body>(99), true), kBad, "body type is 99, wanted 1 to 25"},
    {"body_type_none", bare(wire::Body::NONE, true), kBad, "body type is 0, wanted 1 to 25"},
    {"no_body", bare(wire::Body::Heartbeat, false), kBad, "there is no body"},
    {"base_negative",
     [] {
       return encode({{}, {}, -1, Heartbeat{}});
     },
     kBad, "base is -1, wanted 0 to 1048576"},
    {"base_far",
     [] {
       return encode({{}, {}, kFar, Heartbeat{}});
     },
     kBad, "base is 1048577"},
    // tensors
    {"tensor_rank", verdict_with([](Verdict& d) {
       d.hidden = tensor_of({1, 8});
     }),
     kBad, "hidden has rank 2, wanted 1"},
    {"tensor_without_shape", verdict_with([](Verdict& d) { d.hidden = tensor_of({}); }), kBad,
     "hidden has rank 0, wanted 1"},
    {"kv_rank", verdict_with([](Verdict& d) {
       d.kv.donors[0].key = tensor_of({2, 4});
     }),
     kBad, "key has rank 2, wanted 3"},
    {"tensor_dtype",
     [] {
       return Frames{
           header(wire::Body::Draft, draft_with_bare_hidden, kProtocolVersion, {{4}}, static_cast<wire::DType>(9)),
           zeros(16)};
     },
     kBad, "dtype is 9, wanted 0 to 8"},
    {"tensor_of_parts_of_blocks",
     [] {
       return Frames{header(wire::Body::Draft, draft_with_bare_hidden, kProtocolVersion, {{48}}, wire::DType::Q8_0),
                     zeros(51)};
     },
     kBad, "hidden has 51 bytes, wanted those of Q8_0 [48]"},
    {"tensor_of_too_few_blocks",
     [] {
       return Frames{header(wire::Body::Draft, draft_with_bare_hidden, kProtocolVersion, {{64}}, wire::DType::Q4_0),
                     zeros(18)};
     },
     kBad, "hidden has 18 bytes, wanted those of Q4_0 [64]"},
    {"tensor_blocks_negative",
     [] {
       return Frames{header(wire::Body::Draft, draft_with_bare_hidden, kProtocolVersion, {{-64}}, wire::DType::Q4_0),
                     zeros(36)};
     },
     kBad, "hidden has 36 bytes, wanted those of Q4_0 [-64]"},
    {"tensor_extent_negative",
     [] {
       return Frames{header(wire::Body::Draft, draft_with_bare_hidden, kProtocolVersion, {{-4}}), zeros(16)};
     },
     kBad, "hidden has 16 bytes, wanted those of F32 [-4]"},
    {"tensor_shape_overflows",
     verdict_frames(1, 2, 3, {{4}, {std::int64_t{1} << 31, std::int64_t{1} << 31, 4}, {2, 1, 4}}), kBad,
     "key has 32 bytes, wanted those of F32 [2147483648, 2147483648, 4]"},
    {"tensor_shape_wraps_to_the_right_size",
     // 4 bytes * 2^31 * 2^31 * 2 wraps to 0 in 64 bits.
     [] {
       return Frames{verdict_header(1, 2, 3, {{4}, {std::int64_t{1} << 31, std::int64_t{1} << 31, 2}, {2, 1, 4}}),
                     zeros(16), zeros(0), zeros(32)};
     },
     kBad, "key has 0 bytes"},
    {"tensor_zero_hides_absurd_extent",
     [] {
       return Frames{verdict_header(1, 2, 3, {{4}, {0, std::numeric_limits<std::int64_t>::max(), 4}, {2, 1, 4}}),
                     zeros(16), zeros(0), zeros(32)};
     },
     kBad, "key has 0 bytes"},
    {"frame_number_zero", verdict_frames(1, 0, 3), kBad, "key is said to be in frame 0, wanted 1 to 3"},
    {"frame_number_beyond", verdict_frames(1, 2, 4), kBad, "value is said to be in frame 4, wanted 1 to 3"},
    {"frame_number_twice", verdict_frames(1, 2, 2), kBad, "value is in frame 2, which is in use"},
    {"frame_unused", verdict_frames(0, 2, 3), kBad, "nothing refers to tensor frame 1"},
    // kv rows
    {"kv_from_negative", verdict_with([](Verdict& d) {
       d.kv = {-1, 0, {}};
     }),
     kBad, "kv.from is -1, wanted 0 to 1048576"},
    {"kv_to_far", verdict_with([](Verdict& d) { d.kv.to = kFar; }), kBad, "kv.to is 1048577, wanted 0 to 1048576"},
    {"kv_from_after_to", verdict_with([](Verdict& d) { d.kv.from = 13; }), kBad,
     "kv: from is 13, wanted at most its to, 12"},
    {"kv_empty_with_donors", verdict_with([](Verdict& d) { d.kv.from = 12; }), kBad,
     "kv: [12, 12) has 2 donors and 0 tokens, wanted none"},
    {"kv_without_donors", verdict_with([](Verdict& d) { d.kv.donors.clear(); }), kBad,
     "kv: [10, 12) has 0 donors and 0 tokens, wanted either or both"},
    {"kv_too_many_donors",
     [] {
       return Frames{header(wire::Body::KvChunk, [](FlatBufferBuilder& builder) {
         std::vector<Offset<wire::DonorDelta>> donors;
         for (int i = 0; i < 3; ++i) donors.push_back(wire::CreateDonorDelta(builder, 0, 1, 2));
         return wire::CreateKvChunk(builder, wire::CreateKvRows(builder, 0, 2, builder.CreateVector(donors))).Union();
       })};
     },
     kBig, "kv.donors has 3 entries, at most 2 allowed"},
    {"kv_first_before_from", verdict_with([](Verdict& d) { d.kv.donors[0].first = 9; }), kBad,
     "kv: donor's first is 9, wanted 10 to 12"},
    {"kv_first_after_to", verdict_with([](Verdict& d) { d.kv.donors[0].first = 13; }), kBad,
     "kv: donor's first is 13, wanted 10 to 12"},
    {"kv_rows_missing", verdict_with([](Verdict& d) { d.kv.donors[1].first = 10; }), kBad,
     "kv: donor has 1 rows from 10 on, wanted them to end at 12"},
    {"kv_shapes_differ", verdict_with([](Verdict& d) {
       d.kv.donors[0].value = tensor_of({2, 4, 1});
     }),
     kBad, "key is F32 [2, 1, 4], value is F32 [2, 4, 1]"},
    {"kv_dtypes_differ", verdict_with([](Verdict& d) {
       d.kv.donors[0].value = tensor_of({2, 1, 4}, DType::kBf16);
     }),
     kBad, "key is F32 [2, 1, 4], value is BF16 [2, 1, 4]"},
    // bodies
    {"hello_role", hello([](Hello& m) { m.role = Role{3}; }), kBad, "Hello: role is 3, wanted 0 to 2"},
    {"hello_kv_dtype", hello([](Hello& m) { m.facts.kv_dtype = DType{9}; }), kBad, "kv_dtype is 9, wanted 0 to 8"},
    {"hello_wire", hello([](Hello& m) { m.wire = WireForm{4}; }), kBad, "Hello: wire is 4, wanted 0 to 3"},
    {"hello_hidden_dtype", hello([](Hello& m) { m.facts.hidden_dtype = DType{255}; }), kBad, "hidden_dtype is 255"},
    {"hello_hidden_size", hello([](Hello& m) { m.facts.hidden_size = -1; }), kBad, "hidden_size is -1"},
    {"hello_vocab_size", hello([](Hello& m) { m.facts.vocab_size = -1; }), kBad, "vocab_size is -1"},
    {"hello_context_max", hello([](Hello& m) { m.facts.context_max = kFar; }), kBad, "context_max is 1048577"},
    {"hello_donors", hello([](Hello& m) { m.facts.donors.resize(3); }), kBig,
     "facts.donors has 3 entries, at most 2 allowed"},
    {"hello_donor_layer", hello([](Hello& m) { m.facts.donors = {{.layer = -1}}; }), kBad, "layer is -1"},
    {"hello_donor_heads", hello([](Hello& m) { m.facts.donors = {{.num_key_value_heads = -1}}; }), kBad,
     "num_key_value_heads is -1"},
    {"hello_donor_head_dim", hello([](Hello& m) { m.facts.donors = {{.head_dim = -1}}; }), kBad, "head_dim is -1"},
    {"hello_donor_window", hello([](Hello& m) { m.facts.donors = {{.sliding_window = -1}}; }), kBad,
     "sliding_window is -1"},
    {"hello_sessions_max", hello([](Hello& m) { m.capacity.sessions_max = -1; }), kBad, "sessions_max is -1"},
    {"hello_kv_position", hello([](Hello& m) { m.capacity.kv_cost.bytes_per_position = (std::int64_t{1} << 30) + 1; }),
     kBad, "bytes_per_position is 1073741825"},
    {"hello_kv_ring", hello([](Hello& m) { m.capacity.kv_cost.ring_bytes_per_position = -1; }), kBad,
     "ring_bytes_per_position is -1"},
    {"hello_kv_ring_rows", hello([](Hello& m) { m.capacity.kv_cost.ring_rows = kFar; }), kBad, "ring_rows is 1048577"},
    {"hello_kv_bytes_max", hello([](Hello& m) { m.capacity.kv_bytes_max = -1; }), kBad, "kv_bytes_max is -1"},
    {"hello_without_facts",
     [] {
       return Frames{header(wire::Body::Hello, [](FlatBufferBuilder& builder) {
         const auto start = builder.StartTable();
         return Offset<void>(builder.EndTable(start));
       })};
     },
     kBad, "failed verification"},
    {"refuse_code", body_with(Refuse{}, [](Refuse& m) { m.code = Errc{12}; }), kBad, "code is 12, wanted 0 to 11"},
    {"prefill_empty", body_with(Prefill{}, [](Prefill&) {}), kBad, "tokens has 0 entries, wanted at least 1"},
    {"prefill_long", body_with(Prefill{}, [](Prefill& m) { m.tokens = tokens(kTokensMax + 1); }), kBig,
     "tokens has 1048577 entries, at most 1048576 allowed"},
    {"prefill_negative_token",
     body_with(Prefill{},
               [](Prefill& m) {
                 m.tokens = {1, -5, 2};
               }),
     kBad, "tokens has -5, wanted 0 to 2147483647"},
    {"prefill_negative_positions",
     body_with(Prefill{},
               [](Prefill& m) {
                 m.tokens = {1};
                 m.positions_max = -1;
               }),
     kBad, "positions_max is -1"},
    {"prefill_without_sampling",
     [] {
       return Frames{header(wire::Body::Prefill, [](FlatBufferBuilder& builder) {
         const auto start = builder.StartTable();
         return Offset<void>(builder.EndTable(start));
       })};
     },
     kBad, "failed verification"},
    {"prefill_stop_ids_long",
     body_with(Prefill{.tokens = {1}}, [](Prefill& m) { m.stop_ids = tokens(kSamplingListMax + 1); }), kBig,
     "stop_ids has 4097 entries, at most 4096 allowed"},
    {"prefill_stop_ids", body_with(Prefill{.tokens = {1}}, [](Prefill& m) { m.stop_ids = {-1}; }), kBad,
     "stop_ids has -1, wanted 0 to 2147483647"},
    {"sampling_top_k", body_with(Generate{}, [](Generate& m) { m.sampling.top_k = -1; }), kBad, "top_k is -1"},
    {"sampling_temperature",
     body_with(Generate{}, [](Generate& m) { m.sampling.temperature = std::numeric_limits<float>::quiet_NaN(); }), kBad,
     "temperature is nan, wanted a finite number"},
    {"sampling_bias",
     body_with(Generate{},
               [](Generate& m) {
                 m.sampling.logit_bias = {{1, std::numeric_limits<float>::infinity()}};
               }),
     kBad, "sampling.logit_bias's bias is inf, wanted a finite number"},
    {"sampling_min_tokens", body_with(Generate{}, [](Generate& m) { m.sampling.min_tokens = -1; }), kBad,
     "min_tokens is -1"},
    {"sampling_suppress_tokens", body_with(Generate{}, [](Generate& m) { m.sampling.suppress_tokens = {-1}; }), kBad,
     "sampling.suppress_tokens has -1, wanted 0 to 2147483647"},
    {"sampling_suppress_tokens_long",
     body_with(Generate{}, [](Generate& m) { m.sampling.suppress_tokens = tokens(kSamplingListMax + 1); }), kBig,
     "sampling.suppress_tokens has 4097 entries, at most 4096 allowed"},
    {"sampling_bias_token",
     body_with(Generate{},
               [](Generate& m) {
                 m.sampling.logit_bias = {{-1, 0}};
               }),
     kBad, "sampling.logit_bias's token is -1, wanted 0 to 2147483647"},
    {"sampling_bias_long",
     body_with(Generate{}, [](Generate& m) { m.sampling.logit_bias.resize(kSamplingListMax + 1); }), kBig,
     "sampling.logit_bias has 4097 entries, at most 4096 allowed"},
    {"draft_token", draft_with([](Draft& d) { d.token = -1; }), kBad, "Draft: token is -1"},
    {"draft_length_negative", draft_with([](Draft& d) { d.draft_length = -1; }), kBad,
     "draft_length is -1, wanted 0 to 32"},
    {"draft_length_long", draft_with([](Draft& d) { d.draft_length = kLong; }), kBad, "draft_length is 33"},
    {"candidates_long", body_with(Candidates{}, [](Candidates& m) { m.tokens = tokens(33); }), kBig,
     "tokens has 33 entries, at most 32 allowed"},
    {"candidates_token", body_with(Candidates{}, [](Candidates& m) { m.tokens = {-1}; }), kBad,
     "tokens has -1, wanted 0 to 2147483647"},
    {"candidates_ns", body_with(Candidates{}, [](Candidates& m) { m.draft_ns = -1; }), kBad, "draft_ns is -1"},
    {"need_kv_have", body_with(NeedKv{}, [](NeedKv& m) { m.have = -1; }), kBad, "have is -1"},
    {"sampling_rule", body_with(Generate{}, [](Generate& m) { m.sampling.rule = static_cast<SamplingRule>(3); }), kBad,
     "rule is 3, wanted 0 to 2"},
    {"draft_index", draft_with([](Draft& d) { d.index = -1; }), kBad, "index is -1"},
    {"q_long", body_with(Candidates{}, [](Candidates& m) { m.q.resize(33); }), kBig,
     "q has 33 entries, at most 32 allowed"},
    {"q_empty", body_with(Candidates{}, [](Candidates& m) { m.q.resize(1); }), kBad,
     "q.ids has 0 entries, wanted at least 1"},
    {"q_wide",
     body_with(Candidates{},
               [](Candidates& m) {
                 m.q = {{tokens(65), std::vector<float>(65, 1), 65}};
               }),
     kBig, "q.ids has 65 entries, at most 64 allowed"},
    {"q_without_weights",
     body_with(Candidates{},
               [](Candidates& m) {
                 m.q = {{{1, 2}, {1}, 1}};
               }),
     kBad, "2 ids and 1 weights"},
    {"q_order",
     body_with(Candidates{},
               [](Candidates& m) {
                 m.q = {{{2, 2}, {1, 1}, 2}};
               }),
     kBad, "q: id 2 after 2, wanted ascending ids"},
    {"q_negative",
     body_with(Candidates{},
               [](Candidates& m) {
                 m.q = {{{1, 2}, {1, -1}, 0}};
               }),
     kBad, "q.weights has -1, wanted 0 to 1"},
    {"q_nan",
     body_with(Candidates{},
               [](Candidates& m) {
                 m.q = {{{1}, {std::numeric_limits<float>::quiet_NaN()}, 1}};
               }),
     kBad, "q.weights has nan, wanted 0 to 1"},
    {"q_zero",
     body_with(Verify{.tokens = {1, 2}},
               [](Verify& m) {
                 m.q = {{{1, 2}, {0, 0}, 0}};
               }),
     kBad, "weights are all 0"},
    {"verify_empty", body_with(Verify{}, [](Verify&) {}), kBad, "tokens has 0 entries, wanted at least 1"},
    {"verify_long", body_with(Verify{}, [](Verify& m) { m.tokens = tokens(34); }), kBig,
     "tokens has 34 entries, at most 33 allowed"},
    {"verify_token", body_with(Verify{}, [](Verify& m) { m.tokens = {-1}; }), kBad,
     "tokens has -1, wanted 0 to 2147483647"},
    {"verify_wire", body_with(Verify{.tokens = {1}, .wire = WireForm::kAuto}, [](Verify&) {}), kBad,
     "wire is 3, wanted 0 to 2"},
    {"verify_kv_from", body_with(Verify{{1}, -1}, [](Verify&) {}), kBad, "kv_from is -1"},
    {"verdict_accepted_negative", body_with(Verdict{}, [](Verdict& m) { m.accepted = -1; }), kBad,
     "accepted is -1, wanted 0 to 32"},
    {"verdict_accepted_long", body_with(Verdict{}, [](Verdict& m) { m.accepted = kLong; }), kBad, "accepted is 33"},
    {"verdict_next_token", body_with(Verdict{}, [](Verdict& m) { m.next_token = -1; }), kBad, "next_token is -1"},
    {"verdict_committed", body_with(Verdict{}, [](Verdict& m) { m.committed = kFar; }), kBad, "committed is 1048577"},
    {"verdict_cached", body_with(Verdict{}, [](Verdict& m) { m.cached_tokens = -1; }), kBad, "cached_tokens is -1"},
    {"verdict_ns", body_with(Verdict{}, [](Verdict& m) { m.verify_ns = -1; }), kBad, "verify_ns is -1"},
    {"failed_code", body_with(Failed{}, [](Failed& m) { m.code = Errc{200}; }), kBad, "code is 200"},
    {"generate_long", body_with(Generate{}, [](Generate& m) { m.prompt = tokens(kTokensMax + 1); }), kBig,
     "prompt has 1048577 entries, at most 1048576 allowed"},
    {"generate_prompt", body_with(Generate{}, [](Generate& m) { m.prompt = {-1}; }), kBad,
     "prompt has -1, wanted 0 to 2147483647"},
    {"generate_max_tokens", body_with(Generate{}, [](Generate& m) { m.max_tokens = -1; }), kBad, "max_tokens is -1"},
    {"generate_draft_length", body_with(Generate{}, [](Generate& m) { m.draft_length = kLong; }), kBad,
     "draft_length is 33"},
    {"generate_stop_ids", body_with(Generate{}, [](Generate& m) { m.stop_ids = {-1}; }), kBad,
     "stop_ids has -1, wanted 0 to 2147483647"},
    {"generate_stop_ids_long", body_with(Generate{}, [](Generate& m) { m.stop_ids = tokens(kSamplingListMax + 1); }),
     kBig, "stop_ids has 4097 entries, at most 4096 allowed"},
    {"generate_wait", body_with(Generate{}, [](Generate& m) { m.wait_ms = -1; }), kBad, "wait_ms is -1"},
    {"generate_wait_long", body_with(Generate{}, [](Generate& m) { m.wait_ms = 86'400'001; }), kBad,
     "wait_ms is 86400001"},
    {"step_draft_length", body_with(Step{}, [](Step& m) { m.draft_length = kLong; }), kBad, "draft_length is 33"},
    {"step_long", body_with(Step{}, [](Step& m) { m.drafts = tokens(33); }), kBig,
     "drafts has 33 entries, at most 32 allowed"},
    {"step_draft", body_with(Step{}, [](Step& m) { m.drafts = {-1}; }), kBad, "drafts has -1, wanted 0 to 2147483647"},
    {"hello_name_long", body_with(Hello{}, [](Hello& m) { m.name = std::string(257, 'x'); }), kBig,
     "name has 257 bytes, at most 256 allowed"},
    {"done_uneven", body_with(Done{}, [](Done& m) { m.metrics.drafted_per_position = {1}; }), kBad, "1 and 0 entries"},
    {"tokens_index", body_with(Tokens{}, [](Tokens& m) { m.index = -1; }), kBad, "index is -1"},
    {"tokens_long", body_with(Tokens{}, [](Tokens& m) { m.tokens = tokens(kTokensMax + 1); }), kBig,
     "tokens has 1048577 entries, at most 1048576 allowed"},
    {"generate_policy", body_with(Generate{}, [](Generate& m) { m.policy = DraftPolicy{6}; }), kBad,
     "policy is 6, wanted 0 to 5"},
    {"tokens_round_long", body_with(Tokens{}, [](Tokens& m) { m.round = {.drafts = tokens(33)}; }), kBig,
     "round.drafts has 33 entries, at most 32 allowed"},
    {"tokens_round_accepted",
     body_with(Tokens{}, [](Tokens& m) { m.round = {.drafts = tokens(2), .outcome = {.accepted = 3}}; }), kBad,
     "accepted is 3, wanted 0 to 2"},
    {"tokens_round_time",
     body_with(Tokens{},
               [](Tokens& m) { m.round = {.outcome = {.draft_s = std::numeric_limits<double>::quiet_NaN()}}; }),
     kBad, "draft_s is nan"},
    {"tokens_logprobs",
     body_with(Tokens{},
               [](Tokens& m) {
                 m.tokens = {1, 2}, m.logprobs.resize(1);
               }),
     kBad, "1 logprobs for 2 tokens"},
    {"tokens_logprob_nan",
     body_with(Tokens{},
               [](Tokens& m) {
                 m.tokens = {1}, m.logprobs = {{std::numeric_limits<float>::quiet_NaN(), {}}};
               }),
     kBad, "logprobs.chosen has nan, wanted a finite number of at most 0"},
    {"tokens_logprob_above",
     body_with(Tokens{},
               [](Tokens& m) {
                 m.tokens = {1}, m.logprobs = {{0, {{1, 0.5f}}}};
               }),
     kBad, "logprobs.top has 0.5, wanted a finite number of at most 0"},
    {"tokens_alternative",
     body_with(Tokens{},
               [](Tokens& m) {
                 m.tokens = {1}, m.logprobs = {{0, {{-1, 0}}}};
               }),
     kBad, "logprobs.top_ids has -1, wanted 0 to 2147483647"},
    {"tokens_alternatives",
     body_with(Tokens{},
               [](Tokens& m) {
                 m.tokens = {1}, m.logprobs = {{0, std::vector<Logprob>(129)}};
               }),
     kBig, "129 alternatives, at most 128 allowed"},
    {"verdict_logprobs", body_with(Verdict{}, [](Verdict& m) { m.accepted = 1, m.logprobs.resize(1); }), kBad,
     "1 logprobs for 2 tokens"},
    {"sampling_logprobs", body_with(Generate{}, [](Generate& m) { m.sampling.logprobs = 21; }), kBad,
     "logprobs is 21, wanted 0 to 20"},
    {"cancel_keep", body_with(Cancel{}, [](Cancel& m) { m.keep = -1; }), kBad, "keep is -1"},
    {"tokens_token", body_with(Tokens{}, [](Tokens& m) { m.tokens = {-1}; }), kBad,
     "tokens has -1, wanted 0 to 2147483647"},
    {"done_reason", body_with(Done{}, [](Done& m) { m.reason = FinishReason{2}; }), kBad, "reason is 2, wanted 0 to 1"},
    {"done_drafted_long", body_with(Done{}, [](Done& m) { m.metrics.drafted_per_position.resize(33); }), kBig,
     "metrics.drafted_per_position has 33 entries, at most 32 allowed"},
    {"done_accepted_negative", body_with(Done{}, [](Done& m) { m.metrics.accepted_per_position = {-1}; }), kBad,
     "metrics.accepted_per_position has -1, wanted 0 to 9223372036854775807"},
    {"status_verifiers", body_with(Status{}, [](Status& m) { m.verifiers = -1; }), kBad, "verifiers is -1"},
    {"status_drafters", body_with(Status{}, [](Status& m) { m.drafters = -1; }), kBad, "drafters is -1"},
    {"status_sessions", body_with(Status{}, [](Status& m) { m.sessions = -1; }), kBad, "sessions is -1"},
    {"status_waiting", body_with(Status{}, [](Status& m) { m.waiting = -1; }), kBad, "waiting is -1"},
    {"status_workers", body_with(Status{}, [](Status& m) { m.workers.resize(kWorkersMax + 1); }), kBig,
     "workers has 257 entries, at most 256 allowed"},
    {"status_worker_role", body_with(Status{}, [](Status& m) { m.workers = {{.role = Role{3}, .name = ""}}; }), kBad,
     "role is 3"},
    {"status_worker_rtt", body_with(Status{}, [](Status& m) { m.workers = {{.name = "", .rtt_ns = -1}}; }), kBad,
     "rtt_ns is -1"},
    {"status_worker_kv", body_with(Status{}, [](Status& m) { m.workers = {{.name = "", .kv_bytes = -1}}; }), kBad,
     "kv_bytes is -1"},
    {"status_worker_yield", body_with(Status{}, [](Status& m) { m.workers = {{.name = "", .yield = 1.5}}; }), kBad,
     "yield is 1.5"},
    {"status_audits", body_with(Status{}, [](Status& m) { m.audits.different = -1; }), kBad, "different is -1"},
    {"heartbeat_sent", body_with(Heartbeat{}, [](Heartbeat& m) { m.sent_ns = -1; }), kBad, "sent_ns is -1"},
};

class CodecRefuses : public testing::TestWithParam<Wrong> {};

TEST_P(CodecRefuses, WithTheRightError) {
  const Result<Message> message = decode(GetParam().frames());
  ASSERT_FALSE(message);
  EXPECT_EQ(message.error().code, GetParam().code) << message.error().message;
  EXPECT_NE(message.error().message.find(GetParam().message), std::string::npos) << message.error().message;
  EXPECT_EQ(message.error().message.find('\n'), std::string::npos);
}
INSTANTIATE_TEST_SUITE_P(Each, CodecRefuses, testing::ValuesIn(kWrongs),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

// The next three must not crash, and what they let pass must be a message that can be sent on.
void expect_harmless(const Frames& frames) {
  const Result<Message> message = decode(frames);
  if (message) {
    const Result<Message> again = decode(encode(*message));
    ASSERT_TRUE(again) << again.error().message;
    ASSERT_EQ(*message, *again);
  } else {
    ASSERT_FALSE(message.error().message.empty());
  }
}

TEST(CodecFuzz, AnyBytesAreHarmless) {
  for (std::uint64_t seed = 0; seed < 20'000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomMessages random(seed);
    Frames frames;
    for (std::int64_t count = random.integer(1, 4); count > 0; --count) {
      std::vector<std::byte> bytes(static_cast<std::size_t>(random.integer(0, 200)));
      for (std::byte& b : bytes) b = static_cast<std::byte>(random.integer(0, 255));
      // Half of the headers get past the identifier, and small offsets stay inside.
      if (frames.empty() && bytes.size() > 8 && random.coin()) {
        std::memcpy(bytes.data() + 4, "ORP1", 4);
        bytes[1] = bytes[2] = bytes[3] = std::byte{0};
      }
      frames.push_back(copy_of(bytes));
    }
    ASSERT_NO_FATAL_FAILURE(expect_harmless(frames));
  }
}

/// That frames of `count` random messages are, once change(random, frames) has spoilt them.
template <class Change>
void expect_harmless_after(std::uint64_t count, const Change& change) {
  for (std::uint64_t seed = 0; seed < count; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomMessages random(seed);
    Frames frames = encode(random.message(seed % std::variant_size_v<Body>));
    change(random, frames);
    ASSERT_NO_FATAL_FAILURE(expect_harmless(frames));
  }
}

TEST(CodecFuzz, FlippedBitsAreHarmless) {
  expect_harmless_after(20'000, [](RandomMessages& random, Frames& frames) {
    std::vector<std::byte> bytes(frames[0].bytes().begin(), frames[0].bytes().end());
    for (std::int64_t flips = random.integer(1, 4); flips > 0; --flips) {
      const std::int64_t bit = random.integer(0, static_cast<std::int64_t>(bytes.size()) * 8 - 1);
      bytes[static_cast<std::size_t>(bit / 8)] ^= static_cast<std::byte>(1 << (bit % 8));
    }
    frames[0] = copy_of(bytes);
  });
}

TEST(CodecFuzz, TruncatedAndShuffledFramesAreHarmless) {
  expect_harmless_after(10'000, [](RandomMessages& random, Frames& frames) {
    const auto any_frame = [&] {
      return static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(frames.size()) - 1));
    };
    switch (random.integer(0, 3)) {
      case 0: {
        SharedBytes& frame = frames[any_frame()];
        const auto size = random.integer(0, static_cast<std::int64_t>(frame.bytes().size()));
        frame = copy_of(frame.bytes().first(static_cast<std::size_t>(size)));
        break;
      }
      case 1: std::swap(frames[any_frame()], frames[any_frame()]); break;
      case 2: frames.push_back(frames[any_frame()]); break;
      case 3: frames.erase(frames.begin() + static_cast<std::ptrdiff_t>(any_frame())); break;
    }
  });
}

}  // namespace
}  // namespace outrider
