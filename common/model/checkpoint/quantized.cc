#include "common/model/checkpoint/quantized.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/compute/tensor/decode.h"
#include "common/compute/tensor/q4_grid.h"
#include "common/model/checkpoint/safetensors.h"
#include "common/os/files.h"

namespace outrider {

/// The methods. Each has a file with this function: quantized_gptq.cc and so on.
MakeQuantizedFormat make_auto_round, make_awq, make_compressed_tensors, make_fp8, make_gptq, make_modelopt;

namespace {

constexpr const char* kModelopt = "modelopt";

constexpr struct {
  const char* quant_method;
  MakeQuantizedFormat* make;
} kMethods[] = {
    {"compressed-tensors", make_compressed_tensors},
    {"awq", make_awq},
    {"gptq", make_gptq},
    {"auto-round", make_auto_round},
    {"fp8", make_fp8},
    {kModelopt, make_modelopt},
};

/// Position of an output's four bits in a word of eight.
constexpr int kAwqPlace[] = {0, 4, 1, 5, 2, 6, 3, 7};

std::uint32_t word_at(const TensorEntry& tensor, std::int64_t index) {
  std::uint32_t word;
  std::memcpy(&word, tensor.bytes.data() + index * 4, sizeof word);
  return word;
}

/// Reads consecutive numbers. Bytes are E8M0, the scales of MX formats: exponents of two.
void numbers_at(const TensorEntry& tensor, std::int64_t first, std::span<float> out) {
  const std::byte* from = tensor.bytes.data() + first * static_cast<std::int64_t>(size_bytes(tensor.dtype));
  if (tensor.dtype != DType::kU8) return decode(tensor.dtype, from, out);
  for (float& number : out) number = std::ldexp(1.0f, std::to_integer<int>(*from++) - 127);
}

float number_at(const TensorEntry& tensor, std::int64_t index) {
  float number = 0;
  numbers_at(tensor, index, {&number, 1});
  return number;
}

float f4(int code) {
  constexpr float kSizes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  return code & 8 ? -kSizes[code & 7] : kSizes[code & 7];
}

class GroupedMatrix final : public CodedMatrix {
 public:
  /// @param groups, group, block  number of groups, and sizes of a group and a block
  GroupedMatrix(const GroupedCodes& codes, std::int64_t groups, std::int64_t group, std::int64_t block)
      : codes_(codes),
        code_tensor_(*codes.codes),
        scales_(*codes.scales),
        per_word_(32 / codes.bits),
        groups_(groups),
        group_(group),
        block_(block) {
    if (codes.zeros != nullptr) zeros_ = *codes.zeros;
  }

  void read(std::int64_t row, std::span<float> out) const override {
    float scale = 0, zero = 0;
    for (std::int64_t i = 0, last = -1; i < codes_.in; ++i) {
      const std::int64_t group = codes_.group_of.empty() ? i / group_ : codes_.group_of[static_cast<std::size_t>(i)];
      if (group != last) {
        const std::int64_t block = row / block_;
        scale = number_at(scales_, codes_.transposed ? group * codes_.out + row : block * groups_ + group) *
                codes_.factor / codes_.divisor;
        zero = zero_at(row, group);
        last = group;
      }
      out[static_cast<std::size_t>(i)] = (code_at(row, i) - zero) * scale;
    }
  }

  bool is_on_q4_grid() const override {
    const bool few_bits = scales_.dtype == DType::kF16 || scales_.dtype == DType::kBf16;
    const bool integers = codes_.bits <= 4 && codes_.packing != CodePacking::kF4;
    if (!integers || !few_bits || group_ % kQ4Group != 0 || !codes_.group_of.empty()) return false;
    if (!zeros_ || codes_.bits < 4) return true;
    for (std::int64_t o = 0; o < codes_.out; ++o) {
      for (std::int64_t g = 0; g < groups_; ++g)
        if (const float zero = zero_at(o, g); zero != 8 && zero != 7) return false;  // 7: the step has the other sign
    }
    return true;
  }

