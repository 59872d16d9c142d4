// Everything that reads a GGUF file, on any bytes.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include <nlohmann/json.hpp>

#include "common/model/checkpoint/gguf.h"
#include "common/model/checkpoint/gguf_config.h"
#include "common/model/checkpoint/gguf_names.h"
#include "common/model/checkpoint/gguf_projector.h"
#include "common/model/gemma4/config.h"
#include "common/model/tokenizer/tokenizer.h"
#include "common/model/vision/vision_config.h"
#include "tests/fuzz/driver.h"
#include "tests/support/gguf_writer.h"

namespace outrider {
namespace {

void put_tiny_tokenizer(GgufWriter& w) {
  w.string("tokenizer.ggml.model", "gemma4");
  w.strings("tokenizer.ggml.tokens", {"<unk>", "a", "b", "ab", "<|turn>", "<0x0A>"});
  w.i32s("tokenizer.ggml.token_type", {2, 1, 1, 1, 3, 6});
  w.strings("tokenizer.ggml.merges", {"a b"});
  w.u32("tokenizer.ggml.unknown_token_id", 0);
}

void add_zeros(GgufWriter& w, const char* name, const std::vector<std::uint64_t>& extents) {
  std::size_t elements = 1;
  for (const std::uint64_t extent : extents) elements *= extent;
  w.tensor({name, extents, gguf_tensor_type(DType::kF32), std::string(4 * elements, '\0')});
}

/// A vision tower and an audio tower of one layer, as far as their headers go.
GgufWriter tiny_projector() {
  GgufWriter w;
  w.string("general.architecture", "clip");
  w.string("clip.vision.projector_type", "gemma4v");
  for (const auto& [key, value] : {std::pair("embedding_length", 4),
                                   {"feed_forward_length", 4},
                                   {"block_count", 1},
                                   {"attention.head_count", 1},
                                   {"patch_size", 2}})
    w.u32(std::string("clip.vision.") + key, value);
  w.f32("clip.vision.attention.layer_norm_epsilon", 1e-6F);
  add_zeros(w, "v.patch_embd.weight", {2, 2, 3, 4});
  add_zeros(w, "v.position_embd.weight", {4, 3, 2});
  add_zeros(w, "v.blk.0.attn_q.weight", {4, 4});
  add_zeros(w, "v.blk.0.attn_q.input_max", {1});
  add_zeros(w, "mm.input_projection.weight", {4, 8});
  w.string("clip.audio.projector_type", "gemma4a");
  for (const char* key : {"embedding_length", "block_count", "attention.head_count"})
    w.u32(std::string("clip.audio.") + key, 1);
  add_zeros(w, "a.conv1d.0.weight", {3, 3, 1, 2});
  add_zeros(w, "a.conv1d.1.weight", {3, 3, 2, 2});
  add_zeros(w, "a.blk.0.conv_dw.weight", {5, 4});
  add_zeros(w, "a.blk.0.per_dim_scale.weight", {4});
  add_zeros(w, "a.pre_encode.out.weight", {4, 4});
  add_zeros(w, "mm.a.input_projection.weight", {4, 8});
  return w;
}

/// What 12B has in their place.
GgufWriter tiny_unified_projector() {
  GgufWriter w;
  w.string("general.architecture", "clip");
  w.string("clip.vision.projector_type", "gemma4uv");
  w.string("clip.audio.projector_type", "gemma4ua");
  w.u32("clip.vision.embedding_length", 4);
  w.u32("clip.vision.patch_size", 1);
  w.u32("clip.vision.projector.scale_factor", 2);
  add_zeros(w, "v.patch_embd.weight", {12, 4});
  add_zeros(w, "v.patch_norm.1.weight", {12});
  add_zeros(w, "v.patch_norm.1.bias", {12});
  add_zeros(w, "v.position_embd.weight", {4, 3, 2});
  add_zeros(w, "mm.input_projection.weight", {4, 8});
  add_zeros(w, "mm.a.input_projection.weight", {4, 8});
  return w;
}

}  // namespace

/// Published layouts without the bulk of their weights.
FuzzSeeds fuzz_seeds() {
  const std::filesystem::path goldens = std::filesystem::path(OUTRIDER_SOURCE_DIR) / "tests/goldens";
  FuzzSeeds seeds;
  for (const char* golden : {"e2b", "moe-26b-a4b", "dense-31b"}) {
    for (const char* part : {"backbone", "assistant"}) {
      GgufWriter w = gguf_of(goldens / golden / part);
      // What the config is told from, without the bulk.
      std::erase_if(w.tensors, [](const GgufWriter::Tensor& t) { return t.data.size() > 300; });
      put_tiny_tokenizer(w);
      w.u32(part == std::string("backbone") ? "gemma4.vocab_size" : "gemma4-assistant.vocab_size", 512);
      seeds.push_back(w.bytes());
    }
  }
  seeds.push_back(tiny_projector().bytes());
  seeds.push_back(tiny_unified_projector().bytes());
  return seeds;
}

}  // namespace outrider

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace outrider;
  Result<GgufFile> file = parse_gguf(std::as_bytes(std::span(data, size)), "fuzz.gguf");
  if (!file) return 0;
  if (const auto tokenizer = Tokenizer::from_gguf(file->metadata)) (void)tokenizer->encode("abc \n\xff<|turn>");
  GgufModel model;
  model.file = "fuzz.gguf";
  model.metadata = file->metadata;
  model.tensors = std::move(file->tensors);
  (void)hugging_face_tensors(model);
  if (const auto config = gguf_config(model)) {
    (void)parse_text_config(config->text, "fuzz.gguf");
    (void)parse_assistant_config(config->text, "fuzz.gguf");
  }
  if (const auto whole = add_projector({{"hidden_size", 8}}, model, model)) {
    (void)parse_vision_config(whole->dump(), "fuzz.gguf");
    (void)projector_tensors(model);
  }
  return 0;
}
