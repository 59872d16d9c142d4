#include "server/api_server.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/json_fields.h"
#include "common/base/time.h"
#include "common/base/utf8.h"
#include "common/decoding/grammar/call_grammar.h"
#include "common/model/tokenizer/answer_reader.h"
#include "common/model/tokenizer/detokenizer.h"
#include "common/model/tokenizer/stop_matcher.h"
#include "common/os/logging.h"
#include "server/random_id.h"

namespace outrider {
namespace {
using Json = nlohmann::json;

/// Memory of a token or an alternative with its log-probability, in a collected answer (docs/lab/server.md).
constexpr std::int64_t kBytesPerScore = 250;
/// Copies of a score in a reply that is made of its events. A streamed reply repeats all scores at the end of the text.
constexpr std::int64_t kScoresInEvents = 3, kScoresInStreamedEvents = 4;
/// Memory of a token's text or bytes in a reply of /tokenize.
constexpr std::int64_t kBytesPerPiece = 400;

/// Returns OpenTelemetry's gen_ai.operation.name of a request.
std::string_view operation_of(std::string_view path, bool chat) {
  if (path.starts_with("/v1/audio/")) return "generate_content";
  return chat ? "chat" : "text_completion";
}

/// @return true for a chat's body. Both endpoints reject a body of neither kind
bool is_chat(const std::string& body) {
  return json_nesting(body) <= kJsonDepthMax &&
         Json::parse(body, nullptr, /*allow_exceptions=*/false).contains("messages");
}

/// Worded as clients expect: litellm recognises it by its first nine words.
std::string too_long(std::int64_t tokens, std::int64_t context_max) {
  return fmt::format("This model's maximum context length is {} tokens with the answer, the prompt has {}", context_max,
                     tokens);
}

constexpr const char* kTooLong = "context_length_exceeded";  ///< ApiError::code
constexpr const char* kTooMuch = "unsupported_value";        ///< valid in general, but beyond this cluster's limits

/// @param key  null: nothing is counted
void spend(const std::shared_ptr<const ApiKey>& key, std::int64_t tokens) {
  if (key != nullptr) key->spend(tokens, now());
}

/// Maximum unread bytes of a reply before its latest piece. Only answers with log-probabilities can exceed this.
constexpr std::size_t kUnreadBytesMax = 8u << 20;

/// A reply made on its own thread while the connection's thread sends it, so that a slow or absent reader does not
/// delay the conversation with the coordinator. A reader with more than kUnreadBytesMax unread bytes at the next piece
/// counts as gone.
class StreamedReply {
 public:
  using Emit = std::function<void(std::string piece)>;
  /// @param job  emits pieces until it ends, or soon after `gone` returns true @return the error that ended it
  using Job = std::function<std::optional<ApiError>(const Emit& emit, const std::function<bool()>& gone)>;

  StreamedReply(Job job, std::shared_ptr<ReplyWriter> writer, const HttpRequest& http)
      : writer_(std::move(writer)),
        request_id_(http.request_id),
        path_(http.path),
        gone_(http.gone),
        thread_([this, job = std::move(job)] { run(job); }) {}
  ~StreamedReply() { dropped_ = true; }

  /// Waits for the first piece. @return the error, if it came instead
  std::optional<ApiError> wait_for_first() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_ || !pieces_.empty(); });
    return pieces_.empty() ? error_ : std::nullopt;
  }
  /// See HttpReply::next.
  std::optional<std::string> next() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(100), [&] { return ended_ || !pieces_.empty(); });
    if (pieces_.empty()) return ended_ ? std::nullopt : std::optional<std::string>("");
    std::string all;  // one write for all pieces so far
    for (const std::string& piece : std::exchange(pieces_, {})) all += piece;
    unread_ = 0;
    return all;
  }

 private:
  void run(const Job& job) {
    std::optional<ApiError> error;
    try {
      const auto gone = [this] { return dropped_ || gone_(); };
      error = job([this](std::string piece) { push(std::move(piece)); }, gone);
    } catch (const std::exception& thrown) {
      error = internal_error(request_id_, path_, thrown);
    }
    const std::lock_guard lock(mutex_);
    if (overrun_)  // pieces are missing, even if the job has done its part
      error = ApiError{kClientGone, fmt::format("the client left {} bytes of the reply unread", kUnreadBytesMax)};
    if (emitted_ || !error) pieces_.push_back(writer_->end(error ? &*error : nullptr));
    error_ = std::move(error);
    ended_ = true;
    changed_.notify_all();
  }
  void push(std::string piece) {
    if (piece.empty()) return;
    const std::lock_guard lock(mutex_);
    if (unread_ > kUnreadBytesMax) dropped_ = overrun_ = true;
    unread_ += piece.size();
    if (!dropped_) pieces_.push_back(std::move(piece));
    emitted_ = true;
    changed_.notify_all();
  }

  const std::shared_ptr<ReplyWriter> writer_;
  const std::string request_id_, path_;
  const std::function<bool()> gone_;
  std::atomic<bool> dropped_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> pieces_;
  std::size_t unread_ = 0;  ///< their bytes
  std::optional<ApiError> error_;
  bool emitted_ = false, ended_ = false;
  bool overrun_ = false;  ///< more than kUnreadBytesMax
  std::jthread thread_;   // last: it uses the others
};

}  // namespace

std::string token_bytes(const Tokenizer& tokenizer, TokenId token) {
  if (const auto byte = tokenizer.byte_value(token)) return std::string(1, static_cast<char>(*byte));
  return tokenizer.plain_text(token);
}

