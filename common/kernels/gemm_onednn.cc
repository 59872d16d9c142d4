#include "common/kernels/gemm_onednn.h"

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

#include <oneapi/dnnl/dnnl.hpp>

#include "common/base/random.h"
#include "common/kernels/isa.h"
#include "common/kernels/kernel_table.h"
#include "common/kernels/weight_layout.h"

namespace outrider {
namespace {

using Dt = dnnl::memory::data_type;

struct Types {
  Dt operand, result;
};

Types types_of(WeightType type) {
  switch (type) {
    case WeightType::kInt4: break;  // our own
    case WeightType::kF32: return {Dt::f32, Dt::f32};
    case WeightType::kBf16: return {Dt::bf16, Dt::f32};
    case WeightType::kInt8: return {Dt::s8, Dt::s32};
  }
  return {Dt::undef, Dt::undef};
}

/// Caps oneDNN's own dispatch at the active ISA; must run before its first primitive.
const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine = [] {
    if (active_isa() != detect_isa()) {
      // kAvx512 stays below AMX; what the CPU lacks below the cap oneDNN leaves out by itself.
      dnnl::set_max_cpu_isa(active_isa() == Isa::kAvx512 ? dnnl::cpu_isa::avx512_core_bf16 : dnnl::cpu_isa::avx2);
    }
    return dnnl::engine(dnnl::engine::kind::cpu, 0);
  }();
  return engine;
}

dnnl::stream& thread_stream() {
  thread_local dnnl::stream stream(cpu_engine());
  return stream;
}

std::size_t element_bytes(WeightType type) { return dnnl::memory::data_type_size(types_of(type).operand); }

/// A matmul for one number of rows.
struct Primitive {
  std::int64_t height;
  dnnl::matmul::primitive_desc desc;
  dnnl::matmul matmul;
};

/// @param weights the layout, or `any` for oneDNN's choice. Null where oneDNN has only its reference
///   implementation, which is hundreds of times slower than our own loop, or none.
std::optional<Primitive> make_primitive(WeightType type, std::int64_t height, std::int64_t in, std::int64_t out,
                                        const dnnl::memory::desc& weights) {
  const Types types = types_of(type);
  const dnnl::memory::desc src({height, in}, types.operand, dnnl::memory::format_tag::ab);
  const dnnl::memory::desc dst({height, out}, types.result, dnnl::memory::format_tag::ab);
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  try {
#if DNNL_VERSION_MAJOR >= 3
    dnnl::matmul::primitive_desc desc(cpu_engine(), src, weights, dst, attr);
#else
    dnnl::matmul::primitive_desc desc(dnnl::matmul::desc(src, weights, dst), attr, cpu_engine());
#endif
    if (std::string(desc.impl_info_str()).find("ref") != std::string::npos) return std::nullopt;
    return Primitive{height, desc, dnnl::matmul(desc)};
  } catch (const dnnl::error&) {
    return std::nullopt;
  }
}

thread_local AlignedArray<std::byte> scratch;

void execute(const Primitive& primitive, const dnnl::memory& weights, const void* src, void* dst) {
  const auto& d = primitive.desc;
  const std::size_t scratch_bytes = d.scratchpad_desc().get_size();
  if (scratch.size() < scratch_bytes) scratch = AlignedArray<std::byte>(scratch_bytes);
  const dnnl::memory src_memory(d.src_desc(), cpu_engine(), const_cast<void*>(src));
  const dnnl::memory dst_memory(d.dst_desc(), cpu_engine(), dst);
  const dnnl::memory scratch_memory(d.scratchpad_desc(), cpu_engine(), scratch.data());
  const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, src_memory.get()},
                                  {DNNL_ARG_WEIGHTS, weights.get()},
                                  {DNNL_ARG_DST, dst_memory.get()},
                                  {DNNL_ARG_SCRATCHPAD, scratch_memory.get()}};
  const dnnl_status_t status = dnnl_primitive_execute(primitive.matmul.get(), thread_stream().get(), 4, args);
  CHECK(status == dnnl_success, "matmul status {}", static_cast<int>(status));
}

/// Heights to try beside the tile: what verifying 1, 2, 4 and 8 drafts takes, one row, and a prompt's.
constexpr std::int64_t kHeights[] = {1, 2, 3, 5, 9, kPromptTile};

/// The primitives of one (type, in, out), shared by all matrices of that shape; tallest last.
struct Plan {
  std::vector<Primitive> primitives;  ///< ascending height; holds kRowTile
  WeightLayout layout;                ///< of tile()'s weights
  TileKernel tile_kernel = nullptr;   ///< OnednnGemm::tile_kernel

  const Primitive& tile() const {
    return *std::find_if(primitives.begin(), primitives.end(), [](const Primitive& p) { return p.height == kRowTile; });
  }
};

