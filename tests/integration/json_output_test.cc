// What scripts read from `--json`.
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/client/report.h"
#include "common/os/files.h"
#include "tests/support/cluster_fixtures.h"
#include "tests/support/temporary_dir.h"

namespace outrider {
namespace {
using nlohmann::json;

std::set<std::string> keys_of(const json& object) {
  std::set<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.insert(key);
  return keys;
}

/// What the program printed: one JSON object and nothing else.
json output_of(Program& program) {
  EXPECT_EQ(describe(program.wait()), "exit 0");
  EXPECT_EQ(program.err(), "");
  json object = json::parse(program.out(), nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(object.is_object()) << program.out();
  return object;
}

void expect_numbers(const json& object, const std::vector<std::string>& keys) {
  for (const std::string& key : keys) {
    ASSERT_TRUE(object.contains(key)) << key << " is not in " << object;
    EXPECT_TRUE(object[key].is_number()) << key << " is " << object[key];
  }
}

TEST(Report, TheAssistantsTimeIsThatOfTheRoundsItDraftedFor) {
  Generation generation;
  generation.metrics.drafting_rounds = 4;
  generation.metrics.ngram.rounds = 3;
  generation.metrics.draft_ns = 5'000'000;
  EXPECT_EQ(metrics_json(generation)["assistant_draft_ms"], 5);
  EXPECT_NE(metrics_text(generation, std::nullopt).find("drafting              5.00 ms a round with a drafter\n"),
            std::string::npos);
  const std::string plain = metrics_text(Generation(), std::nullopt);
  EXPECT_TRUE(plain.starts_with("without drafts")) << plain;
  EXPECT_EQ(plain.find("with drafts"), std::string::npos) << plain;
  generation.metrics.ngram.rounds = 4;
  generation.metrics.draft_ns = 0;
  EXPECT_EQ(metrics_json(generation)["assistant_draft_ms"], 0);
}

TEST(Report, OneLineSaysWhatAnAnswerBrought) {
  Generation generation;
  EXPECT_EQ(summary_text(generation, std::nullopt), "0 tokens");
  generation.tokens.resize(11);
  generation.metrics.decode_ns = 500'000'000;
  EXPECT_EQ(summary_text(generation, std::nullopt), "20.0 tok/s, no drafts");
  EXPECT_EQ(summary_text(generation, 8), "20.0 tok/s (2.50 times plain), no drafts");
  generation.metrics.drafted_tokens = 8;
  generation.metrics.accepted_tokens = 6;
  generation.metrics.rounds = 4;
  EXPECT_EQ(summary_text(generation, std::nullopt),
            "20.0 tok/s, 6 of 8 drafts accepted (75 %), 4 rounds for 11 tokens");
}

RoundOutcome timed_round(int drafted, int accepted, double verify_s, double draft_s = 0) {
  return {.drafted = drafted,
          .accepted = accepted,
          .draft_s = draft_s,
          .verify_s = verify_s,
          .round_s = verify_s + draft_s};
}

TEST(Report, SaysWhyMostRoundsHadNoDrafts) {
  std::vector<RoundOutcome> rounds(9, timed_round(0, 0, 0.01));
  rounds.push_back(timed_round(4, 2, 0.045, 0.01));
  EXPECT_EQ(
      why_left_out(rounds, "avx2"),
      "drafts were left out of 9 of 10 rounds: here (avx2) a pass of 5 rows takes 4.5 times as long as one of 1, so "
      "that a round with drafts takes 5.5 times as long as a plain one and brings 3.0 tokens");
  rounds.back() = timed_round(4, 2, 0.012, 0.001);
  EXPECT_EQ(why_left_out(rounds, ""),
            "drafts were left out of 9 of 10 rounds, where they were not likely to hold: of those made 2 of 4 did");
  EXPECT_EQ(why_left_out(std::span(rounds).last(2), "avx2"), "") << "half of them had drafts";
  EXPECT_EQ(why_left_out(std::span(rounds).first(1), "avx2"), "no drafts were tried: the answer has 1 round");
  const std::vector<RoundOutcome> plain(20, timed_round(0, 0, 1));
  const std::string nobody = "no drafter was there to make them",
                    too_dear = "a trial would have taken more time than may be lost";
  EXPECT_EQ(why_left_out(plain, "avx2"), "no drafts were made: " + nobody + ", or " + too_dear);
  EXPECT_EQ(why_left_out(plain, "avx2", true), "no drafts were made: " + too_dear);
  EXPECT_EQ(why_left_out(std::span(plain).first(2), "", false), "no drafts were made: " + nobody);
  rounds = plain;
  rounds[3].draft_wire_s = rounds[9].draft_waited_s = 0.1;
  EXPECT_EQ(why_left_out(rounds, "avx2", true), "no drafts came in time: 2 of 20 rounds asked for some");
  EXPECT_EQ(why_left_out({}, "avx2"), "");
}

TEST(Report, ComparesAnAnswerWithoutDraftsToo) {
  Generation answer;
  answer.tokens.resize(11);
  answer.metrics.decode_ns = 100'000'000;
  const std::string text = metrics_text(answer, 50.0);
  EXPECT_TRUE(text.starts_with("without drafts        50.0 tokens per second\n"
                               "with drafts           100.0 tokens per second, 2.00 times plain\n"))
      << text;
  EXPECT_EQ(text.find('_'), std::string::npos) << "words for people: " << text;
}

// What was asked for is printed, whatever standard error is.
TEST(Run, ComparesIntoAPipeToo) {
  for (const char* draft_length : {"0", "4", "auto"}) {
    Program run({"run", "Count from 3 to 9.", "--compare", "--draft-length", draft_length, "-n", "24"});
    EXPECT_EQ(describe(run.wait()), "exit 0");
    for (const char* part : {"without drafts  ", "with drafts  ", " times plain", "texts equal           yes"})
      EXPECT_EQ(lines_with(run.err(), {part}).size(), 1u) << draft_length << ": " << run.err();
    EXPECT_EQ(lines_with(run.out(), {}).size(), 1u) << "the text once: " << run.out();
  }
  Program quiet({"run", "Count from 3 to 9.", "--compare", "--quiet", "-n", "8"});
  EXPECT_EQ(describe(quiet.wait()), "exit 0");
  EXPECT_EQ(quiet.err(), "");
}

// Baked from a question, the table drafts its answer; another model's says that it is not used. The text is the same.
TEST(JsonOutput, OfRunWithADraftTable) {
  const TemporaryDir dir;
  const std::string question = "Write a short story about a fox named Max and a red ball.";
  const std::string questions =
      dir.write("questions.jsonl", json{{"category", "story"}, {"turns", {question}}}.dump()).string();
  const std::string table = (dir / "nano.table").string(), model = (source_dir() / "models/nano").string();
  Program bake({"bake-table", model, questions, "--out", table});
  EXPECT_EQ(describe(bake.wait()), "exit 0") << bake.err();
  EXPECT_TRUE(bake.out().starts_with("1 conversations, ")) << bake.out();
  Program run(
      {"run", question, "--no-assistant", "--draft-table", table, "--draft-length", "4+table", "--compare", "--json"});
  const json object = output_of(run);
  EXPECT_GT(object["metrics"]["table_accepted_tokens"], 0);
  EXPECT_EQ(object["metrics"]["drafted_tokens"], object["metrics"]["table_drafted_tokens"].get<int>() +
                                                     object["metrics"]["ngram_drafted_tokens"].get<int>());

  std::string bytes = read_text(table).value();
  bytes[16] = static_cast<char>(bytes[16] + 1);  // of the fingerprint
  Program other(
      {"run", question, "--no-assistant", "--draft-table", dir.write("other.table", bytes).string(), "--json"});
  EXPECT_EQ(describe(other.wait()), "exit 0");
  EXPECT_EQ(lines_with(other.err(), {"the draft table is not used for", "fingerprint"}).size(), 1u) << other.err();
  const json plain = json::parse(other.out(), nullptr, /*allow_exceptions=*/false);
  EXPECT_EQ(plain["text"], object["text"]);
  EXPECT_EQ(plain["metrics"]["table_drafted_tokens"], 0);
}

TEST(JsonOutput, SaysThatNobodyWasThereToDraft) {
  Program run({"run", "Count from 3 to 9.", "--no-assistant", "--draft-length", "4", "--compare", "--json"});
  EXPECT_EQ(output_of(run)["metrics"]["drafts_left_out"], "no drafts were made: no drafter was there to make them");
}

TEST(JsonOutput, OfRunHasAnswerAndMetrics) {
  const NanoGolden golden = nano_goldens().front();
  Program run({"run", golden.prompt, "--dtype", "f32", "--draft-length", "4", "--compare", "--json"});
  const json object = output_of(run);
  ASSERT_EQ(keys_of(object),
            (std::set<std::string>{"prompt_ids", "token_ids", "text", "finish_reason", "metrics", "sampling"}));
  EXPECT_EQ(object["sampling"], (json{{"rule", "greedy"}, {"temperature", 0.0}}));
  EXPECT_EQ(object["prompt_ids"].get<std::vector<TokenId>>(), golden.prompt_ids);
  EXPECT_EQ(object["token_ids"].get<std::vector<TokenId>>(), golden.greedy);
  EXPECT_EQ(object["text"], golden.text);
  EXPECT_EQ(object["finish_reason"], "stop");

  const json& metrics = object["metrics"];
  expect_numbers(metrics, {"backbone_only_tok_per_sec", "speculative_tok_per_sec", "draft_tokens_per_batch",
                           "accepted_tokens", "drafted_tokens", "target_verify_ms", "assistant_draft_ms", "rounds",
                           "wire_bytes_to_drafter", "speedup"});
  EXPECT_EQ(metrics["texts_equal"], true);
  EXPECT_EQ(metrics["drafts_left_out"], nullptr) << "a number is one in every round here";
  const std::int64_t accepted = metrics["accepted_tokens"], rounds = metrics["rounds"];
  // The first token comes of the prefill; each round emits what it accepts and one more, less what
  // follows a stop.
  EXPECT_GE(1 + accepted + rounds, std::ssize(golden.greedy));
  EXPECT_LE(accepted, metrics["drafted_tokens"].get<std::int64_t>());
  std::int64_t sum = 0;
  for (const json& count : metrics.at("accepted_per_position")) sum += count.get<std::int64_t>();
  EXPECT_EQ(sum, accepted);
  EXPECT_LE(metrics["accepted_per_position"].size(), 4u);
}

TEST(JsonOutput, OfRunWithPromptIdsInThreeProcesses) {
  const NanoGolden golden = endless_story();
  Program run({"run", "--prompt-ids", fmt::format("{}", fmt::join(golden.prompt_ids, ",")), "--dtype", "f32",
               "--processes", "--json", "--max-tokens", "20"});
  EXPECT_EQ(describe(run.wait()), "exit 0");
  const json object = json::parse(run.out(), nullptr, false);
  ASSERT_TRUE(object.is_object()) << run.out();
  EXPECT_EQ(object["prompt_ids"].get<std::vector<TokenId>>(), golden.prompt_ids);
  EXPECT_EQ(object["token_ids"].get<std::vector<TokenId>>(),
            std::vector<TokenId>(golden.greedy.begin(), golden.greedy.begin() + 20));
  EXPECT_EQ(object["finish_reason"], "length");
}

TEST(JsonOutput, OfBenchPairHasOneRunPerDraftLength) {
  Program bench({"bench", "pair", "--json", "--repeat", "1", "--draft-lengths", "1,2", "--max-tokens", "16"});
  const json object = output_of(bench);
  ASSERT_TRUE(object.contains("runs"));
  const json& runs = object["runs"];
  ASSERT_EQ(runs.size(), 2u);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    expect_numbers(runs[i], {"draft_length", "backbone_only_tok_per_sec", "speculative_tok_per_sec", "drafted_tokens",
                             "accepted_tokens", "round_ms", "draft_ms", "wire_ms", "verify_ms", "other_ms"});
    EXPECT_EQ(runs[i]["draft_length"], i + 1);
    EXPECT_GT(runs[i]["drafted_tokens"], 0);
    EXPECT_GT(runs[i]["predicted_tok_per_sec"], 0);
  }
  expect_numbers(object, {"median_prediction_error"});
}

TEST(JsonOutput, OfBenchPairOverALongLinkHasItsRoundTripInEveryRound) {
  Program bench({"bench", "pair", "--json", "--repeat", "1", "--draft-lengths", "2,auto", "--rtt", "0,30",
                 "--max-tokens", "12", "--prompt", "Count from 3 to 20.", "--synthetic-acceptance", "1,0"});
  const json object = output_of(bench);
  EXPECT_EQ(object["synthetic"], true);
  ASSERT_EQ(object["runs"].size(), 4u);
  for (const json& run : object["runs"]) {
    if (run["draft_length"] != 2) continue;
    EXPECT_NEAR(run["tokens_per_round"].get<double>(), 2, 0.2) << "one of two drafts is always accepted";
    if (run["round_trip_ms"] == 30) {
      EXPECT_GE(run["wire_ms"], 20) << "a mean over all rounds, of which the last drafts nothing";
    }
  }
}

TEST(JsonOutput, OfReadyJudgesTextAcceptanceAndLink) {
  Program program({"ready", "--json", "--dtype", "f32", "--golden",
                   (source_dir() / "tests/goldens/nano/generate_golden.json").string()});
  const json object = output_of(program);
  // A busy machine may make speculation the slower one, which is "degraded"; nothing may be wrong.
  EXPECT_NE(object["verdict"], "not ready") << object;
  EXPECT_EQ(object["handshake"], (json{{"verifiers", 1}, {"drafters", 1}}));
  EXPECT_EQ(object["text"]["golden"], (json{{"answers", 24}, {"equal", 24}}));
  EXPECT_EQ(object["text"]["different_answers"], 0);
  EXPECT_GE(object["text"]["drafted_tokens"], 500);
  EXPECT_GT(object["text"]["acceptance"], 0.3);
  EXPECT_EQ(object["link"].size(), 2u);
}

TEST(JsonOutput, OfReadySaysWhatIsWrong) {
  // The recorded answers are those of other prompts.
  json golden = json::array();
  std::vector<NanoGolden> some = nano_goldens();
  some.resize(6);
  for (const NanoGolden& one : some) golden.push_back({{"prompt_ids", one.prompt_ids}, {"greedy", {7, 7, 7}}});
  const TemporaryDir dir;
  const std::string file = dir.write("golden.json", golden.dump()).string();
  Program said({"ready", "--golden", file});
  EXPECT_EQ(describe(said.wait()), "exit 1");
  EXPECT_TRUE(said.out().starts_with("NOT READY: 6 of 6 answers differ from the golden file")) << said.out();
  EXPECT_EQ(lines_with(said.out(), {}).size(), 1u) << said.out();
  Program program({"ready", "--json", "--golden", file});
  EXPECT_EQ(describe(program.wait()), "exit 1");
  const json object = json::parse(program.out(), nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(object.is_object()) << program.out();
  EXPECT_EQ(object["verdict"], "not ready");
  EXPECT_EQ(object["reasons"][0], fmt::format("{0} of {0} answers differ from the golden file", golden.size()));
}

TEST(JsonOutput, OfBenchEngineHasRatiosAndShares) {
  Program bench({"bench", "engine", "--shape", "nano", "--dtype", "int4", "--rows", "2,5", "--prefill", "20,130",
                 "--context", "40", "--threads", "1", "--repeat", "1", "--profile", "--json"});
  const json object = output_of(bench);
  ASSERT_EQ(keys_of(object),
            (std::set<std::string>{"shape", "dtype", "layers", "layers_of_shape", "isa", "threads", "onednn", "gemm",
                                   "context", "read_bandwidth_gb_s", "weight_bytes_per_token", "decode_tok_s",
                                   "bandwidth_share", "forward_ms", "t_ratio", "prefill_tok_s", "draft_step_ms",
                                   "draft_step_ms_2_threads", "draft_step_ms_2_threads_all_tokens", "profile"}));
  expect_numbers(object, {"read_bandwidth_gb_s", "weight_bytes_per_token", "decode_tok_s", "bandwidth_share"});
  EXPECT_EQ(object["threads"], 1);
  EXPECT_EQ(object["layers"], object["layers_of_shape"]);
  EXPECT_EQ(keys_of(object["t_ratio"]), (std::set<std::string>{"2", "5"}));
  EXPECT_EQ(keys_of(object["prefill_tok_s"]), (std::set<std::string>{"20", "130"}));
  for (const char* steps : {"draft_step_ms", "draft_step_ms_2_threads", "draft_step_ms_2_threads_all_tokens"})
    EXPECT_EQ(keys_of(object[steps]), (std::set<std::string>{"512", "8192"})) << steps;
  const double ms = object["forward_ms"]["1"], decode = object["decode_tok_s"],
               bandwidth = object["read_bandwidth_gb_s"], bytes = object["weight_bytes_per_token"];
  EXPECT_NEAR(decode, 1e3 / ms, 1e-6 * decode);
  EXPECT_NEAR(object["bandwidth_share"].get<double>(), bytes * decode / 1e9 / bandwidth, 1e-6);
  for (const json& shares : object["profile"]) {
    double sum = 0;
    for (const char* part :
         {"qkv", "attention", "o", "mlp", "ple", "head", "norms", "rope", "gelu", "verify", "other"}) {
      ASSERT_TRUE(shares.contains(part)) << part << " is not in " << shares;
      sum += shares[part].get<double>();
    }
    EXPECT_NEAR(sum, 1, 1e-9) << shares;
  }
}

TEST(JsonOutput, OfBenchSpeculativeSaysThatItIsSynthetic) {
  Program bench({"bench", "speculative", "--shape", "nano", "--dtype", "int8", "--synthetic-acceptance", "1,1,0",
                 "--threads", "1", "--rounds", "4", "--json"});
  const json object = output_of(bench);
  expect_numbers(object, {"plain_step_ms", "round_ms", "assistant_draft_ms_per_token", "backbone_only_tok_per_sec",
                          "speculative_tok_per_sec", "tokens_per_round", "predicted_tokens_per_round",
                          "predicted_round_ms", "predicted_tok_per_sec"});
  EXPECT_EQ(object["synthetic"], true);
  EXPECT_EQ(object["draft_length"], 3);
  EXPECT_EQ(object["tokens_per_round"], 3);  // two drafts, always, and one token of the target's
  EXPECT_EQ(object["predicted_tokens_per_round"], 3);
  EXPECT_NEAR(object["predicted_tok_per_sec"].get<double>() * object["predicted_round_ms"].get<double>(), 3000, 1e-6);
}

TEST(JsonOutput, OfBenchSpeculativeRefusesRatesThatRise) {
  Program bench({"bench", "speculative", "--shape", "nano", "--synthetic-acceptance", "0.3,0.5"});
  EXPECT_EQ(describe(bench.wait()), "exit 1");
  EXPECT_EQ(bench.err(), "outrider: --synthetic-acceptance 0.3,0.5, wanted non-increasing rates between 0 and 1\n");
}

TEST(JsonOutput, OfBenchEngineRefusesAnUnknownShape) {
  Program bench({"bench", "engine", "--shape", "llama", "--json"});
  EXPECT_EQ(describe(bench.wait()), "exit 1");
  EXPECT_EQ(bench.err(), "outrider: shape 'llama', wanted e2b, e4b, 12b, 26b-a4b or 31b, or nano\n");
}

}  // namespace
}  // namespace outrider
