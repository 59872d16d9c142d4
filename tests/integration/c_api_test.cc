// The C interface, through the shared library alone.
#include <outrider.h>

#include <stdlib.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <utility>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/program.h"
#include "tests/support/temporary_dir.h"

namespace outrider {
namespace {
namespace fs = std::filesystem;
using Tokens = std::vector<std::int32_t>;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t kGoldenStep = 12;
#else
constexpr std::size_t kGoldenStep = 4;
#endif
constexpr std::size_t kAnswerMax = 96;

struct Golden {
  Tokens prompt, greedy;
  std::string user, text;
};

const std::vector<Golden>& goldens() {
  static const std::vector<Golden> chosen = [] {
    std::ifstream file(fs::path(OUTRIDER_SOURCE_DIR) / "tests/goldens/nano/generate_golden.json");
    const nlohmann::json all = nlohmann::json::parse(file);
    std::vector<Golden> some;
    for (std::size_t i = 0; i < all.size(); i += kGoldenStep) {
      some.push_back({all[i].at("prompt_ids"), all[i].at("greedy"), all[i].at("prompt"), all[i].at("text")});
    }
    return some;
  }();
  return chosen;
}

std::string nano(const char* part) { return fs::path(OUTRIDER_SOURCE_DIR) / "models/nano" / part; }

using PairHandle = std::unique_ptr<outrider_pair, decltype(&pair_close)>;
using SessionHandle = std::unique_ptr<outrider_session, decltype(&pair_session_close)>;

PairHandle open_nano(const std::string& target = nano("backbone"), bool assistant = true) {
  outrider_pair* pair = nullptr;
  outrider_error error;
  EXPECT_EQ(pair_open_local(target.c_str(), assistant ? nano("assistant").c_str() : nullptr, "f32", 0, &pair, &error),
            OUTRIDER_OK)
      << error.message;
  return {pair, pair_close};
}

PairHandle open_coordinator(const std::string& address) {
  outrider_pair* pair = nullptr;
  outrider_error error;
  EXPECT_EQ(pair_open_remote(address.c_str(), nano("backbone").c_str(), &pair, &error), OUTRIDER_OK) << error.message;
  return {pair, pair_close};
}

/// One text and what was written of it. A failed step fails the test.
class Text {
 public:
  explicit Text(outrider_pair* pair) : session_(nullptr, pair_session_close) {
    outrider_session* session = nullptr;
    EXPECT_EQ(pair_session_open(pair, &session, &error_), OUTRIDER_OK) << error_.message;
    session_.reset(session);
  }

  void prefill(const Tokens& prompt) {
    tokens.assign(1, -1);
    EXPECT_EQ(pair_prefill(get(), prompt.data(), prompt.size(), tokens.data(), &error_), OUTRIDER_OK) << error_.message;
  }
  Tokens draft(std::size_t count) {
    Tokens drafts(count, -1);
    std::size_t drafted = 0;
    EXPECT_EQ(pair_draft_tokens(get(), count, drafts.data(), &drafted, &error_), OUTRIDER_OK) << error_.message;
    EXPECT_EQ(drafted == 0, note().find("no candidates") == 0) << note();
    drafts.resize(drafted);
    return drafts;
  }
  /// @return how many were accepted.
  std::size_t verify(const Tokens& drafts) {
    std::size_t accepted = 99;
    std::int32_t next = -1;
    EXPECT_EQ(pair_verify_tokens(get(), drafts.data(), drafts.size(), &accepted, &next, &error_), OUTRIDER_OK)
        << error_.message;
    if (testing::Test::HasFailure()) return 0;
    tokens.insert(tokens.end(), drafts.begin(), drafts.begin() + static_cast<std::ptrdiff_t>(accepted));
    tokens.push_back(next);
    return accepted;
  }
  void decode_one() {
    tokens.push_back(-1);
    EXPECT_EQ(pair_decode_one(get(), &tokens.back(), &error_), OUTRIDER_OK) << error_.message;
  }
  /// One round of `draft_length`; 0: plain.
  void round(std::size_t draft_length) {
    if (draft_length == 0) return decode_one();
    const Tokens drafts = draft(draft_length);
    verify(drafts);
  }
  /// Whether as much is written as the golden has. Steps do not stop at a stop token, so more may be.
  bool reached(const Golden& golden) const {
    return tokens.size() >= golden.greedy.size() || testing::Test::HasFailure();
  }
  Tokens first(std::size_t count) const {
    return {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(std::min(count, tokens.size()))};
  }

  outrider_session* get() { return session_.get(); }
  std::string note() const { return error_.message; }

  Tokens tokens;