/// Random rows in the operand's type, so that every height sees the same input.
std::vector<std::byte> random_operand(WeightType type, std::int64_t elements) {
  CounterRng rng(static_cast<std::uint64_t>(elements));
  const std::size_t element = element_bytes(type);
  std::vector<std::byte> bytes(static_cast<std::size_t>(elements) * element);
  for (std::int64_t i = 0; i < elements; ++i) {
    const float x = static_cast<float>(rng.uniform() * 2 - 1);
    const Bf16 half = to_bf16(x);
    const auto integer = static_cast<std::int8_t>(x * 127);
    const void* from = type == WeightType::kF32    ? static_cast<const void*>(&x)
                       : type == WeightType::kBf16 ? static_cast<const void*>(&half)
                                                   : &integer;
    std::memcpy(bytes.data() + static_cast<std::size_t>(i) * element, from, element);
  }
  return bytes;
}

/// Whether `candidate` computes each row to the same bits as the tile does.
bool same_bits(const Primitive& candidate, const Primitive& tile, const dnnl::memory& weights, WeightType type,
               std::int64_t in, std::int64_t out) {
  const std::int64_t rows = std::max(candidate.height, tile.height);
  const std::vector<std::byte> src = random_operand(type, rows * in);
  const std::size_t src_row = src.size() / static_cast<std::size_t>(rows);
  const auto run = [&](const Primitive& primitive) {
    std::vector<std::uint32_t> dst(static_cast<std::size_t>(rows * out));
    for (std::int64_t r = 0; r + primitive.height <= rows; r += primitive.height) {
      execute(primitive, weights, src.data() + static_cast<std::size_t>(r) * src_row, dst.data() + r * out);
    }
    return dst;
  };
  const std::vector<std::uint32_t> ours = run(candidate), theirs = run(tile);
  const std::int64_t whole = rows / candidate.height * candidate.height;
  return std::equal(ours.begin(), ours.begin() + whole * out, theirs.begin());
}

/// Whether the tile computes a row to the same bits wherever in the tile it lies. oneDNN's AVX2 sgemm
/// does not: it has another kernel for the rows after the last whole block.
bool same_bits_anywhere(const Primitive& tile, const dnnl::memory& weights, WeightType type, std::int64_t in,
                        std::int64_t out) {
  std::vector<std::byte> rows = random_operand(type, kRowTile * in);
  const std::ptrdiff_t row_bytes = static_cast<std::ptrdiff_t>(rows.size()) / kRowTile;
  std::vector<std::uint32_t> expected(static_cast<std::size_t>(kRowTile * out)), actual(expected.size());
  execute(tile, weights, rows.data(), expected.data());
  for (const std::ptrdiff_t shift : {1, 2, 5}) {  // 1, 3 and 8 rows from where they began
    std::rotate(rows.begin(), rows.begin() + shift * row_bytes, rows.end());
    std::rotate(expected.begin(), expected.begin() + shift * out, expected.end());
    execute(tile, weights, rows.data(), actual.data());
    if (actual != expected) return false;
  }
  return true;
}

/// The part of a blocked memory descriptor that a WeightLayout holds.
struct Blocking {
  dnnl::memory::dims padded, strides, inner_sizes, inner_axes;
};

std::optional<Blocking> blocking_of(const dnnl::memory::desc& desc) {
#if DNNL_VERSION_MAJOR >= 3
  if (desc.get_format_kind() != dnnl::memory::format_kind::blocked || desc.get_submemory_offset() != 0)
    return std::nullopt;
  return Blocking{desc.get_padded_dims(), desc.get_strides(), desc.get_inner_blks(), desc.get_inner_idxs()};
#else
  const dnnl_memory_desc_t& d = desc.data;
  if (d.format_kind != dnnl_blocked || d.offset0 != 0 ||
      (d.extra.flags & ~std::uint64_t{dnnl_memory_extra_flag_compensation_conv_s8s8}) != 0) {
    return std::nullopt;
  }
  const dnnl_blocking_desc_t& b = d.format_desc.blocking;
  return Blocking{{d.padded_dims, d.padded_dims + 2},
                  {b.strides, b.strides + 2},
                  {b.inner_blks, b.inner_blks + b.inner_nblks},
                  {b.inner_idxs, b.inner_idxs + b.inner_nblks}};
#endif
}

