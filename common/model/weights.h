#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "common/checkpoint/checkpoint.h"
#include "common/kernels/linear.h"

namespace outrider {

/// Reads tensors under a name prefix, checking every shape. Errors name file, tensor, seen and wanted.
class WeightReader {
 public:
  WeightReader(const Checkpoint& checkpoint, std::string prefix, WeightType type)
      : checkpoint_(checkpoint), prefix_(std::move(prefix)), type_(type) {}

  /// A norm weight or other vector of `size` elements, as floats.
  Result<std::vector<float>> vector(const std::string& name, std::int64_t size) const;
  /// A [out, in] matrix, entry only: for tables that are read by row.
  Result<const TensorEntry*> table(const std::string& name, std::int64_t rows, std::int64_t columns) const;

  struct Part {
    std::string name;
    std::int64_t rows;
  };
  /// The parts' rows stacked into one packed matrix.
  Result<Linear> linear(std::int64_t in_features, const std::vector<Part>& parts) const;

  /// Experts: `count` matrices, each of them slice e of every part's tensor [count, part.rows, in_features],
  /// stacked as in linear(). These tensors' names have no ".weight".
  Result<std::vector<Linear>> experts(std::int64_t count, std::int64_t in_features, const std::vector<Part>& parts) const;

  /// The same weights, to be stored as `type`.
  WeightReader as(WeightType type) const { return {checkpoint_, prefix_, type}; }
  WeightReader under(const std::string& name) const { return {checkpoint_, prefix_ + name + ".", type_}; }
  WeightType type() const { return type_; }
  const Checkpoint& checkpoint() const { return checkpoint_; }
  const std::string& prefix() const { return prefix_; }

 private:
  /// An entry of this shape that Linear::pack can read.
  Result<const TensorEntry*> packable(const std::string& name, const std::vector<std::int64_t>& shape) const;

  const Checkpoint& checkpoint_;
  std::string prefix_;
  WeightType type_;
};

}  // namespace outrider
