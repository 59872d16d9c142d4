#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/compute/kernels/linear.h"
#include "common/model/checkpoint/model_files.h"

namespace outrider {

/// Element type of cached K/V, and of exported hidden rows, for weights of `type`.
constexpr DType activation_dtype(WeightType type) { return type == WeightType::kF32 ? DType::kF32 : DType::kBf16; }
/// Returns the precision of a table stored as `stored`, beside matrices of `type`: its own, or Q8_0 for a wider one in
/// an int8 or int4 model if the width allows it (q4 keeps the file's).
DType table_dtype(WeightType type, DType stored, std::int64_t width);

/// A matrix that is read row by row, [rows, width], such as an embedding table; usually a file mapping.
struct RowTable {
  DType dtype = DType::kF32;    ///< storage type
  DType numbers = DType::kF32;  ///< precision of its values: table_dtype()
  std::int64_t rows = 0, width = 0;
  std::span<const std::byte> bytes;   ///< contiguous rows; may be unaligned
  std::shared_ptr<const void> owner;  ///< keeps `bytes` alive

  std::size_t row_bytes() const { return bytes.size() / static_cast<std::size_t>(rows); }
  std::span<const std::byte> row(std::int64_t r) const {
    return bytes.subspan(static_cast<std::size_t>(r) * row_bytes(), row_bytes());
  }
  /// Reads row r as floats, which are equal whether it is stored as `numbers` or wider.
  void read(std::int64_t r, std::span<float> out) const;
};

/// Source of a model's weights: a checkpoint, whose matrices are packed on the way, or a packed image, whose matrices
/// are mapped as they are. Names are Hugging Face's (gemma4.md 2). The model definition requests each weight once, and
/// so is the only list of weights, for packing, counting and random weights too. Errors name file, tensor, seen and
/// wanted.
class WeightSource {
 public:
  /// Consecutive rows of a matrix that several tensors form together.
  struct Part {
    std::string name;  ///< "model.layers.3.self_attn.q_proj.weight"; in a WeightReader "q_proj"
    std::int64_t rows;
    std::int64_t slice = 0;   ///< of a 3-D tensor [slices, rows, in_features]
    std::int64_t slices = 0;  ///< 0: a matrix [rows, in_features]
  };

  virtual ~WeightSource() = default;
  virtual WeightType type() const = 0;
  virtual bool has(const std::string& name) const = 0;
  /// Returns as floats a norm's weights or another vector, a scalar, or a convolution's kernel of `size` elements with
  /// three axes or more.
  virtual Result<std::vector<float>> vector(const std::string& name, std::int64_t size) const = 0;
  /// Returns a table, whose rows may have two axes in the file.
  virtual Result<RowTable> table(const std::string& name, std::int64_t rows, std::int64_t width) const = 0;
  /// Stacks the parts' rows into one matrix, packed as `type`: type() unless it must be exact. In q4, a part on a 4-bit
  /// grid gets that type; others keep their precision.
  virtual Result<Linear> linear(WeightType type, std::int64_t in_features, const std::vector<Part>& parts) const = 0;
  /// Returns an order of `size` tokens: a permutation of 0 .. size - 1, else kMalformed.
  virtual Result<std::vector<TokenId>> permutation(const std::string& name, std::int64_t size) const = 0;
  /// Copies the table's rows in that order, as table_dtype() of activation_dtype(), for a head that reads runs of them.
  virtual Result<RowTable> ordered_rows(const std::string& name, std::int64_t width,
                                        std::span<const TokenId> order) const = 0;

  /// Identifies the weights (Checkpoint::fingerprint), and a backbone's embedding table, which is all that a drafter
  /// has of its target. A packed image has its source's.
  virtual std::uint64_t fingerprint() const = 0;
  virtual std::uint64_t embedding_fingerprint() const = 0;
  /// The opened path, for messages.
  virtual const std::filesystem::path& path() const = 0;
};

/// q4's treatment of a checkpoint with hardly a matrix on a 4-bit grid.
enum class OffGrid {
  kRound,  ///< rounds its matrices to Q4_0
  kKeep,   ///< keeps them as off-grid matrices of other checkpoints: bf16, or int8 for a file of 8 bits or fewer
};

/// Returns the type of a pack's matrices; none if the path is no pack. @return kInvalidArgument for an unknown type
Result<std::optional<WeightType>> packed_type(const std::filesystem::path& path);

/// Opens a model's weights: a checkpoint's, or those of a pack of that type.
Result<std::shared_ptr<const WeightSource>> open_weights(const ModelFiles& files, WeightType type,
                                                         OffGrid off_grid = OffGrid::kRound);

class PackWriter;
/// Returns `source`, but writes everything that a model requests to `writer`. Its matrices are empty: load a model from
/// it to pack it, not to run it.
std::shared_ptr<const WeightSource> packing_weights(std::shared_ptr<const WeightSource> source, PackWriter& writer);

/// A source with a name prefix.
class WeightReader {
 public:
  /// @param shards  the model's: matrices that are read in shares are this shard's. Null: whole
  WeightReader(const WeightSource& source, std::string prefix, Shards* shards = nullptr)
      : WeightReader(source, std::move(prefix), source.type(), shards) {}

  Result<std::vector<float>> vector(const std::string& name, std::int64_t size) const {
    return source_.vector(prefix_ + name, size);
  }
  Result<RowTable> table(const std::string& name, std::int64_t rows, std::int64_t width) const {
    return source_.table(prefix_ + name, rows, width);
  }
  using Part = WeightSource::Part;
  Result<Linear> linear(std::int64_t in_features, std::vector<Part> parts) const;
  /// Returns this shard's share of the matrix; forward() gathers the other shards' outputs.
  Result<Linear> split(std::int64_t in_features, std::vector<Part> parts) const;
  /// Returns some outputs of the stacked parts, for a caller that gathers the results itself.
  Result<Linear> part(std::int64_t in_features, std::vector<Part> parts, std::span<const Columns> outputs) const;
  /// Experts: `count` matrices, each of them slice e of every part's tensor [count, part.rows, in_features], stacked as
  /// in linear(), restricted to `outputs`. Their tensors' names have no ".weight".
  Result<std::vector<Linear>> experts(std::int64_t count, std::int64_t in_features, std::vector<Part> parts,
                                      std::span<const Columns> outputs) const;

  bool has(const std::string& name) const { return source_.has(prefix_ + name); }
  WeightReader under(const std::string& name) const { return {source_, prefix_ + name + ".", type_, shards_}; }
  /// The same weights, with matrices packed as `type`.
  WeightReader as(WeightType type) const { return {source_, prefix_, type, shards_}; }
  Shards* shards() const { return shards_; }
  const WeightSource& source() const { return source_; }
  const std::string& prefix() const { return prefix_; }

 private:
  WeightReader(const WeightSource& source, std::string prefix, WeightType type, Shards* shards)
      : source_(source), prefix_(std::move(prefix)), type_(type), shards_(shards) {}

  const WeightSource& source_;
  std::string prefix_;
  WeightType type_;
  Shards* shards_;
};

/// The prefix of a backbone's text tensors: multimodal or text only (gemma4.md 2.1).
std::string text_prefix(const WeightSource& weights);

}  // namespace outrider