  Result<void> check_scales() const override {
    std::vector<float> some(4096);
    const std::int64_t count = scales_.element_count();
    bool all_zero = true;
    for (std::int64_t first = 0; first < count; first += std::ssize(some)) {
      some.resize(static_cast<std::size_t>(std::min<std::int64_t>(std::ssize(some), count - first)));
      numbers_at(scales_, first, some);
      for (std::size_t i = 0; i < some.size(); ++i) {
        const float scale = some[i] * codes_.factor / codes_.divisor;
        all_zero = all_zero && scale == 0;
        if (!std::isfinite(scale))
          return file_error(Errc::kMalformed, scales_.file, "tensor {} has the scale {} at element {}, wanted a number",
                            quote(scales_.name), scale, first + static_cast<std::int64_t>(i));
      }
    }
    if (!all_zero) return {};
    return file_error(Errc::kMalformed, scales_.file, "tensor {} has no scale but 0, wanted another",
                      quote(scales_.name));
  }

  std::string name() const override {
    const char* const kind = !codes_.floats()                     ? "int"
                             : scales_.dtype == DType::kU8        ? "mxfp"
                             : codes_.packing == CodePacking::kF4 ? "nvfp"
                                                                  : "fp";
    const std::string by = group_ < codes_.in ? fmt::format(" by {}", group_) : "";
    return fmt::format("{}{}{}{}", kind, codes_.bits, by, zeros_ ? ", asymmetric" : "");
  }

 private:
  int bits_of(std::uint32_t word, std::int64_t place) const {
    return static_cast<int>(word >> (codes_.bits * place) & ((1u << codes_.bits) - 1));
  }
  float code_at(std::int64_t o, std::int64_t i) const {
    switch (codes_.packing) {
      case CodePacking::kInt32: {
        const std::int64_t words = (codes_.in + per_word_ - 1) / per_word_;
        return static_cast<float>(bits_of(word_at(code_tensor_, o * words + i / per_word_), i % per_word_));
      }
      case CodePacking::kInt32Transposed:
        return static_cast<float>(bits_of(word_at(code_tensor_, i / per_word_ * codes_.out + o), i % per_word_));
      case CodePacking::kAwq:
        return static_cast<float>(bits_of(word_at(code_tensor_, i * (codes_.out / 8) + o / 8), kAwqPlace[o % 8]));
      case CodePacking::kInt8:
        return static_cast<float>(
            static_cast<std::int8_t>(code_tensor_.bytes[static_cast<std::size_t>(o * codes_.in + i)]));
      case CodePacking::kF8: return number_at(code_tensor_, o * codes_.in + i);
      case CodePacking::kF4: {
        const int pair = std::to_integer<int>(code_tensor_.bytes[static_cast<std::size_t>((o * codes_.in + i) / 2)]);
        return f4(i % 2 == 0 ? pair & 15 : pair >> 4);
      }
    }
    return 0;
  }
  float zero_at(std::int64_t o, std::int64_t group) const {
    const bool has_signs = codes_.packing != CodePacking::kInt32 && codes_.packing != CodePacking::kInt32Transposed &&
                           codes_.packing != CodePacking::kAwq;
    if (!zeros_) return has_signs ? 0 : static_cast<float>(1 << (codes_.bits - 1));
    if (has_signs)
      return static_cast<float>(
          static_cast<std::int8_t>(zeros_->bytes[static_cast<std::size_t>(o / block_ * groups_ + group)]));
    if (codes_.packing == CodePacking::kAwq)
      return static_cast<float>(bits_of(word_at(*zeros_, group * (codes_.out / 8) + o / 8), kAwqPlace[o % 8]));
    const std::int64_t words = codes_.transposed ? group * ((codes_.out + per_word_ - 1) / per_word_) + o / per_word_
                                                 : o / per_word_ * groups_ + group;
    return static_cast<float>((bits_of(word_at(*zeros_, words), o % per_word_) + codes_.zero_bias) &
                              ((1 << codes_.bits) - 1));
  }

