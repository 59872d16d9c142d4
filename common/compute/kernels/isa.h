#pragma once

#include <span>
#include <string>

#include "common/base/result.h"

namespace outrider {

/// Instruction sets with kernels of our own, per architecture from the weakest. kAvx2Vnni, which some CPUs with kAvx512
/// lack, differs from kAvx2 in integer GEMMs, kAmx from kAvx512 in GEMMs and attention; kAvx512 means the VNNI
/// generation and up. kDotprod and kI8mm differ from kNeon, the baseline of aarch64, in integer GEMMs.
enum class Isa { kScalar, kAvx2, kAvx2Vnni, kAvx512, kAmx, kNeon, kDotprod, kI8mm };

const char* to_string(Isa isa);

/// Returns the sets of the compiled architecture, weakest first.
std::span<const Isa> isas();

/// Returns true if this CPU and the operating system support the set. @pre it is one of isas()
bool has_isa(Isa isa);

/// Returns the strongest supported set.
Isa detect_isa();

/// Returns the set in use: OUTRIDER_ISA (a name of isas()) if it is set and supported, else the detected one. Chosen
/// once, on the first call. Throws std::runtime_error on a bad OUTRIDER_ISA.
Isa active_isa();

/// Implementation of products that both our kernels and oneDNN support.
enum class Gemm { kFastest, kOnednn, kOwn };

/// Returns OUTRIDER_GEMM (onednn, own) if it is set, else kFastest. Chosen once, on the first call. Throws
/// std::runtime_error on a bad OUTRIDER_GEMM.
Gemm active_gemm();

}  // namespace outrider
