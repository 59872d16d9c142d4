// Bad files, bad arguments and bad peers: a line that says what is wrong, never a crash.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <random>
#include <utility>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <zmq.hpp>

#include "common/wire/transport/codec.h"
#include "schemas/outrider_generated.h"
#include "tests/support/cluster_fixtures.h"
#include "tests/support/free_port.h"

namespace outrider {
namespace {
using nlohmann::json;

/// The program ended by itself with an error, which is one line, and `wanted` is in it.
void expect_refused(Program& program, const std::vector<std::string>& wanted) {
  const Program::End end = program.wait();
  ASSERT_FALSE(end.signal) << "killed by signal " << *end.signal;
  EXPECT_NE(*end.exit_code, 0);
  const std::string err = program.err();
  const std::vector<std::string> errors = lines_with(err, {"outrider: "});
  ASSERT_EQ(errors.size(), 1u) << err;
  EXPECT_TRUE(errors[0].starts_with("outrider: ")) << errors[0];
  for (const std::string& part : wanted)
    EXPECT_NE(errors[0].find(part), std::string::npos) << "no '" << part << "' in: " << errors[0];
  for (const std::string& line : lines_with(err, {})) {
    if (line == errors[0]) continue;
    // A role may have logged its start.
    EXPECT_NE(line.find(" info: "), std::string::npos) << "not the one line: " << line;
  }
}

// ---- files ----

/// The header of a safetensors file, as JSON.
json header_of(const std::string& bytes) {
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  return json::parse(bytes.substr(sizeof length, length));
}

std::string with_header(const std::string& bytes, const json& header) {
  std::uint64_t old_length = 0;
  std::memcpy(&old_length, bytes.data(), sizeof old_length);
  const std::string text = header.dump();
  const std::uint64_t length = text.size();
  std::string result(reinterpret_cast<const char*>(&length), sizeof length);
  return result + text + bytes.substr(sizeof old_length + old_length);
}

constexpr const char* kWeights = "backbone/model.safetensors";
constexpr const char* kConfig = "backbone/config.json";
const std::string kGate = "model.language_model.layers.2.mlp.gate_proj.weight";

void edit_header(PairCopy& pair, const std::function<void(json&)>& edit) {
  const std::string bytes = pair.read(kWeights);
  json header = header_of(bytes);
  edit(header);
  pair.write(kWeights, with_header(bytes, header));
}

void edit_config(PairCopy& pair, const std::function<void(json&)>& edit) {
  json config = json::parse(pair.read(kConfig));
  edit(config);
  pair.write(kConfig, config.dump());
}

struct BadFile {
  const char* name;
  void (*spoil)(PairCopy& pair);
  const char* file;  ///< to be named
  std::vector<std::string> wanted;
};
void PrintTo(const BadFile& bad, std::ostream* out) { *out << bad.name; }

const std::vector<BadFile> kBadFiles = {
    {"safetensors_cut_short",
     [](PairCopy& pair) {
       const std::string bytes = pair.read(kWeights);
       pair.write(kWeights, bytes.substr(0, bytes.size() - 1));
     },
     kWeights,
     {"data_offsets", "holds 1338687 bytes"}},
    {"safetensors_cut_within_header",
     [](PairCopy& pair) { pair.write(kWeights, pair.read(kWeights).substr(0, 100)); },
     kWeights,
     {"header of 15744 bytes", "92 follow"}},
    {"safetensors_empty", [](PairCopy& pair) { pair.write(kWeights, ""); }, kWeights, {"0 bytes long", "at least 8"}},
    {"header_length_beyond_the_file",
     [](PairCopy& pair) {
       std::string bytes = pair.read(kWeights);
       bytes.replace(0, 8, std::string("\xff\xff\xff\xff\xff\xff\xff\x7f", 8));
       pair.write(kWeights, bytes);
     },
     kWeights,
     {"header of 9223372036854775807 bytes", "1354432 follow"}},
    {"header_not_json",
     [](PairCopy& pair) {
       std::string bytes = pair.read(kWeights);
       bytes[9] = '!';
       pair.write(kWeights, bytes);
     },
     kWeights,
     {"not JSON at byte 2"}},
    {"offsets_outside",
     [](PairCopy& pair) {
       edit_header(pair, [](json& header) { header[kGate]["data_offsets"] = {4000000000, 4000024576}; });
     },
     kWeights,
     {kGate, "[4000000000, 4000024576]", "1338688 bytes"}},
    {"offsets_of_another_size",
     [](PairCopy& pair) { edit_header(pair, [](json& header) {
                            header[kGate]["data_offsets"] = {0, 4};
                          }); },
     kWeights,
     {kGate, "span 4 bytes", "wanted 24576"}},
    {"dtype_unknown",
     [](PairCopy& pair) { edit_header(pair, [](json& header) { header[kGate]["dtype"] = "C64"; }); },
     kWeights,
     {kGate, "C64", "wanted F32"}},
    {"dtype_wrong",
     [](PairCopy& pair) { edit_header(pair, [](json& header) { header[kGate]["dtype"] = "I32"; }); },
     kWeights,
     {kGate, "I32", "wanted F32, BF16, F16 or a block type"}},
    {"shape_wrong",
     [](PairCopy& pair) { edit_header(pair, [](json& header) {
                            header[kGate]["shape"] = {64, 96};
                          }); },
     kWeights,
     {kGate, "[64, 96]", "wanted [96, 64]"}},
    {"tensor_missing",
     [](PairCopy& pair) { edit_header(pair, [](json& header) { header.erase(kGate); }); },
     "backbone",
     {kGate, "missing", "wanted shape [96, 64]"}},
    {"config_missing",
     [](PairCopy& pair) { std::filesystem::remove(pair.dir() / kConfig); },
     "backbone",
     {"is no model: no config.json is there, nor a GGUF model"}},
    {"config_not_json",
     [](PairCopy& pair) { pair.write(kConfig, pair.read(kConfig).substr(0, 1000)); },
     kConfig,
     {"not JSON"}},
    {"config_of_another_width",
     [](PairCopy& pair) { edit_config(pair, [](json& config) { config["text_config"]["hidden_size"] = 128; }); },
     kWeights,
     {"[512, 64]", "wanted [512, 128]"}},
    {"config_with_text_for_a_number",
     [](PairCopy& pair) {
       edit_config(pair, [](json& config) { config["text_config"]["num_hidden_layers"] = "six"; });
     },
     kConfig,
     {"num_hidden_layers", "six"}},
    {"config_of_another_model",
     [](PairCopy& pair) { edit_config(pair, [](json& config) { config["model_type"] = "llama"; }); },
     kConfig,
     {"llama", "gemma4"}},
};

class BadFiles : public testing::TestWithParam<BadFile> {};

TEST_P(BadFiles, AreNamedWithWhatIsWrong) {
  PairCopy pair(source_dir() / "tests/goldens/e4b");
  GetParam().spoil(pair);
  std::vector<std::string> wanted = GetParam().wanted;
  wanted.push_back((pair.dir() / GetParam().file).string());
  Program verifier(
      {"verifier", "--backbone", pair.dir() / "backbone", "--join", "tcp://127.0.0.1:" + std::to_string(free_port())});
  expect_refused(verifier, wanted);
}
INSTANTIATE_TEST_SUITE_P(Each, BadFiles, testing::ValuesIn(kBadFiles),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

TEST(BadInput, AssistantOfAnotherBackbone) {
  const std::string nano = nano_pair().backbone, other = source_dir() / "tests/goldens/e4b/assistant";
  Program drafter({"drafter", "--backbone", nano, "--assistant", other, "--join",
                   "tcp://127.0.0.1:" + std::to_string(free_port())});
  expect_refused(drafter, {other, "is 64", nano, "has 384"});
}

TEST(BadInput, PairThatDoesNotFit) {
  PairCopy pair(source_dir() / "models/nano");
  std::filesystem::remove_all(pair.dir() / "assistant");
  std::filesystem::create_directory_symlink(source_dir() / "tests/goldens/e4b/assistant", pair.dir() / "assistant");
  Program run({"run", "hi", "--model", pair.dir()});
  expect_refused(run, {(pair.dir() / "assistant").string(), "is 64", "has 384"});
  EXPECT_EQ(run.out(), "");
}

TEST(BadInput, TokenizerWithoutMerges) {
  PairCopy pair(source_dir() / "models/nano");
  json tokenizer = json::parse(pair.read("backbone/tokenizer.json"));
  tokenizer["model"].erase("merges");
  pair.write("backbone/tokenizer.json", tokenizer.dump());
  Program run({"run", "hi", "--model", pair.dir()});
  expect_refused(run, {(pair.dir() / "backbone/tokenizer.json").string(), "model.merges", "null", "pairs"});
}

TEST(BadInput, MissingDirectory) {
  Program run({"run", "hi", "--model", "/nowhere"}),
      verifier({"verifier", "--backbone", "/nowhere", "--join", "tcp://127.0.0.1:1"}),
      drafter({"drafter", "--assistant", "/nowhere", "--join", "tcp://127.0.0.1:1"});
  for (Program* program : {&run, &verifier, &drafter}) expect_refused(*program, {"/nowhere", "o such file"});
}

// ---- arguments ----

TEST(BadInput, WordsThatAlmostAreCommandsOrOptions) {
  const auto said = [](const std::vector<std::string>& arguments) {
    Program program(arguments);
    EXPECT_EQ(describe(program.wait()), "exit 2");
    return program.err();
  };
  EXPECT_EQ(said({"rnu", "hi"}), "outrider: no command 'rnu'; 'run' is one; see --help\n");
  EXPECT_EQ(said({"xyzzy"}), "outrider: no command 'xyzzy'; see --help\n");
  EXPECT_EQ(said({"run", "--temprature", "1", "hi"}),
            "outrider: run: no option --temprature; '--temperature' is one; see --help\n");
  EXPECT_EQ(said({"run", "Tell", "me", "a", "story"}),
            "outrider: run: more words than it takes: a text of several goes into quotes; see --help\n");
  EXPECT_EQ(said({"bench", "piar"}), "outrider: bench: no command 'piar'; 'pair' is one; see --help\n");
}

// What is wrong with a command line is said in a line that names the option and what is wanted; the status is 2.
TEST(BadInput, WrongCommandLinesEndWithStatusTwo) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"run"}, "run: give a prompt or --prompt-ids"},
      {{"launch"}, "launch: wanted a PLAN"},
      {{"experiment"}, "experiment: wanted a PLAN.json"},
      {{"validate", "models/nano/backbone"}, "validate: TARGET has no assistant beside it"},
      {{"pack", "a", "b", "-o", "c"}, "pack: give one SRC"},
      {{"serve", "--trace-share", "0.5"}, "--trace-share needs"},
      {{"run", "hi", "--dtype", "int3"}, "--dtype: dtype 'int3', wanted f32, bf16, int8, int4 or q4"},
      {{"run", "hi", "--draft-length", "foo"},
       "--draft-length: draft length 'foo', wanted auto, 0 to 32 or tree:1 to tree:32"},
      {{"run", "hi", "--temperature", "hot"}, "--temperature is 'hot', wanted a number"},
      {{"run", "hi", "--top-k", "many"}, "--top-k is 'many', wanted a whole number"},
      {{"batch", "in.jsonl", "--bogus"}, "batch: no option --bogus"},
      {{"bench"}, "bench: wanted a command: ask, engine, speculative"},
      {{"keys"}, "keys: wanted a command: new, public"},
      {{}, "wanted a command: run, chat, serve"}};
  for (const auto& [words, wanted] : cases) {
    SCOPED_TRACE(wanted);
    Program program(words);
    EXPECT_EQ(describe(program.wait()), "exit 2");
    expect_refused(program, {wanted});
    EXPECT_LT(program.err().size(), 400u) << program.err();
  }
}

