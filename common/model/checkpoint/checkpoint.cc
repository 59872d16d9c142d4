#include "common/model/checkpoint/checkpoint.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <iterator>
#include <numeric>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/random.h"
#include "common/compute/tensor/decode.h"
#include "common/compute/tensor/q4_grid.h"
#include "common/model/checkpoint/gguf.h"
#include "common/model/checkpoint/gguf_names.h"
#include "common/model/checkpoint/gguf_projector.h"
#include "common/model/checkpoint/quantized.h"
#include "common/model/checkpoint/safetensors.h"

namespace outrider {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors is read as it lies in memory");

/// Uses memcpy because the bytes may be unaligned.
template <typename Stored>
void widen(std::span<const std::byte> bytes, std::span<std::int64_t> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    Stored element;
    std::memcpy(&element, bytes.data() + i * sizeof(Stored), sizeof(Stored));
    out[i] = element;
  }
}

Result<void> check_count(const TensorEntry& tensor, std::size_t count) {
  if (static_cast<std::size_t>(tensor.element_count()) == count) return {};
  return file_error(Errc::kMismatch, tensor.file, "tensor {} has {} elements, wanted {}", quote(tensor.name),
                    tensor.element_count(), count);
}

Error wrong_dtype(const TensorEntry& tensor, const char* wanted) {
  return file_error(Errc::kUnsupported, tensor.file, "tensor {} has dtype {}, wanted {}", quote(tensor.name),
                    to_string(tensor.dtype), wanted);
}

/// Returns kMalformed if two files have a tensor of the same name.
Result<void> sort_by_name(std::vector<TensorEntry>& tensors) {
  const TensorEntry* const repeated = sort_for_repeated(tensors, &TensorEntry::name);
  if (repeated == nullptr) return {};
  return file_error(Errc::kMalformed, repeated->file, "a second tensor is called {}", quote(repeated->name));
}

/// Order-dependent 64-bit hash of words and byte strings.
class Hash {
 public:
  void add(std::uint64_t word) { state_ = mix64(state_ + 0x9e3779b97f4a7c15ULL + word); }
  void add(std::span<const std::byte> bytes) {
    add(bytes.size());  // distinguishes "ab", "c" from "a", "bc"
    while (!bytes.empty()) {
      std::uint64_t word = 0;
      const std::size_t count = std::min(sizeof(word), bytes.size());
      std::memcpy(&word, bytes.data(), count);
      add(word);
      bytes = bytes.subspan(count);
    }
  }
  void add(std::string_view text) { add(std::as_bytes(std::span(text))); }
  std::uint64_t value() const { return state_; }

 private:
  std::uint64_t state_ = 0;
};

}  // namespace

const TensorEntry* find_tensor(std::span<const TensorEntry> sorted, std::string_view name) {
  const auto at = std::ranges::lower_bound(sorted, name, {}, &TensorEntry::name);
  return at != sorted.end() && at->name == name ? &*at : nullptr;
}

std::int64_t TensorEntry::element_count() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

void TensorEntry::read_row(std::int64_t row, std::span<float> out) const {
  if (coded) return coded->read(row, out);
  decode(dtype, bytes.data() + static_cast<std::size_t>(row) * stored_bytes(dtype, out.size()), out);
}

Result<Checkpoint> Checkpoint::open(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(const std::optional<std::filesystem::path> gguf, find_gguf(path));
  if (gguf) {
    ASSIGN_OR_RETURN(GgufModel model, GgufModel::open(*gguf));
    return from_gguf(std::make_shared<const GgufModel>(std::move(model)), path);
  }
  ASSIGN_OR_RETURN(Checkpoint checkpoint, open_safetensors(path));
  RETURN_IF_ERROR(decode_quantized(path / "config.json", checkpoint.tensors_));
  return checkpoint;
}

Result<Checkpoint> Checkpoint::open_safetensors(const std::filesystem::path& path) {
  Checkpoint checkpoint;
  checkpoint.path_ = path;
  std::error_code ignored;  // a path that cannot be inspected cannot be opened either, and open() reports why
  const bool is_directory = std::filesystem::is_directory(path, ignored);
  const std::filesystem::path single = is_directory ? path / "model.safetensors" : path;
  const std::filesystem::path index = path / "model.safetensors.index.json";
  // As in Hugging Face, a single file takes precedence over an index.
  if (!is_directory || std::filesystem::exists(single, ignored)) {
    ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(single));
    ASSIGN_OR_RETURN(checkpoint.tensors_, parse_safetensors(file.bytes(), single));
    checkpoint.files_.push_back(std::move(file));
    for (const char* const tower : {"vision.safetensors", "audio.safetensors"}) {
      const std::filesystem::path beside = path / tower;
      if (!is_directory || !std::filesystem::exists(beside, ignored)) continue;
      ASSIGN_OR_RETURN(MappedFile weights, MappedFile::open(beside));
      ASSIGN_OR_RETURN(std::vector<TensorEntry> tensors, parse_safetensors(weights.bytes(), beside));
      std::ranges::move(tensors, std::back_inserter(checkpoint.tensors_));
      checkpoint.files_.push_back(std::move(weights));
    }
    RETURN_IF_ERROR(sort_by_name(checkpoint.tensors_));
    return checkpoint;
  }
  if (!std::filesystem::exists(index, ignored)) {
    return file_error(Errc::kNotFound, path,
                      "holds neither model.safetensors nor model.safetensors.index.json nor a GGUF file");
  }

  ASSIGN_OR_RETURN(const MappedFile index_file, MappedFile::open(index));
  ASSIGN_OR_RETURN(const auto tensors_of, parse_index(index_file.bytes(), index));
  for (const auto& [shard, names] : tensors_of) {
    ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path / shard));
    ASSIGN_OR_RETURN(const std::vector<TensorEntry> held, parse_safetensors(file.bytes(), path / shard));
    for (const std::string& name : names) {
      const TensorEntry* const tensor = find_tensor(held, name);
      if (tensor == nullptr)
        return file_error(Errc::kMalformed, index, "tensor {} is not in shard {}", quote(name), quote(shard));
      checkpoint.tensors_.push_back(*tensor);
    }
    checkpoint.files_.push_back(std::move(file));
  }
  std::ranges::sort(checkpoint.tensors_, {}, &TensorEntry::name);
  return checkpoint;
}

