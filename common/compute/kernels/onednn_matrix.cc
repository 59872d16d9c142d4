// oneDNN's matmul of floats, for a few fixed heights (numbers of rows). The only file that uses oneDNN; compiles
// against 2.6 and 3.x.
//
// Batch invariance: a height is used only if its primitive gives, on random input and weights, exactly the bits of the
// primitive of kGemmHeight rows, row by row. This is checked once per shape, when its first matrix is made; a height
// that fails is not used (ADR 1). That primitive must give a row the same bits at any position among its rows;
// otherwise oneDNN is not used.
//
// oneDNN would distribute a primitive over OpenMP's threads. Here each primitive multiplies a slice of the outputs on
// one thread, and the team shares the slices.
#include <omp.h>

#include <algorithm>
#include <compare>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <oneapi/dnnl/dnnl.hpp>

#include "common/base/random.h"
#include "common/compute/kernels/isa.h"
#include "common/compute/kernels/linear.h"
#include "common/compute/kernels/packed_matrix.h"
#include "common/compute/kernels/team.h"
#include "common/compute/kernels/weight_layout.h"

namespace outrider {
namespace {

using Dt = dnnl::memory::data_type;

struct Shape {
  WeightType type;
  std::int64_t in, out;
  auto operator<=>(const Shape&) const = default;

