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

  WeightReader under(const std::string& name) const { return {checkpoint_, prefix_ + name + ".", type_}; }
  WeightType type() const { return type_; }
  const Checkpoint& checkpoint() const { return checkpoint_; }
  const std::string& prefix() const { return prefix_; }

 private:
  const Checkpoint& checkpoint_;
  std::string prefix_;
  WeightType type_;
};

}  // namespace outrider
