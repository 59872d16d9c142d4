#include "http-server/openai.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <type_traits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/report/report.h"
#include "common/tokenizer/stop_matcher.h"

namespace outrider {
namespace {
using Json = nlohmann::json;

/// Arguments and schemas nest kChatJsonDepthMax deep, some levels below the body's own.
constexpr int kJsonDepthMax = kChatJsonDepthMax + 8;
constexpr std::int64_t kIntMax = std::numeric_limits<std::int32_t>::max();
constexpr std::size_t kToolNameMax = 64;

/// Levels of brackets in what may be JSON. Asked before a parser builds a tree of them, whose copies and
/// texts are made by recursion.
int nesting(std::string_view json) {
  int depth = 0, deepest = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return deepest;
}

/// A value as a person would find it again: short.
std::string shown(const Json& value) {
  constexpr std::size_t kMax = 60;
  if (value.is_structured()) return fmt::format("an {}", value.type_name());
  std::string text = to_text(value);
  if (text.size() > kMax) text = text.substr(0, kMax) + "...";
  return text;
}

/// The fields of a JSON object. What is wrong first is kept in `error`, and nothing is read after it: the
/// reader asks once, at the end. Null counts as absent.
class Fields {
 public:
  /// @param path  what comes before a field's name in errors, as in "messages[2]."
  Fields(const Json& object, std::string path, std::optional<ApiError>& error)
      : object_(object), path_(std::move(path)), error_(error) {
    if (!object.is_object()) {
      const std::string what = path_.empty() ? "the request" : path_.substr(0, path_.size() - 1);
      error_ = error_.value_or(ApiError{.message = fmt::format("{} is {}, wanted an object", what, shown(object)),
                                        .param = path_.empty() ? "" : what});
    }
  }

  const Json* find(const std::string& name) const {
    if (error_ || !object_.is_object()) return nullptr;
    const auto at = object_.find(name);
    return at == object_.end() || at->is_null() ? nullptr : &*at;
  }
  void fail(const std::string& name, const std::string& what) const {
    if (!error_) error_ = ApiError{.message = fmt::format("{}{} {}", path_, name, what), .param = path_ + name};
  }
  void wrong(const std::string& name, const Json* seen, const std::string& wanted) const {
    fail(name, seen == nullptr ? fmt::format("is missing, wanted {}", wanted)
                               : fmt::format("is {}, wanted {}", shown(*seen), wanted));
  }
  std::string path_of(const std::string& name) const { return path_ + name; }

  bool flag(const std::string& name, bool fallback) const {
    const Json* value = find(name);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) wrong(name, value, "true or false");
    return value->is_boolean() && value->get<bool>();
  }
  std::int64_t integer(const std::string& name, std::int64_t fallback, std::int64_t min, std::int64_t max) const {
    const Json* value = find(name);
    if (value == nullptr) return fallback;
    const bool fits = value->is_number_integer() &&
                      !(value->is_number_unsigned() && value->get<std::uint64_t>() > static_cast<std::uint64_t>(max)) &&
                      value->get<std::int64_t>() >= min && value->get<std::int64_t>() <= max;
    if (!fits) wrong(name, value, fmt::format("a whole number from {} to {}", min, max));
    return fits ? value->get<std::int64_t>() : fallback;
  }
  float number(const std::string& name, float fallback, double min, double max) const {
    const Json* value = find(name);
    if (value == nullptr) return fallback;
    const bool fits = value->is_number() && value->get<double>() >= min && value->get<double>() <= max;
    if (!fits) wrong(name, value, fmt::format("a number from {} to {}", min, max));
    return fits ? value->get<float>() : fallback;
  }
  /// @param wanted  of a text that must be there; empty: it need not.
  std::string text(const std::string& name, const std::string& wanted = "") const {
    const Json* value = find(name);
    if (value == nullptr && wanted.empty()) return "";
    if (value == nullptr || !value->is_string()) wrong(name, value, wanted.empty() ? "a string" : wanted);
    return value != nullptr && value->is_string() ? value->get<std::string>() : "";
  }
  /// The items of an array, each with the path of its own fields. @return whether the field is there.
  template <typename OnItem>
  bool each(const std::string& name, const std::string& wanted, const OnItem& on_item) const {
    const Json* value = find(name);
    if (value == nullptr) return false;
    if (!value->is_array()) wrong(name, value, wanted);
    for (std::size_t i = 0; value->is_array() && i < value->size() && !error_; ++i)
      on_item((*value)[i], fmt::format("{}{}[{}]", path_, name, i));
    return true;
  }
  /// The fields of an object within, if it is there.
  template <typename OnObject>
  void within(const std::string& name, const OnObject& on_object) const {
    const Json* value = find(name);
    if (value == nullptr) return;
    const Fields inner(*value, path_ + name + ".", error_);
    if (!error_) on_object(inner);
  }
  std::optional<ApiError>& error() const { return error_; }

