#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/time.h"
#include "common/decoding/drafting/policies.h"
#include "common/wire/messages/messages.h"

namespace outrider {

/// Asks for drafts so long, and so made.
void set_drafts(Generate& request, const DraftLength& wanted);

/// What came back for one Generate.
struct Generation {
  std::vector<TokenId> tokens;
  std::vector<TokenLogprobs> logprobs;  ///< of each token, if the request wanted them
  FinishReason reason = FinishReason::kStop;
  RequestMetrics metrics;
  bool cancelled = false;     ///< ended by the caller; then there are no reason and no metrics
  std::string verifier = {};  ///< the name of the last token's
};

/// What a caller hears of requests that are answered side by side. `index` says which of them.
struct AnswerEvents {
  /// The new tokens, as they come. May call ClientCore::end_answer().
  std::function<void(std::size_t index, std::span<const TokenId> tokens)> on_tokens;
  /// Log-probabilities of the next tokens of its prompt, if the request wants them: each token's once, in their order,
  /// before on_tokens gets the answer's first. Of the prompt's first token there are none.
  std::function<void(std::size_t index, std::span<const TokenLogprobs> scores)> on_prompt_scores =
      [](std::size_t, std::span<const TokenLogprobs>) {};
  /// How a round went, before on_tokens gets its tokens, if the request has report_rounds.
  std::function<void(std::size_t index, const RoundReport& round)> on_round = [](std::size_t, const RoundReport&) {};
  /// It has come to its end, before the others perhaps. Not of one that was cancelled.
  std::function<void(std::size_t index, const Generation& generation)> on_end = [](std::size_t, const Generation&) {};
  /// Asked several times a second. Once it says so, what is still open is cancelled.
  std::function<bool()> cancelled = [] { return false; };
};

struct ClientConfig {
  Duration silence_max = std::chrono::seconds(3);  ///< then the coordinator counts as gone
  /// How long a request waits for a coordinator that goes on with it when its own is gone: this one, restarted, or a
  /// stand-by. 0: it fails at once.
  Duration failover_wait = std::chrono::seconds(30);
  /// Whether there has been a coordinator before. A first one has only `silence_max` to answer: nobody may be there.
  bool was_there = false;
  /// Places where a coordinator may be, this one's included. Where it has no verifier the next one is asked: once
  /// around at once as long as there is no token, and wherever it has had none for a while, once around and for as long
  /// as the answer may wait. 1: there is no other.
  int places = 1;
  int fruitless_max = 8;  ///< coordinators that one answer may lose without a token from any: it may be what kills them
};

/// A client's side of requests that are answered side by side, as a pure state machine: messages, connections and time
/// in, messages out. It holds the prompts and all of the answers so far. When the coordinator is gone it asks whichever
/// comes next to go on with them: the same requests, with the tokens that have come, which no more than a verifier's
/// death shows in the answer (docs/protocol.md, "When the coordinator is gone").
class ClientCore {
 public:
  /// @param requests, events  outlive it. @param last  the number of the client's last request: these have later ones.
  ClientCore(const ClientConfig& config, const std::vector<Generate>& requests, const AnswerEvents& events,
             SessionId last, TimePoint now);

  /// One of the coordinator's. An error ends all: the others are cancelled.
  Result<void> on_message(const Message& message, TimePoint now);
  /// The connection is another one than that over which requests were sent last: whoever is there knows none of them.
  Result<void> on_connected(TimePoint now);
  /// More of a long message has come.
  void on_arriving(TimePoint now) { heard_ = now; }
  /// @return kPeerGone when there has been no coordinator for too long.
  Result<void> on_tick(TimePoint now);
  /// The caller wants no more of what is open.
  void cancel();
  /// Nothing more will come: cancels what is open, but for answers that have all they need.
  void give_up();

