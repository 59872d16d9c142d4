#include "common/model/gemma4/numeric_class.h"

#include <gnu/libc-version.h>

#include <algorithm>
#include <bit>
#include <vector>

#include <fmt/format.h>

#include "common/base/random.h"
#include "common/compute/kernels/isa.h"
#include "common/compute/kernels/linear.h"

namespace outrider {
namespace {

/// The height to which all products are compared: any other number gives the same bits.
constexpr std::int64_t kProbeRows = kGemmHeight;

/// Returns a hash of the last of kProbeRows rows: the residual stream is float32, so that a different rounding anywhere
/// in the model shows.
std::uint64_t probe(Backbone& backbone) {
  std::vector<TokenId> tokens;
  for (std::int64_t i = 0; i < kProbeRows; ++i)
    tokens.push_back(static_cast<TokenId>((2 + i * 9973) % backbone.config().vocab_size));
  KvCache cache = backbone.make_cache();
  std::uint64_t hash = 0;
  for (std::int64_t done = 0; done < kProbeRows;) {
    const std::int64_t count = std::min(kProbeRows - done, backbone.rows_max());
    const Segment segment{
        &cache, std::span(tokens).subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(count)), 1};
    const Backbone::Output output = backbone.forward({&segment, 1});
    done += count;
    if (done < kProbeRows) continue;
    hash = probe_hash(hash, output.hidden[0].span());
    hash = probe_hash(hash, output.logits[0].span());
  }
  return hash;
}

}  // namespace

std::uint64_t probe_hash(std::uint64_t hash, std::span<const float> row) {
  for (const float x : row) hash = mix64(hash ^ std::bit_cast<std::uint32_t>(x));
  return hash;
}

std::string numeric_class(WeightType type, const std::string& gemm, std::uint64_t fingerprint, std::uint64_t probe) {
  return fmt::format("{} {} ({}) outrider={} gcc={} onednn={} glibc={} weights={:016x} probe={:016x}", to_string(type),
                     to_string(active_isa()), gemm, OUTRIDER_VERSION, __VERSION__, onednn_version(),
                     gnu_get_libc_version(), fingerprint, probe);
}

std::string numeric_class(Backbone& backbone) {
  return numeric_class(backbone.weight_type(), backbone.gemm_implementation(), backbone.weights().fingerprint(),
                       probe(backbone));
}

}  // namespace outrider
