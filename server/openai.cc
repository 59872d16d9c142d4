#include "server/openai.h"

#include <algorithm>

#include <fmt/format.h>

#include "server/answer_grammar.h"
#include "server/refused_fields.h"
#include "server/request_reader.h"

namespace outrider {
namespace {
using Json = nlohmann::json;

constexpr const char* kWantedPrompt = "a string, an array of token ids, or an array of those";

ToolCall read_tool_call(const JsonFields& fields) {
  if (fields.find("function") == nullptr) fields.wrong("function", "an object with name and arguments");
  ToolCall call = read_call(fields.object("function"));
  call.id = fields.text("id", "");
  return call;
}

ChatMessage read_message(const JsonFields& fields, std::vector<MediumFile>& media) {
  using Role = ChatMessage::Role;
  ChatMessage message = read_role(fields);
  if (message.role == Role::kAssistant) {
    message.reasoning = fields.text("reasoning", fields.text("reasoning_content", ""));
    fields.each("tool_calls", "an array of calls",
                [&](const JsonFields& call) { message.tool_calls.push_back(read_tool_call(call)); });
    for (const char* name : {"function_call", "audio"})  // earlier calls, or speech
      if (fields.find(name) != nullptr) fields.refuse(name, "is not supported");
  }
  read_content(fields, "content", message,
               [&](const JsonFields& part, const std::string& type) { read_part(part, type, message, media); });
  // Used instead of a content.
  if (message.role == Role::kAssistant && fields.find("content") == nullptr)
    message.content = fields.text("refusal", "");
  if (message.role != Role::kTool) return message;
  message.name = fields.text("name", "");
  message.tool_call_id =
      fields.text("tool_call_id", message.name.empty() ? std::nullopt : std::optional<std::string>(""),
                  "the id of the call that this answers");
  make_answer(message);
  return message;
}

ToolDeclaration read_tool(const JsonFields& fields) {
  if (fields.text("type", {}, "\"function\"") != "function") fields.wrong("type", "\"function\"");
  if (fields.find("function") == nullptr) fields.wrong("function", "an object with name and parameters");
  return read_function(fields.object("function"), "parameters");
}

/// @param media  receives the files of its pictures and sounds
Conversation read_conversation(const JsonFields& fields, std::vector<MediumFile>& media) {
  Conversation conversation;
  fields.each("messages", "an array of messages",
              [&](const JsonFields& message) { conversation.messages.push_back(read_message(message, media)); });
  finish_turns(fields, "messages", conversation, media);
  fields.each("tools", "an array of tools",
              [&](const JsonFields& tool) { conversation.tools.push_back(read_tool(tool)); });
  if (const Json* choice = fields.find("tool_choice"); choice != nullptr && *choice == "none")
    conversation.tools.clear();
  read_ending(fields, /*goes_on=*/false, conversation);
  return conversation;
}

void read_stream_options(const JsonFields& fields, CompletionRequest& request) {
  const JsonFields stream_options = fields.object("stream_options");
  request.include_usage = stream_options.boolean("include_usage", false);
  request.usage_in_each_chunk = request.include_usage && stream_options.boolean("continuous_usage_stats", false);
  if (fields.find("stream_options") != nullptr && !request.stream)
    fields.refuse("stream_options", "is only for stream: true");
}

/// Reads one prompt. @param of_llama  it may also have texts among its tokens, or be an object
Prompt read_prompt(const JsonFields& fields, const Json& given, bool of_llama, const ApiDefaults& defaults) {
  const bool is_object = of_llama && given.is_object() && member(given, "multimodal_data").is_null();
  const Json& prompt = is_object ? member(given, "prompt_string") : given;
  const auto is_text = [](const Json& part) { return part.is_string(); };
  Prompt parts;
  if (!prompt.is_string() && (!prompt.is_array() || prompt.empty())) {
    fields.fail(Errc::kMalformed, "prompt", prompt, kWantedPrompt);
  } else if (is_text(prompt)) {
    parts.emplace_back(prompt.get<std::string>());
  } else if (!of_llama) {
    parts.emplace_back(token_ids(fields, "prompt", &prompt, defaults));
  } else {
    parts.reserve(2 * static_cast<std::size_t>(std::ranges::count_if(prompt, is_text)) + 1);
    for (auto part = prompt.begin(); part != prompt.end();) {
      if (is_text(*part)) {
        parts.emplace_back((part++)->get<std::string>());
        continue;
      }
      const auto end = std::find_if(part, prompt.end(), is_text);
      const Json tokens(part, end);
      parts.emplace_back(token_ids(fields, "prompt", &tokens, defaults));
      part = end;
    }
  }
  return parts;
}

}  // namespace

ApiResult<CompletionRequest> parse_chat_completion(std::string_view body, const ApiDefaults& defaults,
                                                   std::string_view path) {
  ASSIGN_OR_RETURN(const Json json, parse_object(body));
  return read_body<CompletionRequest>(json, defaults, [&](const JsonFields& fields, CompletionRequest& request) {
    request.source.bytes = std::ssize(body);
    request.chat = true;
    read_request(fields, defaults, {.path = path}, request);
    read_stream_options(fields, request);
    request.conversation = read_conversation(fields, request.media);
    request.sampling.grammar =
        read_call_grammar(fields, request.conversation, read_tool_choice(fields, /*of_chat=*/true),
                          read_answer_grammar(fields, body), defaults.controls);
  });
}

ApiResult<CompletionRequest> parse_completion(std::string_view body, const ApiDefaults& defaults,
                                              std::string_view path) {
  ASSIGN_OR_RETURN(const Json json, parse_object(body));
  return completion_of(json, body, defaults, path);
}

bool lists_prompts(const Json& prompt) { return prompt.is_array() && std::ranges::none_of(prompt, &Json::is_number); }

ApiResult<CompletionRequest> completion_of(const Json& json, std::string_view body, const ApiDefaults& defaults,
                                           std::string_view path) {
  constexpr std::int64_t kDefaultMaxTokens = 16;  // OpenAI's
  return read_body<CompletionRequest>(json, defaults, [&](const JsonFields& fields, CompletionRequest& request) {
    request.source.bytes = std::ssize(body);
    read_request(fields, defaults, {.path = path}, request);
    read_stream_options(fields, request);
    request.sampling.grammar = read_answer_grammar(fields, body);
    request.add_special_tokens = fields.boolean("add_special_tokens", true);
    const auto is_unbounded = [&](const char* name) { return member(json, name) == -1; };
    if (!request.max_tokens && std::ranges::none_of(kLengthNames, is_unbounded))
      request.max_tokens = std::max(kDefaultMaxTokens, request.sampling.min_tokens);
    const Json* prompt = fields.find("prompt");
    const auto add_prompt = [&](const Json& one) {
      request.prompts.push_back(read_prompt(fields, one, path == "/completion", defaults));
    };
    if (prompt == nullptr) return fields.wrong("prompt", kWantedPrompt);
    if (prompt->is_array() && prompt->empty())
      return fields.refuse("prompt", std::string("is empty, wanted ") + kWantedPrompt);
    if (!lists_prompts(*prompt)) return add_prompt(*prompt);
    if (static_cast<std::int64_t>(prompt->size()) * request.n > kChoicesMax)
      return fields.refuse("prompt", fmt::format("has {} prompts for {} choices each, wanted at most {} in all",
                                                 prompt->size(), request.n, kChoicesMax));
    for (const Json& one : *prompt) add_prompt(one);
  });
}

ApiResult<TokenizeRequest> parse_tokenize(std::string_view body, const ApiDefaults& defaults) {
  ASSIGN_OR_RETURN(const Json json, parse_object(body));
  return read_body<TokenizeRequest>(json, defaults, [&](const JsonFields& fields, TokenizeRequest& request) {
    request.source.bytes = std::ssize(body);
    refuse_unsupported(fields);
    request.add_special_tokens = fields.boolean("add_special_tokens", true);
    request.form.token_strings = fields.boolean("return_token_strs", false);
    request.parse_special = fields.boolean("parse_special", true);
    request.form.of_llama = fields.find("content") != nullptr;
    if (request.form.of_llama) {
      request.text = fields.text("content");
      request.add_special_tokens = fields.boolean("add_special", false);
      request.form.pieces = fields.boolean("with_pieces", false);
      return;
    }
    if (fields.find("messages") == nullptr) {
      request.text = fields.text("prompt", {}, "a string, or messages instead");
      return;
    }
    request.text = read_conversation(fields, request.media);
  });
}

ApiResult<DetokenizeRequest> parse_detokenize(std::string_view body, const ApiDefaults& defaults) {
  ASSIGN_OR_RETURN(const Json json, parse_object(body));
  return read_body<DetokenizeRequest>(json, defaults, [&](const JsonFields& fields, DetokenizeRequest& request) {
    request.tokens = token_ids(fields, "tokens", fields.find("tokens"), defaults);
    request.of_vllm = fields.find("model") != nullptr;
  });
}

}  // namespace outrider