 private:
  const Json& object_;
  std::string path_;
  std::optional<ApiError>& error_;
};

ApiResult<Json> parse_json(std::string_view body) {
  if (nesting(body) > kJsonDepthMax)
    return ApiError{.message = fmt::format("the request nests deeper than {} levels", kJsonDepthMax)};
  Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return ApiError{.message = "the request is not valid JSON in UTF-8"};
  return json;
}

/// Tokens of the vocabulary.
std::vector<TokenId> token_ids(const Json& array, const std::string& param, const ApiDefaults& defaults,
                               std::optional<ApiError>& error) {
  std::vector<TokenId> ids;
  ids.reserve(array.size());
  for (const Json& id : array) {
    if (!id.is_number_integer() || id < 0 || id >= defaults.vocab_size) {
      error = error.value_or(ApiError{
          .message = fmt::format("{} has {}, wanted token ids from 0 to {}", param, shown(id), defaults.vocab_size - 1),
          .param = param});
      return {};
    }
    ids.push_back(id.get<TokenId>());
  }
  return ids;
}

void read_model(const Fields& fields, const ApiDefaults& defaults) {
  const std::string model = fields.text("model");
  if (fields.error() || model.empty() || model == defaults.model) return;
  fields.error() = ApiError{.status = 404,
                            .message = fmt::format("there is no model '{}', only '{}'", model, defaults.model),
                            .param = "model",
                            .code = "model_not_found"};
}

/// What would change the answer, and we can not do.
void refuse_unsupported(const Fields& fields) {
  for (const char* name : {"functions", "function_call", "audio", "suffix", "structured_outputs", "guided_json",
                           "guided_regex", "guided_choice", "guided_grammar", "prompt_logprobs", "use_beam_search"}) {
    const Json* value = fields.find(name);
    if (value != nullptr && *value != false && *value != "") fields.fail(name, "is not supported");
  }
  if (fields.integer("best_of", 1, 1, kIntMax) != 1) fields.fail("best_of", "is not supported");
  if (fields.flag("echo", false)) fields.fail("echo", "is not supported");
  if (!fields.flag("parallel_tool_calls", true)) fields.fail("parallel_tool_calls", "cannot be switched off");
  fields.within("response_format", [](const Fields& format) {
    if (format.text("type", "a string") != "text") format.fail("type", "is not supported but for 'text'");
  });
}

struct ReadOffered {
  const Fields& fields;