  /// From within on_tokens: this answer is its first `keep` tokens, at most those that have come, and it is finished:
  /// reason kStop. The metrics are missing (all 0) where its verifier or the coordinator dies before it has sent them.
  void end_answer(std::int64_t keep) { current_->end = keep; }
  /// From within on_tokens: all that has come of this answer, the new tokens included.
  const Generation& so_far() const { return current_->generation; }

  /// Requests that have not come to their end.
  std::size_t open() const { return open_; }
  SessionId last() const { return last_; }
  struct Output {
    std::vector<Message> send;
    bool redial = false;  ///< the coordinator is gone, though its connection may not say so: look for it, or another
  };
  Output take_output() { return std::exchange(output_, {}); }
  /// One of each request.
  std::vector<Generation> take_generations();

 private:
  /// A request on its way.
  struct Answer {
    const Generate* request = nullptr;
    SessionId id{};
    Generation generation = {};
    std::optional<std::int64_t> end = {};  ///< its length, once on_tokens has said so
    bool done = false;
    Position scored = 1;  ///< end of the prompt's tokens that need no log-probabilities or have them
    // What the next coordinator must know (Tokens).
    std::string numeric_class = {}, encoding_class = {};
    std::int64_t max_tokens = 0;
    int fruitless = 0;                           ///< times that it was asked again since its last token
    std::optional<TimePoint> again = {};         ///< it was refused for now: asked again then
    std::optional<TimePoint> missed = {};        ///< the last word of the coordinator that was lost
    TimePoint asked{}, first_token{}, latest{};  ///< `latest`: its last token
  };

  Answer* find(SessionId id);
  std::size_t index_of(const Answer& answer) const { return static_cast<std::size_t>(&answer - answers_.data()); }
  void ask(Answer& answer);
  /// Takes it to whoever is there now. @param lost  the coordinator, or what it said; else it had no verifier
  Result<void> ask_again(Answer& answer, bool lost = true);
  Result<void> take_prompt_scores(Answer& answer, const PromptScores& scores);
  Result<void> take_tokens(Answer& answer, const Tokens& tokens, TimePoint now);
  Result<void> take_failed(Answer& answer, const Failed& failed, TimePoint now);
  /// Leaves a coordinator that has no verifier, while there is another to ask.
  Result<void> take_status(const Status& status, TimePoint now);
  /// @param refused  by this one, perhaps at once: then it is not asked again and again.
  bool may_go_elsewhere(bool refused, TimePoint now) const;
  /// Whether an answer may still wait for a verifier: so long a request waits for one to join, and a text for another.
  bool may_wait(const Answer& answer, TimePoint now) const;
  /// A coordinator without a verifier is left at once: not where a text has begun, whose workers may be on their way to
  /// a coordinator that has just been started.
  bool at_once() const;
  void ask_for_status() { output_.send.push_back({.body = StatusRequest{}}); }
  /// The answer is whole: says so.
  void finish(Answer& answer);
  void end(Answer& answer);
  /// Cancels what is open. @return the error
  Error failed(Error error);
  /// Those of which only metrics are missing.
  void finish_ended();
  void send_cancel(const Answer& answer, std::optional<std::int64_t> keep = {}) {
    output_.send.push_back({.session = answer.id, .body = Cancel{keep}});
  }

  const ClientConfig config_;
  const AnswerEvents& events_;
  std::vector<Answer> answers_;
  std::size_t open_ = 0;
  SessionId last_;
  TimePoint heard_, redialled_;
  TimePoint served_;  ///< when the coordinator had a verifier, as far as is known, or was asked whether it has
  /// Coordinators that were left because they had no verifier.
  struct Passed {
    int at_once = 0, since_token = 0;
    bool last = false;  ///< the last one was
  } passed_;
  std::optional<Error> refused_ = {};  ///< an answer's, final if the coordinator has a verifier
  bool was_there_, cancelling_ = false;
  Answer* current_ = nullptr;  ///< within on_tokens: whose tokens they are
  Output output_;
};

}  // namespace outrider