  std::size_t element_bytes() const { return static_cast<std::size_t>(format_of(type).unit_bytes); }
  Dt operand() const { return type == WeightType::kF32 ? Dt::f32 : Dt::bf16; }
};

/// Caps oneDNN's dispatch at the active ISA; must run before its first primitive.
const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine = [] {
    if (active_isa() != detect_isa()) {
      // kAvx512 stays below AMX; below the cap oneDNN itself checks what the CPU supports.
      dnnl::set_max_cpu_isa(active_isa() >= Isa::kAvx512 ? dnnl::cpu_isa::avx512_core_bf16 : dnnl::cpu_isa::avx2);
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

/// @param weights  the layout, or `any` for oneDNN's choice. Null if oneDNN has no implementation, or only its
/// reference, which is hundreds of times slower than our own loop
std::optional<Primitive> make_primitive(const Shape& shape, std::int64_t height, const dnnl::memory::desc& weights) {
  const dnnl::memory::desc src({height, shape.in}, shape.operand(), dnnl::memory::format_tag::ab);
  const dnnl::memory::desc dst({height, shape.out}, Dt::f32, dnnl::memory::format_tag::ab);
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

void execute(const Primitive& primitive, const dnnl::memory& weights, const void* src, void* dst) {
  const auto& d = primitive.desc;
  const dnnl::memory src_memory(d.src_desc(), cpu_engine(), const_cast<void*>(src));
  const dnnl::memory dst_memory(d.dst_desc(), cpu_engine(), dst);
  const dnnl::memory scratch_memory(d.scratchpad_desc(), cpu_engine(),
                                    scratch_bytes(Scratch::kOnednn, d.scratchpad_desc().get_size()));
  const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, src_memory.get()},
                                  {DNNL_ARG_WEIGHTS, weights.get()},
                                  {DNNL_ARG_DST, dst_memory.get()},
                                  {DNNL_ARG_SCRATCHPAD, scratch_memory.get()}};
  const dnnl_status_t status = dnnl_primitive_execute(primitive.matmul.get(), thread_stream().get(), 4, args);
  CHECK(status == dnnl_success, "matmul status {}", static_cast<int>(status));
}

/// Heights to try besides kGemmHeight: for verifying 1, 2, 4 and 8 drafts, one row, and prompts.
constexpr std::int64_t kHeights[] = {1, 2, 3, 5, 9, kPromptHeight};

/// The primitives of a slice of outputs.
struct Slice {
  std::vector<Primitive> primitives;  ///< ascending height; includes kGemmHeight

  /// Returns the primitive for the next rows when `rows` are left: larger than `rows` only up to kGemmHeight; the
  /// surplus is padding.
  const Primitive& next(std::int64_t rows) const {
    const auto fits = [&](std::int64_t height) { return height >= std::min(rows, kGemmHeight); };
    const Primitive& tallest = primitives.back();
    return tallest.height <= rows ? tallest : *std::ranges::find_if(primitives, fits, &Primitive::height);
  }
  /// The primitive of kGemmHeight, whose bits all others match.
  const Primitive& base() const { return next(kGemmHeight); }
};

/// Execution plan of all matrices of one (type, in, out).
struct Plan {
  WeightLayout layout;
  dnnl::memory::desc weights;        ///< of the whole matrix
  std::int64_t width = 0;            ///< outputs of a slice; the last may have fewer
  std::vector<std::int64_t> starts;  ///< of each slice, in elements
  Slice slice, last;
  bool forks = false;  ///< one slice, on OpenMP's threads
};

/// Restricts oneDNN's code that runs meanwhile, or is generated, to this thread.
class OneThread {
 public:
  OneThread() { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }

 private:
  int before_ = omp_get_max_threads();
};

/// Returns random elements of the type.
std::vector<std::byte> random_elements(WeightType type, std::int64_t count) {
  CounterRng rng(static_cast<std::uint64_t>(count));
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = static_cast<float>(rng.uniform() * 2 - 1);
  std::vector<std::byte> bytes(format_of(type).bytes(count, 1));
  format_of(type).store_row(values, 0, bytes.data());
  return bytes;
}

/// Returns the primitive's results for rows of stored inputs, by its height at a time; remaining rows are zeros.
std::vector<std::uint32_t> run(const Primitive& primitive, const dnnl::memory& weights,
                               const std::vector<std::byte>& input, std::int64_t rows, std::int64_t out) {
  std::vector<std::uint32_t> output(static_cast<std::size_t>(rows * out));
  for (std::int64_t r = 0; r + primitive.height <= rows; r += primitive.height)
    execute(primitive, weights, input.data() + std::ssize(input) / rows * r, output.data() + r * out);
  return output;
}

/// Returns true if `candidate` computes each row to the same bits as `base`.
bool same_bits(const Primitive& candidate, const Primitive& base, const dnnl::memory& weights, const Shape& shape) {
  const std::int64_t rows = std::max(candidate.height, base.height), whole = rows / candidate.height * candidate.height;
  const std::vector<std::byte> input = random_elements(shape.type, rows * shape.in);
  const std::vector<std::uint32_t> output = run(candidate, weights, input, rows, shape.out);
  return std::equal(output.begin(), output.begin() + whole * shape.out,
                    run(base, weights, input, rows, shape.out).begin());
}

/// Returns true if `base` computes a row to the same bits at any position among its rows. oneDNN's AVX2 sgemm does not:
/// it has another kernel for the rows after the last whole group.
bool same_bits_anywhere(const Primitive& base, const dnnl::memory& weights, const Shape& shape) {
  std::vector<std::byte> rows = random_elements(shape.type, kGemmHeight * shape.in);
  std::vector<std::uint32_t> expected = run(base, weights, rows, kGemmHeight, shape.out);
  for (const std::ptrdiff_t shift : {1, 2, 5}) {  // 1, 3 and 8 rows from the original position
    std::rotate(rows.begin(), rows.begin() + shift * std::ssize(rows) / kGemmHeight, rows.end());
    std::rotate(expected.begin(), expected.begin() + shift * shape.out, expected.end());
    if (run(base, weights, rows, kGemmHeight, shape.out) != expected) return false;
  }
  return true;
}

/// The part of a blocked memory descriptor that a WeightLayout describes.
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
  if (d.format_kind != dnnl_blocked || d.offset0 != 0 || d.extra.flags != 0) return std::nullopt;
  const dnnl_blocking_desc_t& b = d.format_desc.blocking;
  return Blocking{{d.padded_dims, d.padded_dims + 2},
                  {b.strides, b.strides + 2},
                  {b.inner_blks, b.inner_blks + b.inner_nblks},
                  {b.inner_idxs, b.inner_idxs + b.inner_nblks}};
#endif
}

/// Returns the layout equivalent to `desc` for weights [in, out]; none if a WeightLayout cannot express it.
std::optional<WeightLayout> layout_of(const dnnl::memory::desc& desc, const Shape& shape) {
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
    const std::string tag = order + inner;
    const Result<WeightLayout> layout = WeightLayout::parse(tag == "ba" ? "rows" : tag, shape.in, shape.out);
    if (!layout) continue;
    bool same = desc.get_size() == layout->bytes(shape.element_bytes());
    for (int axis = 0; axis < 2; ++axis) {
      same = same && layout->padded(axis) == blocking->padded[static_cast<std::size_t>(axis)];
      same = same && (layout->outer_count(axis) == 1 ||
                      layout->outer_stride(axis) == blocking->strides[static_cast<std::size_t>(axis)]);
    }
    if (same) return *layout;
  }
  return std::nullopt;
}

/// Returns random weights in a layout. Random because a matrix of zeros would make every height look right.
AlignedArray<std::byte> random_weights(const WeightLayout& layout, const Shape& shape) {
  constexpr std::int64_t kPool = 65537;  // a prime, so that no two outputs get equal values
  const std::vector<std::byte> pool = random_elements(shape.type, kPool);
  const std::vector<std::int64_t> in_offset = layout.offsets(0), out_offset = layout.offsets(1);
  const std::size_t element = shape.element_bytes();
  AlignedArray<std::byte> weights(layout.bytes(element));
  team_for(shape.out, kInputsPerPiece / shape.in + 1, [&](std::int64_t o) {
    for (std::int64_t i = 0; i < shape.in; ++i) {
      const auto to =
          static_cast<std::size_t>(in_offset[static_cast<std::size_t>(i)] + out_offset[static_cast<std::size_t>(o)]);
      const auto from = static_cast<std::size_t>((o * shape.in + i) % kPool);
      std::memcpy(weights.data() + to * element, pool.data() + from * element, element);
    }
  });
  return weights;
}

/// Makes the primitives of a slice of a matrix that begins with `weights`. None if there is no fast one, or none that
/// keeps a row's bits.
std::optional<Slice> make_slice(const Shape& shape, const dnnl::memory::desc& desc, const std::byte* random) {
  const dnnl::memory weights(desc, cpu_engine(), const_cast<std::byte*>(random));
  auto base = make_primitive(shape, kGemmHeight, desc);
  if (!base || !same_bits_anywhere(*base, weights, shape)) return std::nullopt;
  Slice slice;
  for (const std::int64_t height : kHeights) {
    auto primitive = make_primitive(shape, height, desc);
    if (primitive && same_bits(*primitive, *base, weights, shape)) slice.primitives.push_back(std::move(*primitive));
  }
  slice.primitives.push_back(std::move(*base));
  std::ranges::sort(slice.primitives, {}, &Primitive::height);
  return slice;
}

/// Returns the width of slices that take some 20 us per row.
std::int64_t slice_width(const Shape& shape) {
  constexpr std::int64_t kSliceBytes = 256 * 1024, kSlicesMax = 256, kOutputs = 64;
  const std::int64_t bytes = shape.in * shape.out * static_cast<std::int64_t>(shape.element_bytes());
  const std::int64_t count = std::min(bytes / kSliceBytes + 1, kSlicesMax);
  return std::min(shape.out, (shape.out / count + kOutputs - 1) / kOutputs * kOutputs);
}

/// @param whole see Plan::forks
std::shared_ptr<const Plan> make_plan(const Shape& shape, const WeightLayout& layout, const dnnl::memory::desc& desc,
                                      const AlignedArray<std::byte>& random, bool whole) {
  std::optional<OneThread> one;
  if (!whole) one.emplace();
  const std::int64_t width = whole ? shape.out : slice_width(shape);
  auto plan = std::make_shared<Plan>(Plan{layout, desc, width, {}, {}, {}, whole});
  const std::vector<std::int64_t> offsets = layout.offsets(1);
  for (std::int64_t o = 0; o < shape.out; o += width) plan->starts.push_back(offsets[static_cast<std::size_t>(o)]);
  const auto slice_at = [&](std::int64_t start, std::int64_t outputs) {
    const Shape part{shape.type, shape.in, outputs};
    return make_slice(part, whole ? desc : desc.submemory_desc({part.in, part.out}, {0, 0}),
                      random.data() + static_cast<std::size_t>(start) * shape.element_bytes());
  };
  auto slice = slice_at(0, width), last = slice_at(plan->starts.back(), (shape.out - 1) % width + 1);
  if (!slice || !last) return nullptr;
  plan->slice = std::move(*slice), plan->last = std::move(*last);
  return plan;
}

std::shared_ptr<const Plan> make_plan(const Shape& shape) {
  const auto base =
      make_primitive(shape, kGemmHeight, {{shape.in, shape.out}, shape.operand(), dnnl::memory::format_tag::any});
  if (!base) return nullptr;
  const dnnl::memory::desc desc = base->desc.weights_desc();
  const std::optional<WeightLayout> layout = layout_of(desc, shape);
  if (!layout) return nullptr;
  const AlignedArray<std::byte> random = random_weights(*layout, shape);  // only memory that `layout` describes is read
  // Not cut into slices if a cut would be within a block (bf16 with AMX has odd ones).
  const std::int64_t block = layout->padded(1) / layout->outer_count(1), width = slice_width(shape);
  const bool in_blocks = width == shape.out || (width % block == 0 && shape.out % width % block == 0);
  return make_plan(shape, *layout, desc, random, !in_blocks);
}

/// Null if oneDNN is not to be used: for integers, for deep and narrow matrices, without an optimised implementation on
/// the active ISA, a batch-invariant one (AVX2 sgemm, bfloat16 with an odd number of inputs), or one whose weights a
/// WeightLayout describes.
std::shared_ptr<const Plan> plan_for(const Shape& shape) {
  const bool floats = shape.type == WeightType::kF32 || shape.type == WeightType::kBf16;
  if (!floats || active_isa() == Isa::kScalar) return nullptr;
  // Deep and narrow, as a router: its few slices would keep most of a team idle, and dot products do not.
  constexpr std::int64_t kDeep = 1024, kNarrow = 128;
  if (shape.type == WeightType::kF32 && shape.in >= kDeep && shape.out <= kNarrow) return nullptr;
  // Inputs are paired, and with AMX oneDNN 3.7.2 pairs the last of an odd number with the next row's first.
  if (shape.type == WeightType::kBf16 && shape.in % 2 != 0) return nullptr;
  static std::mutex mutex;
  // A primitive of a whole matrix is specific to its maker's number of threads.
  static std::map<std::pair<Shape, int>, std::shared_ptr<const Plan>> plans;
  const std::lock_guard lock(mutex);
  const auto [place, fresh] = plans.try_emplace({shape, omp_get_max_threads()});
  if (fresh) place->second = make_plan(shape);
  return place->second;
}

class OnednnMatrix final : public PackedMatrix {
 public:
  /// @param weights  in the plan's layout
  OnednnMatrix(std::shared_ptr<const Plan> plan, PackedWeights packed)
      : PackedMatrix(std::move(packed), fmt::format("onednn {}", plan->slice.base().desc.impl_info_str())),
        plan_(std::move(plan)) {}

