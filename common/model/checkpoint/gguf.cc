#include "common/model/checkpoint/gguf.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstring>
#include <limits>
#include <regex>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/ascii.h"
#include "common/model/checkpoint/safetensors.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "GGUF is read as it lies in memory");

constexpr std::uint64_t kKeyBytesMax = 65535;  // the specification's limit
constexpr std::uint32_t kGgmlRankMax = 4;      // ggml's
constexpr const char* kMagic = "GGUF";
constexpr std::int64_t kInt64Max = std::numeric_limits<std::int64_t>::max();

// Value types, numbered as in the file.
enum : std::uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };
constexpr std::array kValueTypeNames = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                        "bool", "string", "array", "u64", "i64", "f64"};

/// Bytes of one value; 0 for strings and arrays, whose size varies.
std::size_t value_bytes(std::uint32_t type) {
  constexpr std::array<std::size_t, kValueTypeNames.size()> kBytes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return kBytes[type];
}

/// Names of tensor types by their number in the file; "" if unassigned. Those that parse_dtype() does not know are
/// refused.
constexpr std::array kTensorTypes = {
    "F32",   "F16",    "Q4_0",  "Q4_1", "",     "",        "Q5_0",   "Q5_1",    "Q8_0",  "Q8_1",   "Q2_K",
    "Q3_K",  "Q4_K",   "Q5_K",  "Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S",
    "IQ2_S", "IQ4_XS", "I8",    "I16",  "I32",  "I64",     "F64",    "IQ1_M",   "BF16",  "",       "",
    "",      "TQ1_0",  "TQ2_0", "",     "",     "",        "MXFP4",  "NVFP4"};

/// Reads a file front to back. Every claimed length is checked against the remaining bytes, so that false claims cost
/// nothing.
class Cursor {
 public:
  Cursor(std::span<const std::byte> bytes, const fs::path& file) : bytes_(bytes), file_(file) {}

  std::size_t offset() const { return offset_; }
  std::size_t left() const { return bytes_.size() - offset_; }

  /// Returns the next `count` bytes; `what` is their name in messages.
  Result<std::span<const std::byte>> take(std::uint64_t count, std::string_view what) {
    if (count > left()) {
      return file_error(Errc::kMalformed, file_, "{} at byte {} takes {} bytes, but {} follow (cut short?)", what,
                        offset_, count, left());
    }
    if (offset_ + count > kMetadataBytesMax) {
      return file_error(Errc::kOutOfRange, file_,
                        "metadata and tensor list take more than {} bytes, wanted at most that", kMetadataBytesMax);
    }
    const auto taken = bytes_.subspan(offset_, static_cast<std::size_t>(count));
    offset_ += static_cast<std::size_t>(count);
    return taken;
  }

  template <typename T>
  Result<T> number(std::string_view what) {
    ASSIGN_OR_RETURN(const auto raw, take(sizeof(T), what));
    T value;
    std::memcpy(&value, raw.data(), sizeof(T));
    return value;
  }

  Result<std::string_view> string(std::string_view what) {
    ASSIGN_OR_RETURN(const auto length, number<std::uint64_t>(what));
    ASSIGN_OR_RETURN(const auto raw, take(length, what));
    return std::string_view(reinterpret_cast<const char*>(raw.data()), raw.size());
  }

 private:
  std::span<const std::byte> bytes_;
  std::size_t offset_ = 0;
  const fs::path& file_;
};

