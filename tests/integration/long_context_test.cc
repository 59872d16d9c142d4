// A text of 131,072 positions.
#include <cmath>
#include <cstring>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/base/random.h"
#include "tests/support/anonymous_bytes.h"
#include "tests/support/cluster_fixtures.h"
#include "tests/support/temporary_dir.h"

namespace outrider {
namespace {
using nlohmann::json;

constexpr std::int64_t kPositions = 131072;

/// A random backbone as cheap as attention over a long text allows: one sliding and one full layer, one
/// head of 8. Written to a folder of its own.
class TinyBackbone {
 public:
  TinyBackbone() {
    const json text = {{"model_type", "gemma4_text"}, {"vocab_size", kVocab},
                       {"hidden_size", 16},           {"intermediate_size", 16},
                       {"num_hidden_layers", 2},      {"num_attention_heads", 1},
                       {"num_key_value_heads", 1},    {"head_dim", 8},
                       {"global_head_dim", 8},        {"layer_types", {"sliding_attention", "full_attention"}},
                       {"sliding_window", 64},        {"hidden_size_per_layer_input", 0},
                       {"num_kv_shared_layers", 0},   {"max_position_embeddings", kPositions}};
    std::ofstream(dir_ / "config.json") << text;
    add("model.embed_tokens.weight", {kVocab, 16});
    add("model.norm.weight", {16});
    for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
      for (const char* norm :
           {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"}) {
        add(layer + norm + ".weight", {16});
      }
      add(layer + "layer_scalar", {1});
      for (const char* projection : {"q_proj", "k_proj", "v_proj"})
        add(layer + "self_attn." + projection + ".weight", {8, 16});
      for (const char* norm : {"q_norm", "k_norm"}) add(layer + "self_attn." + norm + ".weight", {8});
      add(layer + "self_attn.o_proj.weight", {16, 8});
      for (const char* projection : {"gate_proj", "up_proj", "down_proj"})
        add(layer + "mlp." + projection + ".weight", {16, 16});
    }
    const std::string text_header = header_.dump();
    const std::uint64_t length = text_header.size();
    std::ofstream file(dir_ / "model.safetensors", std::ios::binary);
    file.write(reinterpret_cast<const char*>(&length), sizeof length);
    file << text_header;
    file.write(reinterpret_cast<const char*>(data_.data()), static_cast<std::streamsize>(data_.size() * sizeof(float)));
  }
  const std::filesystem::path& dir() const { return dir_.path(); }
  static constexpr int kVocab = 64;

 private:
  void add(const std::string& name, const std::vector<std::int64_t>& shape) {
    std::size_t count = 1;
    for (const std::int64_t n : shape) count *= static_cast<std::size_t>(n);
    const std::size_t start = data_.size() * sizeof(float);
    for (std::size_t i = 0; i < count; ++i) data_.push_back(static_cast<float>(rng_.below(2001)) / 1000.0f - 1.0f);
    header_[name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {start, data_.size() * sizeof(float)}}};
  }

  TemporaryDir dir_;
  CounterRng rng_{7};
  json header_ = json::object();
  std::vector<float> data_;
};

// Attention over every position before it makes this quadratic: minutes on two busy cores.
TEST(LongContext, HoldsEveryPositionInBoundedMemory) {
  const TinyBackbone backbone;
  Coordinator coordinator;
  Program verifier({"verifier", "--backbone", backbone.dir(), "--dtype", "f32", "--join", coordinator.address});
  TransportContext context;
  Client client = connect_when_joined(context, coordinator.address, 1, 0);
  const auto generate = [&](std::int64_t prompt, std::int64_t max_tokens) {
    Generate request{.prompt = {}, .max_tokens = max_tokens, .draft_length = 0, .stop_ids = {}, .wait_ms = 0};
    for (std::int64_t i = 0; i < prompt; ++i)
      request.prompt.push_back(static_cast<TokenId>((i * i + 3) % TinyBackbone::kVocab));
    return client.generate(request, [](std::span<const TokenId>) {});
  };
  ASSERT_TRUE(generate(1000, 2));
  const std::int64_t before = anonymous_bytes(verifier.pid());
  const Result<Generation> generation = generate(kPositions - 8, 1000);
  ASSERT_TRUE(generation) << generation.error().message;
  EXPECT_EQ(generation->tokens.size(), 9u) << "the last token needs no K/V";
  EXPECT_EQ(generation->reason, FinishReason::kLength);
  // K and V of the full layer, 8 floats each a position, stay until the session is freed; 24 MiB for messages and
  // scores.
  EXPECT_LT(anonymous_bytes(verifier.pid()) - before, kPositions * 2 * 8 * 4 + (24 << 20));

  const Result<Generation> longer = generate(kPositions, 1);
  ASSERT_FALSE(longer);
  EXPECT_NE(longer.error().message.find("the context holds 131072"), std::string::npos) << longer.error().message;
}

}  // namespace
}  // namespace outrider