  void multiply(const float* x, std::int64_t rows, float* y, std::int64_t y_stride) const override {
    const PackedWeights& w = weights();
    const WeightFormat& format = format_of(w.type);
    const auto* input = reinterpret_cast<const std::byte*>(x);
    if (w.type != WeightType::kF32) {
      auto* const stored = scratch<std::byte>(Scratch::kInput, (rows + kGemmHeight) * w.in * format.unit_bytes);
      team_for(rows, kInputsPerPiece / w.in + 1, [&](std::int64_t r) {
        format.store_row({x + r * w.in, static_cast<std::size_t>(w.in)}, r, stored);
      });
      input = stored;
    }
    if (plan_->forks) return multiply(0, input, rows, y, y_stride);
    team_run(std::ssize(plan_->starts), 1, [&](std::int64_t begin, std::int64_t end) {
      const OneThread one;
      for (std::int64_t s = begin; s < end; ++s) multiply(s, input, rows, y, y_stride);
    });
  }
  /// oneDNN's order of summing may depend on the number of outputs.
  bool keeps_bits_in_part() const override { return false; }

 private:
  /// Computes slice `s` of y.
  void multiply(std::int64_t s, const std::byte* input, std::int64_t rows, float* y, std::int64_t y_stride) const {
    const PackedWeights& w = weights();
    const std::int64_t element = format_of(w.type).unit_bytes;
    const std::int64_t first = s * plan_->width, outputs = std::min(plan_->width, w.out - first);
    const Slice& slice = s + 1 == std::ssize(plan_->starts) ? plan_->last : plan_->slice;
    // oneDNN only reads weights, but has one type for all memory.
    auto* const bytes = const_cast<std::byte*>(w.bytes.data() + plan_->starts[static_cast<std::size_t>(s)] * element);
    const dnnl::memory weights(slice.base().desc.weights_desc(), cpu_engine(), bytes);
    for (std::int64_t r = 0; r < rows;) {
      const Primitive& primitive = slice.next(rows - r);
      const std::int64_t some = std::min(primitive.height, rows - r);
      float* const to = y + r * y_stride + first;
      const bool in_place = outputs == y_stride || primitive.height == 1;
      float* const result = in_place ? to : scratch<float>(Scratch::kOutput, primitive.height * outputs);
      execute(primitive, weights, input + r * w.in * element, result);
      for (std::int64_t i = 0; !in_place && i < some; ++i)
        std::copy_n(result + i * outputs, outputs, to + i * y_stride);
      r += some;
    }
  }