/// Reads a key's value, with the cursor after the key.
Result<GgufMetadata::Value> read_value(Cursor& cursor, std::string_view key, const fs::path& file) {
  const std::string what = "the value of " + quote(key);
  GgufMetadata::Value value{};
  ASSIGN_OR_RETURN(value.type, cursor.number<std::uint32_t>(what));
  value.count = 1;
  value.is_array = value.type == kArray;
  if (value.is_array) {
    ASSIGN_OR_RETURN(value.type, cursor.number<std::uint32_t>(what));
    ASSIGN_OR_RETURN(value.count, cursor.number<std::uint64_t>(what));
    if (value.type == kArray)  // ggml does not read them either
      return file_error(Errc::kUnsupported, file, "{} is an array of arrays, wanted no nested ones", what);
  }
  if (value.type >= kValueTypeNames.size())
    return file_error(Errc::kUnsupported, file, "{} has type {}, wanted one from 0 to {}", what, value.type,
                      kValueTypeNames.size() - 1);
  if (value.type != kString) {
    const std::size_t size = value_bytes(value.type);
    // On overflow one byte more than there is has the same effect as the product.
    const std::uint64_t bytes =
        value.count > cursor.left() / size ? std::uint64_t{cursor.left()} + 1 : value.count * size;
    ASSIGN_OR_RETURN(value.bytes, cursor.take(bytes, what));
    return value;
  }
  Cursor start = cursor;
  for (std::uint64_t i = 0; i < value.count; ++i) {
    ASSIGN_OR_RETURN([[maybe_unused]] const std::string_view text, cursor.string(what));
  }
  ASSIGN_OR_RETURN(value.bytes, start.take(cursor.offset() - start.offset(), what));
  return value;
}

/// One tensor of the file's list, checked only against itself.
struct TensorInfo {
  std::string_view name;
  DType dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t offset, bytes;
};

Result<TensorInfo> read_tensor_info(Cursor& cursor, const fs::path& file) {
  TensorInfo info{};
  ASSIGN_OR_RETURN(info.name, cursor.string("a tensor's name"));
  const std::string what = "tensor " + quote(info.name);
  ASSIGN_OR_RETURN(const auto rank, cursor.number<std::uint32_t>(what));
  if (rank > kGgmlRankMax)
    return file_error(Errc::kUnsupported, file, "{} has {} dimensions, wanted at most {}", what, rank, kGgmlRankMax);
  std::int64_t elements = 1;
  for (std::uint32_t i = 0; i < rank; ++i) {
    ASSIGN_OR_RETURN(const auto extent, cursor.number<std::int64_t>(what));
    info.shape.insert(info.shape.begin(), extent);  // GGUF lists the fastest axis first
    // Zeros count as one: no order of multiplying the shape may overflow.
    if (extent < 0 || __builtin_mul_overflow(elements, std::max<std::int64_t>(extent, 1), &elements))
      return file_error(Errc::kMalformed, file, "{} has an extent of {}, so that its elements overflow 63 bits", what,
                        static_cast<std::uint64_t>(extent));
  }

  if (std::ranges::find(info.shape, 0) != info.shape.end()) elements = 0;

  ASSIGN_OR_RETURN(const auto type_id, cursor.number<std::uint32_t>(what));
  const std::string_view type = type_id < kTensorTypes.size() ? kTensorTypes[type_id] : "";
  const std::optional<DType> dtype = parse_dtype(type);
  if (!dtype) {
    std::vector<std::string_view> read;
    std::ranges::copy_if(kTensorTypes, std::back_inserter(read),
                         [](const char* name) { return parse_dtype(name).has_value(); });
    return file_error(Errc::kUnsupported, file, "{} has type {}{}, wanted one of {}", what, type_id,
                      type.empty() ? "" : fmt::format(" ({})", type), fmt::join(read, ", "));
  }
  info.dtype = *dtype;
  const auto block = static_cast<std::int64_t>(block_elements(info.dtype));
  const std::int64_t row = info.shape.empty() ? 1 : info.shape.back();
  if (row % block != 0)
    return file_error(Errc::kMalformed, file, "{} has rows of {} elements, wanted a multiple of {} for {}", what, row,
                      block, type);
  std::int64_t bytes = 0;
  const auto block_bytes = static_cast<std::int64_t>(stored_bytes(info.dtype, static_cast<std::size_t>(block)));
  if (__builtin_mul_overflow(elements / block, block_bytes, &bytes))
    return file_error(Errc::kMalformed, file, "{} of shape [{}] takes more than 2^63 bytes", what,
                      fmt::join(info.shape, ", "));
  info.bytes = static_cast<std::uint64_t>(bytes);
  ASSIGN_OR_RETURN(info.offset, cursor.number<std::uint64_t>(what));
  return info;
}