TEST(BadInput, APromptWithoutAWord) {
  for (const char* prompt : {"", " \n"}) {
    Program run({"run", "-"}, Program::Input::kWritten);
    run.write(prompt);
    run.end_input();
    expect_refused(run, {"run: the prompt is empty"});
  }
  Program run({"run", "  "});
  expect_refused(run, {"run: the prompt is empty"});
}

TEST(BadInput, AKeyThatIsNotThereAndHowToMakeOne) {
  Program keys({"keys", "public", "--key", "/nowhere/id_outrider"});
  expect_refused(keys, {"there is no private key /nowhere/id_outrider: make one with 'outrider keys new'"});
}

TEST(BadInput, HelpAndVersionAreWordsToo) {
  const auto said = [](const std::vector<std::string>& arguments) {
    Program program(arguments);
    EXPECT_EQ(describe(program.wait()), "exit 0");
    EXPECT_NE(program.out(), "");
    return program.out();
  };
  EXPECT_EQ(said({"help"}), said({"--help"}));
  EXPECT_EQ(said({"help", "bench", "pair"}), said({"bench", "pair", "--help"}));
  EXPECT_EQ(said({"version"}), said({"--version"}));
  EXPECT_LT(said({"version"}).size(), 40u) << "a hash that a person can read out";
  const std::string help = said({"run", "--help"});
  for (const char* part : {"\nModel:", "\nSampling:", "\nDrafts:", "\nCluster:", "\nOutput:", "-m,--model",
                           "-n,--max-tokens", "-s,--seed", "-t,--threads", "\nExamples:"})
    EXPECT_NE(help.find(part), std::string::npos) << part;
  EXPECT_EQ(help.find("Excludes"), std::string::npos);
}

