#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

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

/// A coordinator's client. One thread, one request at a time.
class Client {
 public:
  static Result<Client> connect(TransportContext& context, const std::string& address);
  Client(Client&&) = default;
  ~Client();

  /// Runs a request to its end. on_tokens gets the new tokens as they come. Once `cancelled` says so,
  /// asked several times a second, the request is cancelled; what came before is the generation.
  /// on_tokens may call end_answer(). on_round gets how a round went before on_tokens gets its tokens, if request.report_rounds.
  /// @return the coordinator's error, or kPeerGone when it has been silent for 3 s.
  Result<Generation> generate(const Generate& request, const std::function<void(std::span<const TokenId>)>& on_tokens,
                              const std::function<bool()>& cancelled = [] { return false; },
                              const std::function<void(const RoundReport&)>& on_round = [](const RoundReport&) {});

  /// From within on_tokens: the answer is its first `keep` tokens, at most those that have come, and it is finished:
  /// reason kStop. on_tokens is not called again; both tiers drop the session in this round. The metrics are missing (all 0)
  /// where its verifier or the coordinator dies before it has sent them: that takes nothing from the answer.
  void end_answer(std::int64_t keep) { end_ = keep; }

  /// From within on_tokens: all that has come, the new tokens included.
  const Generation& so_far() const { return generation_; }

  // The steps of one text at the caller's own pace. An error ends the text, which prefill() starts anew,
  // but for kInvalidArgument: that step was refused and all is as before.

  /// Starts a text; an earlier one ends. @return the token that follows the prompt.
  Result<TokenId> prefill(std::vector<TokenId> prompt, const SamplingParams& sampling = {});
  /// At most `count` candidates for the next tokens, perhaps none: without a drafter, when it was late,
  /// or at the end of the context. Once a round: a second call shows what the first one got.
  Result<std::vector<TokenId>> draft(std::int32_t count);
  /// Appends the drafts that plain decoding would have chosen, up to the first that it would not, and
  /// its own next token. @return what was appended; at least one token.
  Result<std::vector<TokenId>> verify(std::vector<TokenId> drafts);

  /// Who has joined, and how many sessions are open. @return kPeerGone when nothing is heard for 3 s.
  Result<Status> status();

  /// Asks until so many workers have joined. `still_possible` says why not to wait any longer.
  Result<void> wait_for_workers(int verifiers, int drafters, const std::function<Result<void>()>& still_possible);

 private:
  explicit Client(std::unique_ptr<Endpoint> endpoint);
  /// The next message, nothing after a while without one, or why none will come.
  Result<std::optional<Message>> next(TimePoint* heard);
  /// The next that concerns the current request: a Failed as its error, a Done or what a step answers.
  Result<Body> answer(TimePoint* heard);
  /// Tells the coordinator that nobody wants the current request any longer.
  void send_cancel(std::optional<std::int64_t> keep = {});
  /// Ends a stepwise text, if there is one, and counts up to the next request.
  void next_request();
  /// Sends one message of the stepwise text and waits for what answers it: at most `max` tokens in an Answer.
  template <typename Answer>
  Result<std::vector<TokenId>> step(Body body, std::size_t max);

  std::unique_ptr<Endpoint> endpoint_;
  SessionId request_{};  ///< the current or last one
  Generation generation_;  ///< of the current or last generate()
  std::optional<std::int64_t> end_;  ///< of generate()'s answer, once on_tokens has said so
  std::optional<Error> no_text_;  ///< why no step is possible; none while a stepwise text is open
};

}  // namespace outrider