  template <typename T, typename Wire>
  void operator()(const char* name, T& value, Offered<Wire> offer, auto&&...) {
    if constexpr (std::is_floating_point_v<T>)
      value = fields.number(name, value, offer.api_low, offer.api_high);
    else
      value = static_cast<T>(fields.integer(name, value, static_cast<std::int64_t>(offer.api_low),
                                            static_cast<std::int64_t>(offer.api_high)));
  }
  void operator()(auto&&...) {}
};

void read_sampling(const Fields& fields, const ApiDefaults& defaults, CompletionRequest& request) {
  SamplingParams& sampling = request.sampling = defaults.sampling;
  ReadOffered read{fields};
  SamplingParams::fields(read, sampling);
  if (sampling.top_p == 0) sampling.top_p = std::numeric_limits<float>::min();  // only the most probable token
  if (sampling.top_k == -1) sampling.top_k = 0;                                 // all
  request.has_seed = fields.find("seed") != nullptr;
  sampling.seed = static_cast<std::uint64_t>(
      fields.integer("seed", 0, std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()));
  fields.within("logit_bias", [&](const Fields&) {
    const Json& entries = *fields.find("logit_bias");
    if (entries.size() > kSamplingListMax)
      return fields.fail("logit_bias",
                         fmt::format("has {} entries, wanted at most {}", entries.size(), kSamplingListMax));
    for (const auto& [key, bias] : entries.items()) {
      TokenId token = -1;
      const auto parsed = std::from_chars(key.data(), key.data() + key.size(), token);
      if (parsed.ec != std::errc() || parsed.ptr != key.data() + key.size() || token < 0 ||
          token >= defaults.vocab_size) {
        return fields.fail("logit_bias", fmt::format("has the token {}, wanted ids from 0 to {}", shown(key),
                                                     defaults.vocab_size - 1));
      }
      if (!bias.is_number() || !(std::abs(bias.get<double>()) <= 100))
        return fields.fail("logit_bias", fmt::format("of {} is {}, wanted -100 to 100", key, shown(bias)));
      sampling.logit_bias.push_back({.token = token, .bias = bias.get<float>()});
    }
  });
}

void read_length_and_stops(const Fields& fields, const ApiDefaults& defaults, CompletionRequest& request) {
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {
    if (fields.find(name) != nullptr) request.max_tokens = fields.integer(name, 1, 1, kIntMax);
  }
  if (request.max_tokens && request.sampling.min_tokens > *request.max_tokens) {
    fields.fail("min_tokens",
                fmt::format("is {}, wanted at most max_tokens, {}", request.sampling.min_tokens, *request.max_tokens));
  }
  request.ignore_eos = fields.flag("ignore_eos", false);
  if (const Json* ids = fields.find("stop_token_ids")) {
    if (!ids->is_array()) return fields.wrong("stop_token_ids", ids, "an array of token ids");
    request.stop_ids = token_ids(*ids, "stop_token_ids", defaults, fields.error());
  }
  const Json* stop = fields.find("stop");
  if (stop == nullptr) return;
  for (const Json& text : stop->is_array() ? *stop : Json::array({*stop})) {
    if (!text.is_string() || text.get_ref<const std::string&>().empty())
      return fields.wrong("stop", &text, "a string that is not empty, or a list of them");
    request.stop.push_back(text.get<std::string>());
  }
  if (const Result<StopMatcher> matcher = StopMatcher::create(request.stop); !matcher)
    fields.fail("stop", "cannot be used: " + matcher.error().message);
}

void read_logprobs(const Fields& fields, CompletionRequest& request) {
  std::optional<std::int32_t>& logprobs = request.sampling.logprobs;
  if (!request.chat) {
    if (fields.find("logprobs") != nullptr)
      logprobs = static_cast<std::int32_t>(fields.integer("logprobs", 0, 0, kLogprobsMax));
    return;
  }
  const auto top = static_cast<std::int32_t>(fields.integer("top_logprobs", 0, 0, kLogprobsMax));
  if (fields.flag("logprobs", false))
    logprobs = top;
  else if (top > 0)
    fields.fail("top_logprobs", "is only for logprobs: true");
}

void read_common(const Fields& fields, const ApiDefaults& defaults, CompletionRequest& request) {
  read_model(fields, defaults);
  refuse_unsupported(fields);
  read_sampling(fields, defaults, request);
  read_length_and_stops(fields, defaults, request);
  read_logprobs(fields, request);
  request.n = static_cast<std::int32_t>(fields.integer("n", 1, 1, kChoicesMax));
  request.stream = fields.flag("stream", false);
  fields.within("stream_options", [&](const Fields& options) {
    request.include_usage = options.flag("include_usage", false);
    if (!request.stream) fields.fail("stream_options", "is only for stream: true");
  });
  request.draft_length = defaults.draft_length;
  fields.within("speculative", [&](const Fields& speculative) {
    const Json* length = speculative.find("draft_length");
    if (length != nullptr && length->is_string()) {
      const Result<DraftLength> named = parse_draft_length(length->get<std::string>());
      if (named)
        request.draft_length = *named;
      else
        speculative.wrong("draft_length", length,
                          fmt::format("0 to {}, \"auto\", \"heuristic\", \"ucb1\" or \"thompson\"", kDraftLengthMax));
    } else if (length != nullptr) {
      request.draft_length = {DraftPolicy::kFixed,
                              static_cast<int>(speculative.integer("draft_length", 0, 0, kDraftLengthMax))};
    }
    if (!speculative.flag("enabled", true)) request.draft_length = {DraftPolicy::kFixed, 0};
    request.report_rounds = speculative.flag("report_rounds", false);
    if (request.report_rounds && !request.stream) speculative.fail("report_rounds", "is only for stream: true");
  });
}

/// A string, or an array of text parts.
std::string read_content(const Fields& message, bool required) {
  const Json* content = message.find("content");
  if (content != nullptr && content->is_string()) return content->get<std::string>();
  const std::string wanted = "a string or an array of text parts";
  if (content == nullptr && !required) return "";
  if (content == nullptr || !content->is_array()) return message.wrong("content", content, wanted), "";
  std::string text;
  message.each("content", wanted, [&](const Json& item, const std::string& path) {
    const Fields part(item, path + ".", message.error());
    const std::string type = part.text("type", "the type of a part");
    if (type == "text")
      text += part.text("text", "a string");
    else
      part.fail("type", fmt::format("is {}, only text is supported", shown(Json(type))));
  });
  return text;
}

std::string read_name(const Fields& fields) {
  const std::string wanted = fmt::format("1 to {} letters, digits, '_', '-' and '.'", kToolNameMax);
  const std::string name = fields.text("name", wanted);
  const bool fits =
      !name.empty() && name.size() <= kToolNameMax &&
      name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") == name.npos;
  if (!fits) fields.wrong("name", fields.find("name"), wanted);
  return name;
}

ToolCall read_tool_call(const Json& item, const std::string& path, std::optional<ApiError>& error) {
  ToolCall call;
  const Fields fields(item, path + ".", error);
  call.id = fields.text("id");
  if (fields.find("function") == nullptr) fields.wrong("function", nullptr, "an object with name and arguments");
  fields.within("function", [&](const Fields& function) {
    call.name = read_name(function);
    const std::string arguments = function.text("arguments");
    if (arguments.empty()) return;
    if (nesting(arguments) <= kChatJsonDepthMax) call.arguments = Json::parse(arguments, nullptr, false);
    if (!call.arguments.is_object())
      function.wrong("arguments", function.find("arguments"),
                     fmt::format("the text of a JSON object, at most {} levels deep", kChatJsonDepthMax));
  });
  return call;
}

ChatMessage read_message(const Json& item, const std::string& path, std::optional<ApiError>& error) {
  using Role = ChatMessage::Role;
  ChatMessage message;
  const Fields fields(item, path + ".", error);
  const std::string role = fields.text("role", "a role");
  if (role == "system")
    message.role = Role::kSystem;
  else if (role == "developer")
    message.role = Role::kDeveloper;
  else if (role == "user")
    message.role = Role::kUser;
  else if (role == "assistant")
    message.role = Role::kAssistant;
  else if (role == "tool")
    message.role = Role::kTool;
  else
    fields.wrong("role", fields.find("role"), "system, developer, user, assistant or tool");
  if (message.role == Role::kAssistant) {
    message.reasoning = fields.text("reasoning_content");
    fields.each("tool_calls", "an array of calls", [&](const Json& call, const std::string& at) {
      message.tool_calls.push_back(read_tool_call(call, at, error));
    });
  }
  const std::string content = read_content(fields, message.role != Role::kAssistant || message.tool_calls.empty());
  if (message.role == Role::kTool) {
    message.tool_call_id = fields.text("tool_call_id", "the id of the call that this answers");
    message.response = content;
  } else {
    message.content = content;
  }
  return message;
}

ToolDeclaration read_tool(const Json& item, const std::string& path, std::optional<ApiError>& error) {
  ToolDeclaration tool;
  const Fields fields(item, path + ".", error);
  if (fields.text("type", "\"function\"") != "function") fields.wrong("type", fields.find("type"), "\"function\"");
  if (fields.find("function") == nullptr) fields.wrong("function", nullptr, "an object with name and parameters");
  fields.within("function", [&](const Fields& function) {
    tool.name = read_name(function);
    tool.description = function.text("description");
    const Json* parameters = function.find("parameters");
    if (parameters == nullptr) return;
    if (!parameters->is_object()) return function.wrong("parameters", parameters, "a JSON schema, an object");
    for (const auto& [name, wanted] : {std::pair("type", Json::value_t::string),
                                       {"properties", Json::value_t::object},
                                       {"required", Json::value_t::array}}) {
      const auto at = parameters->find(name);
      if (at != parameters->end() && at->type() != wanted)
        return function.fail("parameters",
                             fmt::format("has {} as its {}, wanted {}", shown(*at), name, Json(wanted).type_name()));
    }
    tool.parameters = *parameters;
  });
  return tool;
}

Conversation read_conversation(const Fields& fields) {
  Conversation conversation;
  std::optional<ApiError>& error = fields.error();
  const bool there = fields.each("messages", "an array of messages", [&](const Json& item, const std::string& path) {
    conversation.messages.push_back(read_message(item, path, error));
  });
  if (!there || conversation.messages.empty())
    fields.wrong("messages", fields.find("messages"), "at least one message");
  fields.each("tools", "an array of tools", [&](const Json& item, const std::string& path) {
    conversation.tools.push_back(read_tool(item, path, error));
  });
  if (const Json* choice = fields.find("tool_choice")) {
    if (*choice == "none")
      conversation.tools.clear();
    else if (*choice == "required" || choice->is_object())
      fields.fail("tool_choice", "can only be \"none\" or \"auto\": calls cannot be forced");
    else if (*choice != "auto")
      fields.wrong("tool_choice", choice, "\"none\" or \"auto\"");
  }
  fields.within("chat_template_kwargs",
                [&](const Fields& options) { conversation.thinking = options.flag("enable_thinking", false); });
  return conversation;
}

/// A T as `read` fills it from the fields of a body, or the first thing that is wrong. `read` gets the fields, the T,
/// and the error so far.
template <typename T, typename Read>
ApiResult<T> parse_body(std::string_view body, Read read) {
  const ApiResult<Json> json = parse_json(body);
  if (const auto* error = std::get_if<ApiError>(&json)) return *error;
  std::optional<ApiError> error;
  T value;
  read(Fields(std::get<Json>(json), "", error), value, error);
  if (error) return *error;
  return value;
}

}  // namespace

