#pragma once

#include <filesystem>

#include "common/model/checkpoint/model_files.h"

namespace outrider {

/// The model there, which must be one that can be opened.
inline ModelFiles model_at(const std::filesystem::path& path) { return ModelFiles::open(path).value(); }

}  // namespace outrider
