// The C interface over embed/pair.h: checks arguments, copies in and out, lets no exception pass.
#include "embed/outrider.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <mutex>
#include <set>
#include <string_view>

#include <nlohmann/json.hpp>

#include "common/client/report.h"
#include "common/model/tokenizer/chat.h"
#include "common/model/tokenizer/detokenizer.h"
#include "common/os/logging.h"
#include "common/pair/pair_files.h"
#include "embed/pair.h"
#include "launch/suitable_type.h"

struct outrider_pair {
  std::shared_ptr<outrider::Pair> pair;
};
struct outrider_session {
  std::shared_ptr<outrider::Pair> pair;  ///< outlives the client
  outrider::Client client;
};

namespace outrider {
namespace {

constexpr std::size_t kTextBytesMax = 64u << 20;
static_assert(OUTRIDER_DRAFT_LENGTH_MAX == kDraftLengthMax);

outrider_status to_status(Errc code) {
  switch (code) {
    case Errc::kInvalidArgument: return OUTRIDER_INVALID_ARGUMENT;
    case Errc::kNotFound: return OUTRIDER_NOT_FOUND;
    case Errc::kMalformed: return OUTRIDER_MALFORMED;
    case Errc::kUnsupported: return OUTRIDER_UNSUPPORTED;
    case Errc::kMismatch: return OUTRIDER_MISMATCH;
    case Errc::kVersionMismatch: return OUTRIDER_VERSION_MISMATCH;
    case Errc::kTimeout: return OUTRIDER_TIMEOUT;
    case Errc::kPeerGone: return OUTRIDER_PEER_GONE;
    case Errc::kOutOfRange: return OUTRIDER_OUT_OF_RANGE;
    case Errc::kUnavailable: return OUTRIDER_UNAVAILABLE;
    case Errc::kCancelled: return OUTRIDER_CANCELLED;
    case Errc::kIo: return OUTRIDER_IO;
  }
  return OUTRIDER_IO;
}

void set_error(outrider_error* error, std::string_view message) {
  if (error == nullptr) return;
  const std::size_t length = std::min(message.size(), sizeof error->message - 1);
  std::memcpy(error->message, message.data(), length);
  error->message[length] = '\0';
}

Error invalid(std::string message) { return {Errc::kInvalidArgument, std::move(message)}; }

Result<void> not_null(const char* name, const void* pointer) {
  if (pointer == nullptr) return invalid(fmt::format("{} is NULL", name));
  return {};
}

struct Argument {
  const char* name;
  const void* pointer;
};

/// Runs the body of an entry point, unless a required argument is NULL.
template <typename Function>
outrider_status guarded(outrider_error* error, std::initializer_list<Argument> needed, Function body) noexcept {
  set_error(error, "");
  const Result<void> result = no_throw([&]() -> Result<void> {
    for (const Argument& argument : needed) RETURN_IF_ERROR(not_null(argument.name, argument.pointer));
    return body();
  });
  if (result) return OUTRIDER_OK;
  set_error(error, result.error().message);
  return to_status(result.error().code);
}

/// Views a caller's array. Checks its size before reading an element.
template <typename T>
Result<std::span<const T>> array(const char* name, const T* data, std::size_t count, std::size_t max) {
  if (count > max) return invalid(fmt::format("{} {}, wanted at most {}", count, name, max));
  if (count > 0) RETURN_IF_ERROR(not_null(name, data));
  return std::span<const T>(data, count);
}

Result<std::span<const TokenId>> token_array(const char* name, const std::int32_t* data, std::size_t count) {
  return array(name, data, count, kTokensMax);
}

/// Copies an array out if all of it fits, and sets its full count either way. @param spare  room wanted after it
/// @return kOutOfRange if it does not fit
template <typename T>
Result<void> copy_out(const char* name, std::span<const T> from, std::size_t spare, T* to, std::size_t capacity,
                      std::size_t* count) {
  if (capacity > 0) RETURN_IF_ERROR(not_null(name, to));
  *count = from.size();
  if (from.size() + spare > capacity) {
    return Error(Errc::kOutOfRange, "{}: room for {}, wanted {}", name, capacity, from.size() + spare);
  }
  std::copy(from.begin(), from.end(), to);
  return {};
}

/// Returns the part of an extensible struct that this library knows. A caller with a newer header must not have set any
/// field that would be ignored.
template <typename T>
Result<T> known_part(const char* name, const T* given) {
  if (given->size < sizeof(T)) return invalid(fmt::format("{}: size {}, wanted {}", name, given->size, sizeof(T)));
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  constexpr std::size_t kSizeMax = 4096;
  if (given->size > kSizeMax ||
      std::any_of(bytes + sizeof(T), bytes + given->size, [](unsigned char b) { return b != 0; })) {
    return invalid(fmt::format("{}: size {} with fields that this library does not know, wanted {}", name, given->size,
                               sizeof(T)));
  }
  return *given;
}

Result<std::string> path_of(const char* name, const char* path) {
  RETURN_IF_ERROR(not_null(name, path));
  if (*path == '\0') return invalid(fmt::format("{} is empty, wanted a directory", name));
  return std::string(path);
}

/// A call that outrider_stop() may end.
class Call {
 public:
  explicit Call(const void* user) : user_(user) {
    const std::lock_guard lock(mutex_);
    calls_.insert(this);
  }
  ~Call() {
    const std::lock_guard lock(mutex_);
    calls_.erase(this);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  static void stop(const void* user) {
    const std::lock_guard lock(mutex_);
    for (Call* call : calls_)
      if (call->user_ == user) call->stopped = true;
  }
  std::atomic<bool> stopped = false;

 private:
  const void* const user_;
  static inline std::mutex mutex_;
  static inline std::set<Call*> calls_;
};

void init_logging_once() {
  static std::once_flag once;
  std::call_once(once, [] { init_logging("outrider", "warn"); });
}

/// Returns the nano pair beside this library: in the Python package, or as `cmake --install` puts it. Empty: not there.
std::filesystem::path nano_beside_library() {
  Dl_info info{};
  std::error_code ignored;
  if (dladdr(reinterpret_cast<const void*>(&outrider_abi_version), &info) == 0) return {};
  const std::filesystem::path folder = std::filesystem::weakly_canonical(info.dli_fname, ignored).parent_path();
  for (const char* from : {".", "../share/outrider", "../../share/outrider"}) {  // the last: lib/x86_64-linux-gnu
    const std::filesystem::path nano = (folder / from / "models/nano").lexically_normal();
    if (std::filesystem::exists(nano / "backbone", ignored)) return nano;
  }
  return {};
}

/// @param draft_model  NULL: the pair's assistant drafts
Result<std::shared_ptr<Pair>> open_pair(const PairPaths& paths, const char* draft_model, const char* dtype,
                                        std::int32_t threads) {
  ClusterOptions options{.pair = paths};
  if (dtype == nullptr) {
    ASSIGN_OR_RETURN(const SuitableType suitable, suitable_type(paths));
    options.load_as(suitable.type, /*chosen=*/false);
  } else {
    ASSIGN_OR_RETURN(const WeightType type, parse_weight_type(dtype));
    options.load_as(type, /*chosen=*/true);
  }
  if (threads < 0 || threads > kThreadsMax)
    return invalid(fmt::format("threads {}, wanted 0 to {}", threads, kThreadsMax));
  options.verifier.threads = threads;
  if (draft_model != nullptr) {
    ASSIGN_OR_RETURN(options.drafter.draft_model, path_of("draft_model", draft_model));
  }
  init_logging_once();
  return Pair::open_local(std::move(options));
}

void fill(const Generation& generation, bool stopped_by_caller, outrider_generation* out) {
  const nlohmann::json metrics = metrics_json(generation);
  const outrider_finish finish = stopped_by_caller                          ? OUTRIDER_FINISH_CALLER
                                 : generation.reason == FinishReason::kStop ? OUTRIDER_FINISH_STOP
                                                                            : OUTRIDER_FINISH_LENGTH;
  *out = {.size = out->size,
          .token_count = generation.tokens.size(),
          .finish = static_cast<std::int32_t>(finish),
          .reserved = 0,
          .rounds = generation.metrics.rounds,
          .drafted_tokens = generation.metrics.drafted_tokens,
          .accepted_tokens = generation.metrics.accepted_tokens,
          .speculative_tok_per_sec = metrics.at("speculative_tok_per_sec"),
          .draft_tokens_per_batch = metrics.at("draft_tokens_per_batch"),
          .target_verify_ms = metrics.at("target_verify_ms"),
          .assistant_draft_ms = metrics.at("assistant_draft_ms")};
}

Result<void> generate(Pair& pair, std::span<const TokenId> prompt, const outrider_generate_options& options,
                      std::int32_t* tokens, std::size_t capacity, outrider_generation* out) {
  if (options.max_tokens < 1) return invalid(fmt::format("max_tokens {}, wanted at least 1", options.max_tokens));
  if (options.draft_length < 0 || options.draft_length > OUTRIDER_DRAFT_LENGTH_MAX) {
    return invalid(fmt::format("draft_length {}, wanted 0 to {}", options.draft_length, OUTRIDER_DRAFT_LENGTH_MAX));
  }
  if (tokens == nullptr && capacity > 0) return not_null("tokens", tokens);
  if (tokens != nullptr && capacity < static_cast<std::uint64_t>(options.max_tokens)) {
    return invalid(fmt::format("tokens: room for {}, wanted max_tokens {}", capacity, options.max_tokens));
  }
  ASSIGN_OR_RETURN(const auto stops, token_array("stop_tokens", options.stop_tokens, options.stop_token_count));
  Generate request{.prompt = {prompt.begin(), prompt.end()},
                   .max_tokens = options.max_tokens,
                   .draft_length = options.draft_length,
                   .stop_ids = {},
                   .wait_ms = kVerifierWaitMs,
                   .sampling = pair.text().greedy(),
                   .tokenizer_fingerprint = pair.text().tokenizer_fingerprint};
  if (options.ignore_stop_tokens == 0) {
    request.stop_ids =
        options.stop_tokens == nullptr ? pair.text().stop_ids() : std::vector<TokenId>(stops.begin(), stops.end());
  }
  StreamingDetokenizer detokenizer(pair.text().tokenizer, /*skip_special=*/true);
  Generation stopped_one;  // has its tokens, and no metrics
  Call call(options.user);
  std::atomic<bool>& stopped = call.stopped;
  const auto show = [&](std::span<const TokenId> fresh, const std::string& text) {
    if (options.on_tokens == nullptr) return;
    if (options.on_tokens(options.user, fresh.data(), fresh.size(), text.data(), text.size()) != 0) stopped = true;
  };
  const auto on_tokens = [&](std::span<const TokenId> fresh) {
    if (stopped) return;  // was in transit
    stopped_one.tokens.insert(stopped_one.tokens.end(), fresh.begin(), fresh.end());
    std::string text;
    for (const TokenId token : fresh) text += detokenizer.push(token);
    show(fresh, text);
  };
  ASSIGN_OR_RETURN(Client client, pair.connect());
  const Result<Generation> whole = client.generate(request, on_tokens, [&] { return stopped.load(); });
  if (!whole && !stopped) return whole.error();
  const Generation& generation = stopped ? stopped_one : *whole;
  if (const std::string rest = detokenizer.finish(); !stopped && !rest.empty()) show({}, rest);
  if (generation.tokens.size() > static_cast<std::uint64_t>(options.max_tokens)) {
    return Error(Errc::kMalformed, "{} tokens came, wanted at most {}", generation.tokens.size(), options.max_tokens);
  }
  if (tokens != nullptr) std::copy(generation.tokens.begin(), generation.tokens.end(), tokens);
  if (out != nullptr) fill(generation, stopped, out);
  return {};
}

}  // namespace
}  // namespace outrider

using namespace outrider;

uint32_t outrider_abi_version(void) { return OUTRIDER_ABI_VERSION; }

const char* outrider_status_name(outrider_status status) {
  if (status == OUTRIDER_OK) return "ok";
  for (int code = 0; code <= static_cast<int>(Errc::kIo); ++code) {
    if (to_status(static_cast<Errc>(code)) == status) return to_string(static_cast<Errc>(code));
  }
  return "unknown";
}

// ---- pairs ----

outrider_status pair_open_local(const char* target, const char* assistant, const char* dtype, int32_t threads,
                                outrider_pair** pair, outrider_error* error) {
  return guarded(error, {{"pair", pair}}, [&]() -> Result<void> {
    PairPaths paths;
    ASSIGN_OR_RETURN(paths.backbone, path_of("target", target));
    ASSIGN_OR_RETURN(paths.backbone, model_path(paths.backbone));
    if (assistant != nullptr) {
      ASSIGN_OR_RETURN(paths.assistant, path_of("assistant", assistant));
      ASSIGN_OR_RETURN(paths.assistant, model_path(paths.assistant));
    }
    ASSIGN_OR_RETURN(auto opened, open_pair(paths, /*draft_model=*/nullptr, dtype, threads));
    *pair = new outrider_pair{std::move(opened)};
    return {};
  });
}

outrider_status outrider_open_model(const char* model, const char* draft_model, const char* dtype, int32_t threads,
                                    outrider_pair** pair, outrider_error* error) {
  return guarded(error, {{"pair", pair}}, [&]() -> Result<void> {
    std::filesystem::path wanted;
    if (model == nullptr) {
      wanted = nano_beside_library();
    } else {
      ASSIGN_OR_RETURN(wanted, path_of("model", model));
    }
    ASSIGN_OR_RETURN(PairPaths paths, pair_paths(wanted));
    std::error_code ignored;
    if (!std::filesystem::exists(paths.assistant, ignored)) paths.assistant.clear();
    ASSIGN_OR_RETURN(auto opened, open_pair(paths, draft_model, dtype, threads));
    *pair = new outrider_pair{std::move(opened)};
    return {};
  });
}

outrider_status pair_open_remote(const char* address, const char* target, outrider_pair** pair, outrider_error* error) {
  return guarded(error, {{"pair", pair}, {"address", address}}, [&]() -> Result<void> {
    ASSIGN_OR_RETURN(const std::string given, path_of("target", target));
    ASSIGN_OR_RETURN(const std::filesystem::path backbone, model_path(given, HubNeed::kText));
    init_logging_once();
    ASSIGN_OR_RETURN(auto opened, Pair::open_remote(address, backbone));
    *pair = new outrider_pair{std::move(opened)};
    return {};
  });
}

void pair_close(outrider_pair* pair) { delete pair; }

// ---- the text of a pair ----

outrider_status outrider_encode_user_turn(const outrider_pair* pair, const char* text, size_t bytes, int32_t* tokens,
                                          size_t capacity, size_t* count, outrider_error* error) {
  return guarded(error, {{"pair", pair}, {"count", count}}, [&]() -> Result<void> {
    ASSIGN_OR_RETURN(const auto turn, array("text", text, bytes, kTextBytesMax));
    const TextSide& side = pair->pair->text();
    ASSIGN_OR_RETURN(const std::vector<TokenId> ids,
                     render_user_turn(side.tokenizer, {turn.data(), turn.size()}, side.chat_format));
    return copy_out("tokens", std::span(ids), 0, tokens, capacity, count);
  });
}

outrider_status outrider_decode_tokens(const outrider_pair* pair, const int32_t* tokens, size_t count, char* text,
                                       size_t capacity, size_t* bytes, outrider_error* error) {
  return guarded(error, {{"pair", pair}, {"bytes", bytes}}, [&]() -> Result<void> {
    ASSIGN_OR_RETURN(const auto ids, token_array("tokens", tokens, count));
    const std::string decoded = pair->pair->text().tokenizer.decode(ids, /*skip_special=*/true);
    RETURN_IF_ERROR(copy_out("text", std::span(decoded.data(), decoded.size()), 1, text, capacity, bytes));
    text[decoded.size()] = '\0';
    return {};
  });
}

int outrider_is_stop_token(const outrider_pair* pair, int32_t token) {
  if (pair == nullptr) return 0;
  const std::vector<TokenId>& ids = pair->pair->text().stop_ids();
  return std::find(ids.begin(), ids.end(), token) != ids.end() ? 1 : 0;
}

// ---- step by step ----

outrider_status pair_session_open(outrider_pair* pair, outrider_session** session, outrider_error* error) {
  return guarded(error, {{"pair", pair}, {"session", session}}, [&]() -> Result<void> {
    ASSIGN_OR_RETURN(Client client, pair->pair->connect());
    *session = new outrider_session{pair->pair, std::move(client)};
    return {};
  });
}

void pair_session_close(outrider_session* session) { delete session; }

outrider_status pair_prefill(outrider_session* session, const int32_t* tokens, size_t count, int32_t* first_token,
                             outrider_error* error) {
  return guarded(error, {{"session", session}}, [&]() -> Result<void> {
    session->client.end_text();  // even if the other arguments are invalid
    RETURN_IF_ERROR(not_null("first_token", first_token));
    ASSIGN_OR_RETURN(const auto prompt, token_array("tokens", tokens, count));
    ASSIGN_OR_RETURN(*first_token,
                     session->client.prefill({prompt.begin(), prompt.end()}, session->pair->text().greedy()));
    return {};
  });
}

outrider_status outrider_prefill_chat(outrider_session* session, const char* body, size_t bytes, int32_t* first_token,
                                      outrider_error* error) {
  return guarded(error, {{"session", session}}, [&]() -> Result<void> {
    session->client.end_text();  // as above
    RETURN_IF_ERROR(not_null("first_token", first_token));
    ASSIGN_OR_RETURN(const auto text, array("body", body, bytes, kTextBytesMax));
    ASSIGN_OR_RETURN(ApiServer::RenderedPrompt prompt, session->pair->prompt_of({text.begin(), text.end()}));
    ASSIGN_OR_RETURN(*first_token, session->client.prefill(std::move(prompt.tokens), session->pair->text().greedy(),
                                                           std::move(prompt.media)));
    return {};
  });
}

outrider_status pair_decode_one(outrider_session* session, int32_t* next_token, outrider_error* error) {
  return guarded(error, {{"session", session}, {"next_token", next_token}}, [&]() -> Result<void> {
    ASSIGN_OR_RETURN(const std::vector<TokenId> tokens, session->client.verify({}));
    *next_token = tokens[0];
    return {};
  });
}

outrider_status pair_draft_tokens(outrider_session* session, size_t count, int32_t* drafts, size_t* drafted,
                                  outrider_error* error) {
  const outrider_status status =
      guarded(error, {{"session", session}, {"drafts", drafts}, {"drafted", drafted}}, [&]() -> Result<void> {
        if (count > OUTRIDER_DRAFT_LENGTH_MAX)
          return invalid(fmt::format("{} drafts, wanted 1 to {}", count, OUTRIDER_DRAFT_LENGTH_MAX));
        ASSIGN_OR_RETURN(const std::vector<TokenId> candidates,
                         session->client.draft(static_cast<std::int32_t>(count)));
        return copy_out("drafts", std::span(candidates), 0, drafts, count, drafted);
      });
  if (status == OUTRIDER_OK && *drafted == 0)
    set_error(error, "no candidates: no drafter has joined, it was late, or the context ends here");
  return status;
}

outrider_status pair_verify_tokens(outrider_session* session, const int32_t* drafts, size_t count, size_t* accepted,
                                   int32_t* next_token, outrider_error* error) {
  return guarded(
      error, {{"session", session}, {"accepted", accepted}, {"next_token", next_token}}, [&]() -> Result<void> {
        ASSIGN_OR_RETURN(const auto ids,
                         array("drafts", drafts, count, static_cast<std::size_t>(OUTRIDER_DRAFT_LENGTH_MAX)));
        ASSIGN_OR_RETURN(const std::vector<TokenId> tokens, session->client.verify({ids.begin(), ids.end()}));
        *accepted = tokens.size() - 1;
        *next_token = tokens.back();
        return {};
      });
}

// ---- from prompt to end ----

outrider_status pair_generate_speculative(outrider_pair* pair, const int32_t* prompt, size_t count,
                                          const outrider_generate_options* options, int32_t* tokens, size_t capacity,
                                          outrider_generation* generation, outrider_error* error) {
  return guarded(error, {{"pair", pair}}, [&]() -> Result<void> {
    ASSIGN_OR_RETURN(const auto ids, token_array("prompt tokens", prompt, count));
    outrider_generate_options chosen = OUTRIDER_GENERATE_OPTIONS_INIT;
    if (options != nullptr) {
      ASSIGN_OR_RETURN(chosen, known_part("options", options));
    }
    if (generation != nullptr && generation->size < sizeof *generation) {
      return invalid(fmt::format("generation: size {}, wanted {}", generation->size, sizeof *generation));
    }
    return generate(*pair->pair, ids, chosen, tokens, capacity, generation);
  });
}

void outrider_stop(const void* user) { Call::stop(user); }

// ---- whole requests ----

outrider_status outrider_post(outrider_pair* pair, const char* path, const char* body, size_t bytes,
                              outrider_on_reply on_reply, void* user, outrider_error* error) {
  const auto function = reinterpret_cast<const void*>(on_reply);
  return guarded(error, {{"pair", pair}, {"path", path}, {"on_reply", function}}, [&]() -> Result<void> {
    ASSIGN_OR_RETURN(const auto text, array("body", body, bytes, kTextBytesMax));
    Call call(user);
    return pair->pair->post(
        path, {text.begin(), text.end()},
        [&](std::string_view json) { return on_reply(user, json.data(), json.size()) == 0; }, call.stopped);
  });
}