Result<GgufMetadata> read_metadata(Cursor& cursor, std::uint64_t count, const fs::path& file) {
  GgufMetadata::Pairs pairs;  // not reserved, since the count is only a claim
  for (std::uint64_t i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(const std::string_view key, cursor.string("a metadata key"));
    if (key.size() > kKeyBytesMax) {
      return file_error(Errc::kMalformed, file, "metadata key {} is {} bytes long, wanted at most {}", quote(key),
                        key.size(), kKeyBytesMax);
    }
    ASSIGN_OR_RETURN(const GgufMetadata::Value value, read_value(cursor, key, file));
    pairs.emplace_back(key, value);
  }
  if (const auto* repeated = sort_for_repeated(pairs, &GgufMetadata::Pairs::value_type::first))
    return file_error(Errc::kMalformed, file, "metadata key {} is given twice", quote(repeated->first));
  return GgufMetadata(file, std::move(pairs));
}

/// Makes views of the data section, which starts at the next multiple of the alignment.
Result<std::vector<TensorEntry>> locate_tensors(const std::vector<TensorInfo>& infos, const Cursor& cursor,
                                                std::uint64_t alignment, std::span<const std::byte> bytes,
                                                const fs::path& file) {
  const std::uint64_t data_start = (cursor.offset() + alignment - 1) / alignment * alignment;
  const std::uint64_t data_bytes = bytes.size() - std::min<std::uint64_t>(data_start, bytes.size());
  std::vector<TensorEntry> tensors;
  for (const TensorInfo& info : infos) {
    if (info.offset % alignment != 0)
      return file_error(Errc::kMalformed, file, "tensor {} lies at offset {}, wanted a multiple of {}",
                        quote(info.name), info.offset, alignment);
    if (info.offset > data_bytes || info.bytes > data_bytes - info.offset)
      return file_error(Errc::kMalformed, file,
                        "tensor {} takes {} bytes at offset {}, but the file holds {} bytes of data (cut short?)",
                        quote(info.name), info.bytes, info.offset, data_bytes);
    const std::span<const std::byte> view =
        info.bytes == 0
            ? std::span<const std::byte>()
            : bytes.subspan(static_cast<std::size_t>(data_start + info.offset), static_cast<std::size_t>(info.bytes));
    tensors.push_back({std::string(info.name), info.dtype, info.shape, view, file});
  }
  if (const TensorEntry* repeated = sort_for_repeated(tensors, &TensorEntry::name))
    return file_error(Errc::kMalformed, file, "tensor {} is listed twice", quote(repeated->name));
  RETURN_IF_ERROR(check_no_overlap(tensors, file));
  return tensors;
}

template <typename T>
T load_as(const std::byte*& at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  at += sizeof(T);
  return value;
}

bool is_integer(std::uint32_t type) { return type <= kI32 || type == kU64 || type == kI64; }

/// Reads the integer at `at` and advances; none if it exceeds 63 bits. @pre is_integer(type) or kBool
std::optional<std::int64_t> load_integer(std::uint32_t type, const std::byte*& at) {
  switch (type) {
    case kU8: return load_as<std::uint8_t>(at);
    case kI8: return load_as<std::int8_t>(at);
    case kU16: return load_as<std::uint16_t>(at);
    case kI16: return load_as<std::int16_t>(at);
    case kU32: return load_as<std::uint32_t>(at);
    case kI32: return load_as<std::int32_t>(at);
    case kBool: return load_as<std::uint8_t>(at) != 0;
    case kI64: return load_as<std::int64_t>(at);
    default: {
      const auto value = load_as<std::uint64_t>(at);
      if (value > static_cast<std::uint64_t>(kInt64Max)) return std::nullopt;
      return static_cast<std::int64_t>(value);
    }
  }
}

std::string_view load_string(const std::byte*& at) {
  const auto length = static_cast<std::size_t>(load_as<std::uint64_t>(at));
  const std::string_view text(reinterpret_cast<const char*>(at), length);
  at += length;
  return text;
}

std::string describe(const GgufMetadata::Value& value) {
  const char* const type = kValueTypeNames[value.type];
  return value.is_array ? fmt::format("an array of {} {}", value.count, type) : fmt::format("of type {}", type);
}

template <typename T>
constexpr const char* kWanted = std::same_as<T, std::int64_t>                ? "a whole number"
                                : std::same_as<T, double>                    ? "a finite number"
                                : std::same_as<T, bool>                      ? "a bool"
                                : std::same_as<T, std::string_view>          ? "a string"
                                : std::same_as<T, std::vector<std::int64_t>> ? "an array of whole numbers or bools"
                                                                             : "an array of strings";

