#include "common/model/gemma4/buffers.h"

namespace outrider {

void report_linear(const BufferSink& sink, const std::string& name, const Linear& linear) {
  if (linear.out_features() == 0) return;  // a matrix that this layer lacks
  sink({.name = name,
        .dtype = to_string(linear.type()),
        .shape = {linear.out_features(), linear.in_features()},
        .bytes = linear.held_bytes(),
        .mapped = linear.is_mapped()});
}

}  // namespace outrider
