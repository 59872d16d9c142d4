#pragma once

#include <vector>

#include "common/compute/tensor/decode.h"
#include "common/wire/messages/messages.h"

namespace outrider {

/// Converts a tensor of any number of axes.
inline std::vector<float> to_floats(const WireTensor& tensor) {
  const std::size_t block = block_elements(tensor.dtype);
  std::vector<float> floats(tensor.data.bytes().size() / stored_bytes(tensor.dtype, block) * block);
  decode(tensor.dtype, tensor.data.bytes().data(), floats);
  return floats;
}

}  // namespace outrider
