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

/// A matrix that is stored as codes, scales and the like, in tensors of other names. Immutable.
class CodedMatrix {
 public:
  virtual ~CodedMatrix() = default;
  /// Writes a row's floats: each is rounded to float32 once.
  virtual void read(std::int64_t row, std::span<float> out) const = 0;
  /// Whether every row lies on a 4-bit grid (q4_grid.h), by the format and its zeros: whatever the codes are.
  virtual bool is_on_q4_grid() const = 0;
  /// For people: "int4 by 32".
  virtual std::string name() const = 0;
};

/// One tensor of a checkpoint: what the header says about it, and a view of its mapped bytes.
struct TensorEntry {
  std::string name;
  DType dtype;
  std::vector<std::int64_t> shape;  ///< row-major; empty for a scalar
  /// Little endian. The format promises no alignment: use read_f32, read_i64 or memcpy, or check
  /// the address before casting it.
  std::span<const std::byte> bytes;
  std::filesystem::path file;  ///< where it lies, for messages
  /// Null: the bytes are elements of dtype. Else these are the codes', and dtype is that of what holds them.
  std::shared_ptr<const CodedMatrix> coded = {};

  /// Product of the shape; Checkpoint::open has checked that it fits and matches bytes.size().
  std::int64_t element_count() const;
  /// Its type, for people.
  std::string type_name() const { return coded ? coded->name() : to_string(dtype); }
  /// Writes row `row` of the matrices on the last axis. @pre coded, or is_decodable(dtype)
  void read_row(std::int64_t row, std::span<float> out) const;
};

/// Null if there is no such tensor. @param sorted  by name
const TensorEntry* find_tensor(std::span<const TensorEntry> sorted, std::string_view name);

/// Named, typed views of the tensors of a safetensors or GGUF checkpoint, memory mapped.
///
/// open() reads and checks the headers only, so it costs milliseconds for any size of model. Move
/// only; entries and their bytes stay where they are when the Checkpoint is moved.
class Checkpoint {
 public:
  /// @param path  a .safetensors or .gguf file; or a directory with model.safetensors, and the towers in
  ///   vision.safetensors and audio.safetensors beside it if they are there, or else
  ///   model.safetensors.index.json, whose weight_map decides which tensors there are, or else one
  ///   GGUF model (gguf.h), whose tensors get their Hugging Face names (gguf_names.h).
  ///   What the directory's config.json says of quantisation is undone: matrices have their names and shapes, and are
  ///   coded (quantized.h).
  /// @return kNotFound for a missing file or shard, kMalformed for whatever breaks the format,
  ///   kUnsupported for an element type we do not know, kOutOfRange for a header over 100 MB, kMismatch for a directory
  ///   with several GGUF models.
  static Result<Checkpoint> open(const std::filesystem::path& path);
  /// The tensors of a GGUF that is open already, and of its vision tower. @param path  what path() says.
  /// @param projector  of the tower; null: there is none
  static Result<Checkpoint> from_gguf(std::shared_ptr<const GgufModel> model, const std::filesystem::path& path,
                                      std::shared_ptr<const GgufModel> projector = nullptr);

  /// Null if there is no such tensor. O(log n).
  const TensorEntry* find(std::string_view name) const { return find_tensor(tensors_, name); }

  /// The tensor, which must exist (else kNotFound) and have this shape (else kMismatch).
  Result<const TensorEntry*> require(std::string_view name, const std::vector<std::int64_t>& shape) const;

  /// Every tensor, in the order of their names.
  std::span<const TensorEntry> tensors() const { return tensors_; }

  /// What open() was given.
  const std::filesystem::path& path() const { return path_; }

  /// Identifies the weights, so that two nodes can tell whether they loaded the same ones. Covers
  /// every name, type and shape, and the first, middle and last 4 KiB of each tensor; it does not
  /// depend on the machine, on file names or on how tensors are spread over shards.
  ///
  /// Detects another model, fine-tune, precision or version. Does not detect a change confined to
  /// bytes outside the samples (a flipped bit in a large tensor) or to config.json, and is no
  /// defence against forgery. Reads at most 12 KiB of each tensor.
  std::uint64_t fingerprint() const;

 private:
  Checkpoint() = default;
  static Result<Checkpoint> open_safetensors(const std::filesystem::path& path);

  std::filesystem::path path_;
  std::vector<MappedFile> files_;  // These, or a GGUF, own what the entries' bytes point into.
  std::shared_ptr<const GgufModel> gguf_, projector_;
  std::shared_ptr<const void> made_;  // what of the projector is not in its file as it is
  std::vector<TensorEntry> tensors_;  // Sorted by name.
};

/// Whether a matrix, or each of many, lies on a 4-bit grid (q4_grid.h): Q4_0 does; of floats some rows tell.
bool is_on_q4_grid(const TensorEntry& tensor);
/// The share of the layers' weights that do, towers' aside.
class GridShare {
 public:
  /// Counts a tensor. @return is_on_q4_grid() of it
  bool add(const TensorEntry& tensor);
  double value() const { return all_ > 0 ? on_grid_ / all_ : 0; }
  /// Whether the file is a 4-bit one, whose other matrices q4 keeps as they are.
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
