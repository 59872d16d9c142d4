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

/// Sets the fields for drafts of this length and policy.
void set_drafts(Generate& request, const DraftLength& wanted);

/// The result of one Generate.
struct Generation {
  std::vector<TokenId> tokens;
  std::vector<TokenLogprobs> logprobs;  ///< one per token, if requested
  FinishReason reason = FinishReason::kStop;
  RequestMetrics metrics;
  bool cancelled = false;     ///< ended by the caller; then without reason and metrics
  std::string verifier = {};  ///< name of the last token's verifier
};

/// Events of concurrent requests. `index` is the request's.
struct AnswerEvents {
  /// New tokens, as they arrive. May call ClientCore::end_answer().
  std::function<void(std::size_t index, std::span<const TokenId> tokens)> on_tokens;
  /// Log-probabilities of the prompt's next tokens, if requested: once per token, in order, before the answer's first
  /// on_tokens. The prompt's first token has none.
  std::function<void(std::size_t index, std::span<const TokenLogprobs> scores)> on_prompt_scores =
      [](std::size_t, std::span<const TokenLogprobs>) {};
  /// The outcome of a round, before on_tokens gets its tokens, if the request has report_rounds.
  std::function<void(std::size_t index, const RoundReport& round)> on_round = [](std::size_t, const RoundReport&) {};
  /// A request has ended, perhaps before others. Not called for a cancelled one.
  std::function<void(std::size_t index, const Generation& generation)> on_end = [](std::size_t, const Generation&) {};
  /// Polled several times a second; true cancels all open requests.
  std::function<bool()> cancelled = [] { return false; };
};

struct ClientConfig {
  Duration silence_max = std::chrono::seconds(3);  ///< after which the coordinator counts as gone
  /// Time that a request waits for a coordinator that continues it after its own was lost: the same one, restarted, or
  /// a stand-by. 0: it fails at once.
  Duration failover_wait = std::chrono::seconds(30);
  /// True if there was a coordinator before. A first one has only `silence_max` to answer: there may be none.
  bool was_there = false;
  /// Number of places where a coordinator may be, including this one. Without a verifier here, the next place is asked:
  /// immediately, once around, while the answer has no token; and after a while without one, once around and for as
  /// long as the answer may wait. 1: there is no other place.
  int places = 1;
  int restarts_max = 8;  ///< coordinators that one answer may lose without a token from any, since it may be the cause
};

/// The client's side of concurrent requests, as a pure state machine: messages, connections and time in, messages out.
/// It keeps the prompts and the answers so far. When the coordinator is lost, it asks the next one to continue the same
/// requests with the tokens so far, which changes the answer no more than a verifier's death does (docs/protocol.md,
/// "When the coordinator is gone").
class ClientCore {
 public:
  /// @param requests, events  outlive it @param last  number of the client's last request: these get later ones
  ClientCore(const ClientConfig& config, const std::vector<Generate>& requests, const AnswerEvents& events,
             SessionId last, TimePoint now);

  /// Handles a coordinator's message. An error ends all requests: the others are cancelled.
  Result<void> on_message(const Message& message, TimePoint now);
  /// Handles a new connection: the coordinator there knows none of the requests.
  Result<void> on_connected(TimePoint now);
  /// Records that more of a long message arrived.
  void on_arriving(TimePoint now) { last_received_ = now; }
  /// @return kPeerGone after too long without a coordinator
  Result<void> on_tick(TimePoint now);
  /// Cancels all open requests for the caller.
  void cancel();
  /// Called at the end: cancels open requests, except answers that are complete.
  void give_up();

  /// To be called within on_tokens: the answer ends after its first `keep` tokens, at most those received, with reason
  /// kStop. The metrics are missing (all 0) if its verifier or the coordinator dies before sending them.
  void end_answer(std::int64_t keep) { current_->end = keep; }
  /// To be called within on_tokens: this answer so far, the new tokens included.
  const Generation& so_far() const { return current_->generation; }

  /// Number of unfinished requests.
  std::size_t open() const { return open_; }
  SessionId last() const { return last_; }
  struct Output {
    std::vector<Message> send;
    bool redial = false;  ///< the coordinator is gone, though the connection may look alive: reconnect
  };
  Output take_output() { return std::exchange(output_, {}); }
  /// Returns one generation per request.
  std::vector<Generation> take_generations();

 private:
  /// A request in progress.
  struct Answer {
    const Generate* request = nullptr;
    SessionId id{};
    Generation generation = {};
    std::optional<std::int64_t> end = {};  ///< its length, if end_answer() was called
    bool done = false;
    Position scored = 1;  ///< end of the prompt's tokens whose log-probabilities are not needed or are there
    // State for the next coordinator (Tokens).
    std::string numeric_class = {}, encoding_class = {};
    std::int64_t max_tokens = 0;
    int restarts = 0;                            ///< times that it was asked again since its last token
    std::optional<TimePoint> again = {};         ///< refused for now: time of the next attempt
    std::optional<TimePoint> missed = {};        ///< time of the lost coordinator's last message
    TimePoint asked{}, first_token{}, latest{};  ///< `latest`: its last token's
  };

  Answer* find(SessionId id);
  std::size_t index_of(const Answer& answer) const { return static_cast<std::size_t>(&answer - answers_.data()); }
  void ask(Answer& answer);
  /// Sends it to the current coordinator. @param lost  the last one, or a message, was lost; else it had no verifier
  Result<void> ask_again(Answer& answer, bool lost = true);
  Result<void> take_prompt_scores(Answer& answer, const PromptScores& scores);
  Result<void> take_tokens(Answer& answer, const Tokens& tokens, TimePoint now);
  Result<void> take_failed(Answer& answer, const Failed& failed, TimePoint now);
  /// Leaves a coordinator without a verifier, while there is another to ask.
  Result<void> take_status(const Status& status, TimePoint now);
  /// @param refused  by this coordinator, perhaps immediately: it is then not asked repeatedly
  bool may_go_elsewhere(bool refused, TimePoint now) const;
  /// Returns true while an answer may wait for a verifier: for one to join, or after a loss for another.
  bool may_wait(const Answer& answer, TimePoint now) const;
  /// Returns true if a coordinator without a verifier is left at once: not after an answer has begun, since its workers
  /// may be on their way to a newly started coordinator.
  bool at_once() const;
  void ask_for_status() { output_.send.push_back({.body = StatusRequest{}}); }
  /// Reports a completed answer.
  void finish(Answer& answer);
  void end(Answer& answer);
  /// Cancels all open requests. @return the error
  Error failed(Error error);
  /// Finishes answers that lack only their metrics.
  void finish_ended();
  void send_cancel(const Answer& answer, std::optional<std::int64_t> keep = {}) {
    output_.send.push_back({.session = answer.id, .body = Cancel{keep}});
  }

  const ClientConfig config_;
  const AnswerEvents& events_;
  std::vector<Answer> answers_;
  std::size_t open_ = 0;
  SessionId last_;
  TimePoint last_received_, redialled_;
  TimePoint served_;  ///< last time that the coordinator is known to have had a verifier, or was asked
  /// Coordinators that were left because they had no verifier.
  struct Passed {
    int at_once = 0, since_token = 0;
    bool last = false;  ///< true for the last coordinator
  } passed_;
  std::optional<Error> refused_ = {};  ///< an answer's error, final if the coordinator has a verifier
  bool was_there_, cancelling_ = false;
  Answer* current_ = nullptr;  ///< within on_tokens: the answer concerned
  Output output_;
};

}  // namespace outrider
