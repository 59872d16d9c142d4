#include "common/compute/kernels/isa.h"

#include <cstddef>
#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include <fmt/format.h>

#include "common/base/names.h"
#include "common/compute/kernels/kernel_table.h"

namespace outrider {
namespace {

Isa choose_isa() {
  const Isa detected = detect_isa();
  const char* wanted = std::getenv("OUTRIDER_ISA");
  if (wanted == nullptr || *wanted == '\0') return detected;
  for (const Isa isa : isas()) {
    if (std::string_view(wanted) != to_string(isa)) continue;
    if (has_isa(isa)) return isa;
    throw std::runtime_error(fmt::format("OUTRIDER_ISA={}, but this CPU has only {}", wanted, to_string(detected)));
  }
  throw std::runtime_error(fmt::format("OUTRIDER_ISA={}, wanted {}", wanted, names_of(isas())));
}

Gemm choose_gemm() {
  const char* const set = std::getenv("OUTRIDER_GEMM");
  const std::string_view wanted = set == nullptr ? "" : set;
  if (wanted.empty()) return Gemm::kFastest;
  if (wanted == "onednn") return Gemm::kOnednn;
  if (wanted == "own") return Gemm::kOwn;
  throw std::runtime_error(fmt::format("OUTRIDER_GEMM={}, wanted onednn or own", wanted));
}

}  // namespace

const char* to_string(Isa isa) {
  constexpr const char* kNames[] = {"scalar", "avx2", "avx2_vnni", "avx512", "amx", "neon", "dotprod", "i8mm"};
  return kNames[static_cast<std::size_t>(isa)];
}

Isa detect_isa() {
  Isa strongest = Isa::kScalar;
  for (const Isa isa : isas())
    if (has_isa(isa)) strongest = isa;
  return strongest;
}

Isa active_isa() {
  static const Isa isa = choose_isa();
  return isa;
}

const KernelTable& kernels() {
  static const KernelTable& table = kernel_table(active_isa());
  return table;
}

Gemm active_gemm() {
  static const Gemm gemm = choose_gemm();
  return gemm;
}

}  // namespace outrider
