#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/client/client.h"
#include "common/client/client_core.h"
#include "common/client/text_side.h"
#include "common/wire/transport/endpoint.h"
#include "server/http_message.h"
#include "server/openai.h"
#include "server/request_trace.h"

namespace outrider {

/// FinishedRequest::status when the client went away: nginx's.
inline constexpr int kClientGone = 499;

/// @return the error for a reply that nobody awaits any more.
ApiError cut_off(bool server_ends);

/// Facts of one choice that came to its end.
struct FinishedChoice {
  std::string finish_reason;
  std::int64_t prompt_tokens = 0, generated_tokens = 0;
  RequestMetrics metrics;
};

/// Facts of one request to generate, whether it got an answer or not.
struct FinishedRequest {
  std::string_view operation = "chat";  ///< OpenTelemetry's gen_ai.operation.name; of a constant
  int status = 200;                     ///< or kClientGone; of a stream, what became of it, though its head said 200
  std::int64_t prompt_tokens = 0, generated_tokens = 0;  ///< sums over choices
  std::int64_t reasoning_tokens = 0;                     ///< those of the latter that belong to thoughts
  std::int64_t broken_tool_calls = 0;                    ///< that became content, over choices
  std::optional<Duration> time_to_first_token;           ///< from the whole request's arrival
  std::vector<Duration> inter_token_gaps;  ///< between arrivals, each of one or more tokens: vLLM's inter-token latency
  Duration total{};
  RequestMetrics metrics;               ///< sums over `choices`
  std::vector<FinishedChoice> choices;  ///< but for those that were cut short
};

/// Gets the file that an http(s) URL in a request names, as MediaFetcher::fetch().
using FetchMedium = std::function<Result<std::string>(const std::string& url, const AdmitSound& admit,
                                                      TimePoint deadline, const std::function<bool()>& gone)>;

struct ApiOptions {
  std::string coordinator;  ///< its address
  std::string version;
  std::string model;  ///< what clients call it
  DraftLength draft_length = {};
  bool share_prefixes = false;  ///< also among keys with names
  bool strict_fields = false;   ///< requests with fields that nobody knows are refused
  bool governed = false;        ///< as Generate's
  Duration failover_wait = ClientConfig().failover_wait;
  bool own = false;        ///< coordinator and workers are this program's: requests wait while they load
  FetchMedium fetch = {};  ///< empty: http(s) URLs are refused
  /// It gets the trace of each request with HttpRequest::trace. Empty: nothing is noted of any.
  std::function<void(RequestTrace)> on_traced = {};
  std::function<void(const FinishedRequest&)> on_finished = [](const FinishedRequest&) {
  };  ///< any thread, many at once
};

/// It gives the bytes that a token adds to a text, perhaps part of a character; a control token is spelled out.
std::string token_bytes(const Tokenizer& tokenizer, TokenId token);

/// The endpoints of docs/http.md over a coordinator. Each request is a client of the coordinator's, on behalf of the
/// client that asked over HTTP. The queue is the coordinator's alone.
/// Must outlive the HttpServer that has its routes.
class ApiServer {
 public:
  /// @param context  outlives it.
  /// @param text  of a model with a config.json.
  ApiServer(TransportContext& context, TextSide text, ApiOptions options);

  /// The route table; more may be appended before it is served.
  std::vector<HttpRoute> routes();
  /// Generates the reply to a request, or an error in the words of the writer's API.
  HttpReply chat(const HttpRequest& http, ApiResult<CompletionRequest> request,
                 const std::shared_ptr<ReplyWriter>& writer) {
    return complete(http, true, std::move(request), writer);
  }
  HttpReply completion(const HttpRequest& http, ApiResult<CompletionRequest> request,
                       const std::shared_ptr<ReplyWriter>& writer) {
    return complete(http, false, std::move(request), writer);
  }
  HttpReply tokenize(const HttpRequest& http) const;
  HttpReply detokenize(const HttpRequest& http) const;
  /// The tokens of a prompt, which count as the key's.
  ApiResult<std::int64_t> count(const HttpRequest& http, ApiResult<TokenizeRequest> request) const;
  /// It holds the tokens that /tokenize makes of a request, and its pictures and sounds.
  struct RenderedPrompt {
    std::vector<TokenId> tokens;
    std::vector<WireMedium> media;
    TokenizeRequest::Form form;
  };
  ApiResult<RenderedPrompt> prompt_of(const HttpRequest& http, ApiResult<TokenizeRequest> request) const;
  /// llama.cpp's /apply-template: a chat's prompt as text.
  HttpReply apply_template(const HttpRequest& http) const;
  const std::string& model_name() const { return defaults_.model; }
  const ApiDefaults& defaults() const { return defaults_; }
  const std::string& version() const { return options_.version; }
  /// Why a request to /v1/chat/completions or /v1/completions would be refused before the coordinator is asked; none:
  /// it would not.
  std::optional<ApiError> check(const std::string& path, const std::string& body);
  const TextSide& text() const { return text_; }
  /// It asks the coordinator for its and its workers' state, up to 3 s when there is no answer.
  Result<Status> status() const;
  /// It makes a client for requests, whose errors name no inner hosts.
  Result<Client> connect() const;

