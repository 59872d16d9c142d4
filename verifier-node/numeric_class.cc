#include "verifier-node/numeric_class.h"

#include <gnu/libc-version.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include <fmt/format.h>

#include "common/base/random.h"
#include "common/kernels/isa.h"
#include "common/kernels/linear.h"

namespace outrider {
namespace {

/// As many as the height that all products are compared with: any other gives the same bits.
constexpr std::int64_t kProbeRows = kGemmHeight;

/// Hash of the last of kProbeRows rows: the residual stream that ends there is float32, so that a sum which was rounded
/// otherwise anywhere in the model shows.
std::uint64_t probe(Backbone& backbone) {
  std::vector<TokenId> tokens;
  for (std::int64_t i = 0; i < kProbeRows; ++i)
    tokens.push_back(static_cast<TokenId>((2 + i * 9973) % backbone.config().vocab_size));
  KvCache cache = backbone.make_cache();
  std::uint64_t hash = 0;
  const auto add = [&](std::span<const float> row) {
    for (const float x : row) hash = mix64(hash ^ std::bit_cast<std::uint32_t>(x));
  };
  for (std::int64_t done = 0; done < kProbeRows;) {
    const std::int64_t count = std::min(kProbeRows - done, backbone.rows_max());
    const Segment segment{
        &cache, std::span(tokens).subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(count)), 1};
    const Backbone::Output output = backbone.forward({&segment, 1});
    done += count;
    if (done < kProbeRows) continue;
    add(output.hidden[0].span());
    add(output.logits[0].span());
  }
  return hash;
}

}  // namespace

std::string numeric_class(Backbone& backbone) {
  return fmt::format("{} {} \"{}\" outrider={} gcc={} onednn={} glibc={} weights={:016x} probe={:016x}",
                     to_string(backbone.weight_type()), to_string(active_isa()), backbone.gemm_implementation(),
                     OUTRIDER_VERSION, __VERSION__, onednn_version(), gnu_get_libc_version(),
                     backbone.weights().fingerprint(), probe(backbone));
}

}  // namespace outrider
