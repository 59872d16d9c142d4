// One model in every form it is published in: edited copies of the goldens must compare as the originals
// do. And what cannot be run, or compared, is said in a line.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/program.h"
#include "tests/support/temporary_dir.h"

namespace outrider {
namespace {
namespace fs = std::filesystem;
using nlohmann::json;

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The tensors of a safetensors file, to be edited.
struct Tensors {
  struct Entry {
    std::string dtype;
    std::vector<std::size_t> shape;
    std::string bytes;
  };
  std::map<std::string, Entry> entries;

  explicit Tensors(const fs::path& path) {
    const std::string file = read(path);
    std::uint64_t length = 0;
    std::memcpy(&length, file.data(), sizeof length);
    const json header = json::parse(file.substr(sizeof length, length));
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__") continue;
      const std::size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
      entries[name] = {entry["dtype"], entry["shape"], file.substr(sizeof length + length + begin, end - begin)};
    }
  }
  void write(const fs::path& path) const {
    json header = json::object();
    std::string data;
    for (const auto& [name, entry] : entries) {
      header[name] = {{"dtype", entry.dtype},
                      {"shape", entry.shape},
                      {"data_offsets", {data.size(), data.size() + entry.bytes.size()}}};
      data += entry.bytes;
    }
    const std::string text = header.dump();
    const std::uint64_t length = text.size();
    std::ofstream(path, std::ios::binary)
        << std::string(reinterpret_cast<const char*>(&length), sizeof length) << text << data;
  }
};

/// A copy of a golden folder that is gone after the test.
class Copy {
 public:
  explicit Copy(const char* golden) {
    fs::copy(fs::path(OUTRIDER_SOURCE_DIR) / "tests/goldens" / golden, dir_.path(), fs::copy_options::recursive);
  }
  const fs::path& path() const { return dir_.path(); }

  /// Edits the text keys of backbone/ or assistant/.
  void edit_config(const char* model, const std::function<void(json&)>& edit) const {
    const fs::path file = dir_ / model / "config.json";
    json config = json::parse(read(file));
    edit(config.contains("text_config") ? config["text_config"] : config);
    fs::remove(file);  // the original may be read-only
    std::ofstream(file) << config;
  }
  void edit_tensors(const fs::path& file, const std::function<void(Tensors&)>& edit) const {
    Tensors tensors(dir_ / file);
    edit(tensors);
    fs::remove(dir_ / file);
    tensors.write(dir_ / file);
  }
  void edit_backbone(const std::function<void(Tensors&)>& edit) const {
    edit_tensors("backbone/model.safetensors", edit);
  }

