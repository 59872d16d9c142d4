// Names of models on the Hugging Face hub, which of a repository's files are used, and which assistant belongs to whom;
// what a node says of its model.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "common/hub/hub_files.h"
#include "common/hub/hub_name.h"
#include "common/model/gemma4/config.h"
#include "common/model/gemma4/weights.h"
#include "common/pair/assistant_names.h"
#include "common/pair/pair_files.h"
#include "tests/support/model_at.h"
#include "tests/support/temporary_dir.h"

namespace outrider {
namespace {
using Names = std::vector<std::string>;

TEST(HubNames, HaveARevisionAndAGgufBehindThem) {
  const auto parts = [](const char* text) {
    const auto name = HubName::parse(text);
    return name ? Names{name->repository, name->revision, name->file} : Names{};
  };
  EXPECT_EQ(parts("google/gemma-4-E4B-it"), (Names{"google/gemma-4-E4B-it", "main", ""}));
  EXPECT_EQ(parts("a/b:Q4_0"), (Names{"a/b", "main", "Q4_0"}));
  EXPECT_EQ(parts("a/b@refs/pr/1:UD-Q4_K_XL"), (Names{"a/b", "refs/pr/1", "UD-Q4_K_XL"}));
  EXPECT_EQ(HubName::parse("a/b@v1:Q4_0")->text(), "a/b@v1:Q4_0");
  for (const char* path : {"",
                           "name",
                           "a/b/c",
                           "/a/b",
                           "./a/b",
                           "../a",
                           "a/..",
                           "a/.b",
                           "a/b/",
                           "a//b",
                           "a/b.gguf",
                           "a/model.safetensors",
                           "a/pair.json",
                           "a b/c",
                           "a/b:",
                           "a/b@",
                           "a/b@../x",
                           "a/b@/x",
                           "a/b--c",
                           "a/b:x y",
                           "tcp://host:1"})
    EXPECT_EQ(parts(path), Names{}) << path;
}

TEST(HubNames, AreKnownFromAPathInACache) {
  const auto name = HubName::of_path("/x/hub/models--google--gemma-4-E4B-it/snapshots/0123/m.gguf");
  ASSERT_TRUE(name);
  EXPECT_EQ(name->repository, "google/gemma-4-E4B-it");
  EXPECT_EQ(name->folder(), "models--google--gemma-4-E4B-it");
  for (const char* elsewhere : {"/x/models/nano/backbone", "backbone", ""}) EXPECT_FALSE(HubName::of_path(elsewhere));
}

TEST(AssistantNames, AreFoundForEveryPublishedSpelling) {
  const std::string plain = "gemma-4-E4B-it-assistant", trained = "gemma-4-E4B-it-qat-q4_0-unquantized-assistant";
  for (const char* name :
       {"gemma-4-E4B-it", "gemma-4-E4B-it-GGUF", "google_gemma-4-E4B-it-Q4_K_M", "Gemma-4-E4B-IT-NVFP4",
        "gemma-4-e4b-it-FP8-block", "gemma4-E4B-it-AWQ-4bit"})
    EXPECT_EQ(published_assistant(name), plain) << name;
  for (const char* name : {"gemma-4-E4B-it-qat-q4_0-unquantized", "gemma-4-E4B-it-qat-w4a16-ct",
                           "gemma-4-E4B-it-qat-q4_0-gguf", "gemma-4-E4B-it-qat-GGUF", "gemma-4-E4B_it_QAT-UD-Q4_K_XL"})
    EXPECT_EQ(published_assistant(name), trained) << name;
  for (const std::string size : {"E2B", "E4B", "12B", "26B-A4B", "31B"}) {
    const std::string it = "gemma-4-" + size + "-it";
    for (const char* ending : {"", "-FP8-Dynamic", "-FP8-block", "-NVFP4", "-AWQ-4bit", "-int4-AutoRound", "-GPTQ-Int4",
                               "-quantized.w4a16", "-GGUF", "-UD-Q4_K_XL", "-bf16", "-bnb-4bit"})
      EXPECT_EQ(published_assistant(it + ending), it + "-assistant") << ending;
    for (const char* ending : {"-qat-q4_0-unquantized", "-qat-w4a16-ct", "-qat-q4_0-gguf", "-qat-GGUF", "-qat-NVFP4"})
      EXPECT_EQ(published_assistant(it + ending), it + "-qat-q4_0-unquantized-assistant") << ending;
  }
  for (const char* name : {"gemma-4-E4B", "gemma-3-4b-it", "gemma-4-E4B-item", "nano", "gemma-4-E4B-it-assistant", ""})
    EXPECT_FALSE(published_assistant(name)) << name;
}

TEST(AssistantNames, OfOnesOwnComeFirst) {
  EXPECT_EQ(assistant_names("mine"), Names{"mine-assistant"});
  EXPECT_EQ(assistant_names("gemma-4-E4B-it"), Names{"gemma-4-E4B-it-assistant"});
  EXPECT_EQ(assistant_names("gemma-4-E4B-it-AWQ"), (Names{"gemma-4-E4B-it-AWQ-assistant", "gemma-4-E4B-it-assistant"}));
  EXPECT_EQ(assistant_names("gemma-4-E4B-it-assistant"), Names{});
  EXPECT_EQ(assistant_repositories("a/mine"), Names{"a/mine-assistant"});
  EXPECT_EQ(assistant_repositories("a/gemma-4-E4B-it"),
            (Names{"a/gemma-4-E4B-it-assistant", "google/gemma-4-E4B-it-assistant"}));
  EXPECT_EQ(assistant_repositories("google/gemma-4-E4B-it-qat-w4a16-ct"),
            Names{"google/gemma-4-E4B-it-qat-q4_0-unquantized-assistant"});
}

TEST(HubFiles, AreThoseThatAreUsed) {
  const Names listing = {"README.md",
                         "config.json",
                         "tokenizer.json",
                         "model.safetensors",
                         "consolidated.safetensors",
                         "original/model.safetensors",
                         "chat_template.jinja"};
  EXPECT_EQ(choose_files(listing, "", HubNeed::kAll)->names,
            (Names{"config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors"}));
  EXPECT_EQ(choose_files(listing, "", HubNeed::kText)->names,
            (Names{"config.json", "tokenizer.json", "chat_template.jinja"}));
  EXPECT_FALSE(choose_files({"README.md"}, "", HubNeed::kAll));
}

TEST(HubFiles, OfAGgufAreChosenByHowTheirNameEnds) {
  const Names listing = {
      "m-IQ4_XS.gguf",   "m-UD-IQ4_XS.gguf", "BF16/m-BF16-00001-of-00002.gguf", "BF16/m-BF16-00002-of-00002.gguf",
      "mmproj-F16.gguf", "m-Q4_0.gguf"};
  const auto chosen = [&](const char* file) {
    const auto files = choose_files(listing, file, HubNeed::kAll);
    return files ? files->model : files.error().message;
  };
  EXPECT_EQ(chosen("q4_0"), "m-Q4_0.gguf");
  EXPECT_EQ(chosen("bf16"), "BF16/m-BF16-00001-of-00002.gguf");
  EXPECT_EQ(chosen("m-IQ4_XS"), "m-IQ4_XS.gguf");
  EXPECT_EQ(chosen("m-IQ4_XS.gguf"), "m-IQ4_XS.gguf");
  EXPECT_NE(chosen("IQ4_XS").find("holds 2 GGUF models (m-IQ4_XS, m-UD-IQ4_XS)"), std::string::npos);
  EXPECT_NE(chosen("4_0").find("wanted one of"), std::string::npos) << "a part of a type is none";
  for (const char* file : {"m-00001-of-00000.gguf", "m-00000-of-00001.gguf"})
    EXPECT_EQ(choose_files({file}, "", HubNeed::kAll)->names, Names{file}) << "a name of no shard is a whole model's";
}

TEST(HubFiles, OfAProjectorOrADrafterAreNoModel) {
  const Names listing = {"m.Q8_0.gguf", "m.mmproj-Q8_0.gguf", "m.imatrix.gguf"};  // as mradermacher names them
  EXPECT_EQ(choose_files(listing, "", HubNeed::kAll)->names, (Names{"m.mmproj-Q8_0.gguf", "m.Q8_0.gguf"}));
  for (const char* const draft : {"MTP/mtp-gemma-4-E4B-it-Q8_0.gguf", "MTP/gemma-4-E4B-it-Q8_0-MTP.gguf"}) {
    const Names unsloth = {"gemma-4-E4B-it-Q8_0.gguf", "mtp-gemma-4-E4B-it.gguf", draft, "mmproj-BF16.gguf"};
    EXPECT_EQ(choose_files(unsloth, "Q8_0", HubNeed::kAll)->model, "gemma-4-E4B-it-Q8_0.gguf");
    EXPECT_FALSE(choose_files(unsloth, "Q4_0", HubNeed::kAll));
    EXPECT_EQ(choose_files(unsloth, "mtp-gemma-4-E4B-it.gguf", HubNeed::kAll)->model, "mtp-gemma-4-E4B-it.gguf");
  }
  const Names drafter = {"gemma-4-E4B-it-qat-assistant-MTP-Q8_0.gguf"};  // of a repository of its own
  EXPECT_EQ(choose_files(drafter, "", HubNeed::kAll)->names, drafter);
}

TEST(AssistantBeside, AGgufIsUnslothsOfTheSameSize) {
  const TemporaryDir dir;
  for (const char* const name : {"gemma-4-E4B-it-qat-UD-Q4_K_XL.gguf", "mtp-gemma-4-E4B-it.gguf",
                                 "mtp-gemma-4-E2B-it.gguf", "mmproj-F16.gguf"})
    dir.write(name, "");
  const std::filesystem::path model = dir / "gemma-4-E4B-it-qat-UD-Q4_K_XL.gguf";
  EXPECT_EQ(assistant_beside(model), dir / "mtp-gemma-4-E4B-it.gguf");
  EXPECT_EQ(assistant_beside(dir.path()), dir / "mtp-gemma-4-E4B-it.gguf");
  std::filesystem::remove(dir / "mtp-gemma-4-E4B-it.gguf");
  EXPECT_EQ(assistant_beside(model), "");
}

TEST(HubFiles, AreListedWithSizesThatAFileMayHave) {
  const auto listed = [](const char* size) {
    return read_listing(fmt::format(R"({{"sha": "{0:a>40}", "siblings": [)"
                                    R"({{"rfilename": "config.json", "blobId": "{0:b>40}", "size": {1}}}]}})",
                                    "", size))
        ->names();
  };
  EXPECT_EQ(listed("9223372036854775807"), Names{"config.json"});
  for (const char* size : {"9223372036854775808", "18446744073709551615", "-1", "1.5", "null"})
    EXPECT_EQ(listed(size), Names{}) << size;
}

TEST(HubFiles, OfAnIndexLieBesideIt) {
  EXPECT_EQ(*shards_of_index(R"({"weight_map": {"a": "2", "b": "1", "c": "2"}})", "index"), (Names{"1", "2"}));
  for (const char* wrong : {"", "[]", "{}", R"({"weight_map": {"a": 1}})", R"({"weight_map": {"a": "../x"}})",
                            R"({"weight_map": {"a": "x/y"}})", R"({"weight_map": {"a": ""}})"})
    EXPECT_FALSE(shards_of_index(wrong, "index")) << wrong;
  constexpr std::size_t kLevels = 200'000;
  const std::string deep = std::string(kLevels, '[') + std::string(kLevels, ']');
  EXPECT_FALSE(shards_of_index(R"({"weight_map": {"a": )" + deep + "}}", "index"));
}

TEST(PairFacts, AKindOfLayersThatIsNotThereIsLeftOut) {
  const ModelFiles files = model_at(pair_paths("").value().backbone);
  TextConfig config = load_text_config(files).value();
  const auto weights = open_weights(files, WeightType::kF32).value();
  ASSERT_EQ(pair_facts(config, *weights).donors.size(), 2u);
  for (LayerConfig& layer : config.layers) layer.kind = AttentionKind::kFull;
  const PairFacts facts = pair_facts(config, *weights);
  ASSERT_EQ(facts.donors.size(), 1u);
  EXPECT_FALSE(facts.donors[0].sliding);
}

}  // namespace
}  // namespace outrider