  std::shared_ptr<const Plan> plan_;
};

/// Converts rows [out, in] to the plan's layout.
PackedWeights pack(const Plan& plan, const Shape& shape, const PackedWeights& rows) {
  const auto memory = std::make_shared<AlignedArray<std::byte>>(plan.weights.get_size());
  const auto element = static_cast<std::int64_t>(shape.element_bytes());
  team_for(std::ssize(plan.starts), 1, [&](std::int64_t s) {
    const OneThread one;
    const std::int64_t first = s * plan.width, outputs = std::min(plan.width, shape.out - first);
    const Slice& slice = s + 1 == std::ssize(plan.starts) ? plan.last : plan.slice;
    // Stored rows are output channels: [out, in] row-major is [in, out] with transposed strides.
    dnnl::memory from({{shape.in, outputs}, shape.operand(), dnnl::memory::format_tag::ba}, cpu_engine(),
                      const_cast<std::byte*>(rows.bytes.data() + first * shape.in * element));
    dnnl::memory to(slice.base().desc.weights_desc(), cpu_engine(),
                    memory->data() + plan.starts[static_cast<std::size_t>(s)] * element);
    dnnl::reorder(from, to).execute(thread_stream(), from, to);
    thread_stream().wait();
  });
  const std::span<const std::byte> used = std::as_const(*memory).span().first(plan.layout.bytes(shape.element_bytes()));
  return {shape.type, shape.in, shape.out, plan.layout.name(), used, memory, {}};
}

}  // namespace

std::shared_ptr<const PackedMatrix> make_onednn(const PackedWeights& weights) {
  const Shape shape{weights.type, weights.in, weights.out};
  auto plan = plan_for(shape);
  if (plan == nullptr) return nullptr;
  PackedWeights packed = weights.layout == plan->layout.name() ? weights : pack(*plan, shape, as_rows(weights));
  return std::make_shared<OnednnMatrix>(std::move(plan), std::move(packed));
}

std::string onednn_version() {
  const dnnl_version_t* version = dnnl_version();
  return fmt::format("{}.{}.{}", version->major, version->minor, version->patch);
}

}  // namespace outrider
