#include "server/api_server.h"

#include <algorithm>
#include <deque>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/json_fields.h"
#include "common/base/time.h"
#include "common/decoding/grammar/call_grammar.h"
#include "common/os/logging.h"
#include "server/choice_reader.h"
#include "server/choice_sink.h"
#include "server/random_id.h"
#include "server/streamed_reply.h"

namespace outrider {
namespace {
using Json = nlohmann::json;

/// Memory of a token or an alternative with its log-probability, in a collected answer (docs/lab/server.md).
constexpr std::int64_t kBytesPerScore = 250;
/// Copies of a score in a reply that is made of its events. A streamed reply repeats all scores at the end of the text.
constexpr std::int64_t kScoresInEvents = 3, kScoresInStreamedEvents = 4;

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

}  // namespace

ApiError cut_off(bool server_ends) {
  return server_ends ? ApiError{503, "the server ends"} : ApiError{kClientGone, "the client went away"};
}

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
                                           GenerationTask& task) {
  task.arrived = now();
  task.head.id = fmt::format("{}-{:016x}", chat ? "chatcmpl" : "cmpl", random_number());
  task.client = http.client;
  task.request_id = http.request_id;
  task.key = http.key;
  if (options_.on_traced && http.trace.is_traced())
    task.trace = {.context = http.trace,
                  .arrived = task.arrived,
                  .path = http.path,
                  .operation = operation_of(http.path, chat)};
  task.server_ends = http.server_ends;
  ASSIGN_OR_RETURN(task.request, std::move(asked));
  CompletionRequest& request = task.request;
  if (auto refused = count_body(http, request.source, request.media)) return *refused;
  if (!request.has_seed) request.sampling.seed = random_number();
  for (const std::string& word : request.bad_words) add_bad_word(word, request.sampling);
  if (const auto checked = check_sampling(request.sampling, defaults_.vocab_size); !checked)
    return api_error(checked.error());
  if (chat) {
    ASSIGN_OR_RETURN(task.prompts.emplace_back(),
                     perceive(http, request.source, std::move(request.media), request.conversation, task.media));
    if (request.conversation.thinking && !request.sampling.grammar.empty()) {
      const bool open = ChatParser(text_.tokenizer, task.prompts.back()).thinks();
      auto grammar = grammar_after_thought(request.sampling.grammar, open, defaults_.controls);
      if (!grammar) return ApiError{.message = grammar.error().message};
      request.sampling.grammar = std::move(*grammar);
    }
  }
  for (const Prompt& prompt : request.prompts) {
    std::vector<TokenId>& tokens = task.prompts.emplace_back();
    const auto add = Overloaded{[&](const std::string& text) { return text_.tokenizer.encode(text); },
                                [](const std::vector<TokenId>& ids) { return ids; }};
    for (const auto& part : prompt) std::ranges::copy(std::visit(add, part), std::back_inserter(tokens));
    if (request.add_special_tokens && std::holds_alternative<std::string>(prompt.front()))
      tokens = with_bos(text_.tokenizer, std::move(tokens));
    if (tokens.empty()) return ApiError{.message = "prompt has no tokens", .param = "prompt"};
  }
  for (std::vector<TokenId>& prompt : task.prompts) keep_tail(request, prompt);
  for (const std::vector<TokenId>& prompt : task.prompts)
    task.facts.prompt_tokens += static_cast<std::int64_t>(prompt.size());
  spend(http.key, task.facts.prompt_tokens);
  if (auto refused = too_much(http, task)) return *refused;
  task.head = {
      .chat = chat,
      .logprobs = request.sampling.logprobs.has_value(),
      .id = std::move(task.head.id),
      .model = defaults_.model,
      .created = unix_seconds(),
      .token_ids = request.return_token_ids,
      .tokens_as_ids = request.tokens_as_ids,
      .prompt_logprobs = request.return_prompt_logprobs,
      .fingerprint = "build-" + options_.version,
      .warnings = request.warnings,
      .prompt_text = request.verbose ? text_.tokenizer.decode(task.prompts.front(), /*skip_special=*/false) : ""};
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

std::optional<ApiError> ApiServer::too_much(const HttpRequest& http, const GenerationTask& task) const {
  const CompletionRequest& request = task.request;
  // Held once here, and per choice in the message and at a coordinator in this process.
  std::int64_t bytes = (1 + 2 * request.n) * media_bytes(task.media);
  for (const std::vector<TokenId>& prompt : task.prompts) {
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
  GenerationTask task;
  const bool chat = path == "/v1/chat/completions";
  return prepare(http, chat, parse(http, chat), task);
}

ApiResult<CompletionRequest> ApiServer::parse(const HttpRequest& http, bool chat) const {
  return chat ? parse_chat_completion(http.body, defaults_, http.path)
              : parse_completion(http.body, defaults_, http.path);
}

HttpReply ApiServer::complete(const HttpRequest& http, bool chat, ApiResult<CompletionRequest> request,
                              const std::shared_ptr<ReplyWriter>& writer) {
  const auto task = std::make_shared<GenerationTask>();
  const auto prepared = [&] { return prepare(http, chat, std::move(request), *task); };
  if (const std::optional<ApiError> error = counted(*task, prepared)) {
    finish(*task, error);
    return error_reply(*error);
  }
  http.admitted();
  std::vector<std::pair<std::string, std::string>> headers;
  for (const std::string& warning : task->head.warnings) headers.emplace_back("X-Outrider-Warning", warning);
  if (!task->request.stream) {
    const StreamedReply::Emit unsent = [](const std::string&) {};
    const auto sink = task->request.of_events ? std::make_unique<StreamingSink>(*task, *writer, unsent)
                                              : std::make_unique<ChoiceSink>(*task);
    if (const std::optional<ApiError> error = run(*task, *sink, http.gone)) return error_reply(*error);
    return {
        .status = 200, .body = writer->whole(task->head, sink->choices, task->usage()), .headers = std::move(headers)};
  }
  const auto job = [this, writer, held = task](const StreamedReply::Emit& emit,
                                               const std::function<bool()>& gone) mutable {
    const std::shared_ptr<GenerationTask> mine = std::move(held);  // until the job ends, however long that takes
    StreamingSink sink(*mine, *writer, emit);
    std::optional<ApiError> error = run(*mine, sink, gone);
    if (!error && mine->request.include_usage) emit(writer->usage(mine->head, mine->usage()));
    return error;
  };
  std::shared_ptr<StreamedReply> streamed;
  (void)counted(*task, [&] {  // there may be no further thread
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

std::optional<ApiError> ApiServer::run(GenerationTask& task, ChoiceSink& sink, const std::function<bool()>& gone) {
  ++open_;
  const std::shared_ptr<void> ends(nullptr, [this](void*) { --open_; });
  std::optional<ApiError> error = counted(task, [&] { return generate_choices(task, sink, gone); });
  finish(task, error);
  return error;
}

std::optional<ApiError> ApiServer::counted(GenerationTask& task,
                                          const std::function<std::optional<ApiError>()>& part) const {
  try {
    return part();
  } catch (const std::exception&) {
    finish(task, ApiError{500, "internal error"});
    throw;
  }
}

void ApiServer::finish(GenerationTask& task, const std::optional<ApiError>& error) const {
  // A request without an answer costs nothing, unless its client left while the prompt was computed.
  const bool unanswered = error && error->status != kClientGone && !task.facts.time_to_first_token;
  spend(task.key, unanswered ? -task.facts.prompt_tokens : task.facts.generated_tokens);
  task.facts.status = error ? error->status : 200;
  task.facts.total = now() - task.arrived;
  if (task.facts.broken_tool_calls > 0)
    log_warn("event=broken_tool_calls id={} request_id={} calls={} note=\"their text is in the answer's content\"",
             task.head.id, task.request_id, task.facts.broken_tool_calls);
  const TraceContext context = task.trace ? task.trace->context : TraceContext();
  log_info("event=request id={} request_id={} client=\"{}\" status={} prompt_tokens={} generated_tokens={} ms={:.1f}{}",
           task.head.id, task.request_id, task.client, task.facts.status, task.facts.prompt_tokens,
           task.facts.generated_tokens, to_ms(task.facts.total),
           context.is_traced() ? fmt::format(" trace={:016x}{:016x}", context.trace_high, context.trace_low) : "");
  if (task.trace) {
    task.trace->end = task.arrived + task.facts.total;
    task.trace->id = task.head.id;
    task.trace->status = task.facts.status;
    task.trace->prompt_tokens = task.facts.prompt_tokens;
    if (error) task.trace->error = error->message;
    options_.on_traced(*std::move(task.trace));
  }
  options_.on_finished(task.facts);
}

std::string ApiServer::cache_scope(const GenerationTask& task) const {
  const bool apart = !options_.share_prefixes && task.key != nullptr;
  // No name has a line feed, so that no salt can equal another key.
  return (apart ? task.key->name() : "") + (task.request.cache_salt.empty() ? "" : "\n" + task.request.cache_salt);
}

Generate ApiServer::generate_of_choice(const GenerationTask& task, std::size_t index) const {
  const CompletionRequest& request = task.request;
  const auto n = static_cast<std::size_t>(request.n);
  Generate generate{.prompt = task.prompts[index / n],
                    .max_tokens = std::max<std::int64_t>(1, request.max_tokens.value_or(kMaxChatTokens)),
                    .stop_ids = request.stop_ids,
                    .wait_ms = options_.own ? kOwnVerifierWaitMs : kVerifierWaitMs,
                    .sampling = request.sampling,
                    .report_rounds = request.report_rounds || task.trace,
                    .shorten = !request.max_tokens,
                    .on_behalf_of = task.client,
                    .cache_scope = cache_scope(task),
                    .tokenizer_fingerprint = text_.tokenizer_fingerprint,
                    .governed = options_.governed,
                    .media = task.media};
  set_drafts(generate, request.draft_length);
  if (!request.ignore_eos)
    generate.stop_ids.insert(generate.stop_ids.end(), text_.stop_ids().begin(), text_.stop_ids().end());
  generate.sampling.seed = seed_of_choice(generate.sampling.seed, index % n);
  return generate;
}

std::optional<ApiError> ApiServer::generate_choices(GenerationTask& task, ChoiceSink& sink,
                                                   const std::function<bool()>& gone) {
  Result<Client> client = connect();
  if (!client) return api_error(client.error());
  std::vector<Generate> generates;
  std::deque<ChoiceReader> readers;  // addresses must be stable
  for (std::size_t index = 0; index < task.choices(); ++index) {
    generates.push_back(generate_of_choice(task, index));
    readers.emplace_back(text_.tokenizer, task, index, sink);
  }
  FinishedRequest& facts = task.facts;
  std::vector<std::optional<TimePoint>> last_tokens(readers.size());
  std::vector<TracedChoice>* const traced = task.trace ? &task.trace->choices : nullptr;
  if (traced != nullptr) traced->resize(readers.size());
  const RoundReport* round = nullptr;  // of the tokens that come next
  const auto on_tokens = [&](std::size_t index, std::span<const TokenId> tokens) {
    const TimePoint arrival = now();
    if (!facts.time_to_first_token) facts.time_to_first_token = arrival - task.arrived;
    if (last_tokens[index]) facts.inter_token_gaps.push_back(arrival - *last_tokens[index]);
    last_tokens[index] = arrival;
    if (traced != nullptr) (*traced)[index].add(arrival, std::exchange(round, nullptr), client->so_far().verifier);
    ChoiceReader& reader = readers[index];
    if (reader.push(tokens, client->so_far(), facts)) client->end_answer(reader.count());
  };
  const auto on_end = [&](std::size_t index, const Generation& generation) {
    add(facts.metrics, generation.metrics);
    if (index % static_cast<std::size_t>(task.request.n) == 0)
      task.cached_tokens += generation.metrics.cached_prompt_tokens;
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
             if (task.request.report_rounds) readers[index].round(report);
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
  if (std::ranges::any_of(*generations, &Generation::cancelled)) return cut_off(task.server_ends());
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

}  // namespace outrider
