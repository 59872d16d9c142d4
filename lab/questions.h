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

// The questions of the lab's commands, and the model's answers. All functions throw a one-line message.
namespace outrider {

/// Kinds of text that the nano pair knows, easy and hard to draft. The first kFewPrompts are of five kinds; all
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

/// Least share of accepted drafts if no golden sets one. The nano pair has 0.48; published pairs have 0.3 to 0.9
/// (gemma4.md 4.8); a drafter that guesses has less than 0.01.
inline constexpr double kAcceptanceMin = 0.1;

/// A prompt with its recording: the greedy answer and, by round, how many of four drafts were accepted (0 for the
/// first, which has none).
struct Question {
  std::vector<TokenId> prompt, greedy = {};
  std::vector<std::int32_t> matches = {};
};
/// Makes a chat turn for this model of each message.
std::vector<Question> user_turns(const TextSide& text, const std::vector<std::string>& messages);
/// Reads a file like tests/goldens/nano/generate_golden.json (tests/goldens/README.md).
std::vector<Question> read_golden_questions(const std::filesystem::path& path);
/// Returns the tensor "input_ids" of a golden.safetensors.
std::vector<TokenId> golden_prompt(const Checkpoint& golden);

/// One line of a question file: a conversation in which each turn is answered before the next.
struct Conversations {
  std::string category;
  std::vector<std::string> turns;
};

/// Reads a file of such lines, as in MT-bench and Spec-Bench. @param limit  most lines; 0: all
std::vector<Conversations> read_question_file(const std::filesystem::path& path, std::int64_t limit = 0);
/// Asks its turns, each after the answers to earlier ones.
/// @param answer  returns the tokens of the model's answer to a turn
/// @return true if there was room for all of them
bool ask_turns(const Conversations& question, const TextSide& text,
               const std::function<std::vector<TokenId>(const std::string& turn, const Question&)>& answer);

/// Sums over answers.
struct Answers {
  std::int64_t tokens = 0;  ///< without the first of each, which comes with the prompt
  RequestMetrics metrics;
  std::vector<RoundOutcome> rounds;

  void add(const Answers& more);
  double tok_per_sec() const;
  double per_round_ms(std::int64_t ns) const;
  double acceptance() const;  ///< share of accepted drafts
};

/// Measures a coordinator's greedy answers.
class Asker {
 public:
  /// @param client  outlives this object @param endless  only `max_tokens` ends an answer
  Asker(Client& client, const TextSide& text, std::int64_t max_tokens, bool endless = false);
  /// @return the answer's tokens; its other figures are added to `sums`
  std::vector<TokenId> ask(const Question& question, const DraftLength& length, Answers& sums) const;
  struct Both {
    std::vector<TokenId> plain, drafted;
  };
  /// Asks plainly and with drafts, in turns so that a noisy neighbour affects both alike. The first one alternates, so
  /// that a machine whose speed drifts favours neither.
  Both ask_both(const Question& question, const DraftLength& length, Answers& plain, Answers& drafted) const;

 private:
  Client& client_;
  Generate request_;
  mutable bool drafts_first_ = false;
};

}  // namespace outrider