/// Converts the value to T; none if that is impossible.
template <typename T>
std::optional<T> convert(const GgufMetadata::Value& value) {
  const std::byte* at = value.bytes.data();
  if constexpr (std::same_as<T, std::int64_t>) {
    if (value.is_array || !is_integer(value.type)) return std::nullopt;
    return load_integer(value.type, at);
  } else if constexpr (std::same_as<T, double>) {
    if (value.is_array) return std::nullopt;
    double number = std::numeric_limits<double>::quiet_NaN();
    if (value.type == kF32) number = static_cast<double>(load_as<float>(at));
    if (value.type == kF64) number = load_as<double>(at);
    if (is_integer(value.type)) number = static_cast<double>(load_integer(value.type, at).value_or(kInt64Max));
    if (!std::isfinite(number)) return std::nullopt;
    return number;
  } else if constexpr (std::same_as<T, bool>) {
    if (value.is_array || value.type != kBool) return std::nullopt;
    return load_integer(value.type, at) != 0;
  } else if constexpr (std::same_as<T, std::string_view>) {
    if (value.is_array || value.type != kString) return std::nullopt;
    return load_string(at);
  } else if constexpr (std::same_as<T, std::vector<std::int64_t>>) {
    if (!value.is_array || !(is_integer(value.type) || value.type == kBool)) return std::nullopt;
    T numbers;
    numbers.reserve(static_cast<std::size_t>(value.count));  // bounded by the bytes that are there
    for (std::uint64_t i = 0; i < value.count; ++i) {
      const std::optional<std::int64_t> number = load_integer(value.type, at);
      if (!number) return std::nullopt;
      numbers.push_back(*number);
    }
    return numbers;
  } else {
    if (!value.is_array || value.type != kString) return std::nullopt;
    T strings;
    strings.reserve(static_cast<std::size_t>(value.count));
    for (std::uint64_t i = 0; i < value.count; ++i) strings.push_back(load_string(at));
    return strings;
  }
}

/// The split.* keys of one file. Without them a file is shard 0 of 1.
struct Split {
  std::int64_t index, count;
  std::optional<std::int64_t> tensors;

  static Result<Split> of(const GgufMetadata& metadata) {
    Split split{};
    ASSIGN_OR_RETURN(const auto index, metadata.find<std::int64_t>("split.no"));
    ASSIGN_OR_RETURN(const auto count, metadata.find<std::int64_t>("split.count"));
    ASSIGN_OR_RETURN(split.tensors, metadata.find<std::int64_t>("split.tensors.count"));
    split.index = index.value_or(0);
    split.count = std::max<std::int64_t>(count.value_or(1), 1);  // llama-gguf-split --merge writes 0
    return split;
  }
};

bool is_gguf_name(const fs::path& path) { return path.extension() == ".gguf"; }

/// Returns true if the name has one of these words in it, in upper or lower case.
bool says(std::string_view name, std::initializer_list<std::string_view> words) {
  const std::string lower = in_lower_case(name);
  return std::ranges::any_of(words, [&](std::string_view word) { return lower.find(word) != lower.npos; });
}

}  // namespace

std::vector<std::string> gguf_models(std::vector<std::string> names) {
  std::erase_if(names,
                [](const std::string& name) { return !is_gguf_name(name) || says(name, {"mmproj", "imatrix"}); });
  const auto drafts = [](const std::string& name) {
    return says(name, {"mtp-", "-mtp", "mtp/", "assistant", "eagle3-", "dflash-", "dspark-"});
  };
  if (!std::ranges::all_of(names, drafts)) std::erase_if(names, drafts);
  return names;
}