TEST(BadInput, AddressesWithoutAScheme) {
  Program coordinator({"coordinator", "--listen", "foo"});
  expect_refused(coordinator, {"foo", "wanted tcp://HOST:PORT"});
}

/// Expects that every command that takes an address refuses this one, by `reason` too.
void expect_refused_as_address(const std::string& address, const std::string& reason) {
  const std::vector<std::vector<std::string>> commands = {{"coordinator", "--listen", address},
                                                          {"verifier", "--join", address},
                                                          {"drafter", "--join", address},
                                                          {"encoder", "--join", address},
                                                          {"shard", "--join", address},
                                                          {"run", "--connect", address, "hi"},
                                                          {"chat", "--connect", address},
                                                          {"serve", "--connect", address, "--port", "0"},
                                                          {"ready", "--connect", address},
                                                          {"bench", "pair", "--connect", address},
                                                          {"verifier", "--join", "tcp://127.0.0.1:1", "--shards", "2",
                                                           "--listen-shards", address}};
  for (const std::vector<std::string>& command : commands) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(command, " ")));
    Program program(command);
    expect_refused(program, {address, reason});
  }
}

TEST(BadInput, AnIPv6AddressWithoutBracketsIsRefusedByEveryCommandThatTakesOne) {
  expect_refused_as_address("tcp://::1:7070", "with brackets around an IPv6 address");
  Program run({"run", "--connect", "tcp://[::1]:1", "hi"});
  expect_refused(run, {"coordinator tcp://[::1]:1 has not answered"});
}

