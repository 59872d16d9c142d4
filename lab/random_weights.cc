#include "lab/random_weights.h"

#include <cmath>
#include <cstring>
#include <map>
#include <numeric>

#include "common/base/random.h"
#include "common/compute/kernels/packed_matrix.h"
#include "common/compute/kernels/team.h"
#include "common/compute/tensor/f16.h"
#include "common/compute/tensor/tensor.h"
#include "lab/shapes.h"

namespace outrider {
namespace {

using Bytes = std::shared_ptr<AlignedArray<std::byte>>;

/// Four lanes of 16 bits, or two of 32, with random sign and fraction: magnitudes in [1, 2) * 2^e, root mean square
/// 1.53 * 2^e.
struct RandomFloats {
  std::uint64_t random = ~std::uint64_t{0}, exponents = 0;
};

int exponent_of(double root_mean_square) {
  return 127 + static_cast<int>(std::lround(std::log2(root_mean_square / 1.53)));
}

RandomFloats random_floats(DType dtype, double root_mean_square) {
  const auto exponent = static_cast<std::uint64_t>(exponent_of(root_mean_square));
  if (dtype == DType::kF32) return {0x807f'ffff'807f'ffff, exponent * 0x0080'0000'0080'0000};
  return {0x807f'807f'807f'807f, exponent * 0x0080'0080'0080'0080};
}

/// Words or blocks per piece of a team's work: a millisecond at most.
constexpr std::int64_t kWordsPerPiece = 64 * 1024;

/// Returns random bits where lanes.random has ones.
Bytes random_bytes(std::size_t size, std::uint64_t seed, const RandomFloats& lanes = {}) {
  const auto bytes = std::make_shared<AlignedArray<std::byte>>((size + 7) / 8 * 8);
  const std::uint64_t mixed = mix64(seed);
  team_for(static_cast<std::int64_t>(bytes->size() / 8), kWordsPerPiece, [&](std::int64_t i) {
    const std::uint64_t word = (CounterRng::at(mixed, static_cast<std::uint64_t>(i)) & lanes.random) | lanes.exponents;
    std::memcpy(bytes->data() + 8 * i, &word, sizeof word);
  });
  return bytes;
}

class RandomWeights final : public WeightSource {
 public:
  RandomWeights(WeightType type, const std::string& name) : type_(type), path_(name) {}

  WeightType type() const override { return type_; }
  bool has(const std::string& /*name*/) const override { return true; }
  std::uint64_t fingerprint() const override { return seed(path_.string()); }
  std::uint64_t embedding_fingerprint() const override { return seed(path_.string() + " embedding"); }
  const std::filesystem::path& path() const override { return path_; }

  Result<std::vector<float>> vector(const std::string& name, std::int64_t size) const override {
    const double mean = typical_mean(name, size);
    CounterRng rng(seed(name));
    std::vector<float> values(static_cast<std::size_t>(size));
    for (float& value : values) value = static_cast<float>(mean * (0.9 + 0.2 * rng.uniform()));
    return values;
  }

  Result<RowTable> table(const std::string& name, std::int64_t rows, std::int64_t width) const override {
    if (const auto known = tables_.find(name); known != tables_.end()) return known->second;
    return tables_[name] = make_table(name, table_dtype(type_, activation_dtype(type_), width), rows, width);
  }

  Result<Linear> linear(WeightType type, std::int64_t in_features, const std::vector<Part>& parts) const override {
    std::int64_t out = 0;
    std::string name;
    for (const Part& part : parts) {
      out += part.rows;
      name += fmt::format("{}[{}]", part.name, part.slice);
    }
    const double rms = typical_rms(in_features);
    const WeightFormat& format = format_of(type);
    const std::size_t size = format.bytes(in_features, out);
    const bool floats = format.from_random == nullptr;
    const Bytes bytes =
        random_bytes(size, seed(name), floats ? random_floats(activation_dtype(type), rms) : RandomFloats());
    std::vector<float> scales;
    if (!floats) {
      const double size_of_integers = format.from_random(bytes->span().first(size));
      scales.assign(static_cast<std::size_t>(out), static_cast<float>(rms / size_of_integers));
    }
    return Linear::map({.type = type,
                        .in = in_features,
                        .out = out,
                        .layout = format.layout,
                        .bytes = bytes->span().first(size),
                        .owner = bytes,
                        .scales = std::move(scales)});
  }

  Result<std::vector<TokenId>> permutation(const std::string& name, std::int64_t size) const override {
    CounterRng rng(seed(name));
    std::vector<TokenId> order(static_cast<std::size_t>(size));
    std::iota(order.begin(), order.end(), 0);
    for (std::uint64_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.below(i)]);
    return order;
  }

  Result<RowTable> ordered_rows(const std::string& name, std::int64_t width,
                                std::span<const TokenId> order) const override {
    return make_table(name, table_dtype(type_, activation_dtype(type_), width), static_cast<std::int64_t>(order.size()),
                      width);
  }

 private:
  static std::uint64_t seed(const std::string& name) {
    std::uint64_t hash = 0;
    for (const char c : name) hash = mix64(hash + static_cast<unsigned char>(c) + 1);
    return hash;
  }

  static RowTable make_table(const std::string& name, DType dtype, std::int64_t rows, std::int64_t width) {
    const double rms = typical_rms(width);
    const std::size_t size = static_cast<std::size_t>(rows) * stored_bytes(dtype, static_cast<std::size_t>(width));
    Bytes bytes;
    if (dtype == DType::kF32 || dtype == DType::kBf16) {
      bytes = random_bytes(size, seed(name), random_floats(dtype, rms));
    } else {
      // ggml's blocks of 32: a half, then the integers.
      bytes = random_bytes(size, seed(name));
      const std::size_t block = stored_bytes(dtype, block_elements(dtype));
      const F16 scale = to_f16(static_cast<float>(rms / format_of(WeightType::kInt8).from_random({})));
      team_for(static_cast<std::int64_t>(size / block), kWordsPerPiece, [&](std::int64_t b) {
        std::memcpy(bytes->data() + static_cast<std::size_t>(b) * block, &scale, sizeof scale);
      });
    }
    return {.dtype = dtype,
            .numbers = dtype,
            .rows = rows,
            .width = width,
            .bytes = bytes->span().first(size),
            .owner = bytes};
  }

  WeightType type_;
  std::filesystem::path path_;
  mutable std::map<std::string, RowTable> tables_;  ///< both models of a pair request the target's embedding
};

}  // namespace

std::shared_ptr<const WeightSource> random_weights(WeightType type, const std::string& name) {
  return std::make_shared<RandomWeights>(type, name);
}

}  // namespace outrider
