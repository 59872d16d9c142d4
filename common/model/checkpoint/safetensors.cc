#include "common/model/checkpoint/safetensors.h"

#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "common/os/files.h"

namespace outrider {
namespace {

using nlohmann::json;

constexpr std::size_t kRankMax = 8;

/// Rejects every event; a reader overrides the events that it expects. Counts the open brackets.
class StrictSax : public nlohmann::json_sax<json> {
 public:
  /// The error, after a method has returned false.
  const Error& error() const { return error_; }

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_integer(std::int64_t x) override { return unexpected(fmt::format("the number {}", x)); }
  bool number_unsigned(std::uint64_t x) override { return unexpected(fmt::format("the number {}", x)); }
  bool number_float(double, const std::string& text) override {
    return unexpected(fmt::format("the number {:.40}", text));
  }
  bool string(std::string& text) override { return unexpected(fmt::format("the string {}", quote(text))); }
  bool binary(json::binary_t&) override { return unexpected("binary data"); }
  bool start_object(std::size_t) override { return unexpected("an object"); }
  bool key(std::string& name) override { return unexpected(quote(name)); }
  bool end_object() override { return --depth_, true; }
  bool start_array(std::size_t) override { return unexpected("an array"); }
  bool end_array() override { return --depth_, true; }
  bool parse_error(std::size_t position, const std::string&, const json::exception&) override {
    return fail(Errc::kMalformed, fmt::format("not JSON at byte {}", position));
  }

 protected:
  bool fail(Errc code, std::string message) {
    error_ = {code, std::move(message)};
    return false;
  }
  /// Returns the reader's position and the expected value, for messages.
  virtual std::string wanted() const = 0;
  /// Returns true while the reader is inside an ignored value.
  virtual bool ignored() const { return false; }
  bool unexpected(std::string_view seen) {
    return ignored() || fail(Errc::kMalformed, fmt::format("{}, not {}", wanted(), seen));
  }
  bool enter() { return ++depth_, true; }

  int depth_ = 0;

 private:
  Error error_{Errc::kMalformed, "not JSON"};
};

/// One tensor's entry in the header.
struct HeaderEntry {
  std::string name;
  std::optional<std::string> dtype;
  std::optional<std::vector<std::int64_t>> shape;
  std::optional<std::vector<std::int64_t>> data_offsets;
};

/// {"__metadata__": {key: string}, name: {"dtype": string, "shape": [n...], "data_offsets": [n, n]}}
class HeaderReader : public StrictSax {
 public:
  std::vector<HeaderEntry> entries;

  bool start_object(std::size_t) override { return depth_ <= 1 ? enter() : unexpected("an object"); }
  bool key(std::string& name) override {
    if (depth_ == 1) {
      in_metadata_ = name == "__metadata__";
      if (!in_metadata_) entries.push_back({name, {}, {}, {}});
      return true;
    }
    field_ = name;
    if (in_metadata_) return true;
    HeaderEntry& entry = entries.back();
    const bool repeated = (name == "dtype" && entry.dtype) || (name == "shape" && entry.shape) ||
                          (name == "data_offsets" && entry.data_offsets);
    if (repeated) {
      return fail(Errc::kMalformed, fmt::format("tensor {}: {} is given twice", quote(entry.name), name));
    }
    if (name == "dtype" || name == "shape" || name == "data_offsets") return true;
    return fail(Errc::kMalformed, fmt::format("tensor {}: unknown key {}, wanted dtype, shape or data_offsets",
                                              quote(entry.name), quote(name)));
  }
  bool string(std::string& text) override {
    if (depth_ == 2 && in_metadata_) return true;
    if (depth_ != 2 || field_ != "dtype") return StrictSax::string(text);
    entries.back().dtype = text;
    return true;
  }
  bool start_array(std::size_t) override {
    if (depth_ != 2 || in_metadata_ || field_ == "dtype") return unexpected("an array");
    numbers().emplace();
    return enter();
  }
  bool number_unsigned(std::uint64_t x) override {
    const bool fits = x <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    if (depth_ != 3 || !fits) return StrictSax::number_unsigned(x);
    if (numbers()->size() == kRankMax) {
      return fail(Errc::kUnsupported,
                  fmt::format("tensor {}: {} has more than {} numbers", quote(entries.back().name), field_, kRankMax));
    }
    numbers()->push_back(static_cast<std::int64_t>(x));
    return true;
  }

