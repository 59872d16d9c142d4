#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/compute/tensor/tensor.h"
#include "common/os/files.h"

namespace outrider {

struct GgufModel;

/// A matrix stored as codes and scales, in tensors of other names. Immutable.
class CodedMatrix {
 public:
  virtual ~CodedMatrix() = default;
  /// Decodes a row; each value is rounded to float32 once.
  virtual void read(std::int64_t row, std::span<float> out) const = 0;
  /// Returns true when the format and its zeros put every row on a 4-bit grid (q4_grid.h), whatever the codes.
  virtual bool is_on_q4_grid() const = 0;
  /// @return kMalformed, with the tensor's name, if a scale is not finite or all are 0 (some are, of groups of zeros)
  virtual Result<void> check_scales() const = 0;
  /// Name for messages, such as "int4 by 32".
  virtual std::string name() const = 0;
};

/// One tensor of a checkpoint: its header entry, and a view of its mapped bytes.
struct TensorEntry {
  std::string name;
  DType dtype;
  std::vector<std::int64_t> shape;  ///< row-major; empty for a scalar
  /// Little endian. May be unaligned: use read_f32, read_i64 or memcpy, or check the address before casting it.
  std::span<const std::byte> bytes;
  std::filesystem::path file;  ///< its file, for messages
  /// Null: the bytes are elements of dtype. Else they are the codes, and dtype is their storage type.
  std::shared_ptr<const CodedMatrix> coded = {};

  /// Product of the shape; Checkpoint::open has checked that it does not overflow and matches bytes.size().
  std::int64_t element_count() const;
  /// Type for messages.
  std::string type_name() const { return coded ? coded->name() : to_string(dtype); }
  /// Decodes row `row`, counted over all axes but the last. @pre coded, or is_decodable(dtype)
  void read_row(std::int64_t row, std::span<float> out) const;
};

/// Null if there is no such tensor. @param sorted  by name
const TensorEntry* find_tensor(std::span<const TensorEntry> sorted, std::string_view name);

/// Named, typed views of the tensors of a safetensors or GGUF checkpoint, memory mapped.
///
/// open() reads and checks the headers only, which takes milliseconds for any size of model. Move only; entries and
/// their bytes keep their addresses when the Checkpoint is moved.
class Checkpoint {
 public:
  /// @param path  a .safetensors or .gguf file; or a directory with model.safetensors, and optionally the towers in
  /// vision.safetensors and audio.safetensors; or else model.safetensors.index.json, whose weight_map lists the
  /// tensors; or else one GGUF model (gguf.h), whose tensors get their Hugging Face names (gguf_names.h). Quantisation
  /// according to the directory's config.json is resolved: matrices have their names and shapes, and are coded
  /// (quantized.h).
  /// @return kNotFound for a missing file or shard, kMalformed for a violation of the format, kUnsupported for an
  /// unknown element type, kOutOfRange for a header over 100 MB, kMismatch for a directory with several GGUF models
  static Result<Checkpoint> open(const std::filesystem::path& path);
  /// Makes a checkpoint of an open GGUF and its vision tower.
  /// @param path  returned by path()
  /// @param projector  the tower; null: none
  static Result<Checkpoint> from_gguf(std::shared_ptr<const GgufModel> model, const std::filesystem::path& path,
                                      std::shared_ptr<const GgufModel> projector = nullptr);

  /// Null if there is no such tensor. O(log n).
  const TensorEntry* find(std::string_view name) const { return find_tensor(tensors_, name); }

  /// Returns a tensor that must exist (else kNotFound) and have this shape (else kMismatch).
  Result<const TensorEntry*> require(std::string_view name, const std::vector<std::int64_t>& shape) const;

  /// All tensors, sorted by name.
  std::span<const TensorEntry> tensors() const { return tensors_; }

  /// The argument of open().
  const std::filesystem::path& path() const { return path_; }

  /// Identifies the weights, so that two nodes can compare them. Covers every name, type and shape, and the first,
  /// middle and last 4 KiB of each tensor; independent of the machine, of file names and of the distribution over
  /// shards.
  ///
  /// Detects another model, fine-tune, precision or version. Does not detect a change confined to
  /// bytes outside the samples (a flipped bit in a large tensor) or to config.json, and is no
  /// defence against forgery. Reads at most 12 KiB of each tensor.
  std::uint64_t fingerprint() const;

 private:
  Checkpoint() = default;
  static Result<Checkpoint> open_safetensors(const std::filesystem::path& path);

  std::filesystem::path path_;
  std::vector<MappedFile> files_;  // these, or a GGUF, own the entries' bytes
  std::shared_ptr<const GgufModel> gguf_, projector_;
  std::shared_ptr<const void> made_;  // converted tensors of the projector
  std::vector<TensorEntry> tensors_;  // sorted by name
};

/// Returns true when every matrix in it lies on a 4-bit grid (q4_grid.h): always for Q4_0; floats are sampled.
bool is_on_q4_grid(const TensorEntry& tensor);
/// The share of the layers' weights on a 4-bit grid, without the towers.
class GridShare {
 public:
  /// Counts a tensor. @return is_on_q4_grid() of it
  bool add(const TensorEntry& tensor);
  double value() const { return all_ > 0 ? on_grid_ / all_ : 0; }
  /// Returns true for a 4-bit file, whose other matrices q4 keeps in their own precision.
  bool is_most() const { return value() >= 0.5; }

 private:
  double all_ = 0, on_grid_ = 0;
};
GridShare grid_share(const Checkpoint& checkpoint);

/// Copies a tensor of a type that decode() knows, or a coded one, to floats.
/// @return kUnsupported for another type, kMismatch if `out` has another element count.
Result<void> read_f32(const TensorEntry& tensor, std::span<float> out);

/// Copies an I64 or I32 tensor, widened.
/// @return kUnsupported for another type, kMismatch if `out` has another element count.
Result<void> read_i64(const TensorEntry& tensor, std::span<std::int64_t> out);

}  // namespace outrider