ApiError cut_off(bool server_ends) {
  return server_ends ? ApiError{503, "the server ends"} : ApiError{kClientGone, "the client went away"};
}

/// One generation request, from its arrival to its end.
struct ApiServer::Work {
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

/// Receives a request's choices as they arrive, and collects each one.
class ApiServer::ChoiceSink {
 public:
  explicit ChoiceSink(const Work& work) : choices(work.choices()), work_(work) {}
  virtual ~ChoiceSink() = default;
  virtual void begin(std::size_t index) {
    if (work_.head.token_ids) choices[index].prompt_ids = work_.prompt_of(index);
  }
  virtual void round(std::size_t, const ReportedRound&) {}  ///< precedes its round's tokens
  virtual void event(std::size_t index, const ChatEvent& event) { append(event, choices[index].message); }
  /// No further event for the tokens so far: ids and scores do not wait for text. @param end_thought  see TokensAlone
  virtual void pause(std::size_t, bool /*end_thought*/) {}
  virtual void end(std::size_t index, const char* finish_reason, const StopReason& stop_reason) {
    choices[index].finish_reason = finish_reason;
    choices[index].stop_reason = stop_reason;
  }

  std::vector<Choice> choices;  ///< receive requested ids and scores before the tokens' events

 protected:
  const Work& work_;
};

/// Sends events. `choices` has the additional content of each choice's next event.
class ApiServer::StreamingSink final : public ChoiceSink {
 public:
  StreamingSink(const Work& work, ReplyWriter& writer, const StreamedReply::Emit& emit)
      : ChoiceSink(work), writer_(writer), emit_(emit), calls_(work.choices()), open_(work.choices()) {}
  void begin(std::size_t index) override {
    ChoiceSink::begin(index);
    send(index, ChoiceBegins{}, take_notes(index));
  }
  void round(std::size_t index, const ReportedRound& reported) override { send(index, reported, {}); }
  void event(std::size_t index, const ChatEvent& event) override {
    if (!work_.head.chat && event.kind != ChatEvent::Kind::kContent) return;
    send(index, event, take_notes(index));
    if (event.kind == ChatEvent::Kind::kToolCall) ++calls_[index];
  }
  void pause(std::size_t index, bool end_thought) override {
    if (!choices[index].token_ids.empty() || !choices[index].scores.empty())
      send(index, TokensAlone{end_thought}, take_notes(index));
  }
  void end(std::size_t index, const char* finish_reason, const StopReason& stop_reason) override {
    const bool last = --open_ == 0 && !work_.request.include_usage;
    const Usage usage = work_.usage();
    ChunkNotes notes = take_notes(index);
    if (last) notes.timed = nullptr;
    send(index, ChoiceEnds{finish_reason, stop_reason, last ? &usage : nullptr}, std::move(notes));
  }

 private:
  ChunkNotes take_notes(std::size_t index) {
    Choice pending = std::exchange(choices[index], {});
    ChunkNotes notes{.scores = std::move(pending.scores),
                     .token_ids = std::move(pending.token_ids),
                     .prompt_ids = std::move(pending.prompt_ids)};
    const CompletionRequest& request = work_.request;
    const bool timed = request.timings_in_each_chunk && choices.size() == 1 && work_.facts.generated_tokens > 0;
    if (!request.usage_in_each_chunk && !timed) return notes;
    so_far_ = work_.usage_so_far();
    if (request.usage_in_each_chunk) notes.so_far = &so_far_;
    if (timed) notes.timed = &so_far_;
    return notes;
  }
  template <typename What>
  void send(std::size_t index, const What& what, ChunkNotes notes) {
    emit_(writer_.event(work_.head, {.index = index, .what = what, .notes = std::move(notes), .calls = calls_[index]}));
  }
  ReplyWriter& writer_;
  const StreamedReply::Emit& emit_;
  std::vector<std::size_t> calls_;  ///< number of each choice's complete calls
  std::size_t open_;                ///< unfinished choices
  Usage so_far_;
};

/// Converts one choice's tokens into events for its sink.
class ApiServer::ChoiceReader {
 public:
  ChoiceReader(const Tokenizer& tokenizer, const Work& work, std::size_t index, ChoiceSink& sink)
      : tokenizer_(tokenizer),
        request_(work.request),
        prompt_(work.prompt_of(index)),
        // With log-probabilities, the echo is sent together with them, piece by piece.
        scores_echo_(request_.echo && !request_.chat && request_.sampling.logprobs),
        echo_(scores_echo_ ? "" : work.echo_of(index, tokenizer)),
        index_(index),
        sink_(sink),
        answer_(tokenizer, StopMatcher::create(request_.stop, request_.include_stop).value(),
                request_.chat ? std::optional<std::span<const TokenId>>(prompt_) : std::nullopt,
                [this](const ChatEvent& event) {
                  const bool thought = event.kind == ChatEvent::Kind::kReasoning;
                  if (!thought || request_.include_reasoning) sink_.event(index_, event);
                }),
        round_text_(tokenizer, /*skip_special=*/true),
        prompt_text_(tokenizer, /*skip_special=*/true) {}