 protected:
  std::string wanted() const override {
    if (depth_ == 0) return "header must be an object";
    if (in_metadata_) return "__metadata__ must be an object of strings";
    const std::string tensor = fmt::format("tensor {}", quote(entries.back().name));
    if (depth_ == 1) return tensor + ": must be an object";
    if (field_ == "dtype") return tensor + ": dtype must be a string";
    return fmt::format("{}: {} must be an array of whole numbers from 0 to 2^63 - 1", tensor, field_);
  }

 private:
  std::optional<std::vector<std::int64_t>>& numbers() {
    return field_ == "shape" ? entries.back().shape : entries.back().data_offsets;
  }

  bool in_metadata_ = false;
  std::string field_;
};

/// {"metadata": {anything}, "weight_map": {tensor: shard}}
class IndexReader : public StrictSax {
 public:
  bool has_weight_map = false;
  std::vector<std::pair<std::string, std::string>> shard_of;  // tensor name, shard

  bool start_array(std::size_t) override { return ignored() ? enter() : unexpected("an array"); }
  bool start_object(std::size_t) override { return depth_ <= 1 || ignored() ? enter() : unexpected("an object"); }
  bool key(std::string& name) override {
    if (depth_ == 1) {
      in_weight_map_ = name == "weight_map";
      if (in_weight_map_ && std::exchange(has_weight_map, true)) {
        return fail(Errc::kMalformed, "weight_map is given twice");
      }
    } else if (in_weight_map_) {
      shard_of.emplace_back(name, "");
    }
    return true;
  }
  bool string(std::string& text) override {
    if (ignored() || depth_ != 2) return StrictSax::string(text);
    shard_of.back().second = text;
    return true;
  }

 protected:
  std::string wanted() const override {
    if (depth_ == 0) return "index must be an object";
    if (!in_weight_map_) return fmt::format("metadata must nest less than {} deep", kDepthMax);
    if (depth_ == 1) return "weight_map must be an object";
    return fmt::format("shard of tensor {} must be a string", quote(shard_of.back().first));
  }
  bool ignored() const override { return depth_ >= 1 && depth_ < kDepthMax && !in_weight_map_; }

