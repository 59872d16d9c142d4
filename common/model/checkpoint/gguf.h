#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/model/checkpoint/checkpoint.h"
#include "common/os/files.h"

namespace outrider {

/// The key-value pairs of a GGUF file. Values stay in the file and are parsed on demand, so that no claimed size causes
/// an allocation. A view: the file's bytes must outlive it.
class GgufMetadata {
 public:
  /// One value as the file stores it.
  struct Value {
    std::uint32_t type;  ///< GGUF's type number; for an array, its elements'
    bool is_array = false;
    std::uint64_t count = 1;           ///< elements; 1 unless is_array
    std::span<const std::byte> bytes;  ///< the elements, contiguous
  };
  using Pairs = std::vector<std::pair<std::string_view, Value>>;

  GgufMetadata() = default;
  /// @param sorted  by key, without repeats; every value has been checked.
  GgufMetadata(std::filesystem::path file, Pairs sorted) : file_(std::move(file)), pairs_(std::move(sorted)) {}

  bool contains(std::string_view key) const { return value(key) != nullptr; }
  /// Returns true if the key exists and is an array.
  bool is_array(std::string_view key) const { return value(key) != nullptr && value(key)->is_array; }

  /// Returns the value as T; none if the key is absent. T is one of
  ///   std::int64_t      from any integer type,
  ///   double            from F32, F64 or any integer type; finite,
  ///   bool, std::string_view (into the file; any bytes),
  ///   std::vector<std::int64_t>      from an array of integers or bools,
  ///   std::vector<std::string_view>  from an array of strings.
  /// @return kMalformed for another type; the message names file, key, value seen and wanted.
  template <typename T>
  Result<std::optional<T>> find(std::string_view key) const;

  /// Like find(), but kNotFound if the key is absent.
  template <typename T>
  Result<T> get(std::string_view key) const;

  const std::filesystem::path& file() const { return file_; }

 private:
  const Value* value(std::string_view key) const;

  std::filesystem::path file_;
  Pairs pairs_;
};

/// A parsed GGUF file. A view of the bytes that it was parsed from.
struct GgufFile {
  GgufMetadata metadata;
  std::vector<TensorEntry> tensors;  ///< sorted by their GGUF names; shapes row-major, so reversed
};

/// Reads GGUF version 2 or 3, little endian (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
/// Every range, size, type and alignment is checked here; tensors do not overlap.
/// O(header), at most 100 MB; the tensors' own bytes are not touched.
/// @return kMalformed for a violation of the format, kUnsupported for an unsupported version, byte order, value or
/// tensor type, kOutOfRange for a larger header
Result<GgufFile> parse_gguf(std::span<const std::byte> bytes, const std::filesystem::path& file);

/// The name of a shard, name-00002-of-00003.gguf, in its parts.
struct GgufShard {
  std::string stem;
  int index, count;

  /// Parses a file name; none if it is not a shard's.
  static std::optional<GgufShard> of(const std::string& filename);
  /// The name of shard i, from 1.
  std::string file(int i) const;
};

/// A whole GGUF model: one file, or all shards of a split one. Move only; views into it stay valid.
struct GgufModel {
  /// @param file  the file, or the first shard (name-00001-of-0000N.gguf), which finds the others.
  /// @return as parse_gguf; kNotFound or kIo for a file or shard, kMalformed for shards that do not fit.
  static Result<GgufModel> open(const std::filesystem::path& file);

  /// The tensor by its GGUF name, or null.
  const TensorEntry* find(std::string_view name) const { return find_tensor(tensors, name); }

  std::filesystem::path file;        ///< the argument of open()
  std::vector<MappedFile> files;     ///< own the bytes of all views below
  GgufMetadata metadata;             ///< the first shard's
  std::vector<TensorEntry> tensors;  ///< of all shards, sorted by GGUF name
};

/// Returns those of these files that are models, by llama.cpp's words for others: projectors, importance matrices, and
/// drafters (mtp-NAME.gguf, MTP/NAME.gguf), which are models only where there are no others.
std::vector<std::string> gguf_models(std::vector<std::string> names);
/// Returns the projector that a model uses of these files, by "mmproj" in its name (llama.cpp's converter writes
/// mmproj-NAME.gguf, others NAME.mmproj-F16.gguf); empty if there is none. Beside several models, of those whose names
/// begin most like the model's: in BF16, else in F16, else the first.
/// @param model  the model's file name
std::string choose_projector(std::vector<std::string> names, const std::string& model);

/// The GGUF file that holds the weights at `path`: `path` itself if it ends in .gguf; in a directory without
/// safetensors, its one GGUF model (of a split one the first shard). None if the weights are not GGUF.
/// @return kMismatch for a directory with several.
Result<std::optional<std::filesystem::path>> find_gguf(const std::filesystem::path& path);

}  // namespace outrider
