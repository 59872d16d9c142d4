// Replaces onednn_matrix.cc in builds without oneDNN.
#include "common/compute/kernels/packed_matrix.h"

namespace outrider {

std::shared_ptr<const PackedMatrix> make_onednn(const PackedWeights&) { return nullptr; }

std::string onednn_version() { return "none"; }

}  // namespace outrider
