// run, inspect and validate.
#include <algorithm>
#include <cstring>
#include <fstream>
#include <regex>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/cluster_fixtures.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/temporary_dir.h"

namespace outrider {
namespace {
using nlohmann::json;

json read_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  return json::parse(file, nullptr, false);
}

/// The step of a report that failed; null if none did.
json failed_step(const PairCopy& pair) {
  const std::filesystem::path report = pair.dir() / "report.json";
  Program validate(
      {"validate", pair.dir() / "backbone", pair.dir() / "assistant", "--out", report, "--max-tokens", "24"});
  const Program::End end = validate.wait();
  EXPECT_FALSE(end.signal);
  const json object = read_json(report);
  EXPECT_EQ(object["steps"].size(), 6u);
  EXPECT_EQ(object["passed"], end.exit_code == 0);
  json failed;
  for (const json& step : object["steps"]) {
    if (!failed.is_null()) {
      EXPECT_EQ(step["status"], "not run") << "nothing runs after a failure";
    }
    if (step["status"] == "failed") failed = step;
  }
  return failed;
}

json expect_failed(const PairCopy& pair, int step, const char* diagnosis) {
  const json failed = failed_step(pair);
  EXPECT_EQ(failed["step"], step);
  EXPECT_EQ(failed["diagnosis"], diagnosis);
  return failed;
}

TEST(Validate, NanoPassesAndCountsAddUp) {
  PairCopy pair(source_dir() / "models/nano");
  EXPECT_TRUE(failed_step(pair).is_null());
  const json step = read_json(pair.dir() / "report.json")["steps"][5];
  EXPECT_EQ(step["accepted_tokens"].get<int>() + step["rejected_tokens"].get<int>(), step["drafted_tokens"].get<int>());
  EXPECT_GT(step["acceptance_rate"].get<double>(), 0.4);
}

TEST(Validate, AsksAsTheTemplateDoes) {
  PairCopy pair(source_dir() / "models/nano");
  // What a template of the large models is recognised by: their answers start with an empty thought.
  pair.write("backbone/chat_template.jinja",
             R"(<|turn> <|tool_call>call: continue_same_model_turn <|channel>thought\n<channel|>)");
  failed_step(pair);
  Program run({"run", "Tell me a story about a lighthouse.", "--model", pair.dir(), "--dtype", "f32", "--draft-length",
               "0", "--max-tokens", "24", "--json"});
  EXPECT_EQ(describe(run.wait()), "exit 0");
  EXPECT_EQ(read_json(pair.dir() / "report.json")["steps"][0]["first_answer_ids"], json::parse(run.out())["token_ids"]);
}

TEST(Validate, AGoldenThatNestsDeeplyIsRefused) {
  PairCopy pair(source_dir() / "tests/goldens/e4b");
  std::filesystem::copy(source_dir() / "tests/goldens/e4b/golden.safetensors", pair.dir());
  pair.write("golden.json", R"({"greedy": )" + std::string(600, '[') + std::string(600, ']') + "}");
  for (const auto& command : {std::vector<std::string>{"validate", pair.dir() / "backbone", pair.dir() / "assistant",
                                                       "--golden", pair.dir()},
                              std::vector<std::string>{"parity", pair.dir(), "--dtype", "f32"}}) {
    Program program(command);
    EXPECT_EQ(describe(program.wait()), "exit 1") << command[0];
    EXPECT_NE(program.err().find("golden.json: nests deeper than 512 levels"), std::string::npos) << program.err();
  }
}

TEST(Validate, RandomPairPassesOnlyAgainstItsGolden) {
  const std::filesystem::path tiny = source_dir() / "tests/goldens/e4b";
  Program recorded({"validate", tiny / "backbone", tiny / "assistant", "--golden", tiny});
  EXPECT_EQ(describe(recorded.wait()), "exit 0");
  PairCopy pair(tiny);
  expect_failed(pair, 6, "acceptance");
}

TEST(Validate, AssistantOfAnotherBackboneIsTheBridge) {
  PairCopy pair(source_dir() / "models/nano");
  json config = json::parse(pair.read("assistant/config.json"));
  config["backbone_hidden_size"] = 512;
  pair.write("assistant/config.json", config.dump());
  expect_failed(pair, 2, "bridge");
}

TEST(Doctor, SaysWhatToExpectOfDrafts) {
  Program doctor({"doctor"});
  EXPECT_EQ(describe(doctor.wait()), "exit 0") << doctor.err();
  std::smatch found;
  const std::string out = doctor.out();
  ASSERT_TRUE(std::regex_search(
      out, found,
      std::regex("drafts: on .* 5 rows take ([0-9.]+) times as long as 1 row in bf16, and ([0-9.]+) times in int8")))
      << out;
  EXPECT_GE(std::stod(found[1]), 1) << out;
  EXPECT_GE(std::stod(found[2]), 1) << out;
}

TEST(Doctor, ExaminesBothModelsOfAPair) {
  Program doctor({"doctor", nano_pair().backbone.parent_path().string()});
  EXPECT_EQ(describe(doctor.wait()), "exit 0") << doctor.err();
  EXPECT_EQ(lines_with(doctor.out(), {"tensors, all within their files"}).size(), 2u) << doctor.out();
}

TEST(Doctor, AFolderWithAConfigurationIsAModelWhateverElseItHolds) {
  const TemporaryDir dir;
  create_directory(dir.path() / "backbone");
  std::ofstream(dir.path() / "config.json") << "{}";
  Program doctor({"doctor", dir.path().string()});
  EXPECT_EQ(describe(doctor.wait()), "exit 1");
  EXPECT_NE(doctor.err().find(dir.path().string()), std::string::npos) << doctor.err();
}

// Memory is what most people ask for, and a model has hundreds of tensors.
TEST(Inspect, SaysWhatMemoryIsTakenBeforeTheTensors) {
  Program inspect({"inspect", source_dir() / "models/nano"});
  EXPECT_EQ(describe(inspect.wait()), "exit 0");
  const std::string text = inspect.out();
  EXPECT_LT(text.rfind("\nMemory at "), text.find("num_hidden_layers"));
  EXPECT_LT(text.rfind("num_hidden_layers"), text.rfind("tensors (layers of one name together"));
}

// A backbone in its place is found out before the target decodes anything.
TEST(Validate, WhatIsNoAssistantIsRefusedAtOnce) {
  PairCopy pair(source_dir() / "models/nano");
  pair.write("assistant/config.json", pair.read("backbone/config.json"));
  expect_failed(pair, 2, "assistant");
  EXPECT_EQ(read_json(pair.dir() / "report.json")["steps"][0]["status"], "not run");
}

TEST(Validate, OtherTokensAreTheTokenizer) {
  PairCopy pair(source_dir() / "models/nano");
  json tokenizer = json::parse(pair.read("assistant/tokenizer.json"));
  tokenizer["added_tokens"][0]["content"] = "<another>";
  json vocab = json::object();
  for (const auto& [text, id] : tokenizer["model"]["vocab"].items()) vocab[id == 0 ? "<another>" : text] = id;
  tokenizer["model"]["vocab"] = vocab;
  pair.write("assistant/tokenizer.json", tokenizer.dump());
  expect_failed(pair, 2, "tokenizer");
}

TEST(Validate, ExchangedHalvesAreTheHandOff) {
  PairCopy pair(source_dir() / "models/nano");
  std::string bytes = pair.read("assistant/model.safetensors");
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  const json entry = json::parse(bytes.substr(sizeof length, length))["pre_projection.weight"];
  const std::size_t rows = entry["shape"][0], row_bytes = entry["shape"][1].get<std::size_t>() * 2;
  ASSERT_EQ(entry["dtype"], "BF16");
  for (std::size_t r = 0; r < rows; ++r) {
    const auto row =
        bytes.begin() + static_cast<std::ptrdiff_t>(sizeof length + length +
                                                    entry["data_offsets"][0].get<std::size_t>() + r * row_bytes);
    const auto half = static_cast<std::ptrdiff_t>(row_bytes / 2);
    std::swap_ranges(row, row + half, row + half);
  }
  pair.write("assistant/model.safetensors", bytes);
  const json step = expect_failed(pair, 6, "hand-off");
  EXPECT_NE(step["message"].get<std::string>().find("exchanged"), std::string::npos) << step["message"];
}

TEST(Inspect, KnowsBackboneAndAssistant) {
  Program backbone({"inspect", source_dir() / "models/nano/backbone", "--json", "--context", "1000"});
  EXPECT_EQ(describe(backbone.wait()), "exit 0");
  const json b = json::parse(backbone.out(), nullptr, false);
  EXPECT_EQ(b["kind"], "backbone");
  ASSERT_EQ(b["layers"].size(), 12u);
  EXPECT_EQ(b["layers"][11]["kv"], "of layer 5");
  EXPECT_EQ(b["layers"][5]["head_dim"], 128);
  // One full layer: 2 heads of 128, K and V, 2 bytes; whole pages.
  EXPECT_EQ(b["memory"]["by_dtype"]["bf16"]["kv_full_bytes"], 2 * ((1000 * 2 * 128 * 2 + 4095) / 4096 * 4096));
  std::int64_t sum = 0;
  for (const auto& [part, count] : b["parameters"]["parts"].items()) sum += count.get<std::int64_t>();
  EXPECT_EQ(b["parameters"]["total"], sum);

  Program assistant({"inspect", source_dir() / "models/nano/assistant", "--json"});
  EXPECT_EQ(describe(assistant.wait()), "exit 0");
  EXPECT_EQ(json::parse(assistant.out(), nullptr, false)["kind"], "assistant");
}

/// nano as somebody has it who has downloaded it: by itself, under a name of its own, perhaps with its assistant
/// beside.
struct Downloaded {
  explicit Downloaded(bool with_assistant) {
    std::filesystem::create_directory_symlink(nano_pair().backbone, dir.path() / "small-it");
    if (with_assistant)
      std::filesystem::create_directory_symlink(nano_pair().assistant, dir.path() / "small-it-assistant");
  }
  TemporaryDir dir;
  std::string path() const { return dir.path() / "small-it"; }
};

TEST(Run, AModelByItselfIsDecodedPlainly) {
  const Downloaded model(/*with_assistant=*/false);
  for (const char* option : {"--model", "--backbone"}) {
    Program run({"run", "Hello", option, model.path(), "--dtype", "f32", "--max-tokens", "5", "--json"});
    EXPECT_EQ(describe(run.wait()), "exit 0");
    EXPECT_EQ(json::parse(run.out())["metrics"]["drafted_tokens"], 0);
    EXPECT_EQ(lines_with(run.err(), {"small-it has no assistant beside it: decoding plainly"}).size(), 1u) << run.err();
  }
  Program quiet({"run", "Hello", "--model", model.path(), "--dtype", "f32", "--max-tokens", "5", "--no-assistant"});
  EXPECT_EQ(describe(quiet.wait()), "exit 0");
  EXPECT_EQ(quiet.err(), "");
}

TEST(Run, AModelIsADirectoryWithAGgufTooAndOneThatIsNotThereIsNamed) {
  const TemporaryDir dir;
  write_gguf(nano_pair().backbone, dir.path() / "small.gguf");
  Program run({"run", "Hello", "--model", dir.path().string(), "--max-tokens", "5"});
  EXPECT_EQ(describe(run.wait()), "exit 0") << run.err();
  Program nothing({"run", "Hello", "--model", "/nosuch"});
  EXPECT_EQ(describe(nothing.wait()), "exit 1");
  EXPECT_EQ(nothing.err(), "outrider: /nosuch: no such file or directory, wanted a model\n");
}

TEST(Run, AnAssistantBesideAModelIsFound) {
  const Downloaded model(/*with_assistant=*/true);
  Program run({"run", "Write a short story about a fox.", "--backbone", model.path(), "--dtype", "f32", "--max-tokens",
               "20", "--json"});
  EXPECT_EQ(describe(run.wait()), "exit 0");
  EXPECT_GT(json::parse(run.out())["metrics"]["drafted_tokens"], 0);
  EXPECT_EQ(lines_with(run.err(), {"drafting with", "small-it-assistant"}).size(), 1u) << run.err();
}

TEST(Run, ThePromptMayComeFromAPipeAndOnlyTheTextGoesIntoOne) {
  Program given({"run", "Hello", "--dtype", "f32", "--max-tokens", "5", "--json"});
  EXPECT_EQ(describe(given.wait()), "exit 0");
  Program piped({"run", "-", "--dtype", "f32", "--max-tokens", "5"}, Program::Input::kWritten);
  piped.write("Hello\n");
  piped.end_input();
  EXPECT_EQ(describe(piped.wait()), "exit 0");
  EXPECT_EQ(piped.out(), json::parse(given.out())["text"].get<std::string>() + "\n");
  EXPECT_EQ(piped.err(), "");
}

TEST(Inspect, APairIsBothOfItsModels) {
  Program inspect({"inspect", source_dir() / "models/nano", "--json"});
  EXPECT_EQ(describe(inspect.wait()), "exit 0");
  const json report = json::parse(inspect.out());
  EXPECT_EQ(report["backbone"]["kind"], "backbone");
  EXPECT_EQ(report["assistant"]["kind"], "assistant");
}

}  // namespace
}  // namespace outrider
