// --rejection-log: a line for every round that loses a draft, and nothing else changes.
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/cluster_fixtures.h"
#include "tests/support/temporary_dir.h"

namespace outrider {
namespace {
using nlohmann::json;

std::vector<json> records_in(const std::filesystem::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  std::vector<json> records;
  for (std::string line; std::getline(file, line) && !file.eof();) {  // at its end a line may be half written
    records.push_back(json::parse(line, nullptr, /*allow_exceptions=*/false));
    EXPECT_TRUE(records.back().is_object()) << line;
  }
  return records;
}

/// The records of a file that is still being written: the last may come after the answer that it belongs to.
std::vector<json> wait_for_records(const std::filesystem::path& path, std::size_t count) {
  EXPECT_TRUE(eventually([&] { return records_in(path).size() >= count; }));
  return records_in(path);
}

TEST(RejectionLog, HasTheRoundsThatLostADraftUnderEveryRule) {
  const TemporaryDir dir;
  const std::filesystem::path path = dir / "rejections.jsonl";
  TransportContext context;
  const auto logged = start_threads(context, {.pair = nano_pair(), .coordinator = {.rejection_log = path}}).value();
  const auto silent = start_threads(context, {.pair = nano_pair()}).value();
  Client client = connect_when_joined(context, *logged);
  Client other = connect_when_joined(context, *silent);

  Generate request = story_request(120, 4);
  request.draft_ahead = 0;  // how many drafts are made ahead is a matter of time
  request.report_rounds = true;
  std::size_t before = 0;
  for (const SamplingParams& sampling :
       {SamplingParams{}, SamplingParams{.temperature = 0.8f, .top_p = 0.95f, .seed = 5},
        SamplingParams{.temperature = 1, .seed = 5, .rule = SamplingRule::kRejection},
        SamplingParams{.temperature = 1, .seed = 5, .rule = SamplingRule::kTypical}}) {
    SCOPED_TRACE(fmt::format("temperature {}, rule {}", sampling.temperature, static_cast<int>(sampling.rule)));
    request.sampling = sampling;
    struct Lost {
      int slot;
      TokenId draft, target;
    };
    std::vector<Lost> lost;
    std::optional<RoundOutcome> round;
    std::vector<TokenId> drafts;
    const Result<Generation> generation = client.generate(
        request,
        [&](std::span<const TokenId> tokens) {
          if (round && round->accepted < round->drafted) {
            const auto slot = static_cast<std::size_t>(round->accepted);
            ASSERT_GT(tokens.size(), slot);
            lost.push_back({round->accepted, drafts[slot], tokens[slot]});
          }
        },
        [] { return false; },
        [&](const RoundReport& report) {
          round = report.outcome;
          drafts = report.drafts;
        });
    ASSERT_TRUE(generation) << generation.error().message;
    const Generation without = answer(other, request);
    // Drafts may be late, but for a last round that has room for none; the text of the last two rules depends on them.
    const auto undrafted = [](const Generation& g) { return g.metrics.rounds - g.metrics.drafting_rounds; };
    const bool none_late = undrafted(*generation) <= 1 && undrafted(without) <= 1;
    if (none_late) {
      EXPECT_EQ(generation->metrics.accepted_per_position, without.metrics.accepted_per_position)
          << "other drafts than without the log";
    }
    if (none_late || sampling.rule == SamplingRule::kMatch) {
      EXPECT_EQ(generation->tokens, without.tokens) << "another text than without the log";
    }
    ASSERT_GT(lost.size(), 5u);

    const std::vector<json> all = wait_for_records(path, before + lost.size());
    ASSERT_EQ(all.size(), before + lost.size());
    int ranked = 0;
    for (std::size_t i = 0; i < lost.size(); ++i) {
      const json& record = all[before + i];
      EXPECT_EQ(record["source"], "assistant");
      EXPECT_EQ(record["slot"], lost[i].slot);
      EXPECT_EQ(record["draft"], lost[i].draft);
      EXPECT_EQ(record["target"], lost[i].target);
      if (record["rank"].is_null()) {
        EXPECT_TRUE(record["margin"].is_null());
        continue;
      }
      ++ranked;
      EXPECT_LT(record["rank"].get<int>(), kDraftTopK);
      // A draft that is the drafter's favourite is ahead of every other token.
      const bool favourite = sampling.greedy() || sampling.rule == SamplingRule::kTypical;
      if (!favourite) continue;
      EXPECT_GE(record["rank"].get<int>(), 1);
      EXPECT_GE(record["margin"].get<double>(), 0);
    }
    EXPECT_GT(ranked, 0);
    before = all.size();
  }
}

TEST(RejectionLogProgram, ChangesNeitherTextNorTokens) {
  const TemporaryDir dir;
  const std::filesystem::path path = dir / "rejections.jsonl";
  const std::vector<std::string> arguments = {
      "run", nano_goldens()[0].prompt, "--draft-length", "1", "--max-tokens", "60", "--json"};
  const auto output = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = arguments;
    all.insert(all.end(), more.begin(), more.end());
    Program run(all);
    EXPECT_EQ(describe(run.wait()), "exit 0");
    EXPECT_EQ(run.err(), "");
    return json::parse(run.out(), nullptr, /*allow_exceptions=*/false);
  };
  const json plain = output({});
  std::size_t lines = 0;
  for (const std::vector<std::string>& more : {std::vector<std::string>{}, {"--processes"}}) {
    std::vector<std::string> options = {"--rejection-log", path.string()};
    options.insert(options.end(), more.begin(), more.end());
    const json object = output(options);
    EXPECT_EQ(object["token_ids"], plain["token_ids"]);
    EXPECT_EQ(object["text"], plain["text"]);
    // Of one draft a round is lost which is drafted and not accepted.
    const auto lost = object["metrics"]["drafted_tokens"].get<std::size_t>() -
                      object["metrics"]["accepted_tokens"].get<std::size_t>();
    EXPECT_GT(lost, 0u);
    lines += lost;
    EXPECT_EQ(records_in(path).size(), lines) << "each run appends";
  }
}

TEST(RejectionLogProgram, SaysInOneLineThatTheFileCannotBeOpened) {
  const TemporaryDir dir;
  const std::string path = (dir / "missing" / "rejections.jsonl").string();
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"coordinator", "--listen", "tcp://127.0.0.1:*"},
        {"run", "hello"},
        {"serve", "--port", "0"}}) {
    std::vector<std::string> all = arguments;
    all.insert(all.end(), {"--rejection-log", path});
    Program program(all);
    EXPECT_EQ(describe(program.wait()), "exit 1");
    EXPECT_EQ(lines_with(program.err(), {}).size(), 1u) << program.err();
    EXPECT_EQ(lines_with(program.err(), {path, "No such file or directory"}).size(), 1u) << program.err();
  }
}

TEST(RejectionLogProgram, AFullDiskEndsTheLogAndNotTheAnswer) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  const NanoGolden golden = nano_goldens()[0];
  Program run(
      {"run", golden.prompt, "--dtype", "f32", "--draft-length", "1", "--json", "--rejection-log", "/dev/full"});
  EXPECT_EQ(describe(run.wait()), "exit 0");
  EXPECT_EQ(json::parse(run.out(), nullptr, /*allow_exceptions=*/false)["text"], golden.text);
  EXPECT_EQ(lines_with(run.err(), {"rejection_log_ended", "No space left on device"}).size(), 1u) << run.err();
}

}  // namespace
}  // namespace outrider
