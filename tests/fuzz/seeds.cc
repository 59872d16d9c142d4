// Writes small valid files for the fuzz targets to start from: fuzz_seeds DIR makes DIR/gguf,
// DIR/safetensors and DIR/tokenizer.
#include <cstdio>
#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "tests/support/gguf_writer.h"

namespace fs = std::filesystem;
using namespace outrider;

namespace {

void write(const fs::path& file, const std::string& bytes) {
  fs::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary) << bytes;
}

void put_tiny_tokenizer(GgufWriter& w) {
  w.string("tokenizer.ggml.model", "gemma4");
  w.strings("tokenizer.ggml.tokens", {"<unk>", "a", "b", "ab", "<|turn>", "<0x0A>"});
  w.i32s("tokenizer.ggml.token_type", {2, 1, 1, 1, 3, 6});
  w.strings("tokenizer.ggml.merges", {"a b"});
  w.u32("tokenizer.ggml.unknown_token_id", 0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: fuzz_seeds DIR\n");
    return 2;
  }
  const fs::path out = argv[1], goldens = fs::path(OUTRIDER_SOURCE_DIR) / "tests/goldens";
  for (const char* golden : {"e2b", "moe-26b-a4b", "dense-31b"}) {
    for (const char* part : {"backbone", "assistant"}) {
      GgufWriter w = gguf_of(goldens / golden / part);
      // What the config is told from, without the bulk.
      std::erase_if(w.tensors, [](const GgufWriter::Tensor& t) { return t.data.size() > 300; });
      put_tiny_tokenizer(w);
      w.u32(part == std::string("backbone") ? "gemma4.vocab_size" : "gemma4-assistant.vocab_size", 512);
      write(out / "gguf" / (std::string(golden) + "-" + part), w.bytes());
    }
  }

  const nlohmann::json header = {{"a", {{"dtype", "F32"}, {"shape", {2, 1}}, {"data_offsets", {0, 8}}}},
                                 {"b", {{"dtype", "BF16"}, {"shape", {1}}, {"data_offsets", {8, 10}}}},
                                 {"__metadata__", {{"format", "pt"}}}};
  const std::string text = header.dump();
  write(out / "safetensors" / "two", raw_bytes<std::uint64_t>(text.size()) + text + std::string(10, '\0'));
  write(out / "safetensors" / "index",
        R"({"metadata": {"total_size": 4}, "weight_map": {"a": "model-1.safetensors", "b": "x/y"}})");

  const auto replace = [](const char* from, const char* to) {
    return nlohmann::json{{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
  };
  const nlohmann::json tokenizer = {
      {"added_tokens",
       {{{"id", 0}, {"content", "<x>"}, {"special", true}}, {{"id", 4}, {"content", "aa"}, {"normalized", true}}}},
      {"normalizer", replace(" ", "\u2581")},
      {"pre_tokenizer", {{"type", "Split"}, {"pattern", {{"String", " "}}}, {"behavior", "MergedWithPrevious"}}},
      {"decoder",
       {{"type", "Sequence"}, {"decoders", {replace("\u2581", " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}}}}},
      {"model",
       {{"type", "BPE"},
        {"unk_token", "<x>"},
        {"fuse_unk", true},
        {"byte_fallback", true},
        {"vocab", {{"<x>", 0}, {"a", 1}, {"b", 2}, {"ab", 3}, {"aa", 4}}},
        {"merges", {{"a", "b"}, {"a", "a"}}}}}};
  write(out / "tokenizer" / "tiny", tokenizer.dump());
}