TEST(BadInput, PromptLongerThanTheContext) {
  std::string ids = "2";
  for (int i = 0; i < 8192; ++i) ids += ",105";
  Program run({"run", "--prompt-ids", ids});
  expect_refused(run, {"8193", "8192"});
}

TEST(BadInput, PromptIdOutsideTheVocabulary) {
  Program run({"run", "--prompt-ids", "2,105,8192"});
  expect_refused(run, {"8192", "vocabulary"});
}

// A table stays in its file, and is not read when the model is loaded.
TEST(BadInput, ANumberOfATableThatIsNotFiniteFailsTheRequestsThatReadIt) {
  PairCopy pair(source_dir() / "models/nano");
  std::string bytes = pair.read(kWeights);
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
  const json table = header_of(bytes)["model.language_model.embed_tokens_per_layer.weight"];
  const std::size_t width = table["shape"][1], first = table["data_offsets"][0];
  const std::uint16_t nan = 0x7fc0;
  std::memcpy(bytes.data() + sizeof header_bytes + header_bytes + first + (105 * width + 7) * sizeof nan, &nan,
              sizeof nan);
  pair.write(kWeights, bytes);
  for (const char* type : {"f32", "bf16", "int8", "int4", "q4"}) {
    for (const char* ids : {"2,105", "2,300"}) {
      Program run({"run", "--prompt-ids", ids, "--model", pair.dir(), "--dtype", type, "--max-tokens", "1"});
      EXPECT_EQ(describe(run.wait()), ids == std::string("2,105") ? "exit 1" : "exit 0") << type << ", " << ids;
    }
  }
}

