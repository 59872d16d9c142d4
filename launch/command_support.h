#pragma once

#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <string>

#include <CLI/CLI.hpp>

#include "common/base/result.h"
#include "common/config/pair.h"
#include "common/kernels/linear.h"
#include "common/tokenizer/chat_format.h"
#include "launch/cluster.h"

namespace outrider {

/// The value, or the error as the one line that main() prints.
template <typename T>
T or_throw(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  if constexpr (!std::is_void_v<T>) return std::move(result).value();
}

/// The options that every command with a model has.
struct ModelFlags {
  std::filesystem::path model;  ///< empty: the nano pair
  std::string dtype = "bf16";

  void add_to(CLI::App& command) {
    command.add_option("--model", model, "Directory with backbone/ and assistant/ (default: the nano pair)");
    command.add_option("--dtype", dtype, "Weights: f32, bf16, int8 or int4")->capture_default_str();
  }
  PairPaths pair() const { return pair_paths(model); }
  WeightType weight_type() const { return or_throw(parse_weight_type(dtype)); }
};

/// How this pair's prompts are written; says so where that is a guess.
inline ChatFormat chat_format_of(const PairPaths& pair) {
  ChatFormat format = or_throw(load_chat_format(pair.backbone));
  if (!format.warning.empty()) std::fprintf(stderr, "outrider: %s\n", format.warning.c_str());
  return format;
}

}  // namespace outrider