/// The layout that says all about where `desc` puts weights [in, out]; none if there is more to say.
std::optional<WeightLayout> layout_of(const dnnl::memory::desc& desc, WeightType type, std::int64_t in,
                                      std::int64_t out) {
  const std::optional<Blocking> blocking = blocking_of(desc);
  if (!blocking) return std::nullopt;
  std::string inner;
  bool blocked[2] = {false, false};
  for (std::size_t i = 0; i < blocking->inner_sizes.size(); ++i) {
    const auto axis = blocking->inner_axes[i];
    blocked[axis] = true;
    inner += fmt::format("{}{}", blocking->inner_sizes[i], axis == 0 ? 'a' : 'b');
  }
  const char a = blocked[0] ? 'A' : 'a', b = blocked[1] ? 'B' : 'b';
  for (const std::string& order : {std::string{b, a}, std::string{a, b}}) {
    for (const char* sums : {"", "+s8s8"}) {
      const std::string tag = order + inner + sums;
      const Result<WeightLayout> layout = WeightLayout::parse(tag == "ba" ? "rows" : tag, in, out);
      if (!layout) continue;
      // oneDNN reserves three times the room for the sums that it uses (2.6.3; for one flag it counts all three).
      const std::size_t size = desc.get_size(), bytes = layout->bytes(element_bytes(type)),
                        unused = 2 * layout->sum_bytes();
      bool same = size == bytes || size == bytes + unused;
      for (int axis = 0; axis < 2; ++axis) {
        same = same && layout->padded(axis) == blocking->padded[static_cast<std::size_t>(axis)];
        same = same && (layout->outer_count(axis) == 1 ||
                        layout->outer_stride(axis) == blocking->strides[static_cast<std::size_t>(axis)]);
      }
      if (same) return *layout;
    }
  }
  return std::nullopt;
}

/// Random weights in a layout. Not those of a real matrix: one of zeros would make every height look right.
AlignedArray<std::byte> random_weights(const WeightLayout& layout, WeightType type, std::int64_t in, std::int64_t out) {
  constexpr std::int64_t kPool = 65537;  // a prime, so that no two outputs get the same values
  const std::vector<std::byte> pool = random_operand(type, kPool);
  const std::vector<std::int64_t> in_offset = layout.offsets(0), out_offset = layout.offsets(1);
  const std::size_t element = element_bytes(type);
  AlignedArray<std::byte> weights(layout.bytes(element));  // a +s8s8 layout's sums stay 0: the same error in every row
#pragma omp parallel for schedule(static)
  for (std::int64_t o = 0; o < out; ++o) {
    for (std::int64_t i = 0; i < in; ++i) {
      const auto to =
          static_cast<std::size_t>(in_offset[static_cast<std::size_t>(i)] + out_offset[static_cast<std::size_t>(o)]);
      std::memcpy(weights.data() + to * element, pool.data() + static_cast<std::size_t>((o * in + i) % kPool) * element,
                  element);
    }
  }
  return weights;
}

/// OnednnGemm::tile_kernel for weights in the layout.
TileKernel tile_kernel_for(const WeightLayout& layout, WeightType type, std::int64_t in, std::int64_t out) {
  const bool whole_steps =
      in * static_cast<std::int64_t>(element_bytes(type)) % kTileInputBytes == 0 && out % kTileOutputs == 0;
  if (!whole_steps) return nullptr;
  if (type == WeightType::kInt8 && layout.name() == kInt8TileLayout) return kernels().gemm_int8;
  if (type == WeightType::kBf16 && layout.name() == kBf16TileLayout) return kernels().gemm_bf16;
  return nullptr;
}

std::shared_ptr<const Plan> make_plan(WeightType type, std::int64_t in, std::int64_t out) {
  auto tile =
      make_primitive(type, kRowTile, in, out, {{in, out}, types_of(type).operand, dnnl::memory::format_tag::any});
  if (!tile) return nullptr;
  const std::optional<WeightLayout> layout = layout_of(tile->desc.weights_desc(), type, in, out);
  if (!layout) return nullptr;
  auto plan = std::make_shared<Plan>();
  plan->layout = *layout;
  plan->tile_kernel = tile_kernel_for(*layout, type, in, out);
  if (plan->tile_kernel == nullptr) {
    AlignedArray<std::byte> random = random_weights(*layout, type, in, out);
    const dnnl::memory weights(tile->desc.weights_desc(), cpu_engine(),
                               random.data());  // only what `layout` says is read
    if (!same_bits_anywhere(*tile, weights, type, in, out)) return nullptr;
    for (const std::int64_t height : kHeights) {
      auto primitive = make_primitive(type, height, in, out, tile->desc.weights_desc());
      if (primitive && same_bits(*primitive, *tile, weights, type, in, out))
        plan->primitives.push_back(std::move(*primitive));
    }
  }
  plan->primitives.push_back(std::move(*tile));
  std::sort(plan->primitives.begin(), plan->primitives.end(),
            [](const Primitive& a, const Primitive& b) { return a.height < b.height; });
  return plan;
}