Result<Checkpoint> Checkpoint::from_gguf(std::shared_ptr<const GgufModel> model, const std::filesystem::path& path,
                                         std::shared_ptr<const GgufModel> projector) {
  Checkpoint checkpoint;
  checkpoint.path_ = path;
  ASSIGN_OR_RETURN(checkpoint.tensors_, hugging_face_tensors(*model));
  checkpoint.gguf_ = std::move(model);
  if (projector == nullptr) return checkpoint;
  ProjectorTensors tower = projector_tensors(*projector);
  std::ranges::move(tower.tensors, std::back_inserter(checkpoint.tensors_));
  checkpoint.made_ = std::move(tower.made);
  RETURN_IF_ERROR(sort_by_name(checkpoint.tensors_));
  checkpoint.projector_ = std::move(projector);
  return checkpoint;
}

Result<const TensorEntry*> Checkpoint::require(std::string_view name, const std::vector<std::int64_t>& shape) const {
  const TensorEntry* const tensor = find(name);
  if (tensor == nullptr) {
    return file_error(Errc::kNotFound, path_, "tensor {} is missing, wanted shape [{}]", quote(name),
                      fmt::join(shape, ", "));
  }
  if (tensor->shape != shape) {
    return file_error(Errc::kMismatch, tensor->file, "tensor {} has shape [{}], wanted [{}]", quote(name),
                      fmt::join(tensor->shape, ", "), fmt::join(shape, ", "));
  }
  return tensor;
}

std::uint64_t Checkpoint::fingerprint() const {
  constexpr std::size_t kSampleBytes = 4096;
  Hash hash;
  for (const TensorEntry& tensor : tensors_) {
    hash.add(tensor.name);
    hash.add(std::string_view(to_string(tensor.dtype)));
    hash.add(std::as_bytes(std::span(tensor.shape)));
    const std::span<const std::byte> bytes = tensor.bytes;
    if (bytes.size() <= 3 * kSampleBytes) {
      hash.add(bytes);
    } else {
      hash.add(bytes.first(kSampleBytes));
      hash.add(bytes.subspan((bytes.size() - kSampleBytes) / 2, kSampleBytes));
      hash.add(bytes.last(kSampleBytes));
    }
  }
  return hash.value();
}

bool is_on_q4_grid(const TensorEntry& tensor) {
  if (tensor.dtype == DType::kQ4_0) return true;
  if (tensor.coded) return tensor.coded->is_on_q4_grid();
  const bool numbers = is_decodable(tensor.dtype) && block_elements(tensor.dtype) == 1;
  if (tensor.shape.size() < 2 || tensor.element_count() == 0 || !numbers) return false;
  // A random row is practically never on a grid: each of its groups would need 32 weights near 16 values.
  constexpr std::int64_t kRows = 4;
  const std::int64_t width = tensor.shape.back(), rows = tensor.element_count() / width;
  std::vector<float> row(static_cast<std::size_t>(width));
  for (std::int64_t i = 0; i < std::min(kRows, rows); ++i) {
    const std::int64_t at = i * (rows - 1) / std::max<std::int64_t>(1, std::min(kRows, rows) - 1);
    tensor.read_row(at, row);
    if (!is_on_q4_grid(row)) return false;
  }
  return true;
}

bool GridShare::add(const TensorEntry& tensor) {
  const bool on_grid = is_on_q4_grid(tensor);
  const bool counts = tensor.shape.size() >= 2 && tensor.name.find("layers.") != tensor.name.npos &&
                      tensor.name.find("_tower.") == tensor.name.npos;
  if (!counts) return on_grid;
  const auto elements = static_cast<double>(tensor.element_count());
  all_ += elements;
  on_grid_ += on_grid ? elements : 0;
  return on_grid;
}

GridShare grid_share(const Checkpoint& checkpoint) {
  GridShare share;
  for (const TensorEntry& tensor : checkpoint.tensors()) share.add(tensor);
  return share;
}

Result<void> read_f32(const TensorEntry& tensor, std::span<float> out) {
  RETURN_IF_ERROR(check_count(tensor, out.size()));
  if (tensor.coded) {
    const auto width = static_cast<std::size_t>(tensor.shape.back());
    for (std::size_t r = 0; r < out.size() / width; ++r)
      tensor.coded->read(static_cast<std::int64_t>(r), out.subspan(r * width, width));
    return {};
  }
  if (!is_decodable(tensor.dtype)) return wrong_dtype(tensor, "F32, BF16, F16 or a block type");
  decode(tensor.dtype, tensor.bytes.data(), out);
  return {};
}

Result<void> read_i64(const TensorEntry& tensor, std::span<std::int64_t> out) {
  RETURN_IF_ERROR(check_count(tensor, out.size()));
  if (tensor.dtype != DType::kI64 && tensor.dtype != DType::kI32) return wrong_dtype(tensor, "I64 or I32");
  tensor.dtype == DType::kI64 ? widen<std::int64_t>(tensor.bytes, out) : widen<std::int32_t>(tensor.bytes, out);
  return {};
}

}  // namespace outrider