  /// Handles the scores of the prompt's next tokens. The first token has none: begin() handles it.
  void prompt_scores(std::span<const TokenLogprobs> scores) {
    begin();
    std::string text;
    for (const TokenLogprobs& logprobs : scores) text += prompt_token(&logprobs);
    if (!text.empty()) sink_.event(index_, {ChatEvent::Kind::kContent, std::move(text), {}});
  }
  /// Stores the report of the tokens that come next.
  void round(const RoundReport& round) { round_ = round; }
  /// @param so_far  the whole choice, with the requested logprobs
  /// @return true if the answer is complete: a stop string was found, or only the prompt is wanted
  /// @param facts  of the request: its token counts, which chunks report, grow with each call
  bool push(std::span<const TokenId> tokens, const Generation& so_far, FinishedRequest& facts) {
    begin();
    if (request_.max_tokens == 0) return true;
    if (request_.report_rounds) report_round(tokens);
    for (const TokenId token : tokens) {
      if (request_.return_token_ids) choice().token_ids.push_back(token);
      if (request_.sampling.logprobs)
        choice().scores.push_back(score(token, so_far.logprobs[static_cast<std::size_t>(tokens_.count)]));
      ++tokens_.count;
      ++facts.generated_tokens;
      tokens_.last = token;
      const bool thought = answer_.thinks();
      if (thought) ++facts.reasoning_tokens;
      if (answer_.push(token)) return true;
      if (thought && !answer_.thinks()) sink_.pause(index_, /*end_thought=*/true);
    }
    sink_.pause(index_, /*end_thought=*/false);
    return false;
  }
  /// Returns its finish_reason, before the sink learns of the end.
  const char* finish(FinishReason reason) {
    begin();
    switch (answer_.finish(reason == FinishReason::kLength || request_.max_tokens == 0)) {
      case ChatFinish::kToolCalls: return "tool_calls";
      case ChatFinish::kLength: return "length";
      default: return "stop";
    }
  }
  /// Returns the request's stop string or token that ended the answer, after finish().
  StopReason stop_reason(FinishReason reason) const {
    if (!answer_.stop().empty()) return answer_.stop();
    const std::vector<TokenId>& ids = request_.stop_ids;
    if (reason != FinishReason::kStop || std::ranges::find(ids, tokens_.last) == ids.end()) return {};
    return tokens_.last;
  }
  /// Number of the choice's tokens.
  std::int64_t count() const { return tokens_.count; }
  int broken_calls() const { return answer_.broken_calls(); }

 private:
  Choice& choice() { return sink_.choices[index_]; }
  void begin() {
    if (std::exchange(begun_, true)) return;
    sink_.begin(index_);
    if (!echo_.empty()) sink_.event(index_, {ChatEvent::Kind::kContent, echo_, {}});
    if (!request_.sampling.prompt_logprobs) return;
    const std::string first = prompt_token(nullptr);
    if (!first.empty()) sink_.event(index_, {ChatEvent::Kind::kContent, first, {}});
  }
  /// Handles the prompt's next token. @param logprobs  null: the token has none @return the token's text in the answer
  std::string prompt_token(const TokenLogprobs* logprobs) {
    const TokenId token = prompt_[prompt_read_++];
    TokenScore scored = score(token, logprobs != nullptr ? *logprobs : TokenLogprobs{});
    scored.scored = logprobs != nullptr;
    if (request_.return_prompt_logprobs) choice().prompt_scores.push_back(scores_echo_ ? scored : std::move(scored));
    if (!scores_echo_) return characters_ = 0, "";
    choice().scores.push_back(std::move(scored));
    const bool last = prompt_read_ == prompt_.size();
    std::string text = prompt_text_.push(token);
    return last ? text + prompt_text_.finish() : text;
  }
  ScoredText scored(TokenId token, float logprob) const { return {token_bytes(tokenizer_, token), logprob, token}; }
  TokenScore score(TokenId token, const TokenLogprobs& logprobs) {
    TokenScore result{
        .token = scored(token, logprobs.logprob), .top = {}, .text_offset = characters_, .rank = logprobs.rank};
    bool among = false;
    for (const Logprob& other : logprobs.top) {
      among = among || other.token == token;
      result.top.push_back(scored(other.token, other.logprob));
    }
    // vLLM lists the token itself besides the requested ids.
    if (!among && !request_.sampling.logprob_token_ids.empty()) result.top.push_back(result.token);
    // Text excludes control tokens.
    const auto begins = [](char c) { return (c & 0xC0) != 0x80; };
    if (!tokenizer_.is_special(token))
      characters_ += static_cast<std::size_t>(std::ranges::count_if(result.token.bytes, begins));
    return result;
  }
  void report_round(std::span<const TokenId> tokens) {
    ReportedRound reported{.tokens = {},
                           .round = std::exchange(round_, std::nullopt),
                           .drafts = {},
                           .token_ids = {tokens.begin(), tokens.end()}};
    for (const TokenId token : tokens) reported.tokens.push_back(round_text_.push(token));
    if (reported.round) {
      for (const TokenId token : reported.round->drafts) reported.drafts.push_back(token_bytes(tokenizer_, token));
    }
    sink_.round(index_, reported);
  }

