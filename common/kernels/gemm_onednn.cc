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

namespace outrider {
namespace {

using Dt = dnnl::memory::data_type;

struct Types {
  Dt operand, result;
};

Types types_of(WeightType type) {
  switch (type) {
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

  const Primitive& tile() const {
    return *std::find_if(primitives.begin(), primitives.end(), [](const Primitive& p) { return p.height == kRowTile; });
  }
};

/// Random rows in the operand's type, so that every height sees the same input.
std::vector<std::byte> random_operand(WeightType type, std::int64_t elements) {
  CounterRng rng(static_cast<std::uint64_t>(elements));
  const std::size_t element = type == WeightType::kF32 ? 4 : type == WeightType::kBf16 ? 2 : 1;
  std::vector<std::byte> bytes(static_cast<std::size_t>(elements) * element);
  for (std::int64_t i = 0; i < elements; ++i) {
    const float x = static_cast<float>(rng.uniform() * 2 - 1);
    const Bf16 half = to_bf16(x);
    const auto integer = static_cast<std::int8_t>(x * 127);
    const void* from = type == WeightType::kF32 ? static_cast<const void*>(&x) : type == WeightType::kBf16 ? static_cast<const void*>(&half) : &integer;
    std::memcpy(bytes.data() + static_cast<std::size_t>(i) * element, from, element);
  }
  return bytes;
}

/// Whether `candidate` computes each row to the same bits as the tile does.
bool same_bits(const Primitive& candidate, const Primitive& tile, const dnnl::memory& weights, WeightType type, std::int64_t in,
               std::int64_t out) {
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
bool same_bits_anywhere(const Primitive& tile, const dnnl::memory& weights, WeightType type, std::int64_t in, std::int64_t out) {
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

dnnl::memory reorder_weights(const dnnl::memory::desc& packed_desc, Dt operand, std::int64_t in, std::int64_t out, const void* weights) {
  // Stored rows are output channels: [out, in] row-major is [in, out] with transposed strides.
  dnnl::memory plain({{in, out}, operand, dnnl::memory::format_tag::ba}, cpu_engine(), const_cast<void*>(weights));
  dnnl::memory packed(packed_desc, cpu_engine());
  dnnl::reorder(plain, packed).execute(thread_stream(), plain, packed);
  thread_stream().wait();
  return packed;
}

std::shared_ptr<const Plan> make_plan(WeightType type, std::int64_t in, std::int64_t out, const void* weights) {
  const Dt operand = types_of(type).operand;
  auto tile = make_primitive(type, kRowTile, in, out, {{in, out}, operand, dnnl::memory::format_tag::any});
  if (!tile) return nullptr;
  auto plan = std::make_shared<Plan>();
  const dnnl::memory packed = reorder_weights(tile->desc.weights_desc(), operand, in, out, weights);
  if (!same_bits_anywhere(*tile, packed, type, in, out)) return nullptr;
  for (const std::int64_t height : kHeights) {
    auto primitive = make_primitive(type, height, in, out, tile->desc.weights_desc());
    if (primitive && same_bits(*primitive, *tile, packed, type, in, out)) plan->primitives.push_back(std::move(*primitive));
  }
  plan->primitives.push_back(std::move(*tile));
  std::sort(plan->primitives.begin(), plan->primitives.end(), [](const Primitive& a, const Primitive& b) { return a.height < b.height; });
  return plan;
}

std::shared_ptr<const Plan> plan_for(WeightType type, std::int64_t in, std::int64_t out, const void* weights) {
  static std::mutex mutex;
  // A primitive is made for as many threads as its maker has.
  static std::map<std::tuple<WeightType, std::int64_t, std::int64_t, int>, std::shared_ptr<const Plan>> plans;
  const std::lock_guard lock(mutex);
  const auto [place, fresh] = plans.try_emplace({type, in, out, omp_get_max_threads()});
  if (fresh) place->second = make_plan(type, in, out, weights);
  return place->second;
}

class PackedGemm final : public OnednnGemm {
 public:
  PackedGemm(std::shared_ptr<const Plan> plan, Dt operand, std::int64_t in, std::int64_t out, const void* weights)
      : plan_(std::move(plan)), packed_(reorder_weights(plan_->tile().desc.weights_desc(), operand, in, out, weights)) {}

  std::int64_t height(std::int64_t rows) const override {
    if (rows >= kPromptTile && plan_->primitives.back().height == kPromptTile) return kPromptTile;
    const std::int64_t wanted = std::min(rows, kRowTile);
    return std::find_if(plan_->primitives.begin(), plan_->primitives.end(), [&](const Primitive& p) { return p.height >= wanted; })->height;
  }
  void execute(std::int64_t height, const void* src, void* dst) const override {
    const auto primitive = std::find_if(plan_->primitives.begin(), plan_->primitives.end(), [&](const Primitive& p) { return p.height == height; });
    outrider::execute(*primitive, packed_, src, dst);
  }
  std::string implementation() const override { return plan_->tile().desc.impl_info_str(); }
  std::size_t held_bytes() const override { return packed_.get_desc().get_size(); }

 private:
  std::shared_ptr<const Plan> plan_;
  dnnl::memory packed_;
};

}  // namespace

std::shared_ptr<const OnednnGemm> OnednnGemm::pack(WeightType type, std::int64_t in_features,
                                                   std::int64_t out_features, const void* weights) {
  if (active_isa() == Isa::kScalar) return nullptr;
  if (type == WeightType::kInt8 && active_isa() < Isa::kAvx512) return nullptr;
  auto plan = plan_for(type, in_features, out_features, weights);
  if (plan == nullptr) return nullptr;
  return std::make_shared<PackedGemm>(std::move(plan), types_of(type).operand, in_features, out_features, weights);
}

std::size_t OnednnGemm::thread_scratch_bytes() { return scratch.size(); }

std::string onednn_version() {
  const dnnl_version_t* version = dnnl_version();
  return fmt::format("{}.{}.{}", version->major, version->minor, version->patch);
}

}  // namespace outrider
