// Packed images: the same numbers as the checkpoints they were made of, whatever format those had, and
// one line about each that cannot be used.
#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/base/random.h"
#include "common/model/checkpoint/pack.h"
#include "common/model/gemma4/assistant.h"
#include "common/model/gemma4/backbone.h"
#include "common/pair/pair_files.h"
#include "tests/support/anonymous_bytes.h"
#include "tests/support/cluster_fixtures.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/model_at.h"
#include "tests/support/program.h"
#include "tests/support/temporary_dir.h"

namespace outrider {
namespace {
namespace fs = std::filesystem;
using nlohmann::json;

/// Runs the program to its end. @return what it printed as errors.
std::string run_program(const std::vector<std::string>& arguments, const std::string& end) {
  Program program(arguments);
  EXPECT_EQ(describe(program.wait()), end) << program.err();
  return program.err();
}

PairPaths golden_pair(const std::string& name) {
  return name == "nano" ? nano_pair()
                        : PairPaths{source_dir() / "tests/goldens" / name / "backbone",
                                    source_dir() / "tests/goldens" / name / "assistant"};
}

fs::path packed_pair(const PairPaths& pair, const fs::path& out, const std::string& dtype,
                     const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments = {"pack", "--pair", pair.backbone, pair.assistant, "-o", out, "--dtype", dtype};
  arguments.insert(arguments.end(), more.begin(), more.end());
  run_program(arguments, "exit 0");
  return out;
}

/// What a pair computes for a prompt: the backbone's logits of every row, and four drafts after it.
struct Numbers {
  std::vector<float> logits;
  std::vector<TokenId> drafts;
  bool operator==(const Numbers&) const = default;
};

Numbers numbers_of(const PairPaths& pair, WeightType type) {
  constexpr std::int64_t kRows = 13;  // past the windows of the small models, and no whole tile
  auto backbone = Backbone::load(model_at(pair.backbone), type, kRows);
  EXPECT_TRUE(backbone) << backbone.error().message;
  if (!backbone) return {};
  auto assistant = Assistant::load(model_at(pair.assistant), (*backbone)->config(), (*backbone)->weights(), type);
  EXPECT_TRUE(assistant) << assistant.error().message;
  if (!assistant) return {};
  CounterRng rng(7);
  std::vector<TokenId> prompt(kRows);
  for (TokenId& token : prompt)
    token = static_cast<TokenId>(rng.below(static_cast<std::uint64_t>((*backbone)->config().vocab_size)));
  KvCache cache = (*backbone)->make_cache();
  const Segment segment{&cache, prompt, kRows};
  const Backbone::Output output = (*backbone)->forward({&segment, 1});
  Numbers numbers;
  for (std::int64_t r = 0; r < kRows; ++r)
    numbers.logits.insert(numbers.logits.end(), output.logits[r].span().begin(), output.logits[r].span().end());
  DonorReplica replica = (*assistant)->make_replica();
  replica.extend(**backbone, cache, kRows);
  numbers.drafts = (*assistant)->draft({prompt.back(), output.hidden[kRows - 1].span(), replica, 4});
  return numbers;
}

// ---- numbers ----

class PackOf : public testing::TestWithParam<std::tuple<const char*, WeightType>> {};
INSTANTIATE_TEST_SUITE_P(EveryModel, PackOf,
                         testing::Combine(testing::Values("nano", "e4b", "moe-26b-a4b", "odd"),
                                          testing::Values(WeightType::kF32, WeightType::kBf16, WeightType::kInt8,
                                                          WeightType::kInt4, WeightType::kQ4)),
                         [](const auto& param_info) {
                           std::string name = fmt::format("{}_{}", std::get<0>(param_info.param),
                                                          to_string(std::get<1>(param_info.param)));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(PackOf, GivesTheBitsOfItsCheckpoint) {
  const auto& [model, type] = GetParam();
  const TemporaryDir dir;
  const PairPaths pair = golden_pair(model);
  const Numbers wanted = numbers_of(pair, type);
  ASSERT_FALSE(wanted.logits.empty());
  const auto packed = pair_paths(packed_pair(pair, dir / "pack", to_string(type)));
  ASSERT_TRUE(packed) << packed.error().message;
  EXPECT_TRUE(numbers_of(*packed, type) == wanted);
}

TEST(Pack, OfAGgufGivesTheBitsOfTheGgufAndOfTheCheckpoint) {
  const TemporaryDir dir;
  const PairPaths pair = nano_pair(), gguf = {write_gguf(pair.backbone, dir / "backbone.gguf"),
                                              write_gguf(pair.assistant, dir / "assistant.gguf")};
  const Numbers wanted = numbers_of(pair, WeightType::kF32);
  EXPECT_TRUE(numbers_of(gguf, WeightType::kF32) == wanted);  // nano's weights are bf16 numbers
  const auto packed = pair_paths(packed_pair(gguf, dir / "pack", "f32"));
  ASSERT_TRUE(packed) << packed.error().message;
  EXPECT_TRUE(numbers_of(*packed, WeightType::kF32) == wanted);
}

TEST(Pack, OfAGgufWithSplitExpertsLoads) {
  const TemporaryDir dir;
  const PairPaths pair = golden_pair("moe-26b-a4b");
  // Each layer's ffn_gate_up_exps [E, 2m, H] as ffn_gate_exps and ffn_up_exps [E, m, H].
  const auto split = [](GgufWriter& writer) {
    std::vector<GgufWriter::Tensor> tensors;
    for (GgufWriter::Tensor& tensor : writer.tensors) {
      const std::size_t at = tensor.name.find("ffn_gate_up_exps");
      if (at == std::string::npos) {
        tensors.push_back(std::move(tensor));
        continue;
      }
      const std::size_t experts = tensor.extents[2], expert = tensor.data.size() / experts;
      for (const std::size_t half : {0u, 1u}) {
        GgufWriter::Tensor part = tensor;
        part.name.replace(at, std::string("ffn_gate_up_exps").size(), half == 0 ? "ffn_gate_exps" : "ffn_up_exps");
        part.extents[1] /= 2;
        part.data.clear();
        for (std::size_t e = 0; e < experts; ++e)
          part.data += tensor.data.substr(e * expert + half * expert / 2, expert / 2);
        tensors.push_back(std::move(part));
      }
    }
    writer.tensors = std::move(tensors);
  };
  const PairPaths gguf = {write_gguf(pair.backbone, dir / "backbone.gguf", {.type = DType::kF32, .edit = split}),
                          pair.assistant};
  const Numbers wanted = numbers_of(pair, WeightType::kF32);
  EXPECT_TRUE(numbers_of(gguf, WeightType::kF32) == wanted);
  const auto packed = pair_paths(packed_pair(gguf, dir / "pack", "f32"));
  ASSERT_TRUE(packed) << packed.error().message;
  EXPECT_TRUE(numbers_of(*packed, WeightType::kF32) == wanted);
}

TEST(Pack, OfAGgufSpeaksAsItsCheckpointDoes) {
  const TemporaryDir dir;
  const PairPaths pair = nano_pair(), gguf = {write_gguf(pair.backbone, dir / "backbone.gguf"),
                                              write_gguf(pair.assistant, dir / "assistant.gguf")};
  packed_pair(gguf, dir / "pack", "f32");
  const NanoGolden golden = nano_goldens().front();
  Program program(
      {"run", "--model", dir / "pack", golden.prompt});  // tokenizer, stop tokens and type come from the pack
  EXPECT_EQ(describe(program.wait()), "exit 0") << program.err();
  EXPECT_NE(program.out().find(golden.text.substr(0, 40)), std::string::npos) << program.out();
}

TEST(Pack, IsMappedAndACheckpointIsHeldOnce) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer has memory of its own";
#endif
  const TemporaryDir dir;
  const PairPaths pack = pair_paths(packed_pair(nano_pair(), dir / "pack", "int8")).value();
  const auto taken = [] {
    malloc_trim(0);  // memory freed by loading does not count
    return static_cast<double>(anonymous_bytes(getpid()));
  };
  const auto taken_by = [&](const fs::path& model) {
    const double before = taken();
    const auto backbone = Backbone::load(model_at(model), WeightType::kInt8, 1);
    return taken() - before;
  };
  taken_by(nano_pair().backbone);  // the first leaves compiled kernels and threads behind
  const double of_checkpoint = taken_by(nano_pair().backbone), of_pack = taken_by(pack.backbone);
  Program inspect({"inspect", nano_pair().backbone, "--json"});
  EXPECT_EQ(describe(inspect.wait()), "exit 0") << inspect.err();
  const double weights = json::parse(inspect.out()).at("memory").at("by_dtype").at("int8").at("weights_bytes");
  EXPECT_NEAR(of_checkpoint / weights, 1, 0.05);  // 1.005 to 1.017 were measured
  EXPECT_LT(of_pack / weights, 0.05) << "all but scales and norms";
}

TEST(Pack, IsInspectedLikeItsCheckpoint) {
  const TemporaryDir dir;
  packed_pair(nano_pair(), dir / "pack", "int8");
  const auto parameters = [](const fs::path& path) {
    Program program({"inspect", path, "--json"});
    EXPECT_EQ(describe(program.wait()), "exit 0") << program.err();
    return json::parse(program.out()).at("parameters");
  };
  json whole = parameters(nano_pair().backbone);
  EXPECT_EQ(parameters(dir / "pack/target"), whole);
  // A GGUF has the text model alone.
  for (const char* const tower : {"vision", "audio"}) {
    whole["total"] = whole["total"].get<int>() - whole["parts"][tower].get<int>();
    whole["parts"].erase(tower);
  }
  EXPECT_EQ(parameters(write_gguf(nano_pair().backbone, dir / "backbone.gguf")), whole);
}

TEST(Pack, ForADrafterDraftsForAVerifierWithTheCheckpoint) {
  const TemporaryDir dir;
  packed_pair(nano_pair(), dir / "bundle", "int8", {"--for", "drafter"});
  EXPECT_LT(fs::file_size(dir / "bundle/target/weights.bump"), 5u << 20);  // 8,192 x 384 in Q8_0
  Program coordinator({"coordinator", "--listen", "tcp://127.0.0.1:*"});
  ASSERT_TRUE(eventually([&] { return coordinator.out().find('\n') != std::string::npos || !coordinator.running(); }));
  const std::string address = coordinator.out().substr(0, coordinator.out().find('\n'));
  Program verifier({"verifier", "--join", address, "--dtype", "int8"});
  Program drafter({"drafter", "--join", address, "--model", dir / "bundle"});
  TransportContext context;
  Client client = connect_when_joined(context, address, 1, 1, [&] {
    return verifier.running() && drafter.running()
               ? Result<void>()
               : Result<void>(Error{Errc::kPeerGone, verifier.err() + drafter.err()});
  });
  const auto together = start_threads(context, {.pair = nano_pair(), .weight_type = WeightType::kInt8});
  ASSERT_TRUE(together) << together.error().message;
  Client other = connect_when_joined(context, **together);
  std::int64_t accepted = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    Generate request = request_for(nano_goldens()[i], 4);
    request.draft_ahead = 0;  // how many drafts are made ahead is a matter of time
    const Generation split = answer(client, request), whole = answer(other, request);
    EXPECT_EQ(split.tokens, whole.tokens);
    // Not a bit is missing: the same drafts. On a starved machine a draft may be late, and its round goes without.
    if (split.metrics.drafting_rounds == whole.metrics.drafting_rounds) {
      EXPECT_EQ(split.metrics.accepted_per_position, whole.metrics.accepted_per_position);
    }
    accepted += split.metrics.accepted_tokens;
  }
  EXPECT_GT(accepted, 0);
}

// ---- what cannot be used ----

/// A pack whose manifest has been edited.
void edit_manifest(const fs::path& pack, const std::function<void(json&)>& edit) {
  std::ifstream in(pack / "manifest.json");
  json manifest = json::parse(in);
  in.close();
  edit(manifest);
  std::ofstream(pack / "manifest.json") << manifest.dump();
}

struct BadPack {
  const char* name;
  std::function<void(const fs::path& target)> damage;
  std::vector<std::string> wanted;  ///< parts of the one line
};

const std::vector<BadPack> kBadPacks = {
    {"version",
     [](const fs::path& p) { edit_manifest(p, [](json& m) { m["version"] = 99; }); },
     {"manifest.json", "version 99", "reads version 4"}},
    {"format",
     [](const fs::path& p) { edit_manifest(p, [](json& m) { m["format"] = "zip"; }); },
     {"manifest.json", "\"zip\"", "outrider-pack"}},
    {"no_json",
     [](const fs::path& p) { std::ofstream(p / "manifest.json") << "{"; },
     {"manifest.json", "wanted a JSON object"}},
    {"no_entries",
     [](const fs::path& p) { edit_manifest(p, [](json& m) { m.erase("entries"); }); },
     {"manifest.json", "entries is missing"}},
    {"offset_outside",
     [](const fs::path& p) { edit_manifest(p, [](json& m) { m["entries"][3]["offset"] = 1u << 30; }); },
     {"manifest.json", "lies at 1073741824"}},
    {"offset_huge",
     [](const fs::path& p) { edit_manifest(p, [](json& m) { m["entries"][3]["offset"] = UINT64_MAX - 63; }); },
     {"manifest.json", "offset is 18446744073709551552"}},
    {"offset_odd",
     [](const fs::path& p) { edit_manifest(p, [](json& m) { m["entries"][3]["offset"] = 65; }); },
     {"lies at 65", "multiple of 64"}},
    {"offset_negative",
     [](const fs::path& p) { edit_manifest(p, [](json& m) { m["entries"][3]["offset"] = -64; }); },
     {"offset is -64"}},
    {"size_text",
     [](const fs::path& p) { edit_manifest(p, [](json& m) { m["entries"][3]["size"] = "many"; }); },
     {"size is \"many\""}},
    {"size_nested",
     [](const fs::path& p) {
       edit_manifest(p, [](json& m) {
         json deep = json::array();
         for (int i = 0; i < 400; ++i) deep = json::array({std::move(deep)});
         m["entries"][3]["size"] = std::move(deep);
       });
     },
     {"size is an array"}},
    {"shape_huge",
     [](const fs::path& p) { edit_manifest(p, [](json& m) {
                               m["entries"][3]["shape"] = {1ull << 40, 1ull << 40};
                             }); },
     {"shape is an array of 2", "63 bits"}},
    {"future_version",
     [](const fs::path& p) {
       edit_manifest(p, [](json& m) {
         m["version"] = 5;
         m["source"] = 5;
       });
     },
     {"version 5"}},
    {"ordered_rows",
     [](const fs::path& p) {
       edit_manifest(p.parent_path() / "assistant", [](json& m) {
         for (json& entry : m["entries"]) {
           if (entry["name"].get<std::string>().ends_with(".ordered")) entry["type"] = "F16";
         }
       });
     },
     {".ordered", "is F16", "wanted Q8_0"}},
    {"pair_path",
     [](const fs::path& p) {
       std::ifstream in(p.parent_path() / "pair.json");
       json pair = json::parse(in);
       pair["target"]["weights"] = "../../etc";
       std::ofstream(p.parent_path() / "pair.json") << pair.dump();
     },
     {"pair.json", "../../etc", "a directory beside it"}},
    {"duplicate",
     [](const fs::path& p) { edit_manifest(p, [](json& m) { m["entries"][4] = m["entries"][3]; }); },
     {"is there twice"}},
    {"missing",
     [](const fs::path& p) { edit_manifest(p, [](json& m) { m["entries"].erase(5); }); },
     {"is missing, wanted"}},
    {"layout",
     [](const fs::path& p) {
       edit_manifest(p, [](json& m) {
         for (json& entry : m["entries"]) {
           if (entry["layout"] != "") entry["layout"] = "spiral";
         }
       });
     },
     {"spiral"}},
    {"shape",
     [](const fs::path& p) {
       edit_manifest(p, [](json& m) {
         for (json& entry : m["entries"]) entry["shape"][0] = 3;
       });
     },
     {"wanted"}},
    {"image_short",
     [](const fs::path& p) { fs::resize_file(p / "weights.bump", 4096); },
     {"weights.bump", "4096 bytes", "the manifest says"}},
    {"image_gone", [](const fs::path& p) { fs::remove(p / "weights.bump"); }, {"weights.bump"}},
    {"fingerprint",
     [](const fs::path& p) { edit_manifest(p, [](json& m) { m["fingerprint"] = "00000000000000ff"; }); },
     {"pair.json", "fingerprint 00000000000000ff"}},
};

class BadPacks : public testing::TestWithParam<BadPack> {};
INSTANTIATE_TEST_SUITE_P(Each, BadPacks, testing::ValuesIn(kBadPacks),
                         [](const auto& param_info) { return param_info.param.name; });

TEST_P(BadPacks, AreNamedInOneLine) {
  const TemporaryDir dir;
  packed_pair(nano_pair(), dir / "pack", "int8");
  GetParam().damage(dir / "pack/target");
  const std::string error = run_program(
      {"run", "--model", dir / "pack", "--dtype", "int8", "--prompt-ids", "2,5", "--max-tokens", "2"}, "exit 1");
  EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 1) << error;
  EXPECT_EQ(lines_with(error, GetParam().wanted).size(), 1u) << error;
}

TEST(Pack, WithAFlippedBitIsFoundByDoctor) {
  const TemporaryDir dir;
  packed_pair(nano_pair(), dir / "pack", "int4");
  run_program({"doctor", dir / "pack"}, "exit 0");
  const fs::path image = dir / "pack/target/weights.bump";
  std::fstream file(image, std::ios::in | std::ios::out | std::ios::binary);
  const auto middle = static_cast<std::streamoff>(fs::file_size(image) / 2 / 64 * 64);
  file.seekg(middle);
  const char byte = static_cast<char>(file.get());
  file.seekp(middle);
  file.put(static_cast<char>(byte ^ 4));
  file.close();
  EXPECT_EQ(
      lines_with(run_program({"doctor", dir / "pack"}, "exit 1"), {"weights.bump", "checksum of", "the manifest says"})
          .size(),
      1u);
  const std::string refused = run_program(
      {"run", "--verify-weights", "--model", dir / "pack", "--prompt-ids", "2,5", "--max-tokens", "2"}, "exit 1");
  EXPECT_EQ(lines_with(refused, {"weights.bump", "checksum of", "the manifest says"}).size(), 1u) << refused;
}

TEST(Pack, IsVerifiedBeforeItIsUsedIfAskedFor) {
  const TemporaryDir dir;
  packed_pair(nano_pair(), dir / "pack", "int8");
  run_program({"run", "--verify-weights", "--model", dir / "pack", "--prompt-ids", "2,5", "--max-tokens", "2"},
              "exit 0");
  const std::string refused =
      run_program({"run", "--verify-weights", "--prompt-ids", "2,5", "--max-tokens", "2"}, "exit 1");
  EXPECT_EQ(lines_with(refused, {"has no checksums", "outrider pack"}).size(), 1u) << refused;
}

// The shard has the checkpoint that the verifier's pack was made of.
TEST(Pack, IsVerifiedByAShardOfAnotherHostTooIfItsVerifierIsToldTo) {
  const TemporaryDir dir;
  packed_pair(nano_pair(), dir / "pack", "int8");
  Program verifier({"verifier", "--verify-weights", "--backbone", dir / "pack/target", "--join", "tcp://127.0.0.1:1",
                    "--threads", "1", "--shards", "2", "--listen-shards", "tcp://127.0.0.1:*"});
  ASSERT_TRUE(eventually([&] { return verifier.out().ends_with('\n') || !verifier.running(); })) << verifier.err();
  const std::string address = verifier.out().substr(0, verifier.out().find('\n'));
  Program shard({"shard", "--join", address, "--backbone", nano_pair().backbone, "--threads", "1"});
  EXPECT_EQ(describe(shard.wait()), "exit 1");
  EXPECT_EQ(lines_with(shard.err(), {"has no checksums", "outrider pack"}).size(), 1u) << shard.err();
}

TEST(Pack, OfAnotherTypeThanAskedForIsRefused) {
  const TemporaryDir dir;
  packed_pair(nano_pair(), dir / "pack", "int8");
  EXPECT_EQ(
      lines_with(run_program({"run", "--model", dir / "pack", "--dtype", "bf16", "--prompt-ids", "2,5"}, "exit 1"),
                 {"a pack of int8 weights, wanted bf16"})
          .size(),
      1u);
}

TEST(Pack, WithoutATypeIsAsTheFileSuitsAndSaysSo) {
  const TemporaryDir dir;
  const auto pack = [&](DType stored, const std::string& said) {
    const std::string name = to_string(stored);
    const fs::path gguf = write_gguf(nano_pair().backbone, dir / (name + ".gguf"), {.type = stored});
    const std::string err = run_program({"pack", gguf, "-o", dir / name}, "exit 0");
    EXPECT_EQ(lines_with(err, {gguf.string(), said}).size(), said.empty() ? 0u : 1u) << err;
    return Pack::open(dir / name).value()->info().dtype;
  };
  EXPECT_EQ(pack(DType::kQ4_0, "as q4: its weights lie on a 4-bit grid"), "q4");
  EXPECT_EQ(pack(DType::kQ8_0, "as int8: its file holds Q8_0, of which int8 makes products that are"), "int8");
  EXPECT_EQ(pack(DType::kBf16, ""), "bf16");
}

TEST(Pack, NeverOverwrites) {
  const TemporaryDir dir;
  packed_pair(nano_pair(), dir / "pack", "int8");
  const PairPaths pair = nano_pair();
  EXPECT_EQ(lines_with(run_program({"pack", pair.backbone, "-o", dir / "pack"}, "exit 1"), {"exists"}).size(), 1u);
}

TEST(Pack, OfAnEmbeddingAloneIsNoVerifiersModel) {
  const TemporaryDir dir;
  packed_pair(nano_pair(), dir / "pack", "int8", {"--for", "drafter"});
  EXPECT_EQ(lines_with(run_program({"run", "--model", dir / "pack", "--prompt-ids", "2,5"}, "exit 1"),
                       {"embedding only, for a drafter"})
                .size(),
            1u);
}

TEST(Pack, OfAnAssistantAloneIsRefused) {
  const TemporaryDir dir;
  EXPECT_EQ(lines_with(run_program({"pack", nano_pair().assistant, "-o", dir / "pack"}, "exit 1"),
                       {"together with its target"})
                .size(),
            1u);
}

TEST(Pack, ThatIsKilledLeavesNothingUnderTheFinalName) {
  CounterRng rng(11);
  for (int i = 0; i < 8; ++i) {
    const TemporaryDir dir;
    Program program(
        {"pack", "--pair", nano_pair().backbone, nano_pair().assistant, "-o", dir / "pack", "--dtype", "f32"});
    // At a random point of the image's growth.
    const std::uint64_t bytes = rng.below(120u << 20);
    eventually([&] {
      std::error_code ignored;
      std::uint64_t written = 0;
      for (auto at = fs::recursive_directory_iterator(dir / "", ignored); at != fs::recursive_directory_iterator();
           at.increment(ignored)) {
        if (at->path().filename() == "weights.bump") written += at->file_size(ignored);
      }
      return written >= bytes || !program.running();
    });
    program.send(SIGKILL);
    program.wait();
    if (fs::exists(dir / "pack")) run_program({"doctor", dir / "pack"}, "exit 0");
  }
}

}  // namespace
}  // namespace outrider
