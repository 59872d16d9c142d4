#pragma once

#include <span>
#include <string>

#include "common/base/result.h"

namespace outrider {

/// Instruction sets that a path of ours exists for, those of an architecture weakest first. kAvx2Vnni, which some CPUs
/// with kAvx512 lack, differs from kAvx2 in GEMMs of integers, kAmx from kAvx512 in GEMMs and attention; kAvx512 means
/// the VNNI generation and up. kDotprod and kI8mm differ from kNeon, which is
/// what every aarch64 has, in GEMMs of integers.
enum class Isa { kScalar, kAvx2, kAvx2Vnni, kAvx512, kAmx, kNeon, kDotprod, kI8mm };

const char* to_string(Isa isa);

/// Those of the architecture that this program is compiled for, weakest first.
std::span<const Isa> isas();

/// Whether this CPU runs it and the kernel lets us use it. @pre it is one of isas()
bool has_isa(Isa isa);

/// The strongest set of those.
Isa detect_isa();

/// The set in use: OUTRIDER_ISA (a name of isas()) if it is set and this CPU has it, else the detected one. Chosen
/// once, on the first call. Throws std::runtime_error on a bad OUTRIDER_ISA.
Isa active_isa();

/// Who multiplies where both our kernels and oneDNN can.
enum class Gemm { kFastest, kOnednn, kOwn };

/// OUTRIDER_GEMM (onednn, own) if it is set, else whichever is faster. Chosen once, on the first call. Throws
/// std::runtime_error on a bad OUTRIDER_GEMM.
Gemm active_gemm();

}  // namespace outrider
