#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
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

/// The text of each token, by id. Empty: a grammar cannot match the token. Control tokens that a grammar may name by id
/// (AnswerControls) have a text that cannot occur otherwise.
struct GrammarVocabulary {
  std::vector<std::string> tokens;
};
/// @param vocab_size  the model's, which may differ from the tokenizer's
GrammarVocabulary grammar_vocabulary(const Tokenizer& tokenizer, std::int64_t vocab_size);

/// A grammar compiled for a vocabulary. Immutable; any number of answers share it.
struct Grammar;

/// The state of an answer in its grammar. Processor time is bounded: 0.2 s, and 2 ms more per token of the answer; a
/// tenth of that at a drafter. Other sequences wait meanwhile. Ordinary grammars take microseconds; after the bound is
/// exceeded, no token is allowed.
class GrammarState {
 public:
  enum class User { kVerifier, kDrafter };
  /// @param stop_ids  tokens that end the answer: allowed only where the grammar may end
  GrammarState(std::shared_ptr<const Grammar> grammar, std::vector<TokenId> stop_ids, User user = User::kVerifier);
  ~GrammarState();
  GrammarState(GrammarState&&) noexcept;
  GrammarState& operator=(GrammarState&&) noexcept;

  /// Advances by the answer's next token. @return false if the grammar does not allow it; the state is then unchanged
  bool accept(TokenId token);
  /// The same for a draft, which will be rolled back and therefore adds no time to the bound.
  bool accept_draft(TokenId token);
  /// Undoes the last `count` accepted drafts.
  void roll_back(int count);
  /// Returns the mask of allowed tokens: bit t % 32 of word t / 32. Empty: all are allowed. Computed once.
  /// @return valid until another function changes the state
  std::span<const std::uint32_t> allowed();
  /// The error, if nothing is allowed any more because the time bound was exceeded or XGrammar failed.
  std::optional<Error> failure() const;

 private:
  struct Matcher;
  std::shared_ptr<const Grammar> grammar_;
  std::unique_ptr<Matcher> matcher_;
};

/// Masks the scores of disallowed tokens. @param allowed  from GrammarState::allowed()
void mask_scores(std::span<const std::uint32_t> allowed, std::span<float> scores);

/// Polled until a grammar is compiled: returns null before that, at once. A grammar is not compiled once all of its
/// GrammarWaits are gone.
using GrammarWait = std::function<Result<std::shared_ptr<const Grammar>>()>;

/// Compiles grammars for one vocabulary, one at a time on a thread of its own, and caches the most recent ones. Texts
/// are untrusted: their length, their repeats, and the size of the cache are bounded. Clients take turns. A grammar
/// that has had a second while others wait continues later, for twice as long; among one client's grammars, the one
/// with the fewest turns is next.
class GrammarCompiler {
 public:
  /// @param vocabulary  called on that thread for the first grammar, and again after a failure
  /// @param seconds_max  processor time per grammar; a grammar that takes longer, or is predicted to by a part of the
  /// vocabulary, is refused
  explicit GrammarCompiler(std::function<Result<GrammarVocabulary>()> vocabulary, double seconds_max = 30);
  ~GrammarCompiler();

  /// Requests a grammar for a client.
  /// @return a function that returns kInvalidArgument, kUnsupported or kOutOfRange for a text that is no grammar or
  /// takes too much (of time: kUnsupported, and the message names the rule)
  GrammarWait want(const std::string& text, const std::string& client = "");

 private:
  class Engine;
  using Made = Result<std::shared_ptr<const Grammar>>;
  struct Entry {
    std::string text, client;
    std::promise<Made> promise = {};
    std::shared_future<Made> made = promise.get_future().share();  ///< polled without the mutex
    std::optional<std::size_t> bytes = {};                         ///< of the result, once it is there
    std::uint64_t used = 0;                                        ///< time of last use, counted in uses
    int turns = 0;                                                 ///< unsuccessful turns
  };
  /// Shared with the GrammarWaits.
  using EntryPtr = std::shared_ptr<Entry>;
  /// Returns true if anybody waits for an entry whose result is not there: besides `entries_`, either the queue or the
  /// thread has it.
  static bool is_wanted(const EntryPtr& entry) { return entry.use_count() > 2; }
  void run(const std::stop_token& stop);
  /// Takes the next entry out of the queue, and drops entries that nobody waits for; null: none.
  EntryPtr next();
  /// Runs one turn. @return none: the turn is over before the grammar is compiled or refused
  std::optional<Made> make(Engine& engine, const EntryPtr& entry, const std::stop_token& stop);
  bool others_are_wanted();
  void trim();

  std::function<Result<GrammarVocabulary>()> vocabulary_;
  const double seconds_max_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::map<std::string, EntryPtr> entries_;
  std::vector<EntryPtr> queue_;                 ///< entries to compile
  std::map<std::string, std::uint64_t> turns_;  ///< last turn of each waiting client
  std::uint64_t uses_ = 0, turn_ = 0;
  std::jthread thread_;  // last: it uses the others
};

}  // namespace outrider