 private:
  TemporaryDir dir_;
};

/// Runs the parity command. @return what it printed.
std::string expect_parity(const Copy& copy, int exit_code) {
  Program program({"parity", copy.path().string()});
  const Program::End end = program.wait();
  EXPECT_EQ(describe(end), describe({.exit_code = exit_code, .signal = {}}));
  return program.out() + program.err();
}
void expect_refused(const Copy& copy, const std::vector<std::string>& wanted) {
  const std::string output = expect_parity(copy, 1);
  EXPECT_EQ(lines_with(output, {"outrider: "}).size(), 1u) << output;
  EXPECT_EQ(lines_with(output, wanted).size(), 1u) << output;
}

/// From per_layer_config to the keys of the older files. Entries may leave out what does not differ.
void to_older_spelling(json& text) {
  const json entries = text["per_layer_config"];
  text.erase("per_layer_config");
  for (const auto& [layer, entry] : entries.items()) {
    if (entry.contains("head_dim")) text["global_head_dim"] = entry["head_dim"];
    if (entry.contains("num_key_value_heads")) text["num_global_key_value_heads"] = entry["num_key_value_heads"];
  }
}

constexpr const char* kLayers = "model.language_model.layers.";

TEST(Variants, TheOlderSpellingOfAConfigIsTheSameModel) {
  for (const char* golden : {"e4b", "e2b", "dense-31b", "moe-26b-a4b", "unified-12b"}) {
    SCOPED_TRACE(golden);
    const Copy copy(golden);
    for (const char* model : {"backbone", "assistant"}) {
      if (fs::exists(copy.path() / model)) copy.edit_config(model, to_older_spelling);
    }
    expect_parity(copy, 0);
  }
}

TEST(Variants, LayerIndicesMayBeZeroPadded) {
  const Copy copy("dense-31b");
  for (const char* model : {"backbone", "assistant"}) {
    copy.edit_config(model, [](json& text) {
      json padded;
      for (const auto& [layer, entry] : text["per_layer_config"].items()) padded["0" + layer] = entry;
      text["per_layer_config"] = padded;
    });
  }
  expect_parity(copy, 0);
}

TEST(Variants, ATextOnlyExportIsTheSameModel) {
  for (const char* golden : {"e4b", "moe-26b-a4b", "unified-12b"}) {
    SCOPED_TRACE(golden);
    const Copy copy(golden);
    copy.edit_backbone([](Tensors& tensors) {
      const std::string from = "model.language_model.";
      std::map<std::string, Tensors::Entry> renamed;
      for (auto& [name, entry] : tensors.entries) renamed["model." + name.substr(from.size())] = std::move(entry);
      tensors.entries = std::move(renamed);
    });
    const fs::path file = copy.path() / "backbone/config.json";
    const json text = json::parse(read(file))["text_config"];
    fs::remove(file);
    std::ofstream(file) << text;
    expect_parity(copy, 0);
  }
}

// Published files have them or not (QAT): nobody reads them.
TEST(Variants, KAndVWeightsOfSharedLayersAreIgnored) {
  const Copy copy("e4b");
  copy.edit_backbone([](Tensors& tensors) {
    for (const int layer : {5, 6, 7}) {
      const std::string to = kLayers + std::to_string(layer) + ".self_attn.";
      ASSERT_FALSE(tensors.entries.contains(to + "k_proj.weight")) << "the golden has them itself";
      for (const char* name : {"k_proj.weight", "v_proj.weight", "k_norm.weight"}) {
        Tensors::Entry entry = tensors.entries.at(kLayers + std::string("0.self_attn.") + name);
        std::fill(entry.bytes.begin(), entry.bytes.end(), '\xff');  // NaN
        tensors.entries[to + name] = entry;
      }
    }
  });
  expect_parity(copy, 0);
}

TEST(Variants, ExpertsMayHaveGateAndUpApart) {
  const Copy copy("moe-26b-a4b");
  copy.edit_backbone([](Tensors& tensors) {
    for (int layer = 0; layer < 6; ++layer) {
      const std::string prefix = kLayers + std::to_string(layer) + ".experts.";
      const Tensors::Entry both = tensors.entries.at(prefix + "gate_up_proj");
      tensors.entries.erase(prefix + "gate_up_proj");
      const std::size_t experts = both.shape[0], half = both.bytes.size() / experts / 2;
      Tensors::Entry parts[2];
      for (std::size_t p = 0; p < 2; ++p) {
        parts[p] = {both.dtype, {experts, both.shape[1] / 2, both.shape[2]}, ""};
        for (std::size_t e = 0; e < experts; ++e) parts[p].bytes += both.bytes.substr((2 * e + p) * half, half);
      }
      tensors.entries[prefix + "gate_proj"] = parts[0];
      tensors.entries[prefix + "up_proj"] = parts[1];
    }
  });
  expect_parity(copy, 0);
}

TEST(Variants, BrokenExpertsAreRefusedByName) {
  const std::string name = kLayers + std::string("3.experts.gate_up_proj");
  {
    const Copy copy("moe-26b-a4b");
    copy.edit_backbone([&](Tensors& tensors) { tensors.entries.erase(name); });
    expect_refused(copy, {name, "missing", "[8, 48, 64]"});
  }
  {
    const Copy copy("moe-26b-a4b");
    copy.edit_backbone([&](Tensors& tensors) { tensors.entries[name].shape = {8, 64, 48}; });
    expect_refused(copy, {name, "[8, 64, 48]", "wanted [8, 48, 64]"});
  }
  {
    const Copy copy("moe-26b-a4b");
    copy.edit_config("backbone", [](json& text) { text["num_experts"] = 9; });
    expect_refused(copy, {"router.per_expert_scale", "[8]", "wanted [9]"});
  }
}

// "vision" is about image blocks; "all" is another kind of model.
TEST(Variants, BidirectionalAttentionIsForImagesOnly) {
  const Copy copy("e4b");
  copy.edit_config("backbone", [](json& text) { text["use_bidirectional_attention"] = "vision"; });
  expect_parity(copy, 0);
  copy.edit_config("backbone", [](json& text) { text["use_bidirectional_attention"] = "all"; });
  expect_refused(copy, {"use_bidirectional_attention is \"all\"", "wanted vision"});
}

TEST(Parity, SaysWhatItCouldNotCompare) {
  const Copy copy("e4b");
  fs::remove_all(copy.path() / "assistant");
  const std::string output = expect_parity(copy, 0);
  EXPECT_EQ(lines_with(output, {"not compared: ", "draft.0.hidden", "draft.5.logits"}).size(), 1u) << output;
  EXPECT_EQ(lines_with(output, {"ok, ", "no assistant"}).size(), 1u) << output;
}

TEST(Parity, ComparingNothingFails) {
  const Copy copy("unified-12b");
  copy.edit_tensors("golden.safetensors", [](Tensors& tensors) {
    tensors.entries["logits_of_another_kind"] = tensors.entries.at("logits");
    tensors.entries.erase("logits");
  });
  const std::string output = expect_parity(copy, 1);
  EXPECT_EQ(lines_with(output, {"not compared: logits_of_another_kind"}).size(), 1u) << output;
  EXPECT_EQ(lines_with(output, {"MISMATCH, 0 tensors compared"}).size(), 1u) << output;
}

TEST(Parity, AWrongWeightIsSeen) {
  const Copy copy("moe-26b-a4b");
  copy.edit_backbone([](Tensors& tensors) {
    std::string& bytes = tensors.entries.at(kLayers + std::string("4.router.proj.weight")).bytes;
    std::rotate(bytes.begin(), bytes.begin() + 256, bytes.end());  // every expert gets its neighbour's row
  });
  expect_parity(copy, 1);
}

}  // namespace
}  // namespace outrider