 private:
  SessionHandle session_;
  outrider_error error_{};
};

struct Answer {
  Tokens tokens, streamed;
  std::string text;
  std::size_t stop_after = SIZE_MAX;  ///< in: tokens
  outrider_generation generation = OUTRIDER_GENERATION_INIT;
};

int on_tokens(void* user, const std::int32_t* tokens, std::size_t count, const char* text, std::size_t bytes) {
  auto& answer = *static_cast<Answer*>(user);
  answer.streamed.insert(answer.streamed.end(), tokens, tokens + count);
  answer.text.append(text, bytes);
  return answer.streamed.size() >= answer.stop_after ? 1 : 0;
}

void generate(outrider_pair* pair, const Tokens& prompt, std::int32_t draft_length, Answer* answer) {
  outrider_generate_options options = OUTRIDER_GENERATE_OPTIONS_INIT;
  options.max_tokens = kAnswerMax;
  options.draft_length = draft_length;
  options.on_tokens = on_tokens;
  options.user = answer;
  answer->tokens.resize(kAnswerMax);
  outrider_error error;
  ASSERT_EQ(pair_generate_speculative(pair, prompt.data(), prompt.size(), &options, answer->tokens.data(),
                                      answer->tokens.size(), &answer->generation, &error),
            OUTRIDER_OK)
      << error.message;
  answer->tokens.resize(answer->generation.token_count);
}

void expect_goldens(outrider_pair* pair) {
  for (const Golden& golden : goldens()) {
    for (const std::int32_t draft_length : {0, 1, 4}) {
      SCOPED_TRACE(testing::Message() << "draft length " << draft_length << ", prompt: " << golden.user);
      Answer answer;
      generate(pair, golden.prompt, draft_length, &answer);
      EXPECT_EQ(answer.tokens, golden.greedy);
      EXPECT_EQ(answer.streamed, golden.greedy);
      EXPECT_EQ(answer.text, golden.text);
      EXPECT_EQ(answer.generation.finish,
                golden.greedy.size() < kAnswerMax ? OUTRIDER_FINISH_STOP : OUTRIDER_FINISH_LENGTH);
      EXPECT_EQ(answer.generation.drafted_tokens > 0, draft_length > 0);
      EXPECT_GT(answer.generation.speculative_tok_per_sec, 0);

      Text text(pair);
      text.prefill(golden.prompt);
      while (!text.reached(golden)) text.round(static_cast<std::size_t>(draft_length));
      EXPECT_EQ(text.first(golden.greedy.size()), golden.greedy);
    }
  }
}

TEST(CApi, LocalPairWritesTheGoldenTokens) { expect_goldens(open_nano().get()); }

/// A coordinator as a process, alone.
struct Coordinator {
  Coordinator() : coordinator({"coordinator", "--listen", "tcp://127.0.0.1:*"}) {
    EXPECT_TRUE(
        eventually([&] { return coordinator.out().find('\n') != std::string::npos || !coordinator.running(); }));
    address = coordinator.out().substr(0, coordinator.out().find('\n'));
  }
  Program coordinator;
  std::string address;
};

/// Verifier and drafter beside it.
struct Roles : Coordinator {
  Roles() {
    verifier = std::make_unique<Program>(std::vector<std::string>{"verifier", "--join", address, "--dtype", "f32"});
    drafter = std::make_unique<Program>(std::vector<std::string>{"drafter", "--join", address, "--dtype", "f32"});
    EXPECT_TRUE(eventually([&] { return lines_with(coordinator.err(), {"joined as"}).size() == 2; }))
        << coordinator.err();
  }
  std::unique_ptr<Program> verifier, drafter;
};

struct LogAtInfo {
  LogAtInfo() { setenv("OUTRIDER_LOG", "info", 1); }
  ~LogAtInfo() { unsetenv("OUTRIDER_LOG"); }
};

TEST(CApi, RemotePairWritesTheGoldenTokens) {
  LogAtInfo log;
  Roles roles;
  expect_goldens(open_coordinator(roles.address).get());
}

TEST(CApi, ADeadDrafterGivesNoCandidatesAndADeadVerifierAnError) {
  LogAtInfo log;
  Roles roles;
  const PairHandle pair = open_coordinator(roles.address);
  const Golden& golden = *std::max_element(goldens().begin(), goldens().end(), [](const Golden& a, const Golden& b) {
    return a.greedy.size() < b.greedy.size();
  });
  Text text(pair.get());
  text.prefill(golden.prompt);
  text.round(4);
  EXPECT_GT(text.tokens.size(), 1u);
  roles.drafter->send(SIGKILL);
  roles.drafter->wait();
  EXPECT_TRUE(text.draft(4).empty());
  while (!text.reached(golden)) text.round(4);
  EXPECT_EQ(text.first(golden.greedy.size()), golden.greedy);

  roles.verifier->send(SIGKILL);
  roles.verifier->wait();
  for (int again = 0; again < 2; ++again) {  // the reason stays
    std::size_t accepted = 99;
    std::int32_t next = -1;
    outrider_error error;
    EXPECT_EQ(pair_verify_tokens(text.get(), golden.greedy.data(), 2, &accepted, &next, &error), OUTRIDER_PEER_GONE);
    EXPECT_EQ(std::string(error.message).find("the verifier "), 0u) << error.message;
    EXPECT_EQ(accepted, 99u);
  }
  std::int32_t first = -1;
  outrider_error error;
  roles.coordinator.send(SIGKILL);
  roles.coordinator.wait();
  EXPECT_EQ(pair_prefill(text.get(), golden.prompt.data(), golden.prompt.size(), &first, &error), OUTRIDER_PEER_GONE)
      << error.message;
}

TEST(CApi, WhateverIsVerifiedTheTextIsThatOfPlainDecoding) {
  const PairHandle pair = open_nano();
  std::mt19937 random(1);
  std::size_t accepted = 0;
  for (const Golden& golden : goldens()) {
    Text text(pair.get());
    text.prefill(golden.prompt);
    while (!text.reached(golden)) {
      // Sometimes the future, sometimes half of it, mostly garbage; with and without having asked for drafts.
      if (random() % 2 == 0) text.draft(1 + random() % 8);
      Tokens drafts(random() % 33);
      const std::size_t right = random() % 3 == 0 ? random() % 9 : 0;
      for (std::size_t i = 0; i < drafts.size(); ++i) {
        const std::size_t at = text.tokens.size() + i;
        drafts[i] =
            i < right && at < golden.greedy.size() ? golden.greedy[at] : static_cast<std::int32_t>(random() % 6000);
      }
      accepted += text.verify(drafts);
    }
    EXPECT_EQ(text.first(golden.greedy.size()), golden.greedy) << golden.user;
  }
  EXPECT_GT(accepted, 0u);
}

TEST(CApi, SessionsDoNotDisturbEachOther) {
  const PairHandle pair = open_nano();
  std::vector<std::unique_ptr<Text>> texts;
  for (const Golden& golden : goldens()) {
    texts.push_back(std::make_unique<Text>(pair.get()));
    texts.back()->prefill(golden.prompt);
  }
  // In turns, and other threads beside them.
  std::vector<Answer> answers(goldens().size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < 2; ++i)
      threads.emplace_back([&, i] { generate(pair.get(), goldens()[i].prompt, 4, &answers[i]); });
    for (bool all = false; !all;) {
      all = true;
      for (std::size_t i = 0; i < texts.size(); ++i) {
        if (texts[i]->reached(goldens()[i])) continue;
        texts[i]->round(i % 5);
        all = false;
      }
    }
  }
  for (std::size_t i = 0; i < texts.size(); ++i)
    EXPECT_EQ(texts[i]->first(goldens()[i].greedy.size()), goldens()[i].greedy);
  for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(answers[i].tokens, goldens()[i].greedy);
  // A session takes another text at any time.
  texts[0]->prefill(goldens()[1].prompt);
  while (!texts[0]->reached(goldens()[1])) texts[0]->round(2);
  EXPECT_EQ(texts[0]->first(goldens()[1].greedy.size()), goldens()[1].greedy);
}

TEST(CApi, HandlesCloseInAnyOrder) {
  PairHandle pair = open_nano();
  Text first(pair.get()), second(pair.get());
  auto third = std::make_unique<Text>(pair.get());
  first.prefill(goldens()[0].prompt);
  second.prefill(goldens()[0].prompt);
  third->prefill(goldens()[0].prompt);
  third.reset();
  pair.reset();
  while (!first.reached(goldens()[0])) first.round(4);
  EXPECT_EQ(first.first(goldens()[0].greedy.size()), goldens()[0].greedy);
  pair_close(nullptr);
  pair_session_close(nullptr);
}

TEST(CApi, WithoutAnAssistantDecodingIsPlain) {
  const PairHandle pair = open_nano(nano("backbone"), /*assistant=*/false);
  const Golden& golden = goldens()[0];
  Text text(pair.get());
  text.prefill(golden.prompt);
  while (!text.reached(golden)) {
    EXPECT_TRUE(text.draft(4).empty());
    text.decode_one();
  }
  EXPECT_EQ(text.first(golden.greedy.size()), golden.greedy);
  Answer answer;
  generate(pair.get(), golden.prompt, 4, &answer);
  EXPECT_EQ(answer.tokens, golden.greedy);
  EXPECT_EQ(answer.generation.drafted_tokens, 0);
}

TEST(CApi, TheCallbackStopsAnAnswer) {
  const PairHandle pair = open_nano();
  const Golden& golden = goldens()[0];
  Answer answer;
  answer.stop_after = 3;
  generate(pair.get(), golden.prompt, 4, &answer);
  EXPECT_EQ(answer.generation.finish, OUTRIDER_FINISH_CALLER);
  EXPECT_GE(answer.tokens.size(), 3u);
  EXPECT_LE(answer.tokens.size(), 3u + 4u);
  EXPECT_EQ(answer.tokens, answer.streamed);
  EXPECT_EQ(answer.tokens,
            Tokens(golden.greedy.begin(), golden.greedy.begin() + static_cast<std::ptrdiff_t>(answer.tokens.size())));
}

TEST(CApi, StopTokensAndIgnoringThem) {
  const PairHandle pair = open_nano();
  const auto golden = std::find_if(goldens().begin(), goldens().end(),
                                   [](const Golden& g) { return g.greedy.size() > 4 && g.greedy.size() < kAnswerMax; });
  ASSERT_NE(golden, goldens().end());
  EXPECT_EQ(outrider_is_stop_token(pair.get(), golden->greedy.back()), 1);
  EXPECT_EQ(outrider_is_stop_token(pair.get(), golden->greedy[0]), 0);
  EXPECT_EQ(outrider_is_stop_token(nullptr, 1), 0);
  outrider_generate_options options = OUTRIDER_GENERATE_OPTIONS_INIT;
  options.max_tokens = kAnswerMax;
  outrider_generation generation = OUTRIDER_GENERATION_INIT;
  options.stop_tokens = &golden->greedy[2];
  options.stop_token_count = 1;
  Tokens tokens(kAnswerMax);
  const auto run = [&] {
    return pair_generate_speculative(pair.get(), golden->prompt.data(), golden->prompt.size(), &options, tokens.data(),
                                     tokens.size(), &generation, nullptr);
  };
  ASSERT_EQ(run(), OUTRIDER_OK);
  EXPECT_LE(generation.token_count, 3u);
  EXPECT_EQ(tokens[generation.token_count - 1], golden->greedy[2]);
  options.ignore_stop_tokens = 1;
  ASSERT_EQ(run(), OUTRIDER_OK);
  EXPECT_EQ(generation.token_count, kAnswerMax);
  EXPECT_EQ(generation.finish, OUTRIDER_FINISH_LENGTH);
}

TEST(CApi, AFullContextEndsTheText) {
  const TemporaryDir dir;
  for (const auto& file : fs::directory_iterator(nano("backbone")))
    fs::create_symlink(file.path(), dir / file.path().filename());
  nlohmann::json config = nlohmann::json::parse(std::ifstream(nano("backbone/config.json")));
  const std::size_t context = goldens()[0].prompt.size() + 10;
  config["text_config"]["max_position_embeddings"] = context;
  fs::remove(dir / "config.json");  // the link
  dir.write("config.json", config.dump());

  const PairHandle pair = open_nano(dir.path());
  Text text(pair.get());
  text.prefill(goldens()[0].prompt);
  // The last token needs no K/V, so it may stand one beyond.
  while (goldens()[0].prompt.size() + text.tokens.size() < context + 1 && !HasFailure()) text.round(4);
  EXPECT_EQ(goldens()[0].prompt.size() + text.tokens.size(), context + 1);
  std::int32_t next = -1;
  outrider_error error;
  EXPECT_EQ(pair_decode_one(text.get(), &next, &error), OUTRIDER_OUT_OF_RANGE);
  EXPECT_STREQ(error.message, "the text has filled the context");
  EXPECT_EQ(pair_decode_one(text.get(), &next, &error), OUTRIDER_OUT_OF_RANGE);
  const Tokens long_prompt(context + 1, 5);
  EXPECT_EQ(pair_prefill(text.get(), long_prompt.data(), long_prompt.size(), &next, &error), OUTRIDER_OUT_OF_RANGE)
      << error.message;
  text.prefill(goldens()[0].prompt);
  text.round(4);
}

TEST(CApi, TextHelpers) {
  const PairHandle pair = open_nano();
  const Golden& golden = goldens()[0];
  outrider_error error;
  std::size_t count = 0;
  EXPECT_EQ(outrider_encode_user_turn(pair.get(), golden.user.data(), golden.user.size(), nullptr, 0, &count, &error),
            OUTRIDER_OUT_OF_RANGE);
  ASSERT_EQ(count, golden.prompt.size());
  Tokens tokens(count);
  EXPECT_EQ(outrider_encode_user_turn(pair.get(), golden.user.data(), golden.user.size(), tokens.data(), count, &count,
                                      &error),
            OUTRIDER_OK);
  EXPECT_EQ(tokens, golden.prompt);
  EXPECT_STREQ(error.message, "");

  std::size_t bytes = 0;
  EXPECT_EQ(outrider_decode_tokens(pair.get(), golden.greedy.data(), golden.greedy.size(), nullptr, 0, &bytes, &error),
            OUTRIDER_OUT_OF_RANGE);
  ASSERT_EQ(bytes, golden.text.size());
  std::vector<char> text(bytes + 1, 'x');
  EXPECT_EQ(outrider_decode_tokens(pair.get(), golden.greedy.data(), golden.greedy.size(), text.data(), bytes, &bytes,
                                   &error),
            OUTRIDER_OUT_OF_RANGE);
  EXPECT_EQ(text[0], 'x');
  EXPECT_EQ(outrider_decode_tokens(pair.get(), golden.greedy.data(), golden.greedy.size(), text.data(), bytes + 1,
                                   &bytes, &error),
            OUTRIDER_OK);
  EXPECT_EQ(text.data(), golden.text);
  const std::int32_t strange[] = {-1, INT32_MAX, 1 << 20};
  EXPECT_EQ(outrider_decode_tokens(pair.get(), strange, 3, text.data(), text.size(), &bytes, &error), OUTRIDER_OK);
  EXPECT_EQ(bytes, 0u);
}

TEST(CApi, PrefillEndsTheTextBeforeWhateverComesOfIt) {
  const PairHandle pair = open_nano(nano("backbone"), /*assistant=*/false);
  Text text(pair.get());
  const Tokens& prompt = goldens()[0].prompt;
  const Tokens negative = {2, -1}, beyond = {2, 1 << 30};
  std::int32_t token = 0;
  const std::function<outrider_status()> failures[] = {
      [&] { return pair_prefill(text.get(), negative.data(), 2, &token, nullptr); },
      [&] { return pair_prefill(text.get(), beyond.data(), 2, &token, nullptr); },
      [&] { return pair_prefill(text.get(), prompt.data(), 0, &token, nullptr); },
      [&] { return pair_prefill(text.get(), prompt.data(), SIZE_MAX, &token, nullptr); },
      [&] { return pair_prefill(text.get(), nullptr, 2, &token, nullptr); },
      [&] { return pair_prefill(text.get(), prompt.data(), 2, nullptr, nullptr); }};
  for (const auto& fails : failures) {
    text.prefill(prompt);
    text.round(0);
    EXPECT_EQ(fails(), OUTRIDER_INVALID_ARGUMENT);
    outrider_error error;
    EXPECT_EQ(pair_decode_one(text.get(), &token, &error), OUTRIDER_INVALID_ARGUMENT);
    EXPECT_STREQ(error.message, "there is no text yet: prefill comes first");
  }
}

TEST(CApi, AUserTurnIsWrittenAsTheTemplateDoes) {
  const TemporaryDir dir;
  for (const auto& file : fs::directory_iterator(nano("backbone")))
    fs::create_symlink(file.path(), dir / file.path().filename());
  // What a template of the large models is recognised by: their answers start with an empty thought.
  dir.write("chat_template.jinja",
            R"(<|turn> <|tool_call>call: continue_same_model_turn <|channel>thought\n<channel|>)");
  Program run({"run", "hello", "--backbone", dir.path(), "--assistant", nano("assistant"), "--draft-length", "0",
               "--max-tokens", "1", "--json"});
  EXPECT_EQ(describe(run.wait()), "exit 0");
  const Tokens expected = nlohmann::json::parse(run.out())["prompt_ids"];

  const PairHandle pair = open_nano(dir.path(), /*assistant=*/false);
  Tokens tokens(100);
  std::size_t count = 0;
  ASSERT_EQ(outrider_encode_user_turn(pair.get(), "hello", 5, tokens.data(), tokens.size(), &count, nullptr),
            OUTRIDER_OK);
  tokens.resize(count);
  EXPECT_EQ(tokens, expected);
  std::size_t small = 0;
  const PairHandle plain = open_nano(nano("backbone"), /*assistant=*/false);
  EXPECT_EQ(outrider_encode_user_turn(plain.get(), "hello", 5, nullptr, 0, &small, nullptr), OUTRIDER_OUT_OF_RANGE);
  EXPECT_LT(small, count);
}

/// Misuse is an error that names it, and changes nothing.
class Misuse : public testing::Test {
 protected:
  void expect(outrider_status status, const std::string& what) {
    EXPECT_EQ(status, OUTRIDER_INVALID_ARGUMENT) << outrider_status_name(status) << ": " << error.message;
    EXPECT_NE(std::string(error.message).find(what), std::string::npos) << error.message << "\nwanted: " << what;
    EXPECT_EQ(token, -7);
    EXPECT_EQ(count, 77u);
    error = {"stale"};
  }