std::string choose_projector(std::vector<std::string> names, const std::string& model) {
  std::erase_if(names, [](const std::string& name) { return !is_gguf_name(name) || !says(name, {"mmproj"}); });
  if (names.empty()) return "";
  std::ranges::sort(names);
  const auto shard = GgufShard::of(model);
  std::string own = in_lower_case(shard ? shard->stem : fs::path(model).stem().string());
  own.resize(std::min(own.size(), own.find_last_of(".-")));  // its type says nothing of the projector's
  const auto alike = [&](const std::string& name) {
    std::string other = in_lower_case(name);
    if (other.starts_with("mmproj-")) other.erase(0, 7);
    return std::ranges::mismatch(other, own).in1 - other.begin();
  };
  const auto most = std::ranges::max(names | std::views::transform(alike));
  std::erase_if(names, [&](const std::string& name) { return alike(name) < most; });
  for (const char* const type : {"bf16", "f16"})
    for (const std::string& name : names)
      if (says(name, {type})) return name;
  return names[0];
}

std::optional<GgufShard> GgufShard::of(const std::string& filename) {
  static const std::regex form(R"((.+)-(\d{5})-of-(\d{5})\.gguf)");
  std::smatch parts;
  if (!std::regex_match(filename, parts, form)) return std::nullopt;
  GgufShard shard{parts[1], std::stoi(parts[2]), std::stoi(parts[3])};
  if (shard.index < 1 || shard.index > shard.count) return std::nullopt;
  return shard;
}

std::string GgufShard::file(int i) const { return fmt::format("{}-{:05}-of-{:05}.gguf", stem, i, count); }

const GgufMetadata::Value* GgufMetadata::value(std::string_view key) const {
  const auto at = std::ranges::lower_bound(pairs_, key, {}, [](const auto& pair) { return pair.first; });
  return at != pairs_.end() && at->first == key ? &at->second : nullptr;
}

template <typename T>
Result<std::optional<T>> GgufMetadata::find(std::string_view key) const {
  const Value* const stored = value(key);
  if (stored == nullptr) return std::optional<T>();
  std::optional<T> converted = convert<T>(*stored);
  if (!converted) return file_error(Errc::kMalformed, file_, "{} is {}, wanted {}", key, describe(*stored), kWanted<T>);
  return converted;
}

template <typename T>
Result<T> GgufMetadata::get(std::string_view key) const {
  ASSIGN_OR_RETURN(std::optional<T> found, find<T>(key));
  if (!found) return file_error(Errc::kNotFound, file_, "{} is missing, wanted {}", key, kWanted<T>);
  return std::move(*found);
}

#define OUTRIDER_INSTANTIATE(T)                                                     \
  template Result<std::optional<T>> GgufMetadata::find(std::string_view key) const; \
  template Result<T> GgufMetadata::get(std::string_view key) const
OUTRIDER_INSTANTIATE(std::int64_t);
OUTRIDER_INSTANTIATE(double);
OUTRIDER_INSTANTIATE(bool);
OUTRIDER_INSTANTIATE(std::string_view);
OUTRIDER_INSTANTIATE(std::vector<std::int64_t>);
OUTRIDER_INSTANTIATE(std::vector<std::string_view>);
#undef OUTRIDER_INSTANTIATE

Result<GgufFile> parse_gguf(std::span<const std::byte> bytes, const fs::path& file) {
  if (bytes.size() < 4 || std::memcmp(bytes.data(), kMagic, 4) != 0)
    return file_error(Errc::kMalformed, file,
                      "does not start with \"GGUF\", so it is no GGUF file (it is {} bytes long)", bytes.size());
  Cursor cursor(bytes, file);
  ASSIGN_OR_RETURN([[maybe_unused]] const auto magic, cursor.take(4, "the magic"));
  ASSIGN_OR_RETURN(const auto version, cursor.number<std::uint32_t>("the version"));
  if (version != 0 && (version & 0xffffu) == 0)
    return file_error(Errc::kUnsupported, file, "is big endian, wanted a little endian file");
  if (version != 2 && version != 3)
    return file_error(Errc::kUnsupported, file, "has GGUF version {}, wanted 2 or 3", version);
  ASSIGN_OR_RETURN(const auto tensor_count, cursor.number<std::uint64_t>("the tensor count"));
  ASSIGN_OR_RETURN(const auto key_count, cursor.number<std::uint64_t>("the metadata count"));

  GgufFile gguf;
  ASSIGN_OR_RETURN(gguf.metadata, read_metadata(cursor, key_count, file));
  std::vector<TensorInfo> infos;
  for (std::uint64_t i = 0; i < tensor_count; ++i) {
    ASSIGN_OR_RETURN(infos.emplace_back(), read_tensor_info(cursor, file));
  }
  ASSIGN_OR_RETURN(const auto alignment, gguf.metadata.find<std::int64_t>("general.alignment"));
  const auto align = static_cast<std::uint64_t>(alignment.value_or(32));
  // The specification has u32; the bound keeps the sums below inside 64 bits.
  if (!std::has_single_bit(align) || align > std::numeric_limits<std::uint32_t>::max())
    return file_error(Errc::kMalformed, file, "general.alignment is {}, wanted a power of two", *alignment);
  ASSIGN_OR_RETURN(gguf.tensors, locate_tensors(infos, cursor, align, bytes, file));
  return gguf;
}

