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

/// How long a request of ours waits for a verifier to join, ms: for one that somebody else starts, and for our own,
/// whose end we would see.
inline constexpr std::int64_t kVerifierWaitMs = 4000, kOwnVerifierWaitMs = 86'400'000;

struct ClientOptions {
  Duration failover_wait = ClientConfig().failover_wait;  ///< as ClientConfig's
  bool own = false;   ///< the coordinator is this program's: while its connection stands it may be silent
  bool names = true;  ///< errors say where the coordinator is; else only the log does
};

/// A coordinator's client. One thread.
class Client {
 public:
  /// @param addresses of coordinators, with commas between: the first that answers (Endpoint::connect).
  /// Within a process, where a coordinator does not come back, there is no failover_wait.
  static Result<Client> connect(TransportContext& context, const std::string& addresses,
                                const ClientOptions& options = {});
  Client(Client&&) = default;
  ~Client();

  /// Runs requests side by side, each to its end, whatever coordinators come and go (ClientCore). Of one that is
  /// cancelled, what came before is the generation.
  /// @return one of each request; or the first error, upon which the others are cancelled: the coordinator's, or
  ///   kPeerGone when there was none for too long.
  Result<std::vector<Generation>> generate_all(const std::vector<Generate>& requests, const AnswerEvents& events);

  /// The same for one request.
  Result<Generation> generate(
      const Generate& request, const std::function<void(std::span<const TokenId>)>& on_tokens,
      const std::function<bool()>& cancelled = [] { return false; },
      const std::function<void(const RoundReport&)>& on_round = [](const RoundReport&) {});

  // From within on_tokens: see ClientCore.
  void end_answer(std::int64_t keep) { answers_->end_answer(keep); }
  const Generation& so_far() const { return answers_->so_far(); }

  // The steps of one text at the caller's own pace. prefill() ends the text there was, whatever comes of it. An error
  // of another step does too, but for kInvalidArgument: that step was refused and all is as before.

  /// Starts a text. @param media  pictures and sounds in the prompt's order. @return the token that follows the prompt.
  Result<TokenId> prefill(std::vector<TokenId> prompt, const SamplingParams& sampling = {},
                          std::vector<WireMedium> media = {});
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
  Client(std::unique_ptr<Endpoint> endpoint, const ClientOptions& options);
  /// The next message, nothing after a while without one, or why none will come.
  /// @param heard by clock_: when the coordinator was heard last.
  Result<std::optional<Message>> next(TimePoint* heard);
  /// The next message, nothing after a while without one, or what came that is none.
  Result<std::optional<Message>> receive();
  /// What has happened between two looks at the time: a message, perhaps another connection.
  Result<void> go_on(ClientCore& answers);
  Result<void> send(ClientCore::Output output);
  /// The coordinator is there, though it says nothing.
  bool is_alive() { return !endpoint_->arriving().empty() || (options_.own && endpoint_->connected()); }
  /// An error about the coordinator, by its name.
  Error named(const Error& error) const;
  /// The next that concerns the current request: a Failed as its error, a Done or what a step answers.
  Result<Body> answer(TimePoint* heard);
  /// Tells the coordinator that nobody wants a request any longer.
  void send_cancel(SessionId request, std::optional<std::int64_t> keep = {});
  /// Ends a stepwise text and counts up to the next request.
  void next_request();
  /// Sends one message of the stepwise text and waits for what answers it: at most `max` tokens in an Answer.
  template <typename Answer>
  Result<std::vector<TokenId>> step(Body body, std::size_t max);

  std::unique_ptr<Endpoint> endpoint_;
  LoopClock clock_;
  SessionId request_{};  ///< the current or last one
  ClientOptions options_;
  int connection_ = 0;             ///< over which was sent what was sent last
  ClientCore* answers_ = nullptr;  ///< within generate_all()
  std::optional<Error> no_text_;   ///< why no step is possible; none while a stepwise text is open
};

}  // namespace outrider
