#include "common/compute/kernels/weight_layout.h"

namespace outrider {

Result<WeightLayout> WeightLayout::parse(std::string_view name, std::int64_t in, std::int64_t out) {
  constexpr std::int64_t kSizeMax = 1 << 30;  // with blocks below 2^12, products stay below 2^63
  constexpr std::int64_t kBlockMax = 1024;
  if (in < 1 || in > kSizeMax || out < 1 || out > kSizeMax) {
    return Error(Errc::kMalformed, "matrix [{}, {}], wanted sizes of 1 to {}", in, out, kSizeMax);
  }
  const Error malformed{
      Errc::kMalformed,
      fmt::format("weight layout '{}', wanted 'rows' or blocks such as 'BA16a64b4a'", name.substr(0, 40))};
  WeightLayout layout;
  layout.name_ = name;
  layout.size_ = {in, out};
  std::string_view rest = name == "rows" ? "ba" : name;
  if (name == "ba") return malformed;  // one name per layout

  // Order of the blocks, outermost first; a capital for a blocked axis.
  if (rest.size() < 2) return malformed;
  const std::string order(rest.substr(0, 2));
  rest.remove_prefix(2);
  std::int64_t stride = 1;
  while (!rest.empty()) {
    std::int64_t size = 0;
    while (!rest.empty() && '0' <= rest.front() && rest.front() <= '9' && size <= kBlockMax) {
      size = size * 10 + (rest.front() - '0');
      if (size == 0) return malformed;
      rest.remove_prefix(1);
    }
    if (size < 2 || rest.empty() || (rest.front() != 'a' && rest.front() != 'b')) return malformed;
    const int axis = rest.front() - 'a';
    rest.remove_prefix(1);
    layout.inner_.push_back({axis, size});
    layout.block_[axis] *= size;
    stride *= size;
    if (layout.block_[axis] > kBlockMax) return malformed;
  }
  for (int axis = 0; axis < 2; ++axis)
    layout.outer_count_[axis] = (layout.size_[axis] + layout.block_[axis] - 1) / layout.block_[axis];
  const auto letter = [&](int axis) { return static_cast<char>((layout.block_[axis] > 1 ? 'A' : 'a') + axis); };
  const int last = order[1] == letter(0) ? 0 : 1;
  if (order[0] != letter(1 - last) || order[1] != letter(last)) return malformed;
  layout.outer_stride_[last] = stride;
  layout.outer_stride_[1 - last] = stride * layout.outer_count_[last];
  return layout;
}

std::size_t WeightLayout::bytes(std::size_t element) const {
  return static_cast<std::size_t>(padded(0)) * static_cast<std::size_t>(padded(1)) * element;
}

std::vector<std::int64_t> WeightLayout::offsets(int axis) const {
  std::vector<std::int64_t> offsets(static_cast<std::size_t>(size_[axis]));
  for (std::int64_t i = 0; i < size_[axis]; ++i) {
    std::int64_t position = i, stride = 1, offset = 0;
    for (auto inner = inner_.rbegin(); inner != inner_.rend(); ++inner) {
      if (inner->axis == axis) {
        offset += position % inner->size * stride;
        position /= inner->size;
      }
      stride *= inner->size;
    }
    offsets[static_cast<std::size_t>(i)] = offset + position * outer_stride_[axis];
  }
  return offsets;
}

}  // namespace outrider
