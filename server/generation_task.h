#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/time.h"
#include "common/model/tokenizer/tokenizer.h"
#include "server/api_key.h"
#include "server/reply_writer.h"
#include "server/request.h"
#include "server/request_trace.h"

namespace outrider {

/// Facts of one choice that came to its end.
struct FinishedChoice {
  std::string finish_reason;
  std::int64_t prompt_tokens = 0, generated_tokens = 0;
  RequestMetrics metrics;
};

/// Facts of one generation request, with or without an answer.
struct FinishedRequest {
  int status = 200;  ///< or kClientGone; for a stream, its outcome, though its head had 200
  std::int64_t prompt_tokens = 0, generated_tokens = 0;  ///< sums over choices
  std::int64_t reasoning_tokens = 0;                     ///< generated tokens in thoughts
  std::int64_t broken_tool_calls = 0;                    ///< became content; over choices
  std::optional<Duration> time_to_first_token;           ///< from the whole request's arrival
  std::vector<Duration> inter_token_gaps;  ///< between arrivals, each of one or more tokens: vLLM's inter-token latency
  Duration total{};
  RequestMetrics metrics;               ///< sums over `choices`
  std::vector<FinishedChoice> choices;  ///< without those cut short
};

/// One generation request, from its arrival to its end.
struct GenerationTask {
  CompletionRequest request;
  std::vector<std::vector<TokenId>> prompts;
  std::vector<WireMedium> media;  ///< of a chat
  ReplyHead head;
  TimePoint arrived{};
  FinishedRequest facts;
  std::optional<RequestTrace> trace;
  std::int64_t cached_tokens = 0;  ///< of each prompt's first choice: the others reuse the prompt that it computed
  std::string client, request_id;  ///< see HttpRequest
  std::shared_ptr<const ApiKey> key;
  std::function<bool()> server_ends;

  std::size_t choices() const { return prompts.size() * static_cast<std::size_t>(request.n); }
  const std::vector<TokenId>& prompt_of(std::size_t choice) const {
    return prompts[choice / static_cast<std::size_t>(request.n)];
  }
  /// Returns the text at the start of a choice's answer, before the model's own.
  std::string echo_of(std::size_t choice, const Tokenizer& tokenizer) const {
    if (!request.echo) return "";
    if (!request.chat) return tokenizer.decode(prompt_of(choice), /*skip_special=*/true);
    const std::vector<ChatMessage>& messages = request.conversation.messages;
    const bool goes_on = request.conversation.end == Conversation::End::kWithinLastMessage;
    return goes_on ? messages.back().shown_text() : "";
  }
  Usage usage() const {
    return {facts.prompt_tokens, cached_tokens, facts.generated_tokens,     facts.reasoning_tokens,
            facts.metrics,       choices(),     request.draft_length.length};
  }
  /// Usage before the end, with the times known here.
  Usage usage_so_far() const {
    Usage so_far = usage();
    if (!facts.time_to_first_token) return so_far;
    so_far.metrics.prefill_ns = facts.time_to_first_token->count();
    so_far.metrics.decode_ns = (now() - arrived - *facts.time_to_first_token).count();
    return so_far;
  }
};

}  // namespace outrider