/// Null where oneDNN is not to be used.
std::shared_ptr<const Plan> plan_for(WeightType type, std::int64_t in, std::int64_t out) {
  if (type == WeightType::kInt4 || active_isa() == Isa::kScalar) return nullptr;
  if (type == WeightType::kInt8 && active_isa() < Isa::kAvx512) return nullptr;
  // Inputs come in pairs, and with AMX oneDNN 3.7.2 completes the last of an odd number with the next row's first.
  if (type == WeightType::kBf16 && in % 2 != 0) return nullptr;
  static std::mutex mutex;
  // A primitive is made for as many threads as its maker has.
  static std::map<std::tuple<WeightType, std::int64_t, std::int64_t, int>, std::shared_ptr<const Plan>> plans;
  const std::lock_guard lock(mutex);
  const auto [place, fresh] = plans.try_emplace({type, in, out, omp_get_max_threads()});
  if (fresh) place->second = make_plan(type, in, out);
  return place->second;
}

class PackedGemm final : public OnednnGemm {
 public:
  /// @param weights in the plan's layout, 64-byte aligned, alive as long as `keep_alive` is.
  PackedGemm(std::shared_ptr<const Plan> plan, std::span<const std::byte> weights,
             std::shared_ptr<const void> keep_alive)
      : plan_(std::move(plan)),
        weights_(weights),
        keep_alive_(std::move(keep_alive)),
        // oneDNN reads weights only, but has one type for all memory.
        memory_(plan_->tile().desc.weights_desc(), cpu_engine(), const_cast<std::byte*>(weights.data())) {}

  std::span<const std::byte> weights() const override { return weights_; }
  const std::string& layout() const override { return plan_->layout.name(); }
  std::int64_t height(std::int64_t rows) const override {
    if (rows >= kPromptTile && plan_->primitives.back().height == kPromptTile) return kPromptTile;
    const std::int64_t wanted = std::min(rows, kRowTile);
    return std::find_if(plan_->primitives.begin(), plan_->primitives.end(),
                        [&](const Primitive& p) { return p.height >= wanted; })
        ->height;
  }
  void execute(std::int64_t height, const void* src, void* dst) const override {
    const auto primitive = std::find_if(plan_->primitives.begin(), plan_->primitives.end(),
                                        [&](const Primitive& p) { return p.height == height; });
    outrider::execute(*primitive, memory_, src, dst);
  }
  TileKernel tile_kernel() const override { return plan_->tile_kernel; }
  std::string implementation() const override { return plan_->tile().desc.impl_info_str(); }

 private:
  std::shared_ptr<const Plan> plan_;
  std::span<const std::byte> weights_;
  std::shared_ptr<const void> keep_alive_;
  dnnl::memory memory_;
};

}  // namespace

bool OnednnGemm::supports(WeightType type, std::int64_t in_features, std::int64_t out_features) {
  return plan_for(type, in_features, out_features) != nullptr;
}

std::shared_ptr<const OnednnGemm> OnednnGemm::pack(WeightType type, std::int64_t in_features, std::int64_t out_features,
                                                   const void* weights) {
  auto plan = plan_for(type, in_features, out_features);
  const dnnl::memory::desc packed_desc = plan->tile().desc.weights_desc();
  const auto packed = std::make_shared<AlignedArray<std::byte>>(packed_desc.get_size());
  // Stored rows are output channels: [out, in] row-major is [in, out] with transposed strides.
  dnnl::memory from({{in_features, out_features}, types_of(type).operand, dnnl::memory::format_tag::ba}, cpu_engine(),
                    const_cast<void*>(weights));
  dnnl::memory to(packed_desc, cpu_engine(), packed->data());
  dnnl::reorder(from, to).execute(thread_stream(), from, to);
  thread_stream().wait();
  const std::span<const std::byte> used = std::as_const(*packed).span().first(plan->layout.bytes(element_bytes(type)));
  return std::make_shared<PackedGemm>(std::move(plan), used, packed);
}

std::shared_ptr<const OnednnGemm> OnednnGemm::map(WeightType type, std::int64_t in_features, std::int64_t out_features,
                                                  const std::string& layout, std::span<const std::byte> weights,
                                                  std::shared_ptr<const void> keep_alive) {
  auto plan = plan_for(type, in_features, out_features);
  if (layout != plan->layout.name() || weights.size() != plan->layout.bytes(element_bytes(type))) return nullptr;
  return std::make_shared<PackedGemm>(std::move(plan), weights, std::move(keep_alive));
}

std::size_t OnednnGemm::thread_scratch_bytes() { return scratch.size(); }

std::string onednn_version() {
  const dnnl_version_t* version = dnnl_version();
  return fmt::format("{}.{}.{}", version->major, version->minor, version->patch);
}

}  // namespace outrider