TEST(BadInput, PromptIdsThatAreNone) {
  for (const char* ids : {"2,105x", "two", "2,,105", "-1", "99999999999", "2 105"}) {
    SCOPED_TRACE(ids);
    Program run({"run", std::string("--prompt-ids=") + ids});
    expect_refused(run, {"--prompt-ids", "wanted token ids"});
  }
}

TEST(BadInput, UnknownWeightType) {
  Program run({"run", "hi", "--dtype", "f64"});
  expect_refused(run, {"f64", "wanted f32, bf16, int8, int4 or q4"});
}

TEST(BadInput, UnknownInstructionSetOrGemm) {
  for (const auto& [variable, wanted] :
       {std::pair{"OUTRIDER_ISA", "OUTRIDER_ISA=fast, wanted scalar, avx2, avx2_vnni, avx512 or amx"},
        std::pair{"OUTRIDER_GEMM", "OUTRIDER_GEMM=fast, wanted onednn or own"}}) {
    setenv(variable, "fast", 1);
    Program program({"doctor"});
    unsetenv(variable);
    expect_refused(program, {wanted});
  }
}

TEST(BadInput, OptionsOfWorkersBesideACoordinatorElsewhere) {
  for (const char* command : {"run", "chat", "serve", "ready"}) {
    for (const auto& [option, value] :
         {std::pair("--dtype", "int8"), std::pair("--threads", "1"), std::pair("--assistant", "/nowhere")}) {
      Program program({command, "--connect", "tcp://127.0.0.1:1", option, value});
      expect_refused(program, {"--connect", option});
    }
  }
  for (const char* option : {"--added-draft-us", "--added-verify-us", "--drafter-threads"}) {
    Program bench({"bench", "pair", "--connect", "tcp://127.0.0.1:1", option, "1"});
    expect_refused(bench, {"--connect", option});
  }
}

TEST(BadInput, MoreRatesThanARoundHasDrafts) {
  std::vector<std::string> command = {"bench", "speculative", "--shape", "nano", "--synthetic-acceptance"};
  command.insert(command.end(), 33, "0.5");
  Program bench(command);
  expect_refused(bench, {"33 rates, wanted at most 32"});
}

TEST(BadInput, RecordedAnswersThatAreNotThere) {
  Program missing({"ready", "--golden", "/nowhere/golden.json"});
  expect_refused(missing, {"/nowhere/golden.json", "No such file"});
  const TemporaryDir dir;
  Program empty({"ready", "--golden", dir.write("golden.json", "").string()});
  expect_refused(empty, {"golden.json", "wanted a list of objects"});
}

TEST(BadInput, DraftTablesThatAreNone) {
  const TemporaryDir dir;
  for (const auto& [path, why] :
       {std::pair(dir / "missing.table", "No such file"), std::pair(dir.write("empty.table", ""), "0 bytes"),
        std::pair(dir.write("text.table", std::string(100, 'x')), "not a draft table")}) {
    Program coordinator({"coordinator", "--listen", "tcp://127.0.0.1:*", "--draft-table", path.string()});
    expect_refused(coordinator, {path.string(), why});
    EXPECT_EQ(coordinator.out(), "") << "nobody may connect to it";
    Program run({"run", "hi", "--draft-table", path.string()});
    expect_refused(run, {path.string(), why});
  }
}

