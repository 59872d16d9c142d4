#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/time.h"
#include "common/client/client_core.h"
#include "common/wire/transport/endpoint.h"

namespace outrider {

/// Time in ms that a request waits for a verifier to join: at a coordinator that others start as long as a running
/// sequence does (FailoverConfig), as both outlast a restart of the only verifier; and at our own, whose end would be
/// noticed.
inline constexpr std::int64_t kVerifierWaitMs = 30'000, kOwnVerifierWaitMs = 86'400'000;

struct ClientOptions {
  Duration failover_wait = ClientConfig().failover_wait;  ///< see ClientConfig
  bool own = false;   ///< the coordinator is this program's own: silence is allowed while its connection is up
  bool names = true;  ///< errors name the coordinator's address; otherwise only the log does
};

/// A coordinator's client. One thread.
class Client {
 public:
  /// @param addresses  of coordinators, separated by commas: the first that answers is used (Endpoint::connect). Within
  /// a process, where a coordinator does not come back, there is no failover_wait.
  static Result<Client> connect(TransportContext& context, const std::string& addresses,
                                const ClientOptions& options = {});
  Client(Client&&) = default;
  ~Client();

  /// Runs requests concurrently, each to its end, across changes of coordinators (ClientCore). A cancelled request's
  /// generation is what it had before.
  /// @return one per request; or the first error, which cancels the others: the coordinator's, or kPeerGone after too
  /// long without a coordinator
  Result<std::vector<Generation>> generate_all(const std::vector<Generate>& requests, const AnswerEvents& events);

  /// The same for one request.
  Result<Generation> generate(
      const Generate& request, const std::function<void(std::span<const TokenId>)>& on_tokens,
      const std::function<bool()>& cancelled = [] { return false; },
      const std::function<void(const RoundReport&)>& on_round = [](const RoundReport&) {});

  // To be called within on_tokens: see ClientCore.
  void end_answer(std::int64_t keep) { answers_->end_answer(keep); }
  const Generation& so_far() const { return answers_->so_far(); }

  // Steps of one sequence at the caller's pace. prefill() ends the previous sequence, even if it fails. An error of
  // another step also ends the sequence, except for kInvalidArgument, which refuses that step alone.

  /// Starts a sequence. @param media  pictures and sounds, in order @return the token that follows the prompt
  Result<TokenId> prefill(std::vector<TokenId> prompt, const SamplingParams& sampling = {},
                          std::vector<WireMedium> media = {});
  /// Returns at most `count` candidates for the next tokens; none without a drafter, when it was late, or at the end of
  /// the context. Once a round: a second call returns the first one's result.
  Result<std::vector<TokenId>> draft(std::int32_t count);
  /// Ends the sequence, if there is one.
  void end_text();
  /// Appends the accepted drafts, which are those that plain decoding would have chosen, and the next token.
  /// @return the appended tokens; at least one
  Result<std::vector<TokenId>> verify(std::vector<TokenId> drafts);

  /// Returns the coordinator's workers and session counts. @return kPeerGone after 3 s of silence
  Result<Status> status();

  /// Polls until so many workers have joined. An error of `still_possible` ends the wait.
  Result<void> wait_for_workers(int verifiers, int drafters, const std::function<Result<void>()>& still_possible);

 private:
  Client(std::unique_ptr<Endpoint> endpoint, const ClientOptions& options);
  /// Returns the next message, nothing after a while without one, or the reason that none will come.
  /// @param last_message  time of the last message, by clock_
  Result<std::optional<Message>> next(TimePoint* last_message);
  /// Returns the next message, nothing after a while without one, or an error for bytes that are no message.
  Result<std::optional<Message>> receive();
  /// Handles the events since the last call: a message, perhaps a new connection.
  Result<void> go_on(ClientCore& answers);
  Result<void> send(ClientCore::Output output);
  /// Returns true if the coordinator is alive although it is silent.
  bool is_alive() { return !endpoint_->arriving().empty() || (options_.own && endpoint_->connected()); }
  /// Prefixes an error with the coordinator's name.
  Error named(const Error& error) const;
  /// Returns the next message of the current request: a Failed as its error, a Done or the answer of a step.
  Result<Body> answer(TimePoint* last_message);
  /// Tells the coordinator that a request is no longer wanted.
  void send_cancel(SessionId request, std::optional<std::int64_t> keep = {});
  /// Ends a stepwise sequence and advances to the next request number.
  void next_request();
  /// Sends one message of the stepwise sequence and waits for its answer: at most `max` tokens in an Answer.
  template <typename Answer>
  Result<std::vector<TokenId>> step(Body body, std::size_t max);

  std::unique_ptr<Endpoint> endpoint_;
  LoopClock clock_;
  SessionId request_{};  ///< the current or last one
  ClientOptions options_;
  int connection_ = 0;             ///< number of the connection used for the last message
  ClientCore* answers_ = nullptr;  ///< within generate_all()
  std::optional<Error> no_text_;   ///< reason that no step is possible; none while a stepwise sequence is open
};

}  // namespace outrider