  GroupedCodes codes_;  ///< without its tensors, which may be gone
  TensorEntry code_tensor_, scales_;
  std::optional<TensorEntry> zeros_;
  std::int64_t per_word_, groups_, group_, block_;
};

std::int64_t divide_up(std::int64_t n, std::int64_t by) { return (n + by - 1) / by; }

/// Returns the size of each of `parts` parts of n, of which the last may be shorter; 0 if undetermined.
/// @param stated  candidates, best first
std::int64_t part_size(std::int64_t n, std::int64_t parts, std::span<const std::int64_t> stated) {
  if (parts < 1 || parts > n) return 0;
  for (const std::int64_t size : stated)
    if (size > 0 && divide_up(n, size) == parts) return std::min(size, n);
  return n % parts == 0 ? n / parts : 0;
}

Result<void> check_shape(const TensorEntry& tensor, DType dtype, const std::vector<std::int64_t>& shape) {
  if (tensor.dtype == dtype && tensor.shape == shape) return {};
  return file_error(Errc::kMalformed, tensor.file, "tensor {} is {} [{}], wanted {} [{}]", quote(tensor.name),
                    to_string(tensor.dtype), fmt::join(tensor.shape, ", "), to_string(dtype), fmt::join(shape, ", "));
}

/// Reads a JSON object from a file; null on errors, which the reader of the model's configuration reports.
Result<nlohmann::json> read_settings(const std::filesystem::path& file) {
  constexpr std::size_t kBytesMax = 16u << 20;
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) return nlohmann::json();
  ASSIGN_OR_RETURN(const std::string text, read_text(file));
  nlohmann::json root = text.size() > kBytesMax ? nlohmann::json() : parse_json(text);
  return root.is_object() ? std::move(root) : nlohmann::json();
}

/// A checkpoint's quantisation settings and their location; null if there are none.
struct Stated {
  nlohmann::json settings;
  std::filesystem::path file;
  std::string key = "quantization_config";
};

/// Reads them from a config.json, or from modelopt's file beside it.
Result<Stated> stated_quantization(const std::filesystem::path& config) {
  Stated stated{.settings = {}, .file = config};
  ASSIGN_OR_RETURN(const nlohmann::json root, read_settings(config));
  stated.settings = member(root, stated.key.c_str());
  if (stated.settings.is_null()) stated.settings = member(member(root, "text_config"), stated.key.c_str());
  if (!stated.settings.is_null()) return stated;
  stated = {.settings = {}, .file = config.parent_path() / "hf_quant_config.json", .key = "quantization"};
  ASSIGN_OR_RETURN(const nlohmann::json beside, read_settings(stated.file));
  stated.settings = member(beside, stated.key.c_str());
  if (stated.settings.is_object()) stated.settings["quant_method"] = kModelopt;
  return stated;
}

/// Returns true for a matrix that must be codes, since its elements are no model's numbers.
bool is_coded(const TensorEntry& tensor) {
  return tensor.shape.size() >= 2 && (!is_decodable(tensor.dtype) || tensor.dtype == DType::kF8_E4M3);
}

}  // namespace

std::optional<std::string> module_of(const TensorEntry& tensor, std::string_view suffix) {
  if (!tensor.name.ends_with(suffix)) return std::nullopt;
  return tensor.name.substr(0, tensor.name.size() - suffix.size());
}

std::int64_t rows_of(const TensorEntry& tensor) {
  const std::size_t rank = tensor.shape.size();
  return rank == 2 ? tensor.shape[0] : rank == 3 ? tensor.shape[0] * tensor.shape[1] : 0;
}

Result<std::vector<std::int64_t>> group_order(Tensors tensors, const std::string& name) {
  std::vector<std::int64_t> groups;
  const TensorEntry* const order = find_tensor(tensors, name);
  if (order == nullptr) return groups;
  groups.resize(static_cast<std::size_t>(order->element_count()));
  RETURN_IF_ERROR(read_i64(*order, groups));
  return groups;
}