TEST(BadInput, TablesThatCannotBeBaked) {
  const std::string model = (source_dir() / "models/nano").string();
  const TemporaryDir dir;
  const std::string questions = dir.write("questions.jsonl", R"({"category": "a", "turns": ["Hi"]})").string();
  Program nowhere({"bake-table", model, questions, "--out", "/nowhere/x.table"});
  expect_refused(nowhere, {"/nowhere/x.table", "the folder does not exist"});
  Program other({"bake-table", model, dir.write("list.txt", "Hi there").string(), "--out", (dir / "x.table").string()});
  expect_refused(other, {"list.txt, line 1", "turns"});
}

TEST(BadInput, AddressesThatMakeNoSense) {
  for (const char* address : {"nonsense", "tcp://127.0.0.1:99999", "tcp://127.0.0.1"}) {
    SCOPED_TRACE(address);
    Program run({"run", "hi", "--connect", address}), coordinator({"coordinator", "--listen", address}),
        drafter({"drafter", "--join", address}), verifier({"verifier", "--join", address});
    for (Program* program : {&run, &coordinator, &drafter, &verifier}) expect_refused(*program, {address});
  }
}

// A command is a process of its own: it would listen, or dial, for ever.
TEST(BadInput, AddressesWithinOneProcess) { expect_refused_as_address("inproc://here", "wanted tcp://HOST:PORT"); }

TEST(BadInput, PortInUse) {
  Coordinator first;
  Program second({"coordinator", "--listen", first.address});
  expect_refused(second, {first.address, "in use"});
  EXPECT_EQ(second.out(), "");
  EXPECT_TRUE(first.program.running());
}

// ---- peers ----

TEST(BadInput, CoordinatorUnreachable) {
  const std::string nobody = "tcp://127.0.0.1:" + std::to_string(free_port());
  Program run({"run", "hi", "--connect", nobody});
  expect_refused(run, {nobody, "has not answered"});
}

/// The frame of a heartbeat in another protocol version.
std::string foreign_heartbeat() {
  flatbuffers::FlatBufferBuilder builder;
  wire::FinishEnvelopeBuffer(builder,
                             wire::CreateEnvelope(builder, kProtocolVersion + 1, 1, 0, 0, 0, wire::Body::Heartbeat,
                                                  wire::CreateHeartbeat(builder).Union()));
  return {reinterpret_cast<const char*>(builder.GetBufferPointer()), builder.GetSize()};
}

/// A coordinator that answers whatever it hears in another protocol version.
class ForeignCoordinator {
 public:
  ForeignCoordinator() : socket_(context_, zmq::socket_type::router) {
    socket_.set(zmq::sockopt::linger, 0);
    socket_.bind("tcp://127.0.0.1:*");
    address = socket_.get(zmq::sockopt::last_endpoint);
  }
  /// Answers until `done`.
  void serve(const std::function<bool()>& done) {
    EXPECT_TRUE(eventually([&] {
      zmq::message_t peer, frame;
      if (socket_.recv(peer, zmq::recv_flags::dontwait)) {
        for (bool more = peer.more(); more; more = frame.more()) (void)socket_.recv(frame);
        socket_.send(peer, zmq::send_flags::sndmore);
        socket_.send(zmq::buffer(foreign_heartbeat()), zmq::send_flags::none);
      }
      return done();
    }));
  }
  std::string address;

 private:
  zmq::context_t context_;
  zmq::socket_t socket_;
};

const std::vector<std::string> kBothVersions = {"version " + std::to_string(kProtocolVersion + 1),
                                                "speaks " + std::to_string(kProtocolVersion)};

