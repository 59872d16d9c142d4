#include "common/wire/transport/codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/utf8.h"
#include "schemas/outrider_generated.h"

namespace outrider {
namespace {

using flatbuffers::FlatBufferBuilder;
using flatbuffers::Offset;
using flatbuffers::Table;

/// Offset in a table's vtable of field `index` of the schema, counted from 0.
constexpr flatbuffers::voffset_t slot(int index) {
  return static_cast<flatbuffers::voffset_t>(sizeof(flatbuffers::voffset_t) * static_cast<std::size_t>(index + 2));
}

/// Type of a number in a table: enums and bools take one byte.
template <typename T>
using WireNumber =
    std::conditional_t<std::is_enum_v<T> || std::is_same_v<T, bool>, std::uint8_t, std::remove_const_t<T>>;
template <typename T>
concept Number = std::is_arithmetic_v<T> || std::is_enum_v<T>;

/// Log-probabilities on the wire: of n tokens, each with the same number k of alternatives.
struct LogprobLists {
  std::vector<float> chosen;        ///< [n]
  std::vector<TokenId> top_ids;     ///< [n * k]
  std::vector<float> top;           ///< [n * k]
  std::vector<std::int32_t> ranks;  ///< [n]

  static void fields(auto& v, auto& m) {
    constexpr Count kAlternatives{0, kTokensMax * kScoredIdsMax};
    v("chosen", m.chosen, Count{1, kTokensMax}, kLogprobs);
    v("top_ids", m.top_ids, kAlternatives);
    v("top", m.top, kAlternatives, kLogprobs);
    v("ranks", m.ranks, Count{1, kTokensMax}, Range{1, std::numeric_limits<std::int32_t>::max()});
  }
  Result<void> settle() const {
    if (ranks.size() != chosen.size())
      return Error(Errc::kMalformed, "{} ranks of {} tokens", ranks.size(), chosen.size());
    if (top.size() == top_ids.size() && top.size() % chosen.size() == 0) {
      if (top.size() / chosen.size() <= kScoredIdsMax) return {};
      return Error(Errc::kOutOfRange, "{} alternatives, at most {} allowed", top.size() / chosen.size(), kScoredIdsMax);
    }
    return Error(Errc::kMalformed, "{} alternatives with {} logprobs for {} tokens, wanted as many for each",
                 top_ids.size(), top.size(), chosen.size());
  }
};

LogprobLists to_lists(const std::vector<TokenLogprobs>& logprobs) {
  LogprobLists lists;
  for (const TokenLogprobs& token : logprobs) {
    CHECK(token.top.size() == logprobs[0].top.size(), "{} alternatives, then {}", logprobs[0].top.size(),
          token.top.size());
    lists.chosen.push_back(token.logprob);
    lists.ranks.push_back(token.rank);
    for (const Logprob& entry : token.top) {
      lists.top_ids.push_back(entry.token);
      lists.top.push_back(entry.logprob);
    }
  }
  return lists;
}

std::vector<TokenLogprobs> from_lists(const LogprobLists& lists) {
  std::vector<TokenLogprobs> logprobs(lists.chosen.size());
  for (std::size_t i = 0, j = 0; i < logprobs.size(); ++i) {
    logprobs[i].logprob = lists.chosen[i];
    logprobs[i].rank = lists.ranks[i];
    for (; j < lists.top.size() * (i + 1) / logprobs.size(); ++j)
      logprobs[i].top.push_back({lists.top_ids[j], lists.top[j]});
  }
  return logprobs;
}

/// Returns the size of a tensor; none for a negative extent, a row of partial blocks, or more than `bytes_max`.
std::optional<std::size_t> tensor_bytes(std::span<const std::int64_t> shape, DType dtype, std::size_t bytes_max) {
  const std::size_t block = block_elements(dtype);
  if (block > 1 && (shape.empty() || shape.back() % static_cast<std::int64_t>(block) != 0)) return std::nullopt;
  std::size_t bytes = stored_bytes(dtype, block);
  for (std::size_t i = 0; i < shape.size(); ++i) {
    const bool is_row = i + 1 == shape.size();
    const std::int64_t extent = is_row ? shape[i] / static_cast<std::int64_t>(block) : shape[i];
    // Bounds every extent by itself as well, since a zero would hide an absurd one beside it.
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
  Frames frames = Frames(1);  // [0] is the header, written last

  /// Adds a tensor's frame. @return its number
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

template <Described M>
Offset<Table> write(Writer& writer, const M& m);

/// Collects the fields of one table, and writes strings, lists and nested tables at once. Leaves out fields with their
/// default value, and empty lists and strings.
class TableWriter {
 public:
  explicit TableWriter(Writer& writer) : writer_(writer) {}

  template <Number T>
  void operator()(const char*, const T& value, const auto&, std::type_identity_t<T> absent = {}) {
    number(value, value == absent);
  }
  template <Number T>
  void operator()(const char*, const T& value) {
    number(value, value == T{});
  }
  template <Number T>
  void operator()(const char*, const std::optional<T>& value, const auto&) {
    number(value.value_or(T{}), !value);
  }
  void operator()(const char*, const WireTensor& tensor, Rank) { number(writer_.add(tensor), false); }
  void operator()(const char*, const std::optional<WireTensor>& tensor, Rank) {
    number(tensor ? writer_.add(*tensor) : 0, !tensor);
  }
  void operator()(const char*, const std::string& text, const auto&) {
    offset(text.empty() ? 0 : writer_.builder.CreateString(text).o);
  }
  template <Number T>
  void operator()(const char*, const std::vector<T>& list, Count, const auto&...) {
    offset(list.empty() ? 0 : writer_.builder.CreateVector(list).o);
  }
  void operator()(const char*, const std::vector<LogitBias>& list, Count) {
    std::vector<wire::LogitBias> structs;
    for (const LogitBias& entry : list) structs.emplace_back(entry.token, entry.bias);
    offset(list.empty() ? 0 : writer_.builder.CreateVectorOfStructs(structs).o);
  }
  void operator()(const char*, const std::vector<TokenLogprobs>& list, Count) {
    offset(list.empty() ? 0 : write(writer_, to_lists(list)).o);
  }
  template <Described T>
  void operator()(const char*, const std::vector<T>& list, Count) {
    std::vector<Offset<Table>> tables;
    for (const T& entry : list) tables.push_back(write(writer_, entry));
    offset(list.empty() ? 0 : writer_.builder.CreateVector(tables).o);
  }
  template <Described T>
  void operator()(const char*, const T& table) {
    offset(write(writer_, table).o);
  }
  template <Described T>
  void operator()(const char*, const std::optional<T>& table) {
    offset(table ? write(writer_, *table).o : 0);
  }

  Offset<Table> finish() {
    FlatBufferBuilder& builder = writer_.builder;
    const flatbuffers::uoffset_t start = builder.StartTable();
    for (const std::size_t size : {8, 4, 1}) {  // descending, so that alignment needs no padding
      for (int i = 0; i < count_; ++i) {
        const Field& field = fields_[static_cast<std::size_t>(i)];
        if (field.size != size) continue;
        if (field.is_offset) {
          builder.AddOffset(slot(i), Offset<void>(static_cast<flatbuffers::uoffset_t>(field.bits)));
        } else if (size == 8) {
          builder.AddElement(slot(i), field.bits);
        } else if (size == 4) {
          builder.AddElement(slot(i), static_cast<std::uint32_t>(field.bits));
        } else {
          builder.AddElement(slot(i), static_cast<std::uint8_t>(field.bits));
        }
      }
    }
    return Offset<Table>(builder.EndTable(start));
  }

 private:
  struct Field {
    std::size_t size = 0;  ///< in the table; 0: left out
    bool is_offset = false;
    std::uint64_t bits = 0;
  };

  template <Number T>
  void number(T value, bool leave_out) {
    using Bits = std::conditional_t<sizeof(WireNumber<T>) == 8, std::uint64_t,
                                    std::conditional_t<sizeof(WireNumber<T>) == 4, std::uint32_t, std::uint8_t>>;
    add({leave_out ? 0 : sizeof(Bits), false, std::bit_cast<Bits>(static_cast<WireNumber<T>>(value))});
  }
  void offset(flatbuffers::uoffset_t to) { add({to == 0 ? 0 : sizeof(to), true, to}); }
  void add(const Field& field) {
    CHECK(static_cast<std::size_t>(count_) < fields_.size());
    fields_[static_cast<std::size_t>(count_++)] = field;
  }

  Writer& writer_;
  std::array<Field, 32> fields_;
  int count_ = 0;
};

template <Described M>
Offset<Table> write(Writer& writer, const M& m) {
  TableWriter table(writer);
  M::fields(table, m);
  return table.finish();
}

// ---- decode ----

/// Copies bytes, since FlatBuffers' iterators assume aligned elements, and its Verifier checks only a vector's start.
template <typename T>
void copy_numbers(const flatbuffers::Vector<T>& from, std::vector<T>& to) {
  static_assert(std::endian::native == std::endian::little);
  to.resize(from.size());
  if (!to.empty()) std::memcpy(to.data(), from.Data(), to.size() * sizeof(T));
}

/// State shared by the tables of one verified header. The first error is kept and fails the whole message; nothing is
/// read after it.
class Reader {
 public:
  Reader(const wire::Envelope& envelope, std::span<const SharedBytes> frames, const WireLimits& limits)
      : envelope_(envelope), frames_(frames), limits_(limits), used_(frames.size(), false) {
    const std::size_t described = envelope.tensors() ? envelope.tensors()->size() : 0;
    if (described != frames.size() - 1) {
      fail(Errc::kMalformed,
           fmt::format("{} tensor frames came, the header describes {}", frames.size() - 1, described));
    }
  }

  const std::optional<Error>& error() const { return error_; }

  void fail(Errc code, std::string message) {
    if (!error_) error_ = Error{code, std::move(message)};
  }

  /// Sets *tensor to the one in a frame. @return the error text that follows its name; empty: no error
  std::string tensor(std::uint32_t frame, Rank rank, WireTensor* tensor) {
    if (frame == 0 || frame >= frames_.size())
      return fmt::format(" is said to be in frame {}, wanted 1 to {}", frame, frames_.size() - 1);
    if (used_[frame]) return fmt::format(" is in frame {}, which is in use", frame);
    used_[frame] = true;
    const wire::TensorFacts& facts = *envelope_.tensors()->Get(frame - 1);
    tensor->dtype = static_cast<DType>(facts.dtype());
    if (tensor->dtype > kLastWireDType) {
      return fmt::format("'s dtype is {}, wanted 0 to {}", static_cast<int>(tensor->dtype),
                         static_cast<int>(kLastWireDType));
    }
    if (const auto* shape = facts.shape()) copy_numbers(*shape, tensor->shape);
    if (tensor->shape.size() < rank.min || tensor->shape.size() > rank.max) {
      const std::string wanted =
          rank.min == rank.max ? fmt::to_string(rank.min) : fmt::format("{} to {}", rank.min, rank.max);
      return fmt::format(" has rank {}, wanted {}", tensor->shape.size(), wanted);
    }
    tensor->data = frames_[frame];
    const std::size_t bytes = tensor->data.bytes().size();
    if (tensor_bytes(tensor->shape, tensor->dtype, limits_.tensor_bytes_max) == bytes) return "";
    return fmt::format(" has {} bytes, wanted those of {} [{}]", bytes, to_string(tensor->dtype),
                       fmt::join(tensor->shape, ", "));
  }

  void expect_all_tensors_used() {
    for (std::size_t frame = 1; frame < used_.size(); ++frame) {
      if (!used_[frame]) fail(Errc::kMalformed, fmt::format("nothing refers to tensor frame {}", frame));
    }
  }

 private:
  const wire::Envelope& envelope_;
  std::span<const SharedBytes> frames_;
  const WireLimits& limits_;
  std::vector<bool> used_;  ///< by frame number
  std::optional<Error> error_;
};

/// Reads the fields of one table of a header that FlatBuffers has verified against the schema.
class TableReader {
 public:
  /// @param name  of the field in `outer` that holds this table; both null for a message itself
  TableReader(Reader& reader, const Table& table, const char* name, const TableReader* outer)
      : reader_(reader), table_(table), name_(name), outer_(outer) {}

  template <Described M>
  void read(M& m) {
    M::fields(*this, m);
    if constexpr (requires { m.settle(); }) {
      if (reader_.error()) return;
      if (const Result<void> settled = m.settle(); !settled)
        reader_.fail(settled.error().code, (outer_ ? outer_->path(name_) + ": " : "") + settled.error().message);
    }
  }

  template <Number T>
  void operator()(const char*, T& field) {
    field = static_cast<T>(table_.GetField<WireNumber<T>>(next(), {}));
  }
  template <Number T>
  void operator()(const char* name, T& field, const auto& allowed, std::type_identity_t<T> absent = {}) {
    const auto value = table_.GetField(next(), static_cast<WireNumber<T>>(absent));
    if (in_range(name, " is", value, allowed)) field = static_cast<T>(value);
  }
  template <Number T>
  void operator()(const char* name, std::optional<T>& field, const auto& allowed) {
    const flatbuffers::voffset_t at = next();
    if (!table_.CheckField(at)) return;
    const T value = table_.GetField<T>(at, {});
    if (in_range(name, " is", value, allowed)) field = value;
  }
  void operator()(const char* name, WireTensor& field, Rank rank) { tensor(name, next_number(), rank, field); }
  void operator()(const char* name, std::optional<WireTensor>& field, Rank rank) {
    if (const std::uint32_t frame = next_number(); frame != 0) tensor(name, frame, rank, field.emplace());
  }
  /// Sanitised: names and messages go to logs, which a peer must neither flood nor forge lines in.
  void operator()(const char* name, std::string& field, Count count) {
    const auto* const text = next_pointer<flatbuffers::String>();
    if (fits(name, "bytes", text, count)) field = printable(text->string_view());
  }
  void operator()(const char* name, std::string& field, Verbatim bytes) {
    const auto* const text = next_pointer<flatbuffers::String>();
    if (fits(name, "bytes", text, {0, bytes.max})) field = text->str();
  }
  template <Number T>
  void operator()(const char* name, std::vector<T>& field, Count count) {
    (*this)(name, field, count, kNatural);
  }
  template <Number T>
  void operator()(const char* name, std::vector<T>& field, Count count, const auto& allowed) {
    const auto* const list = next_pointer<flatbuffers::Vector<T>>();
    if (!fits(name, "entries", list, count)) return;
    copy_numbers(*list, field);
    for (const T value : field)
      if (!in_range(name, " has", value, allowed)) return;
  }
  void operator()(const char* name, std::vector<LogitBias>& field, Count count) {
    const auto* const list = next_pointer<flatbuffers::Vector<const wire::LogitBias*>>();
    if (!fits(name, "entries", list, count)) return;
    for (const wire::LogitBias* const entry : *list) {
      if (!in_range(name, "'s token is", entry->token(), kNatural)) return;
      if (!in_range(name, "'s bias is", entry->bias(), kFinite)) return;
      field.push_back({entry->token(), entry->bias()});
    }
  }
  void operator()(const char* name, std::vector<TokenLogprobs>& field, Count) {
    LogprobLists lists;
    if (const auto* const table = next_pointer<Table>()) inner(name, *table, lists);
    if (!reader_.error()) field = from_lists(lists);
  }
  template <Described T>
  void operator()(const char* name, std::vector<T>& field, Count count) {
    const auto* const tables = next_pointer<flatbuffers::Vector<Offset<Table>>>();
    if (!fits(name, "entries", tables, count)) return;
    field.resize(tables->size());
    for (flatbuffers::uoffset_t i = 0; i < tables->size(); ++i) inner(name, *tables->Get(i), field[i]);
  }
  template <Described T>
  void operator()(const char* name, T& field) {
    // FlatBuffers has checked that this required field is there. The check stays: no message may crash a node.
    const auto* const table = next_pointer<Table>();
    if (table == nullptr) return fail(name, " is missing");
    inner(name, *table, field);
  }
  template <Described T>
  void operator()(const char* name, std::optional<T>& field) {
    if (const auto* const table = next_pointer<Table>()) inner(name, *table, field.emplace());
  }

 private:
  flatbuffers::voffset_t next() { return slot(next_++); }
  std::uint32_t next_number() { return table_.GetField<std::uint32_t>(next(), 0); }
  template <typename T>
  const T* next_pointer() {
    return table_.GetPointer<const T*>(next());
  }

  template <Described T>
  void inner(const char* name, const Table& table, T& field) {
    if (!reader_.error()) TableReader(reader_, table, name, this).read(field);
  }
  void tensor(const char* name, std::uint32_t frame, Rank rank, WireTensor& field) {
    if (reader_.error()) return;
    if (const std::string wrong = reader_.tensor(frame, rank, &field); !wrong.empty()) fail(name, wrong);
  }

  /// Checks a value.
  /// @param what  text between the field's name and the value in an error
  /// @param allowed  a Range, or the last enumerator
  template <typename T, typename Allowed>
  bool in_range(const char* name, const char* what, T value, const Allowed& allowed) {
    using Wide = std::conditional_t<std::is_floating_point_v<T>, double, std::int64_t>;
    Range<Wide> range{};
    if constexpr (std::is_enum_v<Allowed>) {
      range.max = static_cast<Wide>(allowed);
    } else {
      range = {static_cast<Wide>(allowed.min), static_cast<Wide>(allowed.max)};
    }
    if (value >= range.min && value <= range.max) return true;  // false for a NaN
    std::string wanted;
    if constexpr (std::is_floating_point_v<T>) {
      if (range.min == kFinite.min) wanted = "a finite number";
      if (range.min == kFinite.min && range.max < kFinite.max) wanted += fmt::format(" of at most {}", range.max);
    } else {
      range.max = std::min<Wide>(range.max, std::numeric_limits<T>::max());
    }
    if (wanted.empty()) wanted = fmt::format("{} to {}", range.min, range.max);
    fail(name, fmt::format("{} {}, wanted {}", what, value, wanted));
    return false;
  }

  /// Returns true when a list or string is present. A size outside `count` is an error.
  bool fits(const char* name, const char* unit, const auto* list, Count count) {
    const std::size_t size = list == nullptr ? 0 : list->size();
    if (size > count.max) {
      fail(name, fmt::format(" has {} {}, at most {} allowed", size, unit, count.max), Errc::kOutOfRange);
    } else if (size < count.min) {
      fail(name, fmt::format(" has {} {}, wanted at least {}", size, unit, count.min));
    }
    return size > 0 && !reader_.error();
  }

  /// Returns the field's full name, such as `facts.donors.layer`.
  std::string path(const char* name) const {
    return outer_ == nullptr ? name : fmt::format("{}.{}", outer_->path(name_), name);
  }
  void fail(const char* name, const std::string& what, Errc code = Errc::kMalformed) {
    if (!reader_.error()) reader_.fail(code, path(name) + what);
  }

  Reader& reader_;
  const Table& table_;
  const char* name_;
  const TableReader* outer_;
  int next_ = 0;
};

template <std::size_t... I>
void read_body(TableReader&& table, std::size_t index, Body& body, std::index_sequence<I...>) {
  (void)((index == I && (table.read(body.emplace<I>()), true)) || ...);
}

Result<void> check_sizes(std::span<const SharedBytes> frames, const WireLimits& limits) {
  if (frames.empty()) return Error{Errc::kMalformed, "no frames, wanted at least a header"};
  if (frames.size() - 1 > limits.tensors_max) {
    return Error(Errc::kOutOfRange, "{} or more tensor frames, at most {} allowed", frames.size() - 1,
                 limits.tensors_max);
  }
  std::size_t all = 0;
  for (std::size_t i = 0; i < frames.size(); ++i) {
    all += frames[i].bytes().size();
    const std::size_t max = i == 0 ? limits.header_bytes_max : limits.tensor_bytes_max;
    if (const std::size_t size = frames[i].bytes().size(); size > max)
      return Error(Errc::kOutOfRange, "frame {} has {} bytes, at most {} allowed", i, size, max);
  }
  if (all > limits.message_bytes_max) {
    return Error(Errc::kOutOfRange, "{} frames have {} bytes together, at most {} allowed", frames.size(), all,
                 limits.message_bytes_max);
  }
  return {};
}

/// Returns the envelope in `header`, which is 8-byte aligned, after checking its version and structure.
Result<const wire::Envelope*> verified_envelope(std::span<const std::byte> header, const WireLimits& limits) {
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(header.data());
  // Far below FlatBuffers' defaults: the deepest path is envelope, body, kv rows, donor.
  constexpr flatbuffers::uoffset_t kDepthMax = 8;
  const auto tables_max =
      static_cast<flatbuffers::uoffset_t>(16 + 3 * limits.tensors_max + kDrafts.max + kWorkersMax + kBadWordsMax);

  flatbuffers::Verifier version_verifier(bytes, header.size(), kDepthMax, tables_max);
  if (!version_verifier.VerifyBuffer<wire::AnyEnvelope>(wire::EnvelopeIdentifier())) {
    return Error(Errc::kMalformed, "header frame of {} bytes is not an {} envelope", header.size(),
                 wire::EnvelopeIdentifier());
  }
  const std::uint32_t version = flatbuffers::GetRoot<wire::AnyEnvelope>(bytes)->version();
  if (version != kProtocolVersion) {
    return Error(Errc::kVersionMismatch, "peer speaks protocol version {}, this node speaks {}", version,
                 kProtocolVersion);
  }

  flatbuffers::Verifier verifier(bytes, header.size(), kDepthMax, tables_max);
  if (!wire::VerifyEnvelopeBuffer(verifier))
    return Error(Errc::kMalformed, "header frame of {} bytes failed verification", header.size());
  return wire::GetEnvelope(bytes);
}

}  // namespace

Frames encode(const Message& message) {
  Writer writer;
  FlatBufferBuilder& builder = writer.builder;
  const Offset<Table> body = std::visit([&](const auto& content) { return write(writer, content); }, message.body);
  wire::FinishEnvelopeBuffer(
      builder, wire::CreateEnvelope(builder, kProtocolVersion, value(message.session), value(message.round),
                                    message.base, builder.CreateVector(writer.tensors),
                                    static_cast<wire::Body>(message.body.index() + 1), body.Union()));

  const auto header = std::make_shared<flatbuffers::DetachedBuffer>(builder.Release());
  writer.frames[0] = SharedBytes(header, std::as_bytes(std::span<const std::uint8_t>(header->data(), header->size())));
  return std::move(writer.frames);
}

Result<Message> decode(std::span<const SharedBytes> frames, const WireLimits& limits, SessionId* about) {
  RETURN_IF_ERROR(check_sizes(frames, limits));

  // FlatBuffers reads fields in place, so the header must be aligned.
  std::span<const std::byte> header = frames[0].bytes();
  std::vector<std::uint64_t> aligned;
  if (reinterpret_cast<std::uintptr_t>(header.data()) % alignof(std::uint64_t) != 0) {
    aligned.resize(header.size() / sizeof(std::uint64_t) + 1);
    std::memcpy(aligned.data(), header.data(), header.size());
    header = std::as_bytes(std::span(aligned)).first(header.size());
  }
  ASSIGN_OR_RETURN(const wire::Envelope* const envelope, verified_envelope(header, limits));

  if (about != nullptr) *about = SessionId{envelope->session()};
  static_assert(std::variant_size_v<Body> == static_cast<std::size_t>(wire::Body::MAX));
  const auto type = static_cast<std::size_t>(envelope->body_type());
  if (type < 1 || type > std::variant_size_v<Body>)
    return Error(Errc::kMalformed, "body type is {}, wanted 1 to {}", type, std::variant_size_v<Body>);
  // The Verifier accepts a body type without a body.
  if (envelope->body() == nullptr) return Error{Errc::kMalformed, "there is no body"};
  Reader reader(*envelope, frames, limits);
  const Position base = envelope->base();
  if (base < kPositions.min || base > kPositions.max) {
    reader.fail(Errc::kMalformed, fmt::format("base is {}, wanted {} to {}", base, kPositions.min, kPositions.max));
  }
  Message message{SessionId{envelope->session()}, RoundId{envelope->round()}, base, {}};
  read_body(TableReader(reader, *static_cast<const Table*>(envelope->body()), nullptr, nullptr), type - 1, message.body,
            std::make_index_sequence<std::variant_size_v<Body>>());
  reader.expect_all_tensors_used();
  if (!reader.error()) return message;
  return Error(reader.error()->code, "{}: {}", wire::EnumNameBody(envelope->body_type()), reader.error()->message);
}

}  // namespace outrider
