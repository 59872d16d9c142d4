// The nano pair as GGUF files, decoded by the whole system.
#include <algorithm>
#include <filesystem>

#include <unistd.h>

#include <gtest/gtest.h>

#include "tests/support/cluster_fixtures.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/temporary_dir.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;

/// The nano pair in a temporary folder, as backbone/model.gguf and assistant/model.gguf.
class GgufPair {
 public:
  explicit GgufPair(DType type) {
    for (const auto& [part, model] :
         {std::pair("backbone", nano_pair().backbone), {"assistant", nano_pair().assistant}}) {
      fs::create_directory(dir_ / part);
      write_gguf(model, dir_ / part / "model.gguf", {.type = type});
    }
  }
  const fs::path& dir() const { return dir_.path(); }

 private:
  TemporaryDir dir_;
};

struct Agreement {
  int same = 0, prompts = 0;
};

/// Over the golden prompts: how many answers start with Hugging Face's first 20 tokens.
Agreement agreement(DType type, WeightType weight_type) {
  const GgufPair pair(type);
  TransportContext context;
  const ClusterOptions options{
      .pair = pair_paths(pair.dir()).value(), .weight_type = weight_type, .program = OUTRIDER_PROGRAM};
  const auto cluster = start_threads(context, options);
  EXPECT_TRUE(cluster) << cluster.error().message;
  if (!cluster) return {};
  Client client = connect_when_joined(context, **cluster);
  Agreement agreement;
  for (NanoGolden golden : nano_goldens()) {
    golden.greedy.resize(std::min<std::size_t>(golden.greedy.size(), 20));
    agreement.same += answer(client, request_for(golden, 4)).tokens == golden.greedy;
    ++agreement.prompts;
  }
  return agreement;
}

TEST(GgufTokens, Bf16EqualsHuggingFaceOnEveryPrompt) {
  const Agreement seen = agreement(DType::kBf16, WeightType::kF32);
  EXPECT_GE(seen.prompts, 6);
  EXPECT_EQ(seen.same, seen.prompts);
}

TEST(GgufTokens, Q8_0StartsAlikeOnFiveSixthsOfThePrompts) {
  const Agreement seen = agreement(DType::kQ8_0, WeightType::kF32);
  EXPECT_GE(seen.prompts, 6);
  EXPECT_GE(6 * seen.same, 5 * seen.prompts) << seen.same << " of " << seen.prompts;
}

TEST(GgufTokens, TheCommandTakesAFolderOfGgufFiles) {
  const GgufPair pair(DType::kBf16);
  const NanoGolden golden = nano_goldens().front();
  Program program({"run", "--model", pair.dir(), "--dtype", "f32", golden.prompt});
  EXPECT_EQ(describe(program.wait()), "exit 0") << program.err();
  EXPECT_NE(program.out().find(golden.text.substr(0, 40)), std::string::npos) << program.out();
}

}  // namespace
}  // namespace outrider