TEST(BadPeer, CoordinatorOfAnotherVersionEndsRun) {
  ForeignCoordinator coordinator;
  Program run({"run", "hi", "--connect", coordinator.address});
  coordinator.serve([&] { return !run.running(); });
  expect_refused(run, kBothVersions);
}

TEST(BadPeer, WorkersSayThatTheCoordinatorIsOfAnotherVersion) {
  ForeignCoordinator coordinator;
  Program verifier({"verifier", "--join", coordinator.address}), drafter({"drafter", "--join", coordinator.address});
  const auto told = [](Program& program) {
    return !lines_with(program.err(), kBothVersions).empty() || !program.running();
  };
  coordinator.serve([&] { return told(verifier) && told(drafter); });
  for (Program* program : {&verifier, &drafter}) {
    EXPECT_FALSE(lines_with(program->err(), kBothVersions).empty()) << program->err();
    program->send(SIGTERM);
    EXPECT_FALSE(program->wait().signal) << program->err();
  }
}

TEST(BadPeer, CoordinatorTellsAPeerOfAnotherVersion) {
  Coordinator coordinator;
  zmq::context_t context;
  zmq::socket_t peer(context, zmq::socket_type::dealer);
  peer.set(zmq::sockopt::linger, 0);
  peer.connect(coordinator.address);
  peer.send(zmq::buffer(foreign_heartbeat()), zmq::send_flags::none);
  zmq::message_t frame;
  ASSERT_TRUE(eventually([&] { return peer.recv(frame, zmq::recv_flags::dontwait).has_value(); }));

  const auto owner =
      std::make_shared<std::vector<std::byte>>(frame.data<std::byte>(), frame.data<std::byte>() + frame.size());
  const std::vector<SharedBytes> frames = {SharedBytes(owner, *owner)};
  const Result<Message> message = decode(frames);
  ASSERT_TRUE(message) << message.error().message;
  const auto* refuse = std::get_if<Refuse>(&message->body);
  ASSERT_NE(refuse, nullptr) << name_of(*message);
  EXPECT_EQ(refuse->code, Errc::kVersionMismatch);
  EXPECT_EQ(lines_with(refuse->message, kBothVersions).size(), 1u) << refuse->message;
  EXPECT_EQ(lines_with(coordinator.program.err(), kBothVersions).size(), 1u) << coordinator.program.err();
}

std::string random_bytes(std::mt19937_64& engine, std::size_t size) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(engine());
  return bytes;
}

/// Opens a connection, says `bytes`, and goes.
void shout(const std::string& address, const std::string& bytes) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to), 0) << std::strerror(errno);
  (void)!send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);  // it may have hung up already
  close(fd);
}

TEST(BadPeer, RandomBytesDoNotDisturbAStory) {
  constexpr std::int64_t kStory = 200;
  Trio trio;
  Client client = trio.client(1, 1);
  const std::string address = trio.coordinator->address;
  zmq::context_t context;
  zmq::socket_t peer(context, zmq::socket_type::dealer);
  peer.set(zmq::sockopt::linger, 0);
  peer.connect(address);
  std::mt19937_64 engine(2);

  int shouts = 0;
  const auto generation = client.generate(story_request(kStory, 4), [&](std::span<const TokenId>) {
    ++shouts;
    shout(address, random_bytes(engine, 1 + engine() % 4096));  // not even ZeroMQ's protocol
    // ZeroMQ's protocol, but not our message; every other one opens like one.
    const std::string start = engine() % 2 == 0 ? "" : foreign_heartbeat().substr(0, 16);
    const bool two_frames = engine() % 2 == 0;
    peer.send(zmq::buffer(start + random_bytes(engine, engine() % 256)),
              two_frames ? zmq::send_flags::sndmore : zmq::send_flags::none);
    if (two_frames) peer.send(zmq::buffer(random_bytes(engine, engine() % 256)), zmq::send_flags::none);
  });
  ASSERT_TRUE(generation) << generation.error().message;
  EXPECT_GT(shouts, 10);
  EXPECT_EQ(generation->tokens, answer(client, story_request(kStory, 0)).tokens);
  EXPECT_GT(generation->metrics.accepted_tokens, 0);
  EXPECT_FALSE(lines_with(trio.coordinator->program.err(), {" warning: ", "bad_frame"}).empty())
      << trio.coordinator->program.err();
  for (Program* program : {trio.drafter.get(), trio.verifier.get(), &trio.coordinator->program})
    EXPECT_TRUE(program->running());
}

