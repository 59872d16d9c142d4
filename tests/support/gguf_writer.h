#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/compute/tensor/tensor.h"

namespace outrider {

/// GGUF's numbers of value types.
enum class GgufValueType : std::uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64
};

/// GGUF's number of a tensor type.
std::uint32_t gguf_tensor_type(DType type);

/// The little-endian bytes of a number, and a string with its length before it.
template <typename T>
std::string raw_bytes(T x) {
  return std::string(reinterpret_cast<const char*>(&x), sizeof(x));
}
std::string raw_string(std::string_view text);

/// Of a projection of patches what llama.cpp's converter has: [hidden, row, column, colour] becomes [hidden, colour,
/// row, column]. @param pixels  of a patch
std::vector<float> colours_first(const std::vector<float>& values, std::size_t pixels);

/// Puts a GGUF file together. Checks nothing, so that a test can write a bad one.
class GgufWriter {
 public:
  /// Replaces an earlier value of the key.
  void put(const std::string& key, GgufValueType type, const std::string& value_bytes);
  void u16(const std::string& key, std::uint16_t x) { put(key, GgufValueType::kU16, raw_bytes(x)); }
  void i32(const std::string& key, std::int32_t x) { put(key, GgufValueType::kI32, raw_bytes(x)); }
  void u32(const std::string& key, std::int64_t x) {
    put(key, GgufValueType::kU32, raw_bytes(static_cast<std::uint32_t>(x)));
  }
  void f32(const std::string& key, float x) { put(key, GgufValueType::kF32, raw_bytes(x)); }
  void boolean(const std::string& key, bool x) { put(key, GgufValueType::kBool, raw_bytes(x)); }
  void string(const std::string& key, std::string_view x) { put(key, GgufValueType::kString, raw_string(x)); }
  void array(const std::string& key, GgufValueType type, const std::vector<std::string>& elements_bytes);
  void u32s(const std::string& key, const std::vector<std::int64_t>& x);
  void i32s(const std::string& key, const std::vector<std::int64_t>& x);
  void bools(const std::string& key, const std::vector<bool>& x);
  void strings(const std::string& key, const std::vector<std::string>& x);
  void erase(const std::string& key);
  void rename_keys(const std::string& prefix, const std::string& to);

  struct Tensor {
    std::string name;
    std::vector<std::uint64_t> extents;  ///< GGUF's order: the fastest axis first
    std::uint32_t type;
    std::string data;
    /// Its place in the data section; none: after the tensor before it.
    std::optional<std::uint64_t> offset = {};
  };
  void tensor(Tensor tensor) { tensors.push_back(std::move(tensor)); }
  Tensor* find(const std::string& name);

  std::string bytes() const;

  std::uint32_t version = 3;
  std::uint64_t alignment = 32;  ///< of the layout; general.alignment is a key like any other
  std::vector<Tensor> tensors;

 private:
  std::vector<std::pair<std::string, std::string>> pairs_;  // key, type and value bytes
};

struct GgufOptions {
  DType type = DType::kBf16;  ///< of the matrices whose rows are whole blocks; Q8_0 or else F16 of the others
  int shards = 1;
  /// May change what has been put together.
  std::function<void(GgufWriter&)> edit = {};
};

/// What llama.cpp's converter would make of a Hugging Face backbone or assistant: vectors in F32, the
/// ordering of an assistant's centroids too (which llama.cpp drops), and the tokenizer if there is one.
GgufWriter gguf_of(const std::filesystem::path& model_dir, const GgufOptions& options = {});

/// Writes gguf_of() to `out`; several shards get its name with -00001-of-0000N before the suffix.
/// @return the file to open.
std::filesystem::path write_gguf(const std::filesystem::path& model_dir, const std::filesystem::path& out,
                                 const GgufOptions& options = {});

}  // namespace outrider
