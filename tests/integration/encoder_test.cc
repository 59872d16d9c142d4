// Pictures and sounds that another process encodes than the verifier's: nano's, over TCP, beside one process that does
// all; and with the towers of tests/goldens/multimodal-e4b the numpy reference's text.
#include <csignal>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/os/files.h"
#include "encoder-node/encoder_node.h"
#include "tests/support/cluster_fixtures.h"

namespace outrider {
namespace {

using nlohmann::json;

/// A question about a file.
using Question = std::vector<std::string>;

std::vector<Question> questions() {
  std::vector<Question> all;
  for (const auto& [folder, kind, option] :
       {std::tuple("nano-pictures", "picture", "--image"), {"nano-sounds", "sound", "--audio"}}) {
    const std::filesystem::path dir = source_dir() / "tests/goldens" / folder;
    const json goldens = json::parse(read_text(dir / "answers.json").value());
    for (std::size_t i = 0; i < goldens.size(); i += 3)
      all.push_back({goldens[i]["question"], option, (dir / goldens[i][kind].get<std::string>()).string()});
  }
  // Of both kinds, and twice the same.
  const Question &picture = all.front(), &sound = all.back();
  all.push_back({picture[0], picture[1], picture[2], picture[1], picture[2], sound[1], sound[2]});
  return all;
}

std::vector<std::string> words_of(const Question& question, const std::vector<std::string>& more) {
  std::vector<std::string> words = {"run"};
  words.insert(words.end(), question.begin(), question.end());
  words.insert(words.end(), {"--max-tokens", "24", "--draft-length", "4@0", "--json"});
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

json result_of(Program& run) {
  EXPECT_EQ(describe(run.wait()), "exit 0") << run.err();
  const json answer = json::parse(run.out(), nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(answer.is_object()) << run.out();
  return answer;
}

json ask(const Question& question, const Trio& trio) {
  Program run(words_of(question, {"--connect", trio.coordinator->address}));
  return result_of(run);
}

/// What one process says that does all.
json alone(const Question& question) {
  Program run(words_of(question, {}));
  return result_of(run);
}

TEST(Encoder, EveryAnswerIsThatOfAVerifierWithTowers) {
  Trio with_towers, without(true, {}, {"--no-towers"});
  for (Trio* trio : {&with_towers, &without}) trio->start_encoder();
  for (const Question& question : questions()) {
    SCOPED_TRACE(question[0] + " " + question[2]);
    const json expected = alone(question);
    EXPECT_EQ(expected["metrics"]["wire_bytes_to_encoder"], 0);
    for (Trio* trio : {&with_towers, &without}) {
      const json answer = ask(question, *trio);
      EXPECT_EQ(answer["token_ids"], expected["token_ids"]);
      EXPECT_GT(answer["metrics"]["wire_bytes_to_encoder"], 1000) << "the verifier encoded it";
      EXPECT_EQ(ask(question, *trio)["metrics"]["encode_ms"], 0) << "it was not kept";
    }
  }
  with_towers.encoders.front()->send(SIGTERM);
  EXPECT_EQ(describe(with_towers.encoders.front()->wait()), "exit 0");
  const Question question = questions().front();
  EXPECT_EQ(ask(question, with_towers)["token_ids"], alone(question)["token_ids"]);
}

// It stands still with a picture, as if it took long, and is killed.
TEST(Encoder, KilledInMidWorkCostsNoTextAndNoByte) {
  const Question question = questions().front();
  const json expected = alone(question)["token_ids"];
  for (const bool no_towers : {false, true}) {
    // Or an encoder that stands still would be given up before the question comes from a slow machine.
    Trio trio(false, {"--peer-timeout", "600"},
              no_towers ? std::vector<std::string>{"--no-towers"} : std::vector<std::string>());
    Program& first = trio.start_encoder();
    first.send(SIGSTOP);
    Program run(words_of(question, {"--connect", trio.coordinator->address}));
    ASSERT_TRUE(eventually([&] {
      return std::ranges::any_of(trio.status().workers, [](const WorkerStatus& worker) {
        return worker.role == Role::kEncoder && worker.sessions == 1;
      });
    }));
    first.send(SIGKILL);
    if (no_towers) {
      EXPECT_TRUE(eventually([&] { return trio.status().encoders == 0; }));
      trio.start_encoder();
    }
    const json answer = result_of(run);
    EXPECT_EQ(answer["token_ids"], expected);
    EXPECT_EQ(answer["metrics"]["failovers"], 0) << "its verifier was well";
  }
}

TEST(Encoder, OfAModelWithoutTowersSaysSo) {
  Program encoder(
      {"encoder", "--join", "tcp://127.0.0.1:1", "--backbone", (source_dir() / "tests/goldens/e2b/backbone").string()});
  EXPECT_EQ(describe(encoder.wait()), "exit 1");
  EXPECT_NE(encoder.err().find("nothing to encode with: "), std::string::npos) << encoder.err();
}

/// Bytes that count up by 37: the picture of picture.json.
WireTensor picture(std::int64_t height = 24) {
  const auto bytes = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(3 * height * 36));
  for (std::size_t i = 0; i < bytes->size(); ++i) (*bytes)[i] = static_cast<std::byte>(i * 37 + 11);
  return {.dtype = DType::kU8, .shape = {height, 36, 3}, .data = SharedBytes(bytes, *bytes)};
}

/// An encoder as a thread of the test.
class EncoderThread {
 public:
  EncoderThread(TransportContext& context, const ClusterOptions& cluster, const std::string& address)
      : thread_([&context, &cluster, address, this](std::stop_token stop) {
          result_ = run_encoder(
              context,
              {.backbone = cluster.pair.backbone, .weight_type = cluster.weight_type, .join = address, .threads = 1},
              stop);
        }) {}
  ~EncoderThread() {
    thread_.request_stop();
    thread_.join();
    EXPECT_TRUE(result_) << result_.error().message;
  }

 private:
  Result<void> result_;
  std::jthread thread_;
};

TEST(Encoder, TheTextIsTheReferences) {
  const std::filesystem::path goldens = source_dir() / "tests/goldens";
  const json notes = json::parse(read_text(goldens / "multimodal-e4b/picture.json").value());
  ClusterOptions options{.pair = {goldens / "multimodal-e4b/backbone", goldens / "e4b/assistant"},
                         .weight_type = WeightType::kF32};
  options.verifier.no_towers = true;
  options.verifier.core.rows_max = 6;
  TransportContext context;
  const std::unique_ptr<Cluster> cluster = start_threads(context, options).value();
  Client client = connect_when_joined(context, *cluster);
  Generate request{.prompt = notes["prompt"].get<std::vector<TokenId>>(),
                   .max_tokens = 24,
                   .draft_length = 4,
                   .wait_ms = 100,
                   .media = {{.first = 3, .content = picture()}}};
  const Result<Generation> none = client.generate(request, [](std::span<const TokenId>) {});
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().message.find("no encoder joined within"), std::string::npos) << none.error().message;

  const EncoderThread encoder(context, options, cluster->address());
  request.wait_ms = 60'000;  // until it has joined
  const Generation generation = answer(client, request);
  EXPECT_EQ(generation.tokens, notes["greedy_of_bytes"].get<std::vector<TokenId>>());
  EXPECT_GT(generation.metrics.encode_ns, 0);
  request.media[0].content = picture(25);
  const Result<Generation> odd = client.generate(request, [](std::span<const TokenId>) {});
  ASSERT_FALSE(odd);
  EXPECT_TRUE(odd.error().message.starts_with("a picture of U8 [25, 36, 3], wanted")) << odd.error().message;
}

}  // namespace
}  // namespace outrider
