#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/time.h"
#include "common/protocol/messages.h"
#include "common/transport/endpoint.h"

namespace outrider {

/// How long a request of ours waits for a verifier to join, ms.
inline constexpr std::int64_t kVerifierWaitMs = 4000;

/// What came back for one Generate.
struct Generation {
  std::vector<TokenId> tokens;
  std::vector<TokenLogprobs> logprobs;  ///< of each token, if the request wanted them
  FinishReason reason = FinishReason::kStop;
  RequestMetrics metrics;
  bool cancelled = false;  ///< ended by the caller; then there are no reason and no metrics
};

/// What a caller hears of requests that are answered side by side. `index` says which of them.
struct AnswerEvents {
  /// The new tokens, as they come. May call Client::end_answer().
  std::function<void(std::size_t index, std::span<const TokenId> tokens)> on_tokens;
  /// How a round went, before on_tokens gets its tokens, if the request has report_rounds.
  std::function<void(std::size_t index, const RoundReport& round)> on_round = [](std::size_t, const RoundReport&) {};
  /// It has come to its end, before the others perhaps. Not of one that was cancelled.
  std::function<void(std::size_t index, const Generation& generation)> on_end = [](std::size_t, const Generation&) {};
  /// Asked several times a second. Once it says so, what is still open is cancelled.
  std::function<bool()> cancelled = [] { return false; };
};

/// A coordinator's client. One thread.
class Client {
 public:
  /// @param addresses of coordinators, with commas between: the first that answers (Endpoint::connect).
  static Result<Client> connect(TransportContext& context, const std::string& addresses);
  Client(Client&&) = default;
  ~Client();

  /// Runs requests side by side, each to its end. Of one that is cancelled, what came before is the generation.
  /// @return one of each request; or the first error, upon which the others are cancelled: the coordinator's, or
  ///   kPeerGone when it has been silent for 3 s.
  Result<std::vector<Generation>> generate_all(const std::vector<Generate>& requests, const AnswerEvents& events);

  /// The same for one request.
  Result<Generation> generate(
      const Generate& request, const std::function<void(std::span<const TokenId>)>& on_tokens,
      const std::function<bool()>& cancelled = [] { return false; },
      const std::function<void(const RoundReport&)>& on_round = [](const RoundReport&) {});

  /// From within on_tokens: this answer is its first `keep` tokens, at most those that have come, and it is finished:
  /// reason kStop. on_tokens is not called again; both tiers drop the session in this round. The metrics are missing
  /// (all 0) where its verifier or the coordinator dies before it has sent them: that takes nothing from the answer.
  void end_answer(std::int64_t keep) { current_->end = keep; }

  /// From within on_tokens: all that has come of this answer, the new tokens included.
  const Generation& so_far() const { return current_->generation; }

  // The steps of one text at the caller's own pace. prefill() ends the text there was, whatever comes of it. An error
  // of another step does too, but for kInvalidArgument: that step was refused and all is as before.

  /// Starts a text. @return the token that follows the prompt.
  Result<TokenId> prefill(std::vector<TokenId> prompt, const SamplingParams& sampling = {});
  /// At most `count` candidates for the next tokens, perhaps none: without a drafter, when it was late,
  /// or at the end of the context. Once a round: a second call shows what the first one got.
  Result<std::vector<TokenId>> draft(std::int32_t count);
  /// Ends the text, if there is one.
  void end_text();
  /// Appends the drafts that plain decoding would have chosen, up to the first that it would not, and
  /// its own next token. @return what was appended; at least one token.
  Result<std::vector<TokenId>> verify(std::vector<TokenId> drafts);

  /// Who has joined, and how many sessions are open. @return kPeerGone when nothing is heard for 3 s.
  Result<Status> status();

  /// Asks until so many workers have joined. `still_possible` says why not to wait any longer.
  Result<void> wait_for_workers(int verifiers, int drafters, const std::function<Result<void>()>& still_possible);

 private:
  /// A request of generate_all() on its way.
  struct Answer {
    const Generate& request;
    SessionId id;
    Generation generation = {};
    std::optional<std::int64_t> end = {};  ///< its length, once on_tokens has said so
    bool done = false;
  };

  explicit Client(std::unique_ptr<Endpoint> endpoint);
  /// The next message, nothing after a while without one, or why none will come.
  /// @param heard by clock_: when the coordinator was heard last.
  Result<std::optional<Message>> next(TimePoint* heard);
  /// The next that concerns the current request: a Failed as its error, a Done or what a step answers.
  Result<Body> answer(TimePoint* heard);
  /// Takes a message about request `index`. @return why it has failed.
  Result<void> take(Answer& answer, std::size_t index, const Body& body, bool cancelling, const AnswerEvents& events);
  /// The answer is whole: says so.
  static void finish(Answer& answer, std::size_t index, const AnswerEvents& events);
  /// Tells the coordinator that nobody wants a request any longer.
  void send_cancel(SessionId request, std::optional<std::int64_t> keep = {});
  /// Ends a stepwise text and counts up to the next request.
  void next_request();
  /// Sends one message of the stepwise text and waits for what answers it: at most `max` tokens in an Answer.
  template <typename Answer>
  Result<std::vector<TokenId>> step(Body body, std::size_t max);

  std::unique_ptr<Endpoint> endpoint_;
  LoopClock clock_;
  SessionId request_{};           ///< the current or last one
  Answer* current_ = nullptr;     ///< within on_tokens: whose tokens they are
  std::optional<Error> no_text_;  ///< why no step is possible; none while a stepwise text is open
};

}  // namespace outrider