Result<const TensorEntry*> need(const TensorEntry& codes, Tensors tensors, const std::string& name) {
  if (const TensorEntry* const found = find_tensor(tensors, name)) return found;
  return file_error(Errc::kMalformed, codes.file, "tensor {} has no {} beside it", quote(codes.name), quote(name));
}

Result<std::optional<TensorEntry>> coded_entry(std::string name, GroupedCodes m) {
  constexpr std::int64_t kSizeMax = 1 << 30;  // as in a Linear
  if (m.out < 1 || m.in < 1 || m.out > kSizeMax || m.in > kSizeMax)
    return file_error(Errc::kMalformed, m.codes->file,
                      "tensor {} has codes of a matrix [{}, {}], wanted sizes of 1 to {}", quote(m.codes->name), m.out,
                      m.in, kSizeMax);
  const std::int64_t per_word = 32 / m.bits;
  // Stacked matrices are one matrix of all their rows.
  const bool stacked = m.codes->shape.size() == 3;
  const std::int64_t stack = stacked ? m.codes->shape[0] : 1, rows = m.out / stack;
  std::vector<TensorEntry> flat;
  flat.reserve(3);
  for (const TensorEntry** const tensor : {&m.codes, &m.scales, &m.zeros}) {
    if (!stacked || *tensor == nullptr) continue;
    if ((*tensor)->shape.size() != 3 || (*tensor)->shape[0] != stack)
      return file_error(Errc::kMalformed, (*tensor)->file, "tensor {} has the shape [{}], wanted {} matrices",
                        quote((*tensor)->name), fmt::join((*tensor)->shape, ", "), stack);
    flat.push_back(**tensor);
    flat.back().shape = {stack * flat.back().shape[1], flat.back().shape[2]};
    *tensor = &flat.back();
  }
  switch (m.packing) {
    case CodePacking::kInt32:
      RETURN_IF_ERROR(check_shape(*m.codes, DType::kI32, {m.out, divide_up(m.in, per_word)}));
      break;
    case CodePacking::kInt32Transposed:
      RETURN_IF_ERROR(check_shape(*m.codes, DType::kI32, {divide_up(m.in, per_word), m.out}));
      break;
    case CodePacking::kAwq: RETURN_IF_ERROR(check_shape(*m.codes, DType::kI32, {m.in, m.out / 8})); break;
    case CodePacking::kInt8: RETURN_IF_ERROR(check_shape(*m.codes, DType::kI8, {m.out, m.in})); break;
    case CodePacking::kF8: RETURN_IF_ERROR(check_shape(*m.codes, DType::kF8_E4M3, {m.out, m.in})); break;
    case CodePacking::kF4: RETURN_IF_ERROR(check_shape(*m.codes, DType::kU8, {m.out, m.in / 2})); break;
  }
  const std::vector<std::int64_t>& shape = m.scales->shape;
  const std::int64_t count = m.scales->element_count();
  const std::int64_t groups = shape.size() == 2 ? shape[m.transposed ? 0 : 1] : 1,
                     blocks = shape.size() == 2 ? shape[m.transposed ? 1 : 0] : count;
  const std::int64_t group = part_size(m.in, groups, m.group_sizes),
                     block = part_size(rows, blocks / stack, m.block_sizes);
  constexpr std::int64_t kMxGroup = 32;
  const bool numbers = (is_decodable(m.scales->dtype) && block_elements(m.scales->dtype) == 1) ||
                       (m.scales->dtype == DType::kU8 && m.floats() && group == kMxGroup);
  const bool in_blocks = m.packing == CodePacking::kF8 && shape.size() == 2;
  // No block of outputs or word of zeros may span two matrices.
  const bool apart = !stacked || (block != 0 && rows % block == 0 && (m.zeros == nullptr || rows % per_word == 0));
  const bool whole = (blocks == m.out || (blocks == 1 && !m.transposed) || in_blocks) && apart;
  if (!numbers || shape.size() > 2 || group == 0 || block == 0 || !whole)
    return file_error(Errc::kMalformed, m.scales->file, "tensor {} is {} [{}], wanted scales of a matrix [{}, {}]",
                      quote(m.scales->name), to_string(m.scales->dtype), fmt::join(shape, ", "), m.out, m.in);
  if (m.zeros != nullptr) {
    const bool bytes = m.packing == CodePacking::kInt8;
    RETURN_IF_ERROR(check_shape(*m.zeros, bytes ? DType::kI8 : DType::kI32,
                                bytes          ? shape
                                : m.transposed ? std::vector{groups, divide_up(m.out, per_word)}
                                               : std::vector{divide_up(m.out, per_word), groups}));
  }
  for (const std::int64_t its : m.group_of) {
    if (its >= 0 && its < groups) continue;
    return file_error(Errc::kMalformed, m.codes->file, "{} has an input of group {}, wanted 0 to {}", quote(name), its,
                      groups - 1);
  }
  if (!m.group_of.empty() && std::ssize(m.group_of) != m.in)
    return file_error(Errc::kMalformed, m.codes->file, "{} has groups of {} inputs, wanted {}", quote(name),
                      m.group_of.size(), m.in);
  const auto coded = std::make_shared<const GroupedMatrix>(m, groups, group, block);
  std::vector<std::int64_t> sizes = {m.out, m.in};
  if (stacked) sizes = {stack, rows, m.in};
  return std::optional(
      TensorEntry{std::move(name), m.codes->dtype, std::move(sizes), m.codes->bytes, m.codes->file, coded});
}