 private:
  static constexpr int kDepthMax = 16;
  bool in_weight_map_ = false;
};

Result<void> read_json(std::span<const std::byte> text, StrictSax& reader, const std::filesystem::path& file) {
  const char* const begin = reinterpret_cast<const char*>(text.data());
  if (json::sax_parse(begin, begin + text.size(), &reader)) return {};
  return file_error(reader.error().code, file, "{}", reader.error().message);
}

/// Returns the bytes of a tensor; none on overflow.
std::optional<std::int64_t> tensor_bytes(const std::vector<std::int64_t>& shape, DType dtype) {
  auto bytes = static_cast<std::int64_t>(size_bytes(dtype));
  for (const std::int64_t extent : shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  }
  return bytes;
}

/// Checks one header entry against the data that follows the header.
Result<TensorEntry> to_tensor(const HeaderEntry& entry, std::span<const std::byte> data,
                              const std::filesystem::path& file) {
  const auto error = [&](Errc code, std::string_view problem) {
    return file_error(code, file, "tensor {}: {}", quote(entry.name), problem);
  };
  if (!entry.dtype) return error(Errc::kMalformed, "has no dtype");
  if (!entry.shape) return error(Errc::kMalformed, "has no shape");
  if (!entry.data_offsets) return error(Errc::kMalformed, "has no data_offsets");

  const std::optional<DType> dtype = *entry.dtype == "BOOL" ? DType::kU8 : parse_dtype(*entry.dtype);
  if (!dtype || block_elements(*dtype) != 1) {
    return error(Errc::kUnsupported,
                 fmt::format("dtype {}, wanted F32, BF16, F16, F8_E4M3, I8, U8, I32 or I64", quote(*entry.dtype)));
  }
  const std::optional<std::int64_t> bytes = tensor_bytes(*entry.shape, *dtype);
  if (!bytes) {
    return error(Errc::kMalformed, fmt::format("shape [{}] overflows 63 bits", fmt::join(*entry.shape, ", ")));
  }
  const std::vector<std::int64_t>& offsets = *entry.data_offsets;
  if (offsets.size() != 2 || offsets[0] > offsets[1]) {
    return error(Errc::kMalformed,
                 fmt::format("data_offsets [{}], wanted [begin, end] in order", fmt::join(offsets, ", ")));
  }
  if (offsets[1] > std::ssize(data)) {
    return error(Errc::kMalformed, fmt::format("data_offsets [{}], but the file holds {} bytes of data (cut short?)",
                                               fmt::join(offsets, ", "), data.size()));
  }
  if (offsets[1] - offsets[0] != *bytes) {
    return error(Errc::kMalformed,
                 fmt::format("data_offsets span {} bytes, wanted {} for {} [{}]", offsets[1] - offsets[0], *bytes,
                             *entry.dtype, fmt::join(*entry.shape, ", ")));
  }
  return TensorEntry{entry.name, *dtype, *entry.shape,
                     data.subspan(static_cast<std::size_t>(offsets[0]), static_cast<std::size_t>(*bytes)), file};
}

}  // namespace

std::string quote(std::string_view text) {
  constexpr std::size_t kLengthMax = 120;
  return text.size() <= kLengthMax ? fmt::format("{:?}", text) : fmt::format("{:?}...", text.substr(0, kLengthMax));
}

Result<void> check_no_overlap(const std::vector<TensorEntry>& tensors, const std::filesystem::path& file) {
  std::vector<const TensorEntry*> by_address;
  for (const TensorEntry& tensor : tensors) {
    if (!tensor.bytes.empty()) by_address.push_back(&tensor);
  }
  std::ranges::sort(by_address, {}, [](const TensorEntry* t) { return t->bytes.data(); });
  for (std::size_t i = 1; i < by_address.size(); ++i) {
    const TensorEntry &before = *by_address[i - 1], &after = *by_address[i];
    if (before.bytes.data() + before.bytes.size() > after.bytes.data())
      return file_error(Errc::kMalformed, file, "tensors {} and {} overlap", quote(before.name), quote(after.name));
  }
  return {};
}

Result<std::vector<TensorEntry>> parse_safetensors(std::span<const std::byte> file_bytes,
                                                   const std::filesystem::path& file) {
  std::uint64_t header_bytes = 0;
  if (file_bytes.size() < sizeof(header_bytes)) {
    return file_error(Errc::kMalformed, file, "{} bytes long, wanted at least {} (safetensors)", file_bytes.size(),
                      sizeof(header_bytes));
  }
  std::memcpy(&header_bytes, file_bytes.data(), sizeof(header_bytes));
  const std::span<const std::byte> rest = file_bytes.subspan(sizeof(header_bytes));
  if (header_bytes > rest.size()) {
    return file_error(Errc::kMalformed, file, "header of {} bytes, but {} follow (not safetensors, or cut short?)",
                      header_bytes, rest.size());
  }
  if (header_bytes > kMetadataBytesMax) {
    return file_error(Errc::kOutOfRange, file, "header of {} bytes, wanted at most {}", header_bytes,
                      kMetadataBytesMax);
  }

  HeaderReader reader;
  RETURN_IF_ERROR(read_json(rest.first(header_bytes), reader, file));
  if (const HeaderEntry* repeated = sort_for_repeated(reader.entries, &HeaderEntry::name))
    return file_error(Errc::kMalformed, file, "tensor {} is listed twice", quote(repeated->name));
  std::vector<TensorEntry> tensors;
  for (const HeaderEntry& entry : reader.entries) {
    ASSIGN_OR_RETURN(tensors.emplace_back(), to_tensor(entry, rest.subspan(header_bytes), file));
  }
  RETURN_IF_ERROR(check_no_overlap(tensors, file));
  return tensors;
}

Result<std::map<std::string, std::vector<std::string>>> parse_index(std::span<const std::byte> file_bytes,
                                                                    const std::filesystem::path& file) {
  if (file_bytes.size() > kMetadataBytesMax) {
    return file_error(Errc::kOutOfRange, file, "{} bytes long, wanted at most {}", file_bytes.size(),
                      kMetadataBytesMax);
  }
  IndexReader reader;
  RETURN_IF_ERROR(read_json(file_bytes, reader, file));
  if (!reader.has_weight_map) return file_error(Errc::kMalformed, file, "has no weight_map");
  if (const auto* repeated = sort_for_repeated(reader.shard_of, &std::pair<std::string, std::string>::first))
    return file_error(Errc::kMalformed, file, "tensor {} is listed twice", quote(repeated->first));

  std::map<std::string, std::vector<std::string>> tensors_of;
  for (const auto& [tensor, shard] : reader.shard_of) {
    const std::filesystem::path path(shard);
    // The operating system would end the name at a NUL, which would bypass this check.
    const bool inside = !shard.empty() && shard.find('\0') == shard.npos && path.is_relative() &&
                        std::ranges::find(path, "..") == path.end();
    if (!inside) {
      return file_error(Errc::kMalformed, file, "tensor {} is in shard {}, wanted a path inside the directory",
                        quote(tensor), quote(shard));
    }
    tensors_of[shard].push_back(tensor);
  }
  return tensors_of;
}

}  // namespace outrider
