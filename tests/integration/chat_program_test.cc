// `outrider chat` through pipes: each answer is that of a single request with the same ids.
#include <csignal>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/model/tokenizer/chat.h"
#include "tests/support/cluster_fixtures.h"
#include "tests/support/model_at.h"

namespace outrider {
namespace {

const Tokenizer& nano() {
  static const Tokenizer tokenizer = Tokenizer::load(model_at(nano_pair().backbone)).value();
  return tokenizer;
}

/// Golden prompts of one line: chat takes each line for a question.
std::vector<std::string> questions() {
  std::vector<std::string> lines;
  for (const NanoGolden& golden : nano_goldens()) {
    if (golden.prompt.find('\n') == std::string::npos) lines.push_back(golden.prompt);
  }
  EXPECT_GE(lines.size(), 2u);
  return lines;
}

ChatMessage message(ChatMessage::Role role, const std::string& content) {
  ChatMessage result;
  result.role = role;
  result.content = content;
  return result;
}

/// One conversation, and what `outrider run` answers to its ids.
struct Transcript {
  Conversation conversation;

  void say(ChatMessage::Role role, const std::string& content) {
    conversation.messages.push_back(message(role, content));
  }

  std::string run_alone(std::int64_t max_tokens) const {
    const std::vector<TokenId> ids = render_chat(nano(), {}, conversation).value();
    Program run({"run", "--prompt-ids", fmt::format("{}", fmt::join(ids, ",")), "--dtype", "f32", "--json",
                 "--max-tokens", std::to_string(max_tokens)});
    EXPECT_EQ(describe(run.wait()), "exit 0");
    const nlohmann::json object = nlohmann::json::parse(run.out(), nullptr, false);
    return object.is_object() ? object.value("text", "") : run.out();
  }

  std::string ask_alone(const std::string& question, std::int64_t max_tokens) {
    say(ChatMessage::Role::kUser, question);
    const std::string answer = run_alone(max_tokens);
    say(ChatMessage::Role::kAssistant, answer);
    return answer;
  }
};

TEST(Chat, AnswersWithTheConversationInMind) {
  const std::string first = questions()[0], second = questions()[1];
  Program chat({"chat", "--dtype", "f32", "--max-tokens", "40", "--system", "Be kind."}, Program::Input::kWritten);
  chat.write(first + "\n\n" + second + "\n/reset\n" + first + "\n/exit\nnot read\n");
  EXPECT_EQ(describe(chat.wait()), "exit 0");
  EXPECT_EQ(chat.err(), "");

  std::string expected;
  Transcript transcript;
  transcript.say(ChatMessage::Role::kSystem, "Be kind.");
  const std::string answer = transcript.ask_alone(first, 40) + "\n";
  expected = answer + transcript.ask_alone(second, 40) + "\n" + answer;
  EXPECT_EQ(chat.out(), expected);
}

TEST(Chat, AnInterruptStopsTheAnswerAndKeepsTheConversation) {
  const NanoGolden story = endless_story();
  Program chat({"chat", "--dtype", "f32", "--max-tokens", "8000"}, Program::Input::kWritten);
  chat.write(story.prompt + "\n");
  ASSERT_TRUE(eventually([&] { return chat.out().size() > 100 || !chat.running(); }));
  chat.send(SIGINT);
  ASSERT_TRUE(eventually([&] { return chat.err().find("(stopped)\n") != std::string::npos || !chat.running(); }));
  const std::string stopped = chat.out();
  EXPECT_TRUE(stopped.ends_with("\n"));
  EXPECT_TRUE(stopped.starts_with(story.text.substr(0, 100)));

  chat.send(SIGINT);  // nothing to stop
  chat.write("And then?\n");
  ASSERT_TRUE(eventually([&] { return chat.out().size() > stopped.size() + 60 || !chat.running(); }));
  const std::string second = chat.out().substr(stopped.size());
  chat.send(SIGINT);
  chat.write("/exit\n");
  EXPECT_EQ(describe(chat.wait()), "exit 0");

  Transcript transcript;
  transcript.say(ChatMessage::Role::kUser, story.prompt);
  transcript.say(ChatMessage::Role::kAssistant, stopped);
  transcript.say(ChatMessage::Role::kUser, "And then?");
  EXPECT_TRUE(transcript.run_alone(200).starts_with(second.substr(0, 60))) << second;
}

TEST(Chat, CommandsAndTheEndOfTheInput) {
  Program chat({"chat", "--draft-length", "0"}, Program::Input::kWritten);
  chat.write("/help\n/nonsense\n/exit\n");
  EXPECT_EQ(describe(chat.wait()), "exit 0");
  EXPECT_NE(chat.out().find("/reset"), std::string::npos);
  EXPECT_EQ(chat.err(), "outrider: unknown command /nonsense; /help lists the commands\n");
}

TEST(Chat, AQuestionThatDoesNotFitIsForgotten) {
  const std::string fits = questions()[0];
  Program chat({"chat", "--dtype", "f32", "--max-tokens", "20"}, Program::Input::kWritten);
  std::string question;
  while (question.size() < 60'000) question += "zq";
  chat.write(question + "\n" + fits + "\n/exit\n");
  EXPECT_EQ(describe(chat.wait()), "exit 0");
  EXPECT_NE(chat.err().find("the context holds 8192"), std::string::npos) << chat.err();
  Transcript transcript;
  EXPECT_EQ(chat.out(), transcript.ask_alone(fits, 20) + "\n");
}

TEST(Run, AnInterruptCancelsTheAnswer) {
  for (const std::vector<std::string>& where : {std::vector<std::string>{}, {"--processes"}}) {
    std::vector<std::string> arguments = {"--dtype", "f32"};
    arguments.insert(arguments.end(), where.begin(), where.end());
    EndlessRun run(8000, arguments);
    ASSERT_TRUE(eventually([&] { return run.program.out().size() > 50 || !run.program.running(); }));
    run.program.send(SIGINT);
    EXPECT_EQ(describe(run.program.wait()), "exit 130");
    EXPECT_TRUE(run.program.out().ends_with("\n"));
    EXPECT_EQ(run.program.err(), "");
  }
}

}  // namespace
}  // namespace outrider
