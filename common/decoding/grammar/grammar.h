#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/model/tokenizer/tokenizer.h"

namespace outrider {

/// It has each token's text by id. Empty: the token adds nothing that a grammar can name. The control tokens that a
/// grammar may name by their ids (AnswerControls) have a text that no text has.
struct GrammarVocabulary {
  std::vector<std::string> tokens;
};
/// @param vocab_size  of the model, which may differ from the tokenizer's
GrammarVocabulary grammar_vocabulary(const Tokenizer& tokenizer, std::int64_t vocab_size);

/// A grammar made ready for a vocabulary. Immutable; any number of answers use it at once.
struct Grammar;

/// Where an answer is in its grammar. What following it takes is bounded: 0.2 s of processor time, and 20 ms more for
/// each token of the answer. Ordinary grammars take microseconds; those beyond are spent, and allow nothing.
class GrammarState {
 public:
  /// @param stop_ids  the tokens that end the answer: allowed where the grammar may end, and nowhere else
  GrammarState(std::shared_ptr<const Grammar> grammar, std::vector<TokenId> stop_ids);
  ~GrammarState();
  GrammarState(GrammarState&&) noexcept;
  GrammarState& operator=(GrammarState&&) noexcept;

  /// Goes on over the answer's next token. @return false if the grammar does not let it follow: nothing has changed.
  bool accept(TokenId token);
  /// Takes the last `count` accepted tokens back.
  void roll_back(int count);
  /// Makes the masks behind each of these tokens, in a time when nobody else calls anything here: allowed() has them
  /// once the tokens have been accepted. The state stays as it is. A token that may not follow has none, nor what comes
  /// behind it.
  /// @param tokens  rows of a TokenTree; none: the mask that is due now
  /// @param depths  its own; empty: a chain
  void look_ahead(std::span<const TokenId> tokens, std::span<const std::int32_t> depths = {});
  /// The tokens that may follow: bit t % 32 of word t / 32. Empty: all of them may.
  /// @return valid until the next call of anything here
  std::span<const std::uint32_t> allowed();
  /// Why nothing is allowed any more, if that is for the time that it took.
  std::optional<Error> spent() const;

 private:
  struct Matcher;
  std::shared_ptr<const Grammar> grammar_;
  std::unique_ptr<Matcher> matcher_;
};

/// Takes tokens out of a row of scores. @param allowed  as GrammarState::allowed()
void mask_scores(std::span<const std::uint32_t> allowed, std::span<float> scores);

/// It is asked again and again for a grammar that somebody waits for: null while that is being made. Once
/// nobody has it any more, the grammar is not made.
using GrammarWait = std::function<Result<std::shared_ptr<const Grammar>>()>;

/// Makes grammars for one vocabulary, one at a time on a thread of its own, and keeps those used last. A text comes
/// from anybody: how long it may be, what it may repeat, and what all that is kept may take is bounded. Clients take
/// turns. Who has had a second while others wait goes on later, and for twice as long; of one client the grammar with
/// the fewest turns is next.
class GrammarCompiler {
 public:
  /// @param vocabulary  called on that thread, when the first grammar is wanted; if it fails, for the next one again
  /// @param seconds_max  of processor time for a grammar; longer, or said to be by a part of the vocabulary: refused
  explicit GrammarCompiler(std::function<Result<GrammarVocabulary>()> vocabulary, double seconds_max = 30);
  ~GrammarCompiler();

  /// Has it made for a client. @return what says kInvalidArgument, kUnsupported or kOutOfRange for a text that is no
  ///   grammar or takes too much (of time: kUnsupported, and the message names the rule).
  GrammarWait want(const std::string& text, const std::string& client = "");
  /// The same, when it is there.
  Result<std::shared_ptr<const Grammar>> wait_for(const std::string& text);

 private:
  class Engine;
  struct Entry {
    std::string text, client;
    std::optional<Result<std::shared_ptr<const Grammar>>> made = {};
    std::uint64_t used = 0;                     ///< when last, counted in uses
    int turns = 0;                              ///< that it has had, and was not made
    std::weak_ptr<const bool> waited_for = {};  ///< whoever waits has a share
  };
  using EntryPtr = std::shared_ptr<Entry>;
  void run(const std::stop_token& stop);
  /// Takes the next one out of the queue, and drops those that nobody waits for; null: there is none.
  EntryPtr next();
  /// Has a turn. @return whether it is made now, or refused.
  bool make(Engine& engine, Entry& entry, const std::stop_token& stop);
  void trim();

  std::function<Result<GrammarVocabulary>()> vocabulary_;
  const double seconds_max_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::map<std::string, EntryPtr> entries_;
  std::vector<EntryPtr> queue_;                 ///< to be made
  std::map<std::string, std::uint64_t> turns_;  ///< of the clients that wait: when they had one last
  std::uint64_t uses_ = 0, turn_ = 0;
  std::jthread thread_;  // last: it uses the others
};

}  // namespace outrider