ApiResult<CompletionRequest> parse_chat_completion(std::string_view body, const ApiDefaults& defaults) {
  return parse_body<CompletionRequest>(body,
                                       [&](const Fields& fields, CompletionRequest& request, std::optional<ApiError>&) {
                                         request.chat = true;
                                         read_common(fields, defaults, request);
                                         request.conversation = read_conversation(fields);
                                       });
}

ApiResult<CompletionRequest> parse_completion(std::string_view body, const ApiDefaults& defaults) {
  constexpr std::int64_t kDefaultMaxTokens = 16;  // OpenAI's
  return parse_body<CompletionRequest>(
      body, [&](const Fields& fields, CompletionRequest& request, std::optional<ApiError>& error) {
        read_common(fields, defaults, request);
        if (!request.max_tokens) request.max_tokens = std::max(kDefaultMaxTokens, request.sampling.min_tokens);
        const std::string wanted = "a string, an array of token ids, or an array of those";
        const Json* prompt = fields.find("prompt");
        const auto add_prompt = [&](const Json& one) {
          if (one.is_string())
            request.prompts.emplace_back(one.get<std::string>());
          else if (one.is_array() && !one.empty())
            request.prompts.emplace_back(token_ids(one, "prompt", defaults, error));
          else
            fields.wrong("prompt", &one, wanted);
        };
        if (prompt == nullptr || (prompt->is_array() && prompt->empty())) {
          fields.wrong("prompt", prompt, wanted);
        } else if (prompt->is_array() && !prompt->front().is_number()) {
          if (static_cast<std::int64_t>(prompt->size()) * request.n > kChoicesMax)
            fields.fail("prompt", fmt::format("has {} prompts for {} choices each, wanted at most {} in all",
                                              prompt->size(), request.n, kChoicesMax));
          for (const Json& one : *prompt) {
            if (error) break;
            add_prompt(one);
          }
        } else {
          add_prompt(*prompt);
        }
      });
}

