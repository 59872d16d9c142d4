#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

/// What every target has. Any bytes; whatever they are, it returns 0.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

/// What a target may have besides: inputs to begin with that a program makes better than a file keeps them.
namespace outrider {
using FuzzSeeds = std::vector<std::string>;
#if defined(__GNUC__)
__attribute__((weak))
#endif
FuzzSeeds
fuzz_seeds();
}  // namespace outrider