std::optional<std::pair<std::int64_t, std::int64_t>> block_sizes(const JsonFields& config, const char* key) {
  const nlohmann::json* const sizes = config.find(key);
  if (sizes == nullptr) return std::nullopt;
  std::vector<std::int64_t> read;
  for (const nlohmann::json& size : sizes->is_array() ? *sizes : nlohmann::json::array())
    if (size.is_number_integer() && size > 0 && size <= (1 << 20)) read.push_back(size.get<std::int64_t>());
  if (sizes->is_array() && sizes->size() == 2 && read.size() == 2) return std::pair(read[0], read[1]);
  config.wrong(key, "two whole numbers from 1 to 1048576");
  return std::nullopt;
}

Result<void> decode_quantized(const std::filesystem::path& config, std::vector<TensorEntry>& tensors) {
  ASSIGN_OR_RETURN(const Stated stated, stated_quantization(config));
  if (stated.settings.is_null()) return {};
  if (!stated.settings.is_object())
    return file_error(Errc::kMalformed, stated.file, "{} is {}, wanted an object", stated.key, show(stated.settings));

  FirstError first_error{.file = stated.file.string()};
  const JsonFields fields(stated.settings, stated.key + ".", first_error);
  // Google's unquantized QAT files have settings without a method.
  if (fields.find("quant_method") == nullptr && std::ranges::none_of(tensors, is_coded)) return {};
  const std::string method = fields.text("quant_method", {});
  const auto* const known =
      std::ranges::find(kMethods, method, [](const auto& row) { return std::string(row.quant_method); });
  if (!first_error.error && known == std::end(kMethods)) {
    std::vector<const char*> names;
    for (const auto& row : kMethods) names.push_back(row.quant_method);
    return file_error(Errc::kUnsupported, stated.file, "{}.quant_method is {}, wanted {}", stated.key, quote(method),
                      fmt::join(names, ", "));
  }
  if (first_error.error) return *first_error.error;
  const QuantizedFormat matrix_of = known->make(fields);
  if (first_error.error) return *first_error.error;
  std::vector<TensorEntry> decoded;
  for (const TensorEntry& tensor : tensors) {
    ASSIGN_OR_RETURN(const std::optional<TensorEntry> matrix, matrix_of(tensor, tensors));
    decoded.push_back(matrix.value_or(tensor));
  }
  if (const TensorEntry* const repeated = sort_for_repeated(decoded, &TensorEntry::name))
    return file_error(Errc::kMalformed, repeated->file, "a second tensor is called {}", quote(repeated->name));
  tensors = std::move(decoded);
  return {};
}

}  // namespace outrider