Result<GgufModel> GgufModel::open(const fs::path& file) {
  GgufModel model;
  model.file = file;
  const auto add = [&model](const fs::path& path) -> Result<GgufMetadata> {
    ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::open(path));
    ASSIGN_OR_RETURN(GgufFile parsed, parse_gguf(mapped.bytes(), path));
    model.files.push_back(std::move(mapped));
    std::ranges::move(parsed.tensors, std::back_inserter(model.tensors));
    return std::move(parsed.metadata);
  };
  ASSIGN_OR_RETURN(model.metadata, add(file));
  ASSIGN_OR_RETURN(const Split first, Split::of(model.metadata));
  if (first.count == 1 && first.index == 0) return model;

  const std::optional<GgufShard> name = GgufShard::of(file.filename().string());
  if (!name || name->count != first.count)
    return file_error(Errc::kMalformed, file, "split.count is {}, wanted a file name that ends in -00001-of-{:05}.gguf",
                      first.count, first.count);
  if (first.index != 0 || name->index != 1)
    return file_error(Errc::kMalformed, file, "is shard {} of {} (split.no {}), wanted the first: {}", name->index,
                      name->count, first.index, quote(name->file(1)));
  for (int i = 2; i <= name->count; ++i) {
    const fs::path shard = file.parent_path() / name->file(i);
    ASSIGN_OR_RETURN(const GgufMetadata metadata, add(shard));
    ASSIGN_OR_RETURN(const Split split, Split::of(metadata));
    if (split.index != i - 1 || split.count != first.count)
      return file_error(Errc::kMalformed, shard, "split.no is {} of {}, wanted {} of {}", split.index, split.count,
                        i - 1, first.count);
  }
  if (first.tensors && *first.tensors != std::ssize(model.tensors))
    return file_error(Errc::kMalformed, file, "split.tensors.count is {}, but the {} shards hold {} tensors",
                      *first.tensors, first.count, model.tensors.size());
  if (const TensorEntry* repeated = sort_for_repeated(model.tensors, &TensorEntry::name))
    return file_error(Errc::kMalformed, file, "tensor {} is in two shards", quote(repeated->name));
  return model;
}

Result<std::optional<fs::path>> find_gguf(const fs::path& path) {
  std::error_code ignored;  // a path that cannot be inspected cannot be opened either, and open() reports why
  if (!fs::is_directory(path, ignored)) return is_gguf_name(path) ? std::optional(path) : std::nullopt;
  for (const char* name : {"model.safetensors", "model.safetensors.index.json"}) {
    if (fs::exists(path / name, ignored)) return std::optional<fs::path>();
  }
  std::vector<std::string> models;
  for (fs::directory_iterator at(path, ignored), end; at != end; at.increment(ignored))
    models.push_back(at->path().filename().string());
  models = gguf_models(std::move(models));
  std::erase_if(models, [](const std::string& name) {
    const std::optional<GgufShard> shard = GgufShard::of(name);
    return shard && shard->index != 1;
  });
  if (models.empty()) return std::optional<fs::path>();
  if (models.size() == 1) return std::optional(path / models[0]);
  std::ranges::sort(models);
  constexpr std::size_t kNamed = 4;
  return file_error(
      Errc::kMismatch, path, "holds {} GGUF models ({}{}), wanted one, or the path of one", models.size(),
      fmt::join(models.begin(), models.begin() + static_cast<std::ptrdiff_t>(std::min(kNamed, models.size())), ", "),
      models.size() > kNamed ? ", ..." : "");
}

}  // namespace outrider