  const PairHandle pair = open_nano();
  const Golden& golden = goldens()[0];
  const std::int32_t* const prompt = golden.prompt.data();
  const std::size_t n = golden.prompt.size();
  const Tokens negative = {2, -1}, beyond = {2, 1 << 30};
  outrider_error error = {};
  std::int32_t token = -7, drafts[33] = {};
  std::size_t count = 77;
};

TEST_F(Misuse, OfOpening) {
  outrider_pair* none = nullptr;
  const std::string target = nano("backbone"), assistant = nano("assistant");
  expect(pair_open_local(nullptr, nullptr, nullptr, 0, &none, &error), "target is NULL");
  expect(pair_open_local("", nullptr, nullptr, 0, &none, &error), "target is empty");
  expect(pair_open_local(target.c_str(), "", nullptr, 0, &none, &error), "assistant is empty");
  expect(pair_open_local(target.c_str(), assistant.c_str(), "int3", 0, &none, &error),
         "dtype 'int3', wanted f32, bf16, int8, int4 or q4");
  expect(pair_open_local(target.c_str(), assistant.c_str(), nullptr, -1, &none, &error), "threads -1");
  expect(pair_open_local(target.c_str(), assistant.c_str(), nullptr, 1 << 30, &none, &error), "threads 1073741824");
  expect(pair_open_local(target.c_str(), assistant.c_str(), nullptr, 0, nullptr, &error), "pair is NULL");
  expect(pair_open_remote(nullptr, target.c_str(), &none, &error), "address is NULL");
  expect(pair_open_remote("nonsense", target.c_str(), &none, &error), "nonsense");
  expect(pair_open_remote("tcp://127.0.0.1:1", target.c_str(), nullptr, &error), "pair is NULL");
  EXPECT_EQ(pair_open_remote("tcp://127.0.0.1:1", target.c_str(), &none, &error), OUTRIDER_PEER_GONE);
  const TemporaryDir dir;  // such a directory has no context, so that every request would be too long for it
  for (const char* file : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"})
    fs::create_symlink(fs::path(target) / file, dir / file);
  EXPECT_EQ(pair_open_remote("tcp://127.0.0.1:1", dir.path().c_str(), &none, &error), OUTRIDER_NOT_FOUND);
  EXPECT_NE(std::string(error.message).find("has no config.json"), std::string::npos) << error.message;
  EXPECT_EQ(pair_open_local("/nowhere", nullptr, nullptr, 0, &none, &error), OUTRIDER_NOT_FOUND) << error.message;
  EXPECT_EQ(pair_open_local(target.c_str(), "/nowhere", nullptr, 0, &none, &error), OUTRIDER_NOT_FOUND)
      << error.message;
  EXPECT_EQ(pair_open_local(target.c_str(), target.c_str(), nullptr, 0, &none, &error), OUTRIDER_UNSUPPORTED)
      << error.message;
  EXPECT_EQ(pair_open_local("/nowhere", nullptr, nullptr, 0, &none, nullptr),
            OUTRIDER_NOT_FOUND);  // nobody wants to know
  const std::string long_name(2000, 'x');
  EXPECT_NE(pair_open_local(long_name.c_str(), nullptr, nullptr, 0, &none, &error), OUTRIDER_OK);
  EXPECT_EQ(std::char_traits<char>::length(error.message), sizeof error.message - 1);
  EXPECT_EQ(none, nullptr);
}

TEST_F(Misuse, OfASession) {
  outrider_session* session = nullptr;
  expect(pair_session_open(nullptr, &session, &error), "pair is NULL");
  expect(pair_session_open(pair.get(), nullptr, &error), "session is NULL");

  Text text(pair.get());
  session = text.get();
  expect(pair_prefill(nullptr, prompt, n, &token, &error), "session is NULL");
  expect(pair_prefill(session, nullptr, n, &token, &error), "tokens is NULL");
  expect(pair_prefill(session, prompt, n, nullptr, &error), "first_token is NULL");
  expect(pair_prefill(session, prompt, 0, &token, &error), "the prompt is empty");
  expect(pair_prefill(session, prompt, SIZE_MAX, &token, &error), "tokens, wanted at most");
  expect(pair_prefill(session, negative.data(), 2, &token, &error), "token id -1");
  expect(pair_prefill(session, beyond.data(), 2, &token, &error), "token id 1073741824, the vocabulary has");
  expect(outrider_prefill_chat(nullptr, "{}", 2, &token, &error), "session is NULL");
  expect(outrider_prefill_chat(session, nullptr, 2, &token, &error), "body is NULL");
  expect(outrider_prefill_chat(session, "{}", 2, nullptr, &error), "first_token is NULL");
  expect(outrider_prefill_chat(session, "{", 1, &token, &error), "is not valid JSON");
  expect(pair_decode_one(session, &token, &error), "prefill comes first");
  expect(pair_draft_tokens(session, 4, drafts, &count, &error), "prefill comes first");
  expect(pair_verify_tokens(session, drafts, 1, &count, &token, &error), "prefill comes first");

  text.prefill(golden.prompt);
  text.round(4);
  expect(pair_decode_one(nullptr, &token, &error), "session is NULL");
  expect(pair_decode_one(session, nullptr, &error), "next_token is NULL");
  expect(pair_draft_tokens(nullptr, 4, drafts, &count, &error), "session is NULL");
  expect(pair_draft_tokens(session, 4, nullptr, &count, &error), "drafts is NULL");
  expect(pair_draft_tokens(session, 4, drafts, nullptr, &error), "drafted is NULL");
  expect(pair_draft_tokens(session, 0, drafts, &count, &error), "0 drafts, wanted 1 to 32");
  expect(pair_draft_tokens(session, 33, drafts, &count, &error), "33 drafts, wanted 1 to 32");
  expect(pair_draft_tokens(session, SIZE_MAX, drafts, &count, &error), "drafts, wanted 1 to 32");
  expect(pair_verify_tokens(nullptr, drafts, 1, &count, &token, &error), "session is NULL");
  expect(pair_verify_tokens(session, nullptr, 1, &count, &token, &error), "drafts is NULL");
  expect(pair_verify_tokens(session, drafts, 1, nullptr, &token, &error), "accepted is NULL");
  expect(pair_verify_tokens(session, drafts, 1, &count, nullptr, &error), "next_token is NULL");
  expect(pair_verify_tokens(session, drafts, 33, &count, &token, &error), "33 drafts, wanted at most 32");
  for (const std::int32_t bad : {-1, INT32_MIN, 1 << 30, INT32_MAX}) {
    drafts[1] = bad;
    expect(pair_verify_tokens(session, drafts, 2, &count, &token, &error), std::to_string(bad));
  }
  while (!text.reached(golden)) text.round(4);  // none of it has left a trace
  EXPECT_EQ(text.first(golden.greedy.size()), golden.greedy);
}

TEST_F(Misuse, OfWholeAnswers) {
  Tokens answer(kAnswerMax, -7);
  outrider_generate_options options = OUTRIDER_GENERATE_OPTIONS_INIT;
  options.max_tokens = kAnswerMax;
  outrider_generation generation = OUTRIDER_GENERATION_INIT;
  const auto call = [&] {
    return pair_generate_speculative(pair.get(), prompt, n, &options, answer.data(), answer.size(), &generation,
                                     &error);
  };
  const auto expect_with = [&](auto change, const std::string& what) {
    const outrider_generate_options before = options;
    change();
    expect(call(), what);
    options = before;
  };
  expect(pair_generate_speculative(nullptr, prompt, n, &options, answer.data(), kAnswerMax, &generation, &error),
         "pair is NULL");
  expect(pair_generate_speculative(pair.get(), nullptr, n, &options, answer.data(), kAnswerMax, &generation, &error),
         "prompt tokens is NULL");
  expect(pair_generate_speculative(pair.get(), prompt, 0, &options, answer.data(), kAnswerMax, &generation, &error),
         "the prompt is empty");
  expect(pair_generate_speculative(pair.get(), negative.data(), 2, &options, answer.data(), kAnswerMax, &generation,
                                   &error),
         "token id -1");
  expect(
      pair_generate_speculative(pair.get(), beyond.data(), 2, &options, answer.data(), kAnswerMax, &generation, &error),
      "the vocabulary has");
  expect(pair_generate_speculative(pair.get(), prompt, n, &options, answer.data(), kAnswerMax - 1, &generation, &error),
         "room for 95, wanted max_tokens 96");
  expect(pair_generate_speculative(pair.get(), prompt, n, &options, nullptr, 1, &generation, &error), "tokens is NULL");
  expect(pair_generate_speculative(pair.get(), prompt, n, nullptr, answer.data(), kAnswerMax, &generation, &error),
         "wanted max_tokens 256");
  expect_with([&] { options.size = 8; }, "options: size 8");
  expect_with([&] { options.size = SIZE_MAX; }, "options: size");
  expect_with([&] { options.max_tokens = 0; }, "max_tokens 0");
  expect_with([&] { options.draft_length = 33; }, "draft_length 33");
  expect_with([&] { options.draft_length = -1; }, "draft_length -1");
  expect_with([&] { options.stop_token_count = 3; }, "stop_tokens is NULL");
  expect_with(
      [&] {
        options.stop_tokens = negative.data();
        options.stop_token_count = 2;
      },
      "token id -1");
  expect_with([&] { generation.size = 4; }, "generation: size 4");
  generation = OUTRIDER_GENERATION_INIT;
  // A later header's larger struct is fine as long as nothing new is asked for.
  struct Later {
    outrider_generate_options known = OUTRIDER_GENERATE_OPTIONS_INIT;
    std::int64_t added = 0;
  } later;
  later.known.size = sizeof later;
  later.known.max_tokens = 2;
  EXPECT_EQ(pair_generate_speculative(pair.get(), prompt, n, &later.known, nullptr, 0, nullptr, &error), OUTRIDER_OK)
      << error.message;
  later.added = 1;
  expect(pair_generate_speculative(pair.get(), prompt, n, &later.known, nullptr, 0, nullptr, &error), "does not know");
  EXPECT_EQ(answer, Tokens(kAnswerMax, -7));
}

TEST_F(Misuse, OfTexts) {
  expect(outrider_encode_user_turn(nullptr, "x", 1, drafts, 33, &count, &error), "pair is NULL");
  expect(outrider_encode_user_turn(pair.get(), nullptr, 1, drafts, 33, &count, &error), "text is NULL");
  expect(outrider_encode_user_turn(pair.get(), "x", SIZE_MAX, drafts, 33, &count, &error), "text");
  expect(outrider_encode_user_turn(pair.get(), "x", 1, nullptr, 33, &count, &error), "tokens is NULL");
  expect(outrider_encode_user_turn(pair.get(), "x", 1, drafts, 33, nullptr, &error), "count is NULL");
  char buffer[8];
  expect(outrider_decode_tokens(nullptr, prompt, 1, buffer, 8, &count, &error), "pair is NULL");
  expect(outrider_decode_tokens(pair.get(), nullptr, 1, buffer, 8, &count, &error), "tokens is NULL");
  expect(outrider_decode_tokens(pair.get(), prompt, SIZE_MAX, buffer, 8, &count, &error), "tokens");
  expect(outrider_decode_tokens(pair.get(), prompt, 1, nullptr, 8, &count, &error), "text is NULL");
  expect(outrider_decode_tokens(pair.get(), prompt, 1, buffer, 8, nullptr, &error), "bytes is NULL");
  EXPECT_STREQ(outrider_status_name(OUTRIDER_OK), "ok");
  EXPECT_STREQ(outrider_status_name(OUTRIDER_PEER_GONE), "peer_gone");
  EXPECT_STREQ(outrider_status_name(static_cast<outrider_status>(15)), "unknown");
  EXPECT_EQ(outrider_abi_version(), static_cast<std::uint32_t>(OUTRIDER_ABI_VERSION));
}

// ---- whole requests ----

struct Posted {
  outrider_status status;
  std::string error;
  std::vector<nlohmann::json> replies;
  std::size_t stop_after = SIZE_MAX;  ///< in: replies
};

int on_reply(void* user, const char* json, std::size_t bytes) {
  auto& posted = *static_cast<Posted*>(user);
  posted.replies.push_back(nlohmann::json::parse(std::string(json, bytes)));
  return posted.replies.size() >= posted.stop_after ? 1 : 0;
}

Posted post(outrider_pair* pair, const char* path, const nlohmann::json& request, std::size_t stop_after = SIZE_MAX) {
  Posted posted{.status = OUTRIDER_OK, .error = "", .replies = {}, .stop_after = stop_after};
  outrider_error error;
  const std::string body = request.dump();
  posted.status = outrider_post(pair, path, body.data(), body.size(), on_reply, &posted, &error);
  posted.error = error.message;
  EXPECT_EQ(posted.status == OUTRIDER_OK, posted.error.empty()) << posted.error;
  return posted;
}

nlohmann::json chat_of(const std::string& user) {
  return {{"messages", {{{"role", "user"}, {"content", user}}}}, {"temperature", 0}, {"max_tokens", kAnswerMax}};
}

TEST(CApi, ARequestIsAnsweredAsOverHttp) {
  const PairHandle pair = open_nano();
  for (const Golden& golden : goldens()) {
    nlohmann::json request = chat_of(golden.user);
    request["return_token_ids"] = true;
    const Posted posted = post(pair.get(), "/v1/chat/completions", request);
    ASSERT_EQ(posted.replies.size(), 1u) << posted.error;
    EXPECT_EQ(posted.replies[0]["prompt_token_ids"], golden.prompt);
    EXPECT_EQ(posted.replies[0]["choices"][0]["token_ids"], golden.greedy);
    EXPECT_EQ(posted.replies[0]["choices"][0]["message"]["content"], golden.text);
  }
}

// Step by step a conversation begins with its prompt; pictures nano has no tower for.
TEST(CApi, AConversationIsAPrompt) {
  const PairHandle pair = open_nano();
  const Golden& golden = goldens()[0];
  Text text(pair.get());
  std::int32_t first = -1;
  outrider_error error;
  const std::string body = nlohmann::json({{"messages", chat_of(golden.user)["messages"]}}).dump();
  EXPECT_EQ(outrider_prefill_chat(text.get(), body.data(), body.size(), &first, &error), OUTRIDER_OK) << error.message;
  EXPECT_EQ(first, golden.greedy[0]);
  nlohmann::json shown = chat_of("x");
  shown["messages"][0]["content"] = {
      {{"type", "image_url"}, {"image_url", {{"url", "data:image/png;base64,iVBORw0KGgo="}}}}};
  const Posted posted = post(pair.get(), "/v1/chat/completions", shown);
  EXPECT_EQ(posted.status, OUTRIDER_INVALID_ARGUMENT);
  EXPECT_NE(posted.error.find("messages[0].content[0]: PNG: "), std::string::npos) << posted.error;
}

TEST(CApi, AStreamHasTheSameTextItsRoundsAndAnEnd) {
  const PairHandle pair = open_nano();
  const Golden& golden = goldens()[0];
  nlohmann::json request = chat_of(golden.user);
  request.update({{"stream", true},
                  {"return_token_ids", true},
                  {"logprobs", true},
                  {"speculative", {{"draft_length", 3}, {"report_rounds", true}}}});
  const Posted posted = post(pair.get(), "/v1/chat/completions", request);
  std::string text;
  Tokens of_rounds;
  std::size_t scores = 0;
  for (const nlohmann::json& event : posted.replies) {
    const nlohmann::json& choice = event.at("choices").at(0);
    text += choice["delta"].value("content", "");
    if (choice["logprobs"].is_object()) scores += choice["logprobs"]["content"].size();
    if (!event.contains("outrider_round")) continue;
    const nlohmann::json& round = event["outrider_round"];
    const Tokens tokens = round["token_ids"], drafts = round["draft_ids"];
    const std::size_t accepted = round["accepted"];
    ASSERT_LE(accepted, drafts.size());
    EXPECT_TRUE(std::equal(drafts.begin(), drafts.begin() + static_cast<std::ptrdiff_t>(accepted), tokens.begin()));
    of_rounds.insert(of_rounds.end(), tokens.begin(), tokens.end());
  }
  EXPECT_EQ(text, golden.text);
  EXPECT_EQ(of_rounds, golden.greedy);
  EXPECT_EQ(scores, golden.greedy.size());
  EXPECT_TRUE(posted.replies.back()["choices"][0]["finish_reason"].is_string());

  // The caller's end is no error, and nothing comes after it.
  const Posted stopped = post(pair.get(), "/v1/chat/completions", request, /*stop_after=*/3);
  EXPECT_EQ(stopped.status, OUTRIDER_OK);
  EXPECT_EQ(stopped.replies.size(), 3u);

  // Also the call that comes while an event is handled.
  int events = 0;
  const auto stops = [](void* user, const char*, std::size_t) {
    ++*static_cast<int*>(user);
    outrider_stop(user);
    return 0;
  };
  const std::string body = request.dump();
  outrider_error error;
  EXPECT_EQ(outrider_post(pair.get(), "/v1/chat/completions", body.data(), body.size(), stops, &events, &error),
            OUTRIDER_OK);
  EXPECT_EQ(events, 1);
}

// Of a coordinator without a verifier: without outrider_stop() each would fail once none has joined in its time.
TEST(CApi, AnAnswerEndsBeforeItsFirstToken) {
  Coordinator alone;
  const PairHandle pair = open_coordinator(alone.address);
  const Tokens prompt = {2, 5};
  nlohmann::json request = chat_of("Hello");
  for (const int kind : {0, 1, 2}) {
    SCOPED_TRACE(kind);
    Posted posted{.status = OUTRIDER_IO, .error = "", .replies = {}};
    outrider_generate_options options = OUTRIDER_GENERATE_OPTIONS_INIT;
    options.user = &posted;
    outrider_generation generation = OUTRIDER_GENERATION_INIT;
    outrider_error error;
    request["stream"] = kind == 1;
    const std::string body = request.dump();
    std::atomic<bool> ended = false;
    std::thread caller([&] {
      posted.status =
          kind == 0 ? pair_generate_speculative(pair.get(), prompt.data(), prompt.size(), &options, nullptr, 0,
                                                &generation, &error)
                    : outrider_post(pair.get(), "/v1/chat/completions", body.data(), body.size(), on_reply, &posted,
                                    &error);
      ended = true;
    });
    while (!ended) outrider_stop(&posted);  // again: the call may be about to begin
    caller.join();
    EXPECT_EQ(posted.status, OUTRIDER_OK) << error.message;
    EXPECT_TRUE(posted.replies.empty());
    EXPECT_EQ(generation.finish, kind == 0 ? OUTRIDER_FINISH_CALLER : OUTRIDER_FINISH_STOP);  // the latter: untouched
  }
}

TEST(CApi, HistorySamplingAndGrammarsAreOfTheRequest) {
  const PairHandle pair = open_nano();
  nlohmann::json request = chat_of("And then?");
  request["messages"].insert(request["messages"].begin(), {{{"role", "system"}, {"content", "Be brief."}},
                                                           {{"role", "user"}, {"content", "Tell a story."}},
                                                           {{"role", "assistant"}, {"content", "A fox slept."}}});
  request.update({{"max_tokens", 8}, {"temperature", 1}, {"seed", 7}, {"return_token_ids", true}});
  const nlohmann::json first = post(pair.get(), "/v1/chat/completions", request).replies.at(0);
  EXPECT_GT(first["prompt_token_ids"].size(), 20u);
  EXPECT_EQ(first["system_fingerprint"], std::string("build-") + OUTRIDER_VERSION);
  request["speculative"] = {{"draft_length", 0}};
  const nlohmann::json plain = post(pair.get(), "/v1/chat/completions", request).replies.at(0);
  EXPECT_EQ(first["choices"][0]["token_ids"], plain["choices"][0]["token_ids"]);  // one seed is one text
  request["structured_outputs"] = {{"choice", {"yes", "no"}}};
  const nlohmann::json chosen = post(pair.get(), "/v1/chat/completions", request).replies.at(0);
  const std::string answer = chosen["choices"][0]["message"]["content"];
  EXPECT_TRUE(answer == "yes" || answer == "no") << answer;
}

TEST(CApi, ARequestThatMakesNoSenseIsNamed) {
  const PairHandle pair = open_nano();
  const auto expect = [&](const char* path, const nlohmann::json& request, outrider_status status, const char* words) {
    const Posted posted = post(pair.get(), path, request);
    EXPECT_EQ(posted.status, status);
    EXPECT_TRUE(posted.replies.empty());
    EXPECT_NE(posted.error.find(words), std::string::npos) << posted.error;
  };
  expect("/v1/completions", {{"prompt", "x"}, {"top_p", 7}}, OUTRIDER_INVALID_ARGUMENT, "top_p is 7");
  expect("/v1/chat/completions", {{"messages", 1}}, OUTRIDER_INVALID_ARGUMENT, "messages");
  expect("/v1/completions", "no object", OUTRIDER_INVALID_ARGUMENT, "an object");
  expect("/v1/completions", {{"prompt", Tokens(9000, 5)}}, OUTRIDER_OUT_OF_RANGE, "maximum context length");
  expect("/v1/chat", nlohmann::json::object(), OUTRIDER_NOT_FOUND, "/v1/chat/completions");
  outrider_error error;
  EXPECT_EQ(outrider_post(pair.get(), "/tokenize", "{}", 2, nullptr, nullptr, &error), OUTRIDER_INVALID_ARGUMENT);
  EXPECT_STREQ(error.message, "on_reply is NULL");
  EXPECT_EQ(outrider_post(pair.get(), "/tokenize", nullptr, 2, on_reply, nullptr, &error), OUTRIDER_INVALID_ARGUMENT);
}

TEST(CApi, AModelIsFoundAsTheCommandLineFindsIt) {
  for (const std::string& model : {std::string(), (fs::path(OUTRIDER_SOURCE_DIR) / "models/nano").string()}) {
    outrider_pair* pair = nullptr;
    outrider_error error;
    const char* const given = model.empty() ? nullptr : model.c_str();
    ASSERT_EQ(outrider_open_model(given, nullptr, "f32", 0, &pair, &error), OUTRIDER_OK) << error.message;
    const PairHandle handle(pair, pair_close);
    Answer answer;
    generate(pair, goldens()[0].prompt, 4, &answer);
    EXPECT_EQ(answer.tokens, goldens()[0].greedy);
    EXPECT_GT(answer.generation.drafted_tokens, 0);
  }
  outrider_pair* pair = nullptr;
  outrider_error error;
  EXPECT_EQ(outrider_open_model("/nowhere", nullptr, nullptr, 0, &pair, &error), OUTRIDER_NOT_FOUND);
  EXPECT_EQ(pair, nullptr);
}

// The target has no assistant beside it, so every draft is the draft model's.
TEST(CApi, ADraftModelDraftsAsTheCommandLineHasIt) {
  const fs::path source = OUTRIDER_SOURCE_DIR;
  const std::string target = nano("backbone");
  outrider_pair* pair = nullptr;
  outrider_error error;
  for (const char* model : {"models/pico/backbone", "models/pico", "tests/goldens/block/nano"}) {
    ASSERT_EQ(outrider_open_model(target.c_str(), (source / model).c_str(), "f32", 0, &pair, &error), OUTRIDER_OK)
        << model << ": " << error.message;
    const PairHandle handle(std::exchange(pair, nullptr), pair_close);
    for (const Golden& golden : {goldens()[0], goldens()[1]}) {
      Answer answer;
      generate(handle.get(), golden.prompt, 4, &answer);
      EXPECT_EQ(answer.tokens, golden.greedy) << model;
      EXPECT_GT(answer.generation.drafted_tokens, 0) << model;
    }
  }
  EXPECT_EQ(outrider_open_model(nullptr, "/nowhere", nullptr, 0, &pair, &error), OUTRIDER_NOT_FOUND);
  EXPECT_NE(std::string(error.message).find("/nowhere"), std::string::npos) << error.message;
  EXPECT_EQ(outrider_open_model(nullptr, "", nullptr, 0, &pair, &error), OUTRIDER_INVALID_ARGUMENT);
  EXPECT_STREQ(error.message, "draft_model is empty, wanted a directory");
  // An assistant is no model by itself.
  EXPECT_EQ(outrider_open_model(nullptr, nano("assistant").c_str(), nullptr, 0, &pair, &error), OUTRIDER_UNSUPPORTED)
      << error.message;
  EXPECT_EQ(pair, nullptr);
}

}  // namespace
}  // namespace outrider
