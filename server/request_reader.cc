// Readers of fields and conversations that all APIs share.
#include "server/request_reader.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "common/base/text.h"
#include "common/model/tokenizer/stop_matcher.h"
#include "server/content_parts.h"
#include "server/refused_fields.h"

namespace outrider {
namespace {
using Json = nlohmann::json;

constexpr std::int64_t kIntMax = std::numeric_limits<std::int32_t>::max();
constexpr std::size_t kNamedBytesMax = 200;  ///< of an invalid list, in messages
constexpr std::size_t kCacheSaltMax = 256;   ///< bytes; below a message's limit, to leave room for the key's name

/// Collects the names of the sampling parameters that are offered to clients.
struct SamplingNames {
  std::vector<std::string>& names;

  template <typename T, typename Wire>
  void operator()(const char* name, const T&, Offered<Wire>, auto&&...) {
    names.emplace_back(name);
  }
  void operator()(auto&&...) {}
};

struct ReadOffered {
  const JsonFields& fields;

  template <typename T, typename Wire>
  void operator()(const char* name, T& value, Offered<Wire> offer, auto&&...) {
    if (name == std::string_view("repetition_penalty") && fields.find(name) == nullptr)
      name = "repeat_penalty";  // llama.cpp's
    if constexpr (std::is_floating_point_v<T>)
      value = static_cast<T>(fields.number(name, value, offer.api_low, offer.api_high));
    else
      value = static_cast<T>(fields.integer(name, value, static_cast<std::int64_t>(offer.api_low),
                                            static_cast<std::int64_t>(offer.api_high)));
  }
  void operator()(auto&&...) {}
};

void read_sampling(const JsonFields& fields, const ApiDefaults& defaults, CompletionRequest& request) {
  SamplingParams& sampling = request.sampling = defaults.sampling;
  ReadOffered read{fields};
  SamplingParams::fields(read, sampling);
  if (sampling.top_p == 0) sampling.top_p = std::numeric_limits<float>::min();  // only the most probable token
  if (sampling.top_k == -1) sampling.top_k = 0;                                 // all
  if (const Json* window = fields.find("repeat_last_n"); window != nullptr && *window != -1 && sampling.has_penalties())
    fields.refuse("repeat_last_n", fmt::format("is {}, only -1 is supported: penalties are over all", show(*window)));
  const Json* seed = fields.find("seed");
  request.has_seed = seed != nullptr && *seed != -1;  // any, in vLLM and llama.cpp
  sampling.seed = static_cast<std::uint64_t>(
      fields.integer("seed", 0, std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()));
  const JsonFields logit_bias = fields.object("logit_bias");
  const Json& entries = logit_bias.raw();
  if (entries.size() > kSamplingListMax)
    return fields.refuse("logit_bias",
                         fmt::format("has {} entries, wanted at most {}", entries.size(), kSamplingListMax));
  std::string no_tokens;  // all of them, as in vLLM
  for (const auto& [key, bias] : entries.items()) {
    const TokenId token = to_number<TokenId>(key).value_or(-1);
    if (token < 0 || token >= defaults.vocab_size) {
      if (no_tokens.size() < kNamedBytesMax) no_tokens += (no_tokens.empty() ? "" : ", ") + show(key);
      continue;
    }
    if (!bias.is_number() || !(std::abs(bias.get<double>()) <= 100))
      return fields.refuse("logit_bias", fmt::format("of {} is {}, wanted -100 to 100", key, show(bias)));
    sampling.logit_bias.push_back({.token = token, .bias = bias.get<float>()});
  }
  if (!no_tokens.empty())
    fields.refuse("logit_bias", fmt::format("has {}, wanted ids of the vocabulary's {} tokens, from 0", no_tokens,
                                            defaults.vocab_size));
}

/// Reads the allowed and forbidden tokens, without grammars. Bad words are tokenized later.
void read_masks(const JsonFields& fields, const ApiDefaults& defaults, CompletionRequest& request) {
  if (const Json* ids = fields.find("allowed_token_ids")) {
    request.sampling.allowed_tokens = token_ids(fields, "allowed_token_ids", ids, defaults);
    if (ids->is_array() && ids->empty()) fields.wrong("allowed_token_ids", "at least one token id");
    // Removes duplicates.
    std::ranges::sort(request.sampling.allowed_tokens);
    const auto again = std::ranges::unique(request.sampling.allowed_tokens);
    request.sampling.allowed_tokens.erase(again.begin(), again.end());
  }
  const Json* words = fields.find("bad_words");
  if (words == nullptr) return;
  constexpr const char* kWanted = "an array of texts that are not empty";
  if (!words->is_array()) return fields.wrong("bad_words", kWanted);
  for (const Json& word : *words) {
    if (!word.is_string() || word.get_ref<const std::string&>().find_first_not_of(' ') == std::string::npos)
      return fields.fail(Errc::kMalformed, "bad_words", word, kWanted);
    request.bad_words.push_back(word.get<std::string>());
  }
}

void read_length(const JsonFields& fields, const char* own_name, CompletionRequest& request) {
  std::vector<const char*> names(std::begin(kLengthNames), std::end(kLengthNames));
  if (own_name != nullptr) names.push_back(own_name);
  for (const char* name : names) {
    const Json* wanted = fields.find(name);
    if (wanted != nullptr && (*wanted != -1 || wanted->is_number_unsigned())) {  // 2^64 - 1 compares equal
      // Only the prompt is wanted: echoed, or with llama.cpp's word, kept for the next request.
      const bool may_be_none = !request.chat && (request.echo || name == std::string_view("n_predict"));
      request.max_tokens = fields.integer(name, 1, may_be_none ? 0 : 1, kIntMax);
    }
  }
  if (request.max_tokens && request.sampling.min_tokens > *request.max_tokens) {
    fields.refuse("min_tokens", fmt::format("is {}, wanted at most max_tokens, {}", request.sampling.min_tokens,
                                            *request.max_tokens));
  }
}

/// @param key  of the strings
void read_stops(const JsonFields& fields, const char* key, const ApiDefaults& defaults, CompletionRequest& request) {
  request.ignore_eos = fields.boolean("ignore_eos", false);
  if (const Json* ids = fields.find("stop_token_ids"))
    request.stop_ids = token_ids(fields, "stop_token_ids", ids, defaults);
  request.include_stop = fields.boolean("include_stop_str_in_output", false);
  const Json* stop = fields.find(key);
  if (stop == nullptr) return;
  const auto add_stop = [&](const Json& text) {
    const bool fits = text.is_string() && !text.get_ref<const std::string&>().empty();
    if (fits)
      request.stop.push_back(text.get<std::string>());
    else
      fields.fail(Errc::kMalformed, key, text, "a string that is not empty, or a list of them");
    return fits;
  };
  if (stop->is_array() ? !std::ranges::all_of(*stop, add_stop) : !add_stop(*stop)) return;
  if (const Result<StopMatcher> matcher = StopMatcher::create(request.stop); !matcher)
    fields.refuse(key, "cannot be used: " + matcher.error().message);
}

void read_prompt_tail(const JsonFields& fields, CompletionRequest& request) {
  if (fields.find("truncate_prompt_tokens") == nullptr) return;
  request.prompt_tail = fields.integer("truncate_prompt_tokens", 1, -1, kIntMax);
  if (*request.prompt_tail == 0) fields.wrong("truncate_prompt_tokens", "1 or more, or -1: what the context holds");
  if (*request.prompt_tail == -1) request.prompt_tail = 0;
  request.tail_is_head = fields.choice("truncation_side", "left", {"left", "right"}) == "right";
}

/// @param wanted  a chat requests them in its API's own field
void read_logprobs(const JsonFields& fields, const ApiDefaults& defaults, bool wanted, CompletionRequest& request) {
  std::optional<std::int32_t>& logprobs = request.sampling.logprobs;
  request.tokens_as_ids = fields.boolean("return_tokens_as_token_ids", false);
  if (request.chat && fields.boolean("logprobs", false)) wanted = true;
  if (!request.chat) {
    if (fields.find("logprobs") != nullptr)
      logprobs = static_cast<std::int32_t>(fields.integer("logprobs", 0, 0, kLogprobsMax));
  }
  request.return_prompt_logprobs = fields.find("prompt_logprobs") != nullptr;
  if (request.return_prompt_logprobs) {
    request.sampling.prompt_logprobs = static_cast<std::int32_t>(fields.integer("prompt_logprobs", 0, 0, kLogprobsMax));
    if (request.stream) fields.refuse("prompt_logprobs", "are not available when stream is true");
  } else if (request.echo && !request.chat) {
    request.sampling.prompt_logprobs = logprobs;
  }
  if (const Json* ids = fields.find("logprob_token_ids")) {
    request.sampling.logprob_token_ids = token_ids(fields, "logprob_token_ids", ids, defaults);
    if (request.max_tokens == 0) fields.refuse("logprob_token_ids", "is of no use: no output tokens are generated");
    if (!(request.chat ? wanted : logprobs.has_value()) && !ids->empty())
      fields.refuse("logprob_token_ids", "is only for requests with logprobs");
  }
  if (!request.chat) return;
  const auto top = static_cast<std::int32_t>(fields.integer("top_logprobs", 0, 0, kLogprobsMax));
  if (wanted)
    logprobs = top;
  else if (top > 0)
    fields.refuse("top_logprobs", "is only for logprobs: true");
}

void read_speculative(const JsonFields& speculative, const ApiDefaults& defaults, CompletionRequest& request) {
  request.draft_length = defaults.draft_length;
  const Json* length = speculative.find("draft_length");
  if (length != nullptr && length->is_string()) {
    const Result<DraftLength> named = parse_draft_length(length->get<std::string>());
    if (named)
      request.draft_length = *named;
    else
      speculative.wrong("draft_length",
                        fmt::format("0 to {}, tree:1 to tree:{}, either perhaps with +ngram, +table or +ngram+table "
                                    "behind it, or auto",
                                    kDraftLengthMax, kDraftLengthMax));
  } else if (length != nullptr) {
    // The operator's setting of drafting ahead stays in force.
    request.draft_length.policy = DraftPolicy::kFixed;
    request.draft_length.length = static_cast<int>(speculative.integer("draft_length", 0, 0, kDraftLengthMax));
  }
  if (!speculative.boolean("enabled", true)) request.draft_length = {DraftPolicy::kFixed, 0};
  request.report_rounds = speculative.boolean("report_rounds", false);
  if (request.report_rounds && !request.stream) speculative.refuse("report_rounds", "is only for stream: true");
}

/// Warns of fields that no API here knows.
void read_unknown(const JsonFields& fields, const ApiDefaults& defaults, std::string_view path,
                  CompletionRequest& request) {
  std::vector<std::string> known;
  SamplingNames names{known};
  SamplingParams::fields(names, std::as_const(defaults.sampling));
  for (const UnknownField& field : unknown_fields(fields.raw(), std::move(known), path)) {
    if (defaults.strict_fields) fields.refuse(field.name.c_str(), field.problem);
    request.warnings.push_back(fmt::format("{} {}", show(field.name), field.problem));
  }
}

/// Refuses fields whose results the reply cannot represent.
void refuse_for_want_of_room(const JsonFields& fields) {
  for (const char* name : {"n", "logprobs", "prompt_logprobs", "return_token_ids", "verbose"}) {
    const Json* value = fields.find(name);
    if (value != nullptr && *value != false && !(name == std::string_view("n") && *value == 1))
      fields.refuse(name, "is only for chat completions");
  }
}

/// @return true if the model is to think. The template's own variables, which some clients add, take precedence; then
/// Anthropic's `thinking`; then the effort (vLLM's rule; Gemma's templates have no degrees)
bool read_thinking(const JsonFields& fields) {
  const auto effort_of = [](const JsonFields& of, const char* key, const std::string& otherwise) {
    return of.choice(key, otherwise, {"none", "minimal", "low", "medium", "high", "xhigh", "max"});
  };
  const std::string effort =
      effort_of(fields, "reasoning_effort", effort_of(fields.object("reasoning"), "effort", "none"));
  const std::string switched =
      fields.object("thinking")
          .choice("type", effort == "none" ? "disabled" : "enabled", {"enabled", "adaptive", "disabled"});
  return fields.object("chat_template_kwargs")
      .boolean("enable_thinking", fields.boolean("enable_thinking", switched != "disabled"));
}

}  // namespace

ApiResult<Json> parse_object(std::string_view body) {
  if (json_nesting(body) > kJsonDepthMax)
    return ApiError{.message = fmt::format("the request nests deeper than {} levels", kJsonDepthMax)};
  Json json = parse_json(body);
  if (json.is_discarded()) return ApiError{.message = "the request is not valid JSON in UTF-8"};
  if (!json.is_object()) return ApiError{.message = fmt::format("the request is {}, wanted an object", show(json))};
  return json;
}

void check_model(const JsonFields& fields, const ApiDefaults& defaults, FirstError& wrong) {
  if (const std::string model = fields.text("model", defaults.model); !model.empty() && model != defaults.model)
    wrong.set(Errc::kNotFound, fmt::format("there is no model '{}', only '{}'", model, defaults.model), "model");
}

ApiError api_error_of(const FirstError& wrong) {
  const bool no_model = wrong.error->code == Errc::kNotFound;
  return {.status = no_model ? 404 : 400,
          .message = wrong.error->message,
          .param = wrong.key,
          .code = no_model ? "model_not_found" : ""};
}

std::vector<TokenId> token_ids(const JsonFields& fields, const char* key, const Json* array,
                               const ApiDefaults& defaults) {
  std::vector<TokenId> ids;
  if (array == nullptr || !array->is_array()) return fields.wrong(key, "an array of token ids"), ids;
  ids.reserve(array->size());
  for (const Json& id : *array) {
    if (!id.is_number_integer() || id < 0 || id >= defaults.vocab_size) {
      fields.refuse(key, fmt::format("has {}, wanted token ids from 0 to {}", show(id), defaults.vocab_size - 1));
      return {};
    }
    ids.push_back(id.get<TokenId>());
  }
  return ids;
}

void read_request(const JsonFields& fields, const ApiDefaults& defaults, const RequestWords& words,
                  CompletionRequest& request) {
  if (words.one_reply) refuse_for_want_of_room(fields);
  refuse_unsupported(fields);
  read_unknown(fields, defaults, words.path, request);
  request.stream = fields.boolean("stream", false);
  request.echo = fields.boolean("echo", false);
  request.return_token_ids = fields.boolean("return_token_ids", false);
  read_sampling(fields, defaults, request);
  if (request.chat && fields.boolean("add_special_tokens", false))
    fields.refuse("add_special_tokens", "is only for texts: a chat's are its template's");
  read_prompt_tail(fields, request);
  read_length(fields, words.max_tokens, request);
  read_stops(fields, words.stop != nullptr && fields.contains(words.stop) ? words.stop : "stop", defaults, request);
  read_logprobs(fields, defaults, words.logprobs, request);
  read_masks(fields, defaults, request);
  request.verbose = fields.boolean("verbose", false);
  request.timings_in_each_chunk = fields.boolean("timings_per_token", false);
  request.include_reasoning = fields.boolean("include_reasoning", true);
  request.n = static_cast<std::int32_t>(fields.integer("n", 1, 1, kChoicesMax));
  request.cache_salt = fields.text("cache_salt", "");
  if (request.cache_salt.size() > kCacheSaltMax)
    fields.refuse("cache_salt",
                  fmt::format("has {} bytes, wanted at most {}", request.cache_salt.size(), kCacheSaltMax));
  read_speculative(fields.object("speculative"), defaults, request);
}

void read_part(const JsonFields& part, const std::string& type, ChatMessage& message, std::vector<MediumFile>& media) {
  if (type == "text" || (type == "refusal" && message.role == ChatMessage::Role::kAssistant))
    message.parts.push_back({.text = part.text(type.c_str())});
  else if (!is_medium(type))
    part.refuse("type", fmt::format("is {}, only text, image_url, input_audio, audio_url and video_url are supported",
                                    show(type)));
  else if (may_have_medium(part, type, message))
    read_medium(type, part, message, media);
}

bool may_have_medium(const JsonFields& part, const std::string& type, const ChatMessage& message) {
  const bool may = message.role == ChatMessage::Role::kUser || message.role == ChatMessage::Role::kTool;
  if (!may) part.refuse("type", fmt::format("is {}, which only a user's or a tool's message may have", type));
  return may;
}

void read_content(const JsonFields& fields, const char* key, ChatMessage& message, const PartReader& read) {
  const Json* content = fields.find(key);
  if (content != nullptr && content->is_string()) {
    message.content = content->get<std::string>();
    return;
  }
  const std::string wanted = "a string or an array of parts";
  if (content == nullptr && message.role != ChatMessage::Role::kAssistant) fields.wrong(key, wanted);
  fields.each(key, wanted, [&](const JsonFields& part) { read(part, part.text("type", {}, "the type of a part")); });
}

std::string read_name(const JsonFields& fields, const char* key) {
  const std::string wanted = fmt::format("1 to {} letters, digits, '_', '-' and '.'", kWordMax);
  const std::string name = fields.text(key, {}, wanted);
  if (!is_word(name, "_-.")) fields.wrong(key, wanted);
  return name;
}

ToolCall read_call(const JsonFields& fields) {
  ToolCall call{.id = "", .name = read_name(fields), .arguments = {}};
  // Any text: models do not always write valid JSON, and clients send back the text that they got.
  const std::string arguments = fields.text("arguments", "");
  if (arguments.empty()) return call;
  if (json_nesting(arguments) <= kChatJsonDepthMax) call.arguments = parse_json(arguments);
  if (!call.arguments.is_object() && arguments != "null") call.arguments = arguments;
  return call;
}

ChatMessage read_role(const JsonFields& fields) {
  using Sender = ChatMessage::Role;
  static constexpr std::pair<std::string_view, Sender> kRoles[] = {{"system", Sender::kSystem},
                                                                   {"developer", Sender::kDeveloper},
                                                                   {"user", Sender::kUser},
                                                                   {"assistant", Sender::kAssistant},
                                                                   {"tool", Sender::kTool}};
  ChatMessage message;
  const std::string role = fields.text("role", {}, "a role");
  const auto* const known = std::ranges::find(kRoles, role, &std::pair<std::string_view, Sender>::first);
  message.role = known != std::end(kRoles) ? known->second : Sender::kOther;
  if (message.role == Sender::kOther) message.other_role = role;
  // "model" is the templates' name of an assistant, whose turns have another form.
  if (message.role == Sender::kOther && (!is_word(role, "_-") || role == "model"))
    fields.wrong("role", "system, developer, user, assistant, tool, or another word of letters, digits, '_' and '-'");
  return message;
}

void make_answer(ChatMessage& message) {
  for (const ContentPart& part : message.parts) message.content += part.text;
  std::erase_if(message.parts, [](const ContentPart& part) { return part.kind == ContentPart::Kind::kText; });
  message.response = std::exchange(message.content, {});
}

ToolDeclaration read_function(const JsonFields& function, const char* schema) {
  ToolDeclaration tool;
  tool.name = read_name(function);
  tool.description = function.text("description", "");
  tool.strict = function.boolean("strict", false);
  if (const Json* response = function.find("response")) {  // Gemma's own
    if (!response->is_object()) function.wrong("response", "an object with description and type");
    tool.response = *response;
  }
  const Json* parameters = function.find(schema);
  if (parameters == nullptr) return tool;
  if (!parameters->is_object()) function.wrong(schema, "a JSON schema, an object");
  for (const auto& [name, wanted] : {std::pair("type", Json::value_t::string),
                                     {"properties", Json::value_t::object},
                                     {"required", Json::value_t::array}}) {
    const auto at = parameters->find(name);
    const bool types = name == std::string_view("type") && at != parameters->end() && at->is_array();
    if (at != parameters->end() && at->type() != wanted && !types)
      function.refuse(schema, fmt::format("has {} as its {}, wanted {}", show(*at), name, Json(wanted).type_name()));
  }
  tool.parameters = *parameters;
  return tool;
}

void read_tools(const JsonFields& fields, const ApiDefaults& defaults, Conversation& conversation,
                std::vector<std::string>& warnings, const std::function<bool(const JsonFields& tool)>& read) {
  std::vector<std::pair<std::string, std::string>> left_out;  // the key of the type, and what is wrong with it
  fields.each("tools", "an array of tools", [&](const JsonFields& tool) {
    if (read(tool) || left_out.size() == kUnknownFieldsMax) return;
    const Json& type = member(tool.raw(), "type");
    left_out.emplace_back(tool.name() + ".type", fmt::format("is {}, which this server does not run", show(type)));
  });
  for (const auto& [key, problem] : left_out) {
    if (conversation.tools.empty() || defaults.strict_fields) return fields.refuse(key.c_str(), problem);
    warnings.push_back(fmt::format("{} {}: the tool is left out", key, problem));
  }
}

void read_ending(const JsonFields& fields, bool goes_on, Conversation& conversation) {
  conversation.thinking = read_thinking(fields);
  conversation.preserve_thinking = fields.object("chat_template_kwargs").boolean("preserve_thinking", false);
  goes_on = fields.boolean("continue_final_message", goes_on);
  const bool model_turn = fields.boolean("add_generation_prompt", !goes_on);
  if (goes_on && model_turn) fields.refuse("continue_final_message", "is only for add_generation_prompt: false");
  conversation.end = goes_on      ? Conversation::End::kWithinLastMessage
                     : model_turn ? Conversation::End::kModelTurn
                                  : Conversation::End::kLastMessage;
}

void finish_turns(const JsonFields& fields, const char* key, Conversation& conversation,
                  const std::vector<MediumFile>& media) {
  if (media.size() > kMediaMax)
    return fields.refuse(key,
                         fmt::format("has {} pictures, videos and sounds, wanted at most {}", media.size(), kMediaMax));
  if (!media.empty() && fields.find("truncate_prompt_tokens") != nullptr)
    fields.refuse("truncate_prompt_tokens", "is not supported with pictures and sounds");
  std::vector<ChatMessage>& messages = conversation.messages;
  if (messages.empty()) fields.wrong(key, "at least one message");
  ChatMessage shown;  // the pictures and sounds of the answers so far
  for (std::size_t i = 0; i <= messages.size(); ++i) {
    if (i < messages.size() && messages[i].role == ChatMessage::Role::kTool)
      std::ranges::move(std::exchange(messages[i].parts, {}), std::back_inserter(shown.parts));
    else if (!shown.parts.empty())
      messages.insert(messages.begin() + static_cast<std::ptrdiff_t>(i), std::exchange(shown, {}));
  }
}

}  // namespace outrider
