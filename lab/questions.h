#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "common/client/client.h"
#include "common/client/text_side.h"
#include "common/decoding/drafting/policies.h"
#include "common/model/checkpoint/checkpoint.h"

// The questions of the lab's commands, and the model's answers. All of it throws the line for a person.
namespace outrider {

/// Kinds of text that the nano pair knows, easy and hard to draft. The first kFewPrompts are of five kinds; all of them
/// together draft some 1,500 tokens.
inline constexpr std::array kDemoPrompts = {
    "Tell me a story about a lighthouse.",
    "Turn this list into JSON: Finn is 20 and lives near the river; Noah is 48 and lives near the park.",
    "Count from 3 to 20.",
    "What is 17 plus 25?",
    "Write a short story about a dog called Max.",
    "Name three things that are blue.",
    "Explain in two sentences why the sky is blue.",
    "Write a poem about the sea.",
    "How do I boil an egg?",
    "Write a letter to a friend who has moved away.",
    "List the months of the year.",
    "Tell me a story about a lost key.",
    "What is the difference between a lake and a river?",
    "Write a short story about two sisters and a boat.",
};
inline constexpr std::size_t kFewPrompts = 5;

/// The share of drafts that must be accepted if no golden names one. The nano pair has 0.48; published pairs have 0.3
/// to 0.9 (gemma4.md 4.8); a drafter that guesses has less than 0.01.
inline constexpr double kAcceptanceMin = 0.1;

/// A prompt with its recording: the greedy answer and, by round, how many of four drafts were accepted (of the first,
/// which has none, 0).
struct Question {
  std::vector<TokenId> prompt, greedy = {};
  std::vector<std::int32_t> matches = {};
};
/// Each message as a chat turn of this model.
std::vector<Question> user_turns(const TextSide& text, const std::vector<std::string>& messages);
/// A file like tests/goldens/nano/generate_golden.json (tests/goldens/README.md).
std::vector<Question> read_golden_questions(const std::filesystem::path& path);
/// The tensor "input_ids" of a golden.safetensors.
std::vector<TokenId> golden_prompt(const Checkpoint& golden);

/// One line of a question file: a conversation, of which each turn is answered before the next is asked.
struct Conversations {
  std::string category;
  std::vector<std::string> turns;
};

/// A file of such lines, as MT-bench and Spec-Bench have them. @param limit  only the first so many; 0: all
std::vector<Conversations> read_question_file(const std::filesystem::path& path, std::int64_t limit = 0);
/// Asks its turns, each after the answers to those before it.
/// @param answer  gives the tokens of the model's answer to a turn. @return whether there was room for all of them.
bool hold(const Conversations& question, const TextSide& text,
          const std::function<std::vector<TokenId>(const std::string& turn, const Question&)>& answer);

/// Sums over answers.
struct Answers {
  std::int64_t tokens = 0;  ///< but for the first of each, which the prompt brings
  RequestMetrics metrics;
  std::vector<RoundOutcome> rounds;

  double tok_per_sec() const;
  double per_round_ms(std::int64_t ns) const;
  double acceptance() const;  ///< share of the drafts that were kept
};

/// Asks a coordinator for greedy answers, to measure it.
class Asker {
 public:
  /// @param client  outlives this object
  /// @param endless  nothing but `max_tokens` ends an answer
  Asker(Client& client, const TextSide& text, std::int64_t max_tokens, bool endless = false);
  /// @return the answer's tokens; the rest of it is added to `sums`.
  std::vector<TokenId> ask(const Question& question, const DraftLength& length, Answers& sums) const;
  struct Both {
    std::vector<TokenId> plain, drafted;
  };
  /// Asks plainly and with drafts, side by side so that a noisy neighbour slows both alike. Which comes first
  /// alternates: a machine that grows slower or faster meanwhile favours neither.
  Both ask_both(const Question& question, const DraftLength& length, Answers& plain, Answers& drafted) const;

 private:
  Client& client_;
  Generate request_;
  mutable bool drafts_first_ = false;
};

}  // namespace outrider