 private:
  struct Work;
  /// A prompt's token counts for each choice: here, in the message, and at a coordinator in this process.
  static constexpr std::int64_t kBytesPerPromptToken = 16;
  class ChoiceReader;
  class ChoiceSink;
  class StreamingSink;

  /// OpenAI's.
  ApiResult<CompletionRequest> parse(const HttpRequest& http, bool chat) const;
  HttpReply complete(const HttpRequest& http, bool chat, ApiResult<CompletionRequest> request,
                     const std::shared_ptr<ReplyWriter>& writer);
  /// Fills in `work`. @return the reason why a request is refused.
  std::optional<ApiError> prepare(const HttpRequest& http, bool chat, ApiResult<CompletionRequest> asked, Work& work);
  /// Counts a body by what is known of it once it has been parsed, before its text is tokenised; refuses media of a
  /// model that sees none, whose vocabulary may have no word for them.
  std::optional<ApiError> count_body(const HttpRequest& http, const RequestSource& source,
                                     std::span<const MediumFile> files) const;
  /// Gets the file of an http(s) URL, whose memory is counted before. @return why not, by the name of the part.
  std::optional<ApiError> fetch(const HttpRequest& http, const RequestSource& source, MediumFile& file,
                                const AdmitSound& admit, TimePoint deadline) const;
  /// Reads the pictures, videos and sounds of a chat, each after its memory has been counted, and renders it with room
  /// for them.
  /// @param conversation  its videos hear of their frames
  /// @return its prompt, or why not, by the name of the part.
  ApiResult<std::vector<TokenId>> perceive(const HttpRequest& http, const RequestSource& source,
                                           std::vector<MediumFile> files, Conversation& conversation,
                                           std::vector<WireMedium>& media) const;
  /// A video, as a file or as pictures.
  Result<SeenVideo> watch(const MediumFile& file, const AdmitPicture& admit) const;
  /// Refuses a request that is longer than the context, or takes more memory than there is. From here on the request
  /// counts as the memory of its choices.
  std::optional<ApiError> too_much(const HttpRequest& http, const Work& work) const;
  /// It forbids the tokens that the word may be written with.
  void add_bad_word(const std::string& word, SamplingParams& sampling) const;
  /// It keeps the end of a prompt that may be too long, where the request wants that.
  void keep_tail(const CompletionRequest& request, std::vector<TokenId>& prompt) const;
  ApiResult<std::vector<TokenId>> render(const RequestSource& source, const Conversation& conversation) const;
  /// Generates all choices side by side and reports the request as finished. The first that fails ends the others.
  std::optional<ApiError> run(Work& work, ChoiceSink& sink, const std::function<bool()>& gone);
  /// Logs and reports it, and hands its trace on.
  void finish(Work& work, const std::optional<ApiError>& error) const;
  std::optional<ApiError> generate_choices(Work& work, ChoiceSink& sink, const std::function<bool()>& gone);
  /// @return the scope whose clients share prefixes with this request.
  std::string cache_scope(const Work& work) const;
  Generate generate_of_choice(const Work& work, std::size_t index) const;
  ApiError api_error(const Error& error) const;
  HttpReply models() const;
  HttpReply model() const;
  HttpReply no_model(const HttpRequest& http) const;
  HttpReply ready() const;
  HttpReply status_reply() const;
  HttpReply tokenizer_info() const;

  TransportContext& context_;
  const TextSide text_;
  const ApiOptions options_;
  const ApiDefaults defaults_;
  const std::int64_t started_;  ///< Unix seconds
  std::atomic<int> open_ = 0;   ///< requests to generate that have not ended
};

}  // namespace outrider
