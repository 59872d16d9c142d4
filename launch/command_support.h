#pragma once

#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <string>

#include <CLI/CLI.hpp>

#include "common/base/result.h"
#include "common/checkpoint/pack.h"
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
  std::filesystem::path model, backbone, assistant;  ///< no model: the nano pair
  std::string dtype;                                 ///< empty: the packs' own, else bf16

  void add_to(CLI::App& command) {
    command.add_option("--model", model, "Directory of a pair: with pair.json, or with backbone/ and assistant/ (default: the nano pair)");
    command.add_option("--backbone", backbone, "The target by itself: a Hugging Face directory, a .gguf file or a pack");
    command.add_option("--assistant", assistant, "The assistant by itself, likewise");
    command.add_option("--dtype", dtype, "Weights: f32, bf16, int8 or int4 (default: a pack's own, else bf16)");
  }
  PairPaths pair() const {
    PairPaths paths = backbone.empty() || assistant.empty() ? or_throw(pair_paths(model)) : PairPaths();
    if (!backbone.empty()) paths.backbone = backbone;
    if (!assistant.empty()) paths.assistant = assistant;
    return paths;
  }
  WeightType weight_type() const {
    if (!dtype.empty()) return or_throw(parse_weight_type(dtype));
    const PairPaths paths = pair();
    for (const std::filesystem::path& path : {paths.backbone, paths.assistant}) {
      if (is_pack(path)) return or_throw(parse_weight_type(or_throw(Pack::open(path))->info().dtype));
    }
    return WeightType::kBf16;
  }
};

/// How this pair's prompts are written; says so where that is a guess.
inline ChatFormat chat_format_of(const PairPaths& pair) {
  ChatFormat format = or_throw(load_chat_format(pair.backbone));
  if (!format.warning.empty()) std::fprintf(stderr, "outrider: %s\n", format.warning.c_str());
  return format;
}

}  // namespace outrider