ApiResult<TokenizeRequest> parse_tokenize(std::string_view body, const ApiDefaults& defaults) {
  return parse_body<TokenizeRequest>(body,
                                     [&](const Fields& fields, TokenizeRequest& request, std::optional<ApiError>&) {
                                       read_model(fields, defaults);
                                       request.add_special_tokens = fields.flag("add_special_tokens", true);
                                       request.token_strings = fields.flag("return_token_strs", false);
                                       if (fields.find("messages") != nullptr) {
                                         request.text = read_conversation(fields);
                                         if (!fields.flag("add_generation_prompt", true))
                                           fields.fail("add_generation_prompt", "cannot be switched off");
                                       } else {
                                         request.text = fields.text("prompt", "a string, or messages instead");
                                       }
                                     });
}

ApiResult<std::vector<TokenId>> parse_detokenize(std::string_view body, const ApiDefaults& defaults) {
  return parse_body<std::vector<TokenId>>(
      body, [&](const Fields& fields, std::vector<TokenId>& ids, std::optional<ApiError>& error) {
        read_model(fields, defaults);
        const Json* tokens = fields.find("tokens");
        if (tokens == nullptr || !tokens->is_array()) fields.wrong("tokens", tokens, "an array of token ids");
        if (!error) ids = token_ids(*tokens, "tokens", defaults, error);
      });
}

