#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/compute/kernels/linear.h"
#include "common/model/checkpoint/model_files.h"
#include "common/model/gemma4/buffers.h"

namespace outrider {

/// Element type of cached K/V, and of exported hidden rows, for weights of `type`.
constexpr DType activation_dtype(WeightType type) { return type == WeightType::kF32 ? DType::kF32 : DType::kBf16; }
/// What the numbers of a table count as that is stored as `stored`, beside matrices of `type`: as they are, or Q8_0 for
/// wider ones where an int8 or int4 model has a width that allows it (q4 keeps what a file has).
DType table_dtype(WeightType type, DType stored, std::int64_t width);

/// A matrix that is read row by row, [rows, width]: an embedding table, in a file mapping as a rule.
struct RowTable {
  DType dtype = DType::kF32;    ///< as it is stored
  DType numbers = DType::kF32;  ///< what they count as: table_dtype()
  std::int64_t rows = 0, width = 0;
  std::span<const std::byte> bytes;   ///< rows one after the other; no alignment promised
  std::shared_ptr<const void> owner;  ///< keeps `bytes` alive
  bool mapped = true;                 ///< they are pages of a file

  std::size_t row_bytes() const { return bytes.size() / static_cast<std::size_t>(rows); }
  std::span<const std::byte> row(std::int64_t r) const {
    return bytes.subspan(static_cast<std::size_t>(r) * row_bytes(), row_bytes());
  }
  void report(const BufferSink& sink, const std::string& name) const {
    sink({.name = name, .dtype = to_string(dtype), .shape = {rows, width}, .bytes = bytes.size(), .mapped = mapped});
  }
  /// Row r as floats: the same whether it is stored as `numbers` or wider.
  void read(std::int64_t r, std::span<float> out) const;
};

/// Where a model takes its weights from: a checkpoint, whose matrices are packed on the way, or a
/// packed image, whose matrices are mapped as they are. Names are Hugging Face's (gemma4.md 2). The
/// model definition asks for each thing once; what it asks for is what there is to store, to count or
/// to make up: there is no second list of weights. Errors name file, tensor, seen and wanted.
class WeightSource {
 public:
  /// Consecutive rows of a matrix that is stacked from several tensors.
  struct Part {
    std::string name;  ///< "model.layers.3.self_attn.q_proj.weight"; for a WeightReader "q_proj"
    std::int64_t rows;
    std::int64_t slice = 0;   ///< of a 3-D tensor [slices, rows, in_features]
    std::int64_t slices = 0;  ///< 0: a matrix [rows, in_features]
  };

  virtual ~WeightSource() = default;
  virtual WeightType type() const = 0;
  virtual bool has(const std::string& name) const = 0;
  /// A norm weight or another vector, as floats, or a scalar, or a convolution's kernel of so many elements, of three
  /// axes or more; and a table, of whose rows there may be two axes.
  virtual Result<std::vector<float>> vector(const std::string& name, std::int64_t size) const = 0;
  virtual Result<RowTable> table(const std::string& name, std::int64_t rows, std::int64_t width) const = 0;
  /// The parts' rows stacked into one matrix, packed as `type`: type() but for what must be exact. For q4 that is the
  /// type of a part that lies on a 4-bit grid; others are kept in the precision that they have.
  virtual Result<Linear> linear(WeightType type, std::int64_t in_features, const std::vector<Part>& parts) const = 0;
  /// An order of `size` tokens: a permutation of 0 .. size - 1, else kMalformed.
  virtual Result<std::vector<TokenId>> permutation(const std::string& name, std::int64_t size) const = 0;
  /// The table's rows in that order, in memory: what a head reads in runs. As table_dtype() of activation_dtype().
  virtual Result<RowTable> ordered_rows(const std::string& name, std::int64_t width,
                                        std::span<const TokenId> order) const = 0;

  /// Identifies the weights (Checkpoint::fingerprint), and a backbone's embedding table alone: all that a
  /// drafter holds of its target. A packed image has its source's.
  virtual std::uint64_t fingerprint() const = 0;
  virtual std::uint64_t embedding_fingerprint() const = 0;
  /// What was opened, for messages.
  virtual const std::filesystem::path& path() const = 0;
};

/// What q4 makes of a checkpoint of which hardly a matrix lies on a 4-bit grid.
enum class OffGrid {
  kRound,  ///< rounds its matrices, as Q4_0
  kKeep,   ///< as it keeps what is off the grid in other checkpoints: bf16, or int8 where the file has 8 bits or fewer
};

/// Opens a model's weights: a checkpoint's, or those of a pack of that type.
Result<std::shared_ptr<const WeightSource>> open_weights(const ModelFiles& files, WeightType type,
                                                         OffGrid off_grid = OffGrid::kRound);

class PackWriter;
/// `source`, with everything that a model asks it for written to `writer`. Its matrices come back empty:
/// load a model from it to pack it, not to run it.
std::shared_ptr<const WeightSource> packing_weights(std::shared_ptr<const WeightSource> source, PackWriter& writer);

/// A source under a name prefix.
class WeightReader {
 public:
  /// @param shards  of the model that is read: who asks for matrices in shares gets this one's. Null: all
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
  /// Of which this shard has its share, and forward() gathers the others' outputs.
  Result<Linear> split(std::int64_t in_features, std::vector<Part> parts) const;
  /// Some of the outputs of the stacked parts: for a caller who gathers what he makes of them.
  Result<Linear> part(std::int64_t in_features, std::vector<Part> parts, std::span<const Columns> outputs) const;
  /// Experts: `count` matrices, each of them slice e of every part's tensor [count, part.rows, in_features],
  /// stacked as in linear(), of which `outputs` are kept. These tensors' names have no ".weight".
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
