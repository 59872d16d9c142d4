#include "tests/support/cluster_fixtures.h"

#include <fstream>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/model/tokenizer/detokenizer.h"
#include "common/model/tokenizer/tokenizer.h"
#include "tests/support/model_at.h"

namespace outrider {
namespace {
namespace fs = std::filesystem;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t kGoldenStep = 4;
#else
constexpr std::size_t kGoldenStep = 1;
#endif

bool is_stop(TokenId token) { return token == 1 || token == 106; }

std::vector<NanoGolden> load_goldens() {
  std::ifstream file(source_dir() / "tests/goldens/nano/generate_golden.json");
  std::vector<NanoGolden> goldens;
  for (const nlohmann::json& entry : nlohmann::json::parse(file)) {
    goldens.push_back({entry.at("prompt"), entry.at("prompt_ids"), entry.at("greedy"), entry.at("text")});
  }
  return goldens;
}

}  // namespace

std::vector<NanoGolden> nano_goldens() {
  const std::vector<NanoGolden> all = load_goldens();
  std::vector<NanoGolden> chosen;
  for (std::size_t i = 0; i < all.size(); i += kGoldenStep) chosen.push_back(all[i]);
  return chosen;
}

NanoGolden endless_story() {
  for (NanoGolden& golden : load_goldens()) {
    if (golden.prompt.starts_with("The base of a hill")) return golden;
  }
  ADD_FAILURE() << "generate_golden.json has no prompt about a hill";
  return {};
}

fs::path source_dir() { return OUTRIDER_SOURCE_DIR; }
PairPaths nano_pair() { return pair_paths(source_dir() / "models/nano").value(); }

PairCopy::PairCopy(const fs::path& original) {
  for (const char* part : {"backbone", "assistant"}) {
    fs::create_directory(dir_ / part);
    for (const auto& file : fs::directory_iterator(original / part)) {
      fs::create_symlink(fs::absolute(file.path()), dir_ / part / file.path().filename());
    }
  }
}

std::string PairCopy::read(const std::string& name) const {
  std::ifstream file(dir_ / name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void PairCopy::write(const std::string& name, const std::string& bytes) {
  fs::remove(dir_ / name);  // the link, not what it leads to
  std::ofstream(dir_ / name, std::ios::binary) << bytes;
}

Generate request_for(const NanoGolden& golden, std::int32_t draft_length) {
  const auto length = static_cast<std::int64_t>(golden.greedy.size());
  return {.prompt = golden.prompt_ids,
          .max_tokens = is_stop(golden.greedy.back()) ? 96 : length,
          .draft_length = draft_length,
          .stop_ids = {1, 106},
          .wait_ms = 0};
}

Generate story_request(std::int64_t count, std::int32_t draft_length) {
  return {.prompt = endless_story().prompt_ids,
          .max_tokens = count,
          .draft_length = draft_length,
          .stop_ids = {},
          .wait_ms = 0};
}

std::string nano_text(std::span<const TokenId> tokens) {
  static const Result<Tokenizer> tokenizer = Tokenizer::load(model_at(nano_pair().backbone));
  StreamingDetokenizer detokenizer(tokenizer.value(), /*skip_special=*/true);
  std::string text;
  for (const TokenId token : tokens) text += detokenizer.push(token);
  return text + detokenizer.finish();
}

Generation answer(Client& client, const Generate& request) {
  Result<Generation> generation = client.generate(request, [](std::span<const TokenId>) {});
  EXPECT_TRUE(generation) << generation.error().message;
  return generation ? std::move(generation).value() : Generation{};
}

Client connect_when_joined(TransportContext& context, const std::string& address, int verifiers, int drafters,
                           const std::function<Result<void>()>& still_possible) {
  Client client = Client::connect(context, address).value();
  const TimePoint give_up = now() + kHang;
  const Result<void> joined = client.wait_for_workers(verifiers, drafters, [&]() -> Result<void> {
    if (now() > give_up) return Error{Errc::kTimeout, "the workers did not join"};
    return still_possible();
  });
  EXPECT_TRUE(joined) << joined.error().message;
  return client;
}

Client connect_when_joined(TransportContext& context, Cluster& cluster) {
  return connect_when_joined(context, cluster.address(), 1, 1, [&] { return cluster.check(); });
}

void NanoCluster::restart(const ClusterOptions& options) {
  cluster_.reset();
  cluster_ = start_threads(context_, options).value();
}

Status status_of(TransportContext& context, const std::string& address) {
  const auto endpoint = Endpoint::connect(context, address);
  EXPECT_TRUE(endpoint.value()->send("", {.body = StatusRequest{}}));
  const TimePoint give_up = now() + kHang;
  while (now() < give_up) {
    if (const auto received = endpoint.value()->receive(); received && received->message) {
      if (const auto* status = std::get_if<Status>(&received->message->body)) return *status;
    }
    endpoint.value()->wait(std::chrono::milliseconds(100));
  }
  ADD_FAILURE() << address << " did not say how it is";
  return {};
}

EndlessRun::EndlessRun(std::int64_t max_tokens, const std::vector<std::string>& options)
    : unstoppable_(source_dir() / "models/nano"), program([&] {
        unstoppable_.write("backbone/generation_config.json", R"({"eos_token_id": 0})");
        std::vector<std::string> arguments = {"run", "--model", unstoppable_.dir(), "--max-tokens",
                                              std::to_string(max_tokens)};
        arguments.insert(arguments.end(), options.begin(), options.end());
        arguments.push_back(endless_story().prompt);
        return arguments;
      }()) {}

std::vector<TokenId> plain_story(std::int64_t count) {
  EndlessRun run(count, {"--draft-length", "0", "--json"});
  EXPECT_EQ(describe(run.program.wait()), "exit 0");
  const nlohmann::json object = nlohmann::json::parse(run.program.out(), nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(object.is_object()) << run.program.out();
  return object.value("token_ids", std::vector<TokenId>());
}

std::vector<std::string> coordinator_arguments(const std::string& listen, const std::vector<std::string>& options) {
  std::vector<std::string> arguments = {"coordinator", "--listen", listen};
  arguments.insert(arguments.end(), options.begin(), options.end());
  return arguments;
}

Coordinator::Coordinator(const std::string& listen, const std::vector<std::string>& options)
    : program(coordinator_arguments(listen, options)) {
  eventually([&] { return program.out().find('\n') != std::string::npos || !program.running(); });
  const std::string out = program.out();
  address = out.substr(0, out.find('\n'));
  EXPECT_NE(address, "") << program.err();
}

Trio::Trio(bool with_drafter, const std::vector<std::string>& of_coordinator,
           const std::vector<std::string>& of_verifier, const std::string& listen)
    : coordinator(std::make_unique<Coordinator>(listen, of_coordinator)) {
  start_verifier(of_verifier);
  if (with_drafter) start_drafter();
  client(1, with_drafter ? 1 : 0);
}

Program& Trio::start_verifier(const std::vector<std::string>& options) {
  std::vector<std::string> words = {"verifier", "--join", coordinator->address, "--threads",
                                    kGoldenStep == 1 ? "2" : "1"};
  words.insert(words.end(), options.begin(), options.end());
  verifier = std::make_unique<Program>(words);
  return *verifier;
}

Program& Trio::start_encoder(const std::vector<std::string>& options) {
  std::vector<std::string> words = {"encoder", "--join", coordinator->address, "--threads", "1"};
  words.insert(words.end(), options.begin(), options.end());
  const std::int32_t before = status().encoders;
  encoders.push_back(std::make_unique<Program>(words));
  EXPECT_TRUE(eventually([&] { return status().encoders > before || !encoders.back()->running(); }));
  return *encoders.back();
}

Program& Trio::start_drafter() {
  drafter = std::make_unique<Program>(std::vector<std::string>{"drafter", "--join", coordinator->address});
  return *drafter;
}

Client Trio::client(int verifiers, int drafters) {
  return connect_when_joined(context, coordinator->address, verifiers, drafters, []() -> Result<void> { return {}; });
}

}  // namespace outrider