// ---- replies ----

namespace {

Json or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

Json error_json(const ApiError& error) {
  const char* type = "invalid_request_error";
  if (error.status == 429) type = "rate_limit_error";
  if (error.status >= 500) type = "server_error";
  return {
      {"error",
       {{"message", error.message}, {"type", type}, {"param", or_null(error.param)}, {"code", or_null(error.code)}}}};
}

std::string call_id(const ReplyHead& head, std::size_t index, std::size_t call) {
  return fmt::format("call_{}_{}_{}", head.id, index, call);
}

Json call_json(const ReplyHead& head, std::size_t index, std::size_t call, const std::string& name,
               const std::string& arguments) {
  return {{"id", call_id(head, index, call)},
          {"type", "function"},
          {"function", {{"name", name}, {"arguments", arguments}}}};
}

Json scored_json(const ScoredText& text) {
  Json bytes = Json::array();
  for (const char byte : text.bytes) bytes.push_back(static_cast<unsigned char>(byte));
  return {{"token", text.bytes}, {"logprob", text.logprob}, {"bytes", std::move(bytes)}};
}

/// null where they are not wanted.
Json logprobs_json(const ReplyHead& head, const std::vector<TokenScore>& scores) {
  if (!head.logprobs) return nullptr;
  Json content = Json::array(), tokens = Json::array(), token_logprobs = Json::array(), tops = Json::array(),
       offsets = Json::array();
  for (const TokenScore& score : scores) {
    Json top = head.chat ? Json::array() : Json::object();
    for (const ScoredText& other : score.top) {
      if (head.chat)
        top.push_back(scored_json(other));
      else
        top[other.bytes] = other.logprob;
    }
    if (!head.chat) top[score.token.bytes] = score.token.logprob;  // always there: up to N + 1 entries
    if (head.chat) {
      content.push_back(scored_json(score.token));
      content.back()["top_logprobs"] = std::move(top);
    } else {
      tokens.push_back(score.token.bytes);
      token_logprobs.push_back(score.token.logprob);
      tops.push_back(std::move(top));
      offsets.push_back(score.text_offset);
    }
  }
  if (head.chat) return {{"content", std::move(content)}, {"refusal", nullptr}};
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(token_logprobs)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

Json usage_json(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

/// Milliseconds are sums over the request.
Json speculative_json(const RequestMetrics& metrics) {
  Json counts = counts_json(metrics);
  counts["wire_bytes"] =
      metrics.wire_bytes_to_drafter + metrics.wire_bytes_to_drafter_prompt + metrics.wire_bytes_to_verifier;
  return counts;
}

Json reply_json(const ReplyHead& head, const char* object, Json choices) {
  return {{"id", head.id},
          {"object", object},
          {"created", head.created},
          {"model", head.model},
          {"choices", std::move(choices)}};
}

std::string event_text(const Json& json) { return "data: " + to_text(json) + "\n\n"; }

Json chunk_json(const ReplyHead& head, Json choices) {
  return reply_json(head, head.chat ? "chat.completion.chunk" : "text_completion", std::move(choices));
}
/// @param delta  of chat; of a completion, its text
Json chunk_choice(const ReplyHead& head, std::size_t index, Json delta, const std::vector<TokenScore>& scores,
                  const std::string& finish_reason) {
  Json logprobs = scores.empty() ? Json() : logprobs_json(head, scores);
  return {{"index", index},
          {head.chat ? "delta" : "text", std::move(delta)},
          {"logprobs", std::move(logprobs)},
          {"finish_reason", or_null(finish_reason)}};
}

}  // namespace

std::string error_body(const ApiError& error) { return to_text(error_json(error)); }

std::string completion_body(const ReplyHead& head, const std::vector<Choice>& choices, const Usage& usage) {
  Json list = Json::array();
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const ChatMessage& message = choices[i].message;
    Json choice = {{"index", i},
                   {"logprobs", logprobs_json(head, choices[i].scores)},
                   {"finish_reason", choices[i].finish_reason}};
    if (head.chat) {
      Json calls = Json::array();
      for (std::size_t k = 0; k < message.tool_calls.size(); ++k) {
        calls.push_back(call_json(head, i, k, message.tool_calls[k].name, to_text(message.tool_calls[k].arguments)));
      }
      const bool only_calls = message.content.empty() && !calls.empty();
      choice["message"] = {
          {"role", "assistant"}, {"content", only_calls ? Json() : Json(message.content)}, {"refusal", nullptr}};
      if (!message.reasoning.empty()) choice["message"]["reasoning_content"] = message.reasoning;
      if (!calls.empty()) choice["message"]["tool_calls"] = std::move(calls);
    } else {
      choice["text"] = message.content;
    }
    list.push_back(std::move(choice));
  }
  Json body = reply_json(head, head.chat ? "chat.completion" : "text_completion", std::move(list));
  body["usage"] = usage_json(usage);
  body["speculative"] = speculative_json(usage.metrics);
  return to_text(body);
}

std::string first_chunk(const ReplyHead& head, std::size_t index) {
  if (!head.chat) return "";
  return event_text(
      chunk_json(head, Json::array({chunk_choice(head, index, {{"role", "assistant"}, {"content", ""}}, {}, "")})));
}

std::string event_chunk(const ReplyHead& head, std::size_t index, const ChatEvent& event, std::size_t calls,
                        const std::vector<TokenScore>& scores) {
  Json delta;
  if (event.kind == ChatEvent::Kind::kContent) {
    delta = head.chat ? Json{{"content", event.text}} : Json(event.text);
  } else if (event.kind == ChatEvent::Kind::kReasoning && head.chat) {
    delta = {{"reasoning_content", event.text}};
  } else if (event.kind == ChatEvent::Kind::kToolCallEnd && head.chat) {
    Json call = call_json(head, index, calls, event.name, event.text);
    call["index"] = calls;
    delta = {{"tool_calls", Json::array({std::move(call)})}};
  } else {
    return "";
  }
  return event_text(chunk_json(head, Json::array({chunk_choice(head, index, std::move(delta), scores, "")})));
}

std::string finish_chunk(const ReplyHead& head, std::size_t index, const std::string& finish_reason,
                         const std::vector<TokenScore>& scores, const Usage* usage) {
  Json chunk = chunk_json(
      head, Json::array({chunk_choice(head, index, head.chat ? Json::object() : Json(""), scores, finish_reason)}));
  if (usage != nullptr) chunk["speculative"] = speculative_json(usage->metrics);
  return event_text(chunk);
}

std::string usage_chunk(const ReplyHead& head, const Usage& usage) {
  Json chunk = chunk_json(head, Json::array());
  chunk["usage"] = usage_json(usage);
  chunk["speculative"] = speculative_json(usage.metrics);
  return event_text(chunk);
}

std::string round_chunk(const ReplyHead& head, std::size_t index, const ReportedRound& reported) {
  Json chunk =
      chunk_json(head, Json::array({chunk_choice(head, index, head.chat ? Json::object() : Json(""), {}, "")}));
  Json& json = chunk["outrider_round"] = {{"source", nullptr},
                                          {"tokens", reported.tokens},
                                          {"drafts", reported.drafts},
                                          {"accepted", 0},
                                          {"draft_length", 0}};
  if (reported.round) {
    const RoundOutcome& outcome = reported.round->outcome;
    json["source"] = outcome.source == DraftSource::kNgram ? "ngram" : "assistant";
    json["accepted"] = outcome.accepted;
    json["draft_length"] = reported.round->draft_length;
    json["draft_ms"] = 1e3 * outcome.draft_s;
    json["verify_ms"] = 1e3 * outcome.verify_s;
    json["round_ms"] = 1e3 * outcome.round_s;
  }
  return event_text(chunk);
}

std::string error_chunk(const ApiError& error) { return event_text(error_json(error)); }

std::string to_text(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace outrider
