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
#include "server/generation_task.h"
#include "server/http_message.h"
#include "server/openai.h"
#include "server/request_trace.h"

namespace outrider {

class ChoiceSink;

/// @return the error for a reply that is not awaited any more
ApiError cut_off(bool server_ends);

/// Gets the file of an http(s) URL in a request (media_fetcher.h).
using FetchMedium = std::function<Result<std::string>(const std::string& url, const AdmitSound& admit,
                                                      TimePoint deadline, const std::function<bool()>& gone)>;

struct ApiOptions {
  std::string coordinator;  ///< its address
  std::string version;
  std::string model;  ///< its name for clients
  DraftLength draft_length = {};
  bool share_prefixes = false;  ///< also among keys with names
  bool strict_fields = false;   ///< refuse requests with unknown fields
  bool governed = false;        ///< see Generate
  Duration failover_wait = ClientConfig().failover_wait;
  bool own = false;        ///< coordinator and workers are this program's own: requests wait while they load
  FetchMedium fetch = {};  ///< empty: http(s) URLs are refused
  /// Receives the trace of each request with HttpRequest::trace. Empty: no traces are recorded.
  std::function<void(RequestTrace)> on_traced = {};
  std::function<void(const FinishedRequest&)> on_finished = [](const FinishedRequest&) {
  };  ///< any thread, many concurrently
};

/// Functions of an ApiServer for the other APIs.
struct ChatBackend {
  std::function<HttpReply(const HttpRequest& http, ApiResult<CompletionRequest> request,
                          const std::shared_ptr<ReplyWriter>& writer)>
      chat;
  std::function<ApiResult<std::int64_t>(const HttpRequest& http, ApiResult<TokenizeRequest> prompt)> count;
  ApiDefaults defaults;
};

/// The endpoints of docs/http.md over a coordinator. Each request is a client of the coordinator, on behalf of the HTTP
/// client. Only the coordinator has a queue. Must outlive the HttpServer that has its routes.
class ApiServer {
 public:
  /// @param context  outlives it @param text  of a model with a config.json
  ApiServer(TransportContext& context, TextSide text, ApiOptions options);

  /// The route table; more may be appended before it is served.
  std::vector<HttpRoute> routes();
  ChatBackend backend();
  /// Generates the reply to a request, or an error in OpenAI's form. @param chat  otherwise a plain completion
  HttpReply complete(const HttpRequest& http, bool chat, ApiResult<CompletionRequest> request,
                     const std::shared_ptr<ReplyWriter>& writer);
  HttpReply tokenize(const HttpRequest& http) const;
  HttpReply detokenize(const HttpRequest& http) const;
  /// Counts the tokens of a prompt, which are charged to the key.
  ApiResult<std::int64_t> count(const HttpRequest& http, ApiResult<TokenizeRequest> request) const;
  /// The tokens that /tokenize makes of a request, with its media.
  struct RenderedPrompt {
    std::vector<TokenId> tokens;
    std::vector<WireMedium> media;
    TokenizeRequest::Form form;
  };
  ApiResult<RenderedPrompt> prompt_of(const HttpRequest& http, ApiResult<TokenizeRequest> request) const;
  /// llama.cpp's /apply-template: returns a chat's prompt as text.
  HttpReply apply_template(const HttpRequest& http) const;
  const std::string& model_name() const { return defaults_.model; }
  const ApiDefaults& defaults() const { return defaults_; }
  const std::string& version() const { return options_.version; }
  /// Returns the error with which a request to /v1/chat/completions or /v1/completions would be refused before the
  /// coordinator is asked; none: it is not refused.
  std::optional<ApiError> check(const std::string& path, const std::string& body);
  const TextSide& text() const { return text_; }
  /// Asks the coordinator for its and its workers' state; waits for up to 3 s.
  Result<Status> status() const;
  /// Makes a client for requests, whose errors name no inner hosts.
  Result<Client> connect() const;

 private:
  /// Memory of a prompt's token, per choice: here, in the message, and at a coordinator in this process.
  static constexpr std::int64_t kBytesPerPromptToken = 16;

  /// For OpenAI's API.
  ApiResult<CompletionRequest> parse(const HttpRequest& http, bool chat) const;
  /// Fills in `task`. @return the error if a request is refused
  std::optional<ApiError> prepare(const HttpRequest& http, bool chat, ApiResult<CompletionRequest> asked,
                                  GenerationTask& task);
  /// Reserves memory for a parsed body before its text is tokenised; refuses media for a model without towers, whose
  /// vocabulary may have no tokens for them.
  std::optional<ApiError> count_body(const HttpRequest& http, const RequestSource& source,
                                     std::span<const MediumFile> files) const;
  /// Gets the file of an http(s) URL, after reserving its memory. @return an error with the name of the part
  std::optional<ApiError> fetch(const HttpRequest& http, const RequestSource& source, MediumFile& file,
                                const AdmitSound& admit, TimePoint deadline) const;
  /// Reads the media of a chat, each after reserving its memory, and renders the chat with their soft tokens.
  /// @param conversation  receives its videos' frames
  /// @return its prompt, or an error with the name of the part
  ApiResult<std::vector<TokenId>> perceive(const HttpRequest& http, const RequestSource& source,
                                           std::vector<MediumFile> files, Conversation& conversation,
                                           std::vector<WireMedium>& media) const;
  /// Reads a video, as a file or as pictures.
  Result<LoadedMedia> watch(const MediumFile& file, const AdmitPicture& admit) const;
  /// Refuses a request that exceeds the context or the memory. From here on the memory of its choices is reserved.
  std::optional<ApiError> too_much(const HttpRequest& http, const GenerationTask& task) const;
  /// Forbids the tokens of the word at the start of a text, and within one.
  void add_bad_word(const std::string& word, SamplingParams& sampling) const;
  /// Keeps the end of a prompt that may be too long, if requested.
  void keep_tail(const CompletionRequest& request, std::vector<TokenId>& prompt) const;
  ApiResult<std::vector<TokenId>> render(const RequestSource& source, const Conversation& conversation) const;
  /// Generates all choices concurrently and reports the request as finished. The first failure ends the others.
  std::optional<ApiError> run(GenerationTask& task, ChoiceSink& sink, const std::function<bool()>& gone);
  /// Logs and reports a request, and passes its trace on.
  void finish(GenerationTask& task, const std::optional<ApiError>& error) const;
  /// Runs a part of a request. If the part throws, the request is finished with status 500, and the exception goes on.
  std::optional<ApiError> counted(GenerationTask& task, const std::function<std::optional<ApiError>()>& part) const;
  std::optional<ApiError> generate_choices(GenerationTask& task, ChoiceSink& sink, const std::function<bool()>& gone);
  /// @return the scope of prefix sharing for this request
  std::string cache_scope(const GenerationTask& task) const;
  Generate generate_of_choice(const GenerationTask& task, std::size_t index) const;
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
  std::atomic<int> open_ = 0;   ///< unfinished generation requests
};

}  // namespace outrider