TEST(BadPeer, ClientWithAnotherTokenizerIsRefused) {
  Trio trio(/*with_drafter=*/false);
  PairCopy pair(source_dir() / "models/nano");
  json tokenizer = json::parse(pair.read("backbone/tokenizer.json"));
  json& vocab = tokenizer["model"]["vocab"];
  std::swap(vocab["a"], vocab["b"]);
  pair.write("backbone/tokenizer.json", tokenizer.dump());
  Program run({"run", "hi", "--model", pair.dir(), "--connect", trio.coordinator->address});
  expect_refused(run, {"tokenizer fingerprint", "the model's is", "the client's"});
  EXPECT_EQ(run.out(), "");
}

TEST(BadPeer, DrafterThatDoesNotFitTheVerifierIsRefused) {
  Trio trio(/*with_drafter=*/false);
  const std::string& address = trio.coordinator->address;
  Program other_type({"drafter", "--dtype", "f32", "--join", address, "--exit-when-refused"});
  expect_refused(other_type, {"verifier has BF16", "drafter has F32"});
  Program other_backbone(
      {"drafter", "--model", source_dir() / "tests/goldens/e4b", "--join", address, "--exit-when-refused"});
  expect_refused(other_backbone, {"vocab_size", "verifier has 8192", "drafter has 512"});
  EXPECT_EQ(trio.warnings().size(), 2u) << trio.coordinator->program.err();
  EXPECT_EQ(trio.status().drafters, 0);
}

// Whoever came first need not be the right one: when a stranger goes, all others are still there.
TEST(BadPeer, AVerifierOfAnotherModelDrivesNobodyAway) {
  Coordinator coordinator;
  TransportContext context;
  auto stranger = std::make_unique<Program>(std::vector<std::string>{
      "verifier", "--model", source_dir() / "tests/goldens/e4b", "--join", coordinator.address});
  connect_when_joined(context, coordinator.address, 1, 0);
  Program verifier({"verifier", "--join", coordinator.address}), drafter({"drafter", "--join", coordinator.address});
  for (Program* program : {&verifier, &drafter}) {
    EXPECT_TRUE(eventually([&] { return !lines_with(program->err(), {"refused us", "vocab_size"}).empty(); }));
    EXPECT_TRUE(program->running());
  }
  stranger->send(SIGKILL);
  Client client = connect_when_joined(context, coordinator.address, 1, 1);
  EXPECT_EQ(answer(client, story_request(50, 4)).tokens.size(), 50u);

  // Now that the right ones have met, it is the stranger who is refused, even when it comes first again.
  drafter.send(SIGTERM);
  verifier.send(SIGTERM);
  ASSERT_TRUE(eventually([&] { return status_of(context, coordinator.address).verifiers == 0; }));
  Program again({"verifier", "--model", source_dir() / "tests/goldens/e4b", "--join", coordinator.address,
                 "--exit-when-refused"});
  expect_refused(again, {"verifier has 8192", "this verifier has 512"});
}

TEST(BadPeer, DrafterThatCameBeforeItsVerifierIsRefusedLikewise) {
  Coordinator coordinator;
  TransportContext context;
  Program drafter({"drafter", "--dtype", "f32", "--join", coordinator.address, "--exit-when-refused"});
  connect_when_joined(context, coordinator.address, 0, 1);
  Program verifier({"verifier", "--join", coordinator.address});
  expect_refused(drafter, {"verifier has BF16", "drafter has F32"});
  EXPECT_TRUE(verifier.running());
}

}  // namespace
}  // namespace outrider