  const Tokenizer& tokenizer_;
  const CompletionRequest& request_;
  const std::vector<TokenId>& prompt_;
  const bool scores_echo_;  ///< the answer begins with the prompt, and both have log-probabilities
  const std::string echo_;  ///< start of the answer
  const std::size_t index_;
  ChoiceSink& sink_;
  AnswerReader answer_;
  StreamingDetokenizer round_text_, prompt_text_;
  std::optional<RoundReport> round_;
  struct {
    std::int64_t count = 0;
    TokenId last = -1;
  } tokens_;
  std::size_t prompt_read_ = 0;  ///< tokens of the prompt already handled
  std::size_t characters_ = 0;
  bool begun_ = false;
};

ApiServer::ApiServer(TransportContext& context, TextSide text, ApiOptions options)
    : context_(context),
      text_(std::move(text)),
      options_(std::move(options)),
      defaults_{.model = options_.model,
                .vocab_size = static_cast<std::int32_t>(text_.vocab_size),
                .sampling = text_.advised(),
                .controls = answer_controls(text_.tokenizer),
                .draft_length = options_.draft_length,
                .strict_fields = options_.strict_fields},
      started_(unix_seconds()) {}

std::vector<HttpRoute> ApiServer::routes() {
  const auto version = [this](const HttpRequest&) { return json_reply({{"version", options_.version}}); };
  const auto health = [](const HttpRequest&) { return json_reply({{"status", "ok"}}); };
  const auto no_embeddings = [](const HttpRequest&) {
    return error_reply({.message = "embeddings are not supported: this server writes text"});
  };
  // SageMaker's single endpoint for both, as in vLLM.
  const auto generate = [this](const HttpRequest& http, bool chat) {
    return complete(http, chat, parse(http, chat), openai_writer());
  };
  const auto invoke = [generate](const HttpRequest& http) { return generate(http, is_chat(http.body)); };
  return {{"POST", "/v1/chat/completions", [generate](const HttpRequest& http) { return generate(http, true); }},
          {"POST", "/v1/completions", [generate](const HttpRequest& http) { return generate(http, false); }},
          {"POST", "/v1/embeddings", no_embeddings},
          {"GET", "/v1/models", [this](const HttpRequest&) { return models(); }},
          {"GET", "/v1/models/" + defaults_.model, [this](const HttpRequest&) { return model(); }},
          {"GET", "/v1/models/*", [this](const HttpRequest& http) { return no_model(http); }},
          {"POST", "/invocations", invoke},
          {"GET", "/load",
           [this](const HttpRequest&) {
             return json_reply({{"server_load", open_.load()}});
           }},
          {"GET", "/tokenizer_info", [this](const HttpRequest&) { return tokenizer_info(); }},
          {"POST", "/tokenize", [this](const HttpRequest& http) { return tokenize(http); }},
          {"POST", "/detokenize", [this](const HttpRequest& http) { return detokenize(http); }},
          {"GET", "/v1/outrider/status", [this](const HttpRequest&) { return status_reply(); }},
          {"GET", "/health", health, Access::kAnybody},
          {"GET", "/ping", health, Access::kAnybody},
          {"GET", "/ready", [this](const HttpRequest&) { return ready(); }},
          {"GET", "/version", version}};
}

ChatBackend ApiServer::backend() {
  return {.chat = [this](const HttpRequest& http, ApiResult<CompletionRequest> request,
                         const auto& writer) { return complete(http, /*chat=*/true, std::move(request), writer); },
          .count = [this](const HttpRequest& http,
                          ApiResult<TokenizeRequest> prompt) { return count(http, std::move(prompt)); },
          .defaults = defaults_};
}

ApiError ApiServer::api_error(const Error& error) const {
  switch (error.code) {
    case Errc::kInvalidArgument: return {400, error.message};
    case Errc::kUnsupported: return {.status = 400, .message = error.message, .code = kTooMuch};
    // The coordinator found the sequence too long. Its other limits have another code.
    case Errc::kOutOfRange: return {.status = 400, .message = error.message, .code = kTooLong};
    case Errc::kUnavailable: return {503, error.message};
    case Errc::kPeerGone: return {503, error.message};
    case Errc::kTimeout: return {503, error.message};
    case Errc::kIo: return {503, error.message};  // for example without a free descriptor
    default: return {500, error.message};
  }
}

ApiResult<std::vector<TokenId>> ApiServer::render(const RequestSource& source, const Conversation& conversation) const {
  Result<std::vector<TokenId>> prompt = render_chat(text_.tokenizer, text_.chat_format, conversation);
  if (prompt) return std::move(*prompt);
  ApiError error = api_error(prompt.error());
  if (error.status == 400) error.param = source.turns;
  return error;
}

std::optional<ApiError> ApiServer::prepare(const HttpRequest& http, bool chat, ApiResult<CompletionRequest> asked,
                                           Work& work) {
  work.arrived = now();
  work.head.id = fmt::format("{}-{:016x}", chat ? "chatcmpl" : "cmpl", random_number());
  work.client = http.client;
  work.request_id = http.request_id;
  work.key = http.key;
  if (options_.on_traced && http.trace.is_traced())
    work.trace = {.context = http.trace,
                  .arrived = work.arrived,
                  .path = http.path,
                  .operation = operation_of(http.path, chat)};
  work.server_ends = http.server_ends;
  ASSIGN_OR_RETURN(work.request, std::move(asked));
  CompletionRequest& request = work.request;
  if (auto refused = count_body(http, request.source, request.media)) return *refused;
  if (!request.has_seed) request.sampling.seed = random_number();
  for (const std::string& word : request.bad_words) add_bad_word(word, request.sampling);
  if (const auto checked = check_sampling(request.sampling, defaults_.vocab_size); !checked)
    return api_error(checked.error());
  if (chat) {
    ASSIGN_OR_RETURN(work.prompts.emplace_back(),
                     perceive(http, request.source, std::move(request.media), request.conversation, work.media));
    if (request.conversation.thinking && !request.sampling.grammar.empty()) {
      const bool open = ChatParser(text_.tokenizer, work.prompts.back()).thinks();
      auto grammar = grammar_after_thought(request.sampling.grammar, open, defaults_.controls);
      if (!grammar) return ApiError{.message = grammar.error().message};
      request.sampling.grammar = std::move(*grammar);
    }
  }
  for (const Prompt& prompt : request.prompts) {
    std::vector<TokenId>& tokens = work.prompts.emplace_back();
    const auto add = Overloaded{[&](const std::string& text) { return text_.tokenizer.encode(text); },
                                [](const std::vector<TokenId>& ids) { return ids; }};
    for (const auto& part : prompt) std::ranges::copy(std::visit(add, part), std::back_inserter(tokens));
    if (request.add_special_tokens && std::holds_alternative<std::string>(prompt.front()))
      tokens = with_bos(text_.tokenizer, std::move(tokens));
    if (tokens.empty()) return ApiError{.message = "prompt has no tokens", .param = "prompt"};
  }
  for (std::vector<TokenId>& prompt : work.prompts) keep_tail(request, prompt);
  for (const std::vector<TokenId>& prompt : work.prompts)
    work.facts.prompt_tokens += static_cast<std::int64_t>(prompt.size());
  spend(http.key, work.facts.prompt_tokens);
  if (auto refused = too_much(http, work)) return *refused;
  work.head = {
      .chat = chat,
      .logprobs = request.sampling.logprobs.has_value(),
      .id = std::move(work.head.id),
      .model = defaults_.model,
      .created = unix_seconds(),
      .token_ids = request.return_token_ids,
      .tokens_as_ids = request.tokens_as_ids,
      .prompt_logprobs = request.return_prompt_logprobs,
      .fingerprint = "build-" + options_.version,
      .warnings = request.warnings,
      .prompt_text = request.verbose ? text_.tokenizer.decode(work.prompts.front(), /*skip_special=*/false) : ""};
  return std::nullopt;
}

void ApiServer::add_bad_word(const std::string& word, SamplingParams& sampling) const {
  // Both at the start of a text and within one, as in vLLM.
  const std::string bare = word.substr(word.find_first_not_of(' '));
  const auto encoded = [&](const std::string& text) { return text_.tokenizer.encode(text, /*parse_special=*/false); };
  const std::vector<TokenId> first = encoded(bare), within = encoded(" " + bare);
  sampling.bad_words.push_back({first});
  if (within.front() != first.front() && within.size() == first.size()) sampling.bad_words.push_back({within});
}

void ApiServer::keep_tail(const CompletionRequest& request, std::vector<TokenId>& prompt) const {
  if (!request.prompt_tail) return;
  const std::int64_t answer = std::clamp<std::int64_t>(request.max_tokens.value_or(1), 1, text_.context_max - 1);
  const std::int64_t most = *request.prompt_tail == 0 ? text_.context_max - answer : *request.prompt_tail;
  if (std::ssize(prompt) <= most) return;
  if (request.tail_is_head)
    prompt.resize(static_cast<std::size_t>(most));
  else
    prompt.erase(prompt.begin(), prompt.end() - most);
}

std::optional<ApiError> ApiServer::too_much(const HttpRequest& http, const Work& work) const {
  const CompletionRequest& request = work.request;
  // Held once here, and per choice in the message and at a coordinator in this process.
  std::int64_t bytes = (1 + 2 * request.n) * media_bytes(work.media);
  for (const std::vector<TokenId>& prompt : work.prompts) {
    const std::int64_t left = text_.context_max - std::ssize(prompt);
    if (left < 1) {
      return ApiError{.status = 400, .message = too_long(std::ssize(prompt), text_.context_max), .code = kTooLong};
    }
    const SamplingParams& sampling = request.sampling;
    const auto entries = static_cast<std::int64_t>(sampling.alternatives()) + 1;
    const std::int64_t times =
        request.of_events ? (request.stream ? kScoresInStreamedEvents : kScoresInEvents) : (request.stream ? 0 : 1);
    const std::int64_t scores = sampling.logprobs ? times * entries : 0;
    const std::int64_t prompt_scores =
        sampling.prompt_logprobs && !request.stream ? 2 * (*sampling.prompt_logprobs + 1) : 0;  // may be echoed too
    bytes += request.n * (std::ssize(prompt) * (kBytesPerPromptToken + prompt_scores * kBytesPerScore) +
                          std::min(request.max_tokens.value_or(kMaxChatTokens), left) * scores * kBytesPerScore);
  }
  return http.reserve(bytes);
}

std::optional<ApiError> ApiServer::check(const std::string& path, const std::string& body) {
  HttpRequest http;
  http.path = path;
  http.body = body;
  Work work;
  const bool chat = path == "/v1/chat/completions";
  return prepare(http, chat, parse(http, chat), work);
}

ApiResult<CompletionRequest> ApiServer::parse(const HttpRequest& http, bool chat) const {
  return chat ? parse_chat_completion(http.body, defaults_, http.path)
              : parse_completion(http.body, defaults_, http.path);
}

HttpReply ApiServer::complete(const HttpRequest& http, bool chat, ApiResult<CompletionRequest> request,
                              const std::shared_ptr<ReplyWriter>& writer) {
  const auto work = std::make_shared<Work>();
  const auto prepared = [&] { return prepare(http, chat, std::move(request), *work); };
  if (const std::optional<ApiError> error = counted(*work, prepared)) {
    finish(*work, error);
    return error_reply(*error);
  }
  http.admitted();
  std::vector<std::pair<std::string, std::string>> headers;
  for (const std::string& warning : work->head.warnings) headers.emplace_back("X-Outrider-Warning", warning);
  if (!work->request.stream) {
    const StreamedReply::Emit unsent = [](const std::string&) {};
    const auto sink = work->request.of_events ? std::make_unique<StreamingSink>(*work, *writer, unsent)
                                              : std::make_unique<ChoiceSink>(*work);
    if (const std::optional<ApiError> error = run(*work, *sink, http.gone)) return error_reply(*error);
    return {
        .status = 200, .body = writer->whole(work->head, sink->choices, work->usage()), .headers = std::move(headers)};
  }
  const auto job = [this, writer, held = work](const StreamedReply::Emit& emit,
                                               const std::function<bool()>& gone) mutable {
    const std::shared_ptr<Work> mine = std::move(held);  // until the job ends, however long that takes
    StreamingSink sink(*mine, *writer, emit);
    std::optional<ApiError> error = run(*mine, sink, gone);
    if (!error && mine->request.include_usage) emit(writer->usage(mine->head, mine->usage()));
    return error;
  };
  std::shared_ptr<StreamedReply> streamed;
  (void)counted(*work, [&] {  // there may be no further thread
    streamed = std::make_shared<StreamedReply>(job, writer, http);
    return std::optional<ApiError>();
  });
  if (const std::optional<ApiError> error = streamed->wait_for_first()) return error_reply(*error);
  headers.emplace_back("Cache-Control", "no-cache");
  return {.status = 200,
          .body = "",
          .content_type = "text/event-stream",
          .headers = std::move(headers),
          .next = [streamed] { return streamed->next(); }};
}

std::optional<ApiError> ApiServer::run(Work& work, ChoiceSink& sink, const std::function<bool()>& gone) {
  ++open_;
  const std::shared_ptr<void> ends(nullptr, [this](void*) { --open_; });
  std::optional<ApiError> error = counted(work, [&] { return generate_choices(work, sink, gone); });
  finish(work, error);
  return error;
}

std::optional<ApiError> ApiServer::counted(Work& work, const std::function<std::optional<ApiError>()>& part) const {
  try {
    return part();
  } catch (const std::exception&) {
    finish(work, ApiError{500, "internal error"});
    throw;
  }
}

void ApiServer::finish(Work& work, const std::optional<ApiError>& error) const {
  // A request without an answer costs nothing, unless its client left while the prompt was computed.
  const bool unanswered = error && error->status != kClientGone && !work.facts.time_to_first_token;
  spend(work.key, unanswered ? -work.facts.prompt_tokens : work.facts.generated_tokens);
  work.facts.status = error ? error->status : 200;
  work.facts.total = now() - work.arrived;
  if (work.facts.broken_tool_calls > 0)
    log_warn("event=broken_tool_calls id={} request_id={} calls={} note=\"their text is in the answer's content\"",
             work.head.id, work.request_id, work.facts.broken_tool_calls);
  const TraceContext context = work.trace ? work.trace->context : TraceContext();
  log_info("event=request id={} request_id={} client=\"{}\" status={} prompt_tokens={} generated_tokens={} ms={:.1f}{}",
           work.head.id, work.request_id, work.client, work.facts.status, work.facts.prompt_tokens,
           work.facts.generated_tokens, to_ms(work.facts.total),
           context.is_traced() ? fmt::format(" trace={:016x}{:016x}", context.trace_high, context.trace_low) : "");
  if (work.trace) {
    work.trace->end = work.arrived + work.facts.total;
    work.trace->id = work.head.id;
    work.trace->status = work.facts.status;
    work.trace->prompt_tokens = work.facts.prompt_tokens;
    if (error) work.trace->error = error->message;
    options_.on_traced(*std::move(work.trace));
  }
  options_.on_finished(work.facts);
}

std::string ApiServer::cache_scope(const Work& work) const {
  const bool apart = !options_.share_prefixes && work.key != nullptr;
  // No name has a line feed, so that no salt can equal another key.
  return (apart ? work.key->name() : "") + (work.request.cache_salt.empty() ? "" : "\n" + work.request.cache_salt);
}

Generate ApiServer::generate_of_choice(const Work& work, std::size_t index) const {
  const CompletionRequest& request = work.request;
  const auto n = static_cast<std::size_t>(request.n);
  Generate generate{.prompt = work.prompts[index / n],
                    .max_tokens = std::max<std::int64_t>(1, request.max_tokens.value_or(kMaxChatTokens)),
                    .stop_ids = request.stop_ids,
                    .wait_ms = options_.own ? kOwnVerifierWaitMs : kVerifierWaitMs,
                    .sampling = request.sampling,
                    .report_rounds = request.report_rounds || work.trace,
                    .shorten = !request.max_tokens,
                    .on_behalf_of = work.client,
                    .cache_scope = cache_scope(work),
                    .tokenizer_fingerprint = text_.tokenizer_fingerprint,
                    .governed = options_.governed,
                    .media = work.media};
  set_drafts(generate, request.draft_length);
  if (!request.ignore_eos)
    generate.stop_ids.insert(generate.stop_ids.end(), text_.stop_ids().begin(), text_.stop_ids().end());
  generate.sampling.seed = seed_of_choice(generate.sampling.seed, index % n);
  return generate;
}

std::optional<ApiError> ApiServer::generate_choices(Work& work, ChoiceSink& sink, const std::function<bool()>& gone) {
  Result<Client> client = connect();
  if (!client) return api_error(client.error());
  std::vector<Generate> generates;
  std::deque<ChoiceReader> readers;  // addresses must be stable
  for (std::size_t index = 0; index < work.choices(); ++index) {
    generates.push_back(generate_of_choice(work, index));
    readers.emplace_back(text_.tokenizer, work, index, sink);
  }
  FinishedRequest& facts = work.facts;
  std::vector<std::optional<TimePoint>> last_tokens(readers.size());
  std::vector<TracedChoice>* const traced = work.trace ? &work.trace->choices : nullptr;
  if (traced != nullptr) traced->resize(readers.size());
  const RoundReport* round = nullptr;  // of the tokens that come next
  const auto on_tokens = [&](std::size_t index, std::span<const TokenId> tokens) {
    const TimePoint arrival = now();
    if (!facts.time_to_first_token) facts.time_to_first_token = arrival - work.arrived;
    if (last_tokens[index]) facts.inter_token_gaps.push_back(arrival - *last_tokens[index]);
    last_tokens[index] = arrival;
    if (traced != nullptr) (*traced)[index].add(arrival, std::exchange(round, nullptr), client->so_far().verifier);
    ChoiceReader& reader = readers[index];
    if (reader.push(tokens, client->so_far(), facts)) client->end_answer(reader.count());
  };
  const auto on_end = [&](std::size_t index, const Generation& generation) {
    add(facts.metrics, generation.metrics);
    if (index % static_cast<std::size_t>(work.request.n) == 0)
      work.cached_tokens += generation.metrics.cached_prompt_tokens;
    const char* finish_reason = readers[index].finish(generation.reason);
    facts.broken_tool_calls += readers[index].broken_calls();
    if (traced != nullptr) {
      (*traced)[index].finish_reason = finish_reason;
      (*traced)[index].generated_tokens = readers[index].count();
      (*traced)[index].metrics = generation.metrics;
    }
    facts.choices.push_back({.finish_reason = finish_reason,
                             .prompt_tokens = std::ssize(generates[index].prompt),
                             .generated_tokens = readers[index].count(),
                             .metrics = generation.metrics});
    sink.end(index, finish_reason, readers[index].stop_reason(generation.reason));
  };
  const Result<std::vector<Generation>> generations = client->generate_all(
      generates,
      {.on_tokens = on_tokens,
       .on_prompt_scores = [&](std::size_t index,
                               std::span<const TokenLogprobs> scores) { readers[index].prompt_scores(scores); },
       .on_round =
           [&](std::size_t index, const RoundReport& report) {
             round = &report;
             if (work.request.report_rounds) readers[index].round(report);
           },
       .on_end = on_end,
       .cancelled = gone});
  if (!generations) {
    ApiError error = api_error(generations.error());
    const Result<Status> status =
        generations.error().code == Errc::kUnavailable ? client->status() : Result<Status>(generations.error());
    if (status && status->verifiers > 0) {  // there is a verifier, and it is overloaded
      error.status = 429;
      error.code = "rate_limit_exceeded";
    }
    return error;
  }
  if (std::ranges::any_of(*generations, &Generation::cancelled)) return cut_off(work.server_ends());
  return std::nullopt;
}

// ---- the rest ----

HttpReply ApiServer::model() const {
  return json_reply({{"id", defaults_.model},
                     {"object", "model"},
                     {"created", started_},
                     {"owned_by", "outrider"},
                     {"max_model_len", text_.context_max}});
}

HttpReply ApiServer::no_model(const HttpRequest& http) const {
  return error_reply({.status = 404,
                      .message = fmt::format("there is no model '{}', only '{}'", http.id, defaults_.model),
                      .param = "model",
                      .code = "model_not_found"});
}

HttpReply ApiServer::models() const {
  return json_reply({{"object", "list"}, {"data", Json::array({Json::parse(model().body)})}});
}

Result<Status> ApiServer::status() const {
  ASSIGN_OR_RETURN(Client client, connect());
  return client.status();
}

Result<Client> ApiServer::connect() const {
  return Client::connect(context_, options_.coordinator,
                         {.failover_wait = options_.failover_wait, .own = options_.own, .names = false});
}

HttpReply ApiServer::status_reply() const {
  const Result<Status> status = this->status();
  if (!status) return error_reply({503, status.error().message});
  Json workers = Json::array();
  for (const WorkerStatus& worker : status->workers) {
    workers.push_back({{"role", to_string(worker.role)},
                       {"name", worker.name},
                       {"sessions", worker.sessions},
                       {"draining", worker.draining},
                       {"rtt_ms", worker.rtt_ns > 0 ? Json(static_cast<double>(worker.rtt_ns) / 1e6) : Json()}});
    if (worker.kv_bytes_max > 0)
      workers.back().update({{"kv_bytes", worker.kv_bytes}, {"kv_bytes_max", worker.kv_bytes_max}});
    if (worker.shards > 1)
      workers.back().update({{"shards", worker.shards}, {"shards_over", worker.shards_over_tcp ? "tcp" : "memory"}});
    if (worker.role == Role::kDrafter)
      workers.back().update({{"yield", worker.yield}, {"late_rounds", worker.late_rounds}, {"paused", worker.paused}});
  }
  return json_reply({{"model", defaults_.model},
                     {"version", options_.version},
                     {"sessions", status->sessions},
                     {"waiting", status->waiting},
                     {"failovers",
                      {{"exact", status->failovers.exact},
                       {"inexact", status->failovers.inexact},
                       {"failed", status->failovers.failed},
                       {"resumed", status->failovers.resumed},
                       {"resume_ms", static_cast<double>(status->failovers.resume_ns) / 1e6}}},
                     {"audits",
                      {{"same", status->audits.same},
                       {"different", status->audits.different},
                       {"skipped", status->audits.skipped},
                       {"tokens", status->audits.tokens}}},
                     {"workers", std::move(workers)}});
}

HttpReply ApiServer::ready() const {
  const Result<Status> status = this->status();
  if (!status) return error_reply({503, status.error().message});
  if (status->verifiers == 0) {
    std::string why = "no verifier has joined";
    if (options_.own) why += fmt::format(": the model is being loaded, for {} s so far", unix_seconds() - started_);
    return error_reply({503, std::move(why)});
  }
  return json_reply({{"status", "ready"},
                     {"verifiers", status->verifiers},
                     {"drafters", status->drafters},
                     {"encoders", status->encoders},
                     {"sessions", status->sessions}});
}

ApiResult<ApiServer::RenderedPrompt> ApiServer::prompt_of(const HttpRequest& http,
                                                          ApiResult<TokenizeRequest> asked) const {
  ASSIGN_OR_RETURN(TokenizeRequest request, std::move(asked));
  if (auto refused = count_body(http, request.source, request.media)) return *refused;
  RenderedPrompt prompt{.tokens = {}, .media = {}, .form = request.form};
  if (const auto* text = std::get_if<std::string>(&request.text)) {
    prompt.tokens = text_.tokenizer.encode(*text, request.parse_special);
    if (request.add_special_tokens) prompt.tokens = with_bos(text_.tokenizer, std::move(prompt.tokens));
    return prompt;
  }
  ASSIGN_OR_RETURN(prompt.tokens, perceive(http, request.source, std::move(request.media),
                                           std::get<Conversation>(request.text), prompt.media));
  return prompt;
}

ApiResult<std::int64_t> ApiServer::count(const HttpRequest& http, ApiResult<TokenizeRequest> request) const {
  ASSIGN_OR_RETURN(const RenderedPrompt prompt, prompt_of(http, std::move(request)));
  spend(http.key, std::ssize(prompt.tokens));
  return std::ssize(prompt.tokens);
}

HttpReply ApiServer::tokenize(const HttpRequest& http) const {
  const ApiResult<RenderedPrompt> prompt = prompt_of(http, parse_tokenize(http.body, defaults_));
  if (!prompt) return error_reply(prompt.error());
  const auto& [tokens, media, form] = *prompt;
  if (form.pieces || form.token_strings)
    if (const auto refused = http.reserve(std::ssize(tokens) * kBytesPerPiece)) return error_reply(*refused);
  spend(http.key, std::ssize(tokens));
  if (form.of_llama) {
    Json pieces = Json::array();
    for (std::size_t i = 0; form.pieces && i < tokens.size(); ++i) {
      const std::string piece = token_bytes(text_.tokenizer, tokens[i]);
      // A partial character is given as bytes.
      pieces.push_back(
          {{"id", tokens[i]},
           {"piece", is_utf8(piece) ? Json(piece) : Json(std::vector<std::uint8_t>(piece.begin(), piece.end()))}});
    }
    return json_reply({{"tokens", form.pieces ? std::move(pieces) : Json(tokens)}});
  }
  Json strings;
  if (form.token_strings) {
    strings = Json::array();
    for (const TokenId token : tokens) strings.push_back(text_.tokenizer.token_text(token));
  }
  return json_reply(
      {{"count", tokens.size()}, {"max_model_len", text_.context_max}, {"tokens", tokens}, {"token_strs", strings}});
}

HttpReply ApiServer::detokenize(const HttpRequest& http) const {
  const ApiResult<DetokenizeRequest> request = parse_detokenize(http.body, defaults_);
  if (!request) return error_reply(request.error());
  const std::string text = text_.tokenizer.decode(request->tokens, /*skip_special=*/false);
  Json reply = {{"prompt", text}};
  if (!request->of_vllm) reply["content"] = text;  // llama.cpp's name for it
  return json_reply(reply);
}

HttpReply ApiServer::tokenizer_info() const {
  const auto spelled = [&](const char* token) { return text_.tokenizer.find(token) ? Json(token) : Json(); };
  const std::vector<TokenId>& stops = text_.stop_ids();
  return json_reply({{"tokenizer_class", "GemmaTokenizer"},  // the class that computes it in transformers
                     {"model_max_length", text_.context_max},
                     {"vocab_size", text_.vocab_size},
                     {"add_bos_token", true},
                     {"bos_token", spelled("<bos>")},
                     {"eos_token", stops.empty() ? Json() : Json(text_.tokenizer.token_text(stops.front()))},
                     {"pad_token", spelled("<pad>")},
                     {"unk_token", spelled("<unk>")}});
}

HttpReply ApiServer::apply_template(const HttpRequest& http) const {
  const ApiResult<TokenizeRequest> parsed = parse_tokenize(http.body, defaults_);
  if (!parsed) return error_reply(parsed.error());
  const auto* conversation = std::get_if<Conversation>(&parsed->text);
  if (conversation == nullptr) return error_reply({.message = "messages is missing", .param = "messages"});
  if (const auto refused = count_body(http, parsed->source, parsed->media)) return error_reply(*refused);
  const ApiResult<std::vector<TokenId>> rendered = render(parsed->source, *conversation);
  if (!rendered) return error_reply(rendered.error());
  spend(http.key, std::ssize(*rendered));
  return json_reply({{"prompt", text_.tokenizer.decode(*rendered, /*skip_special=*/false)}});
}

}  // namespace outrider
