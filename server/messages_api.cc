#include "server/dialect.h"

#include <memory>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "common/base/json_fields.h"
#include "server/answer_grammar.h"
#include "server/content_parts.h"
#include "server/refused_fields.h"
#include "server/request_reader.h"

namespace outrider {
namespace {
using Json = nlohmann::json;

/// Reads a picture: its file, or its URL.
void read_image(const JsonFields& block, ChatMessage& message, std::vector<MediumFile>& media) {
  if (block.find("source") == nullptr) return block.wrong("source", "an object with a picture's file or URL");
  const JsonFields source = block.object("source");
  const bool is_file = source.text("type", "url") == "base64";
  if (is_file) source.text("media_type");
  read_picture(source, is_file ? nullptr : "url", block.name(), message, media);
}

/// Reads a block that chat/completions has too; an image has a form of its own.
void read_block(const JsonFields& block, const std::string& type, ChatMessage& message,
                std::vector<MediumFile>& media) {
  // Claude Code's first system block is no instruction. Its hash differs in every request, so that the prompts of two
  // requests would have no common prefix.
  const bool of_system = message.role == ChatMessage::Role::kSystem && type == "text";
  if (of_system && block.text("text", "").starts_with("x-anthropic-billing-header")) return;
  if (type != "image")
    read_part(block, type, message, media);
  else if (may_have_medium(block, type, message))
    read_image(block, message, media);
}

/// Reads a content: a string, or an array of blocks.
void read_blocks(const JsonFields& fields, const char* key, ChatMessage& message, std::vector<MediumFile>& media) {
  read_content(fields, key, message,
               [&](const JsonFields& block, const std::string& type) { read_block(block, type, message, media); });
}

/// Reads the result of a call. The text of a failure is under the key that Gemini's API has for failures.
ChatMessage read_result(const JsonFields& block, std::vector<MediumFile>& media) {
  ChatMessage result;
  result.role = ChatMessage::Role::kTool;
  result.tool_call_id = block.text("tool_use_id", {}, "the id of the call that this answers");
  if (block.find("content") != nullptr)
    read_content(block, "content", result, [&](const JsonFields& part, const std::string& type) {
      if (type == "tool_reference")  // the result of a search for tools, all of which are declared
        result.parts.push_back({.text = part.text("tool_name")});
      else
        read_block(part, type, result, media);
    });
  make_answer(result);
  if (block.boolean("is_error", false)) result.response = Json::object({{"error", std::move(result.response)}});
  return result;
}

ToolCall read_use(const JsonFields& block) {
  const Json* const input = block.find("input");
  if (input != nullptr && !input->is_object()) block.wrong("input", "an object, the arguments");
  return {
      .id = block.text("id", ""), .name = read_name(block), .arguments = input == nullptr ? Json::object() : *input};
}

/// Adds one message: a user's may answer calls, an assistant's may make some.
void read_message(const JsonFields& fields, Conversation& conversation, std::vector<MediumFile>& media) {
  ChatMessage message = read_role(fields);
  std::vector<MediumFile> own;  // behind those of the results, as the message is
  bool has_content = false;
  read_content(fields, "content", message, [&](const JsonFields& block, const std::string& type) {
    if (type == "tool_result") return conversation.messages.push_back(read_result(block, media));
    if (type == "redacted_thinking") return;
    has_content = true;
    if (type == "tool_use")
      message.tool_calls.push_back(read_use(block));
    else if (type == "thinking")
      message.reasoning += block.text("thinking", "");
    else
      read_block(block, type, message, own);
  });
  std::ranges::move(own, std::back_inserter(media));
  if (has_content || !member(fields.raw(), "content").is_array()) conversation.messages.push_back(std::move(message));
}

ToolChoice messages_choice(const JsonFields& fields) {
  using Kind = ToolChoice::Kind;
  const JsonFields choice = fields.object("tool_choice");
  const std::string type = choice.choice("type", "auto", {"auto", "any", "tool", "none"});
  if (type == "tool") return {.kind = Kind::kForced, .name = choice.text("name", {}, "the name of a tool")};
  return {.kind = type == "any" ? Kind::kForced : type == "none" ? Kind::kNone : Kind::kFree};
}

void read_conversation(const JsonFields& fields, const ApiDefaults& defaults, Conversation& conversation,
                       std::vector<MediumFile>& media, std::vector<std::string>& warnings) {
  if (fields.find("system") != nullptr) {
    ChatMessage system;
    system.role = ChatMessage::Role::kSystem;
    read_blocks(fields, "system", system, media);
    conversation.messages.push_back(std::move(system));
  }
  if (fields.find("messages") == nullptr) return fields.wrong("messages", "an array of messages");
  fields.each("messages", "an array of messages",
              [&](const JsonFields& message) { read_message(message, conversation, media); });
  finish_turns(fields, "messages", conversation, media);
  read_tools(fields, defaults, conversation, warnings, [&](const JsonFields& tool) {
    const bool of_client = tool.text("type", "custom") == "custom";
    if (of_client) conversation.tools.push_back(read_function(tool, "input_schema"));
    return of_client;
  });
  if (messages_choice(fields).kind == ToolChoice::Kind::kNone) conversation.tools.clear();
  // The reply continues the assistant's unfinished message.
  const ChatMessage* const last = conversation.messages.empty() ? nullptr : &conversation.messages.back();
  const bool begun = last != nullptr && last->role == ChatMessage::Role::kAssistant && last->tool_calls.empty();
  read_ending(fields, begun, conversation);
}

/// Parses a body. Ignores edits that clear thoughts, since the template drops earlier ones; refuses other edits.
ApiResult<Json> object_of(std::string_view body) {
  ASSIGN_OR_RETURN(Json json, parse_object(body));
  for (const Json& edit : member(member(json, "context_management"), "edits")) {
    if (member(edit, "type") != "clear_thinking_20251015")
      return ApiError{.message = fmt::format("context_management has {}, which is not supported", show(edit)),
                      .param = "context_management"};
  }
  json.erase("context_management");
  return json;
}

Json messages_usage(const Usage& usage) {
  return {{"input_tokens", usage.prompt_tokens - usage.cached_tokens},
          {"cache_read_input_tokens", usage.cached_tokens},
          {"cache_creation_input_tokens", 0},
          {"output_tokens", usage.completion_tokens}};
}

/// Returns the end of a message in its two fields.
Json stop_of(const std::string& finish_reason, const StopReason& reason) {
  const auto* text = std::get_if<std::string>(&reason);
  const char* const why = text != nullptr                 ? "stop_sequence"
                          : finish_reason == "length"     ? "max_tokens"
                          : finish_reason == "tool_calls" ? "tool_use"
                                                          : "end_turn";
  return {{"stop_reason", why}, {"stop_sequence", text != nullptr ? Json(*text) : Json()}};
}

Json empty_message(const ReplyHead& head) {
  return {{"id", "msg_" + head.id},   {"type", "message"},      {"role", "assistant"},     {"model", head.model},
          {"content", Json::array()}, {"stop_reason", nullptr}, {"stop_sequence", nullptr}};
}

/// Returns an error in Anthropic's form.
Json error_json(const ApiError& error) {
  const char* type = error.status == 401   ? "authentication_error"
                     : error.status == 403 ? "permission_error"
                     : error.status == 404 ? "not_found_error"
                     : error.status == 413 ? "request_too_large"
                     : error.status == 429 ? "rate_limit_error"
                     : error.status >= 500 ? "api_error"
                                           : "invalid_request_error";
  return {{"type", "error"}, {"error", {{"type", type}, {"message", error.message}}}};
}

class MessagesWriter final : public ReplyWriter {
 public:
  std::string event(const ReplyHead& head, const ChoiceEvent& event) override {
    return std::visit(Overloaded{[&](const ChoiceBegins&) { return begin(head, event.notes); },
                                 [&](const ChatEvent& more) { return content_event(head, event, more); },
                                 [&](const ChoiceEnds& end) {
                                   stop_ = stop_of(end.finish_reason, end.stop_reason);
                                   return std::string();
                                 },
                                 [](const auto&) { return std::string(); }},
                      event.what);
  }

  std::string usage(const ReplyHead& head, const Usage& usage) override {
    end_["usage"] = messages_usage(usage);
    if (!head.warnings.empty()) end_["warnings"] = head.warnings;
    return "";
  }

  std::string end(const ApiError* error) override {
    if (error != nullptr) return named_event(error_json(*error));
    std::string events = close();
    end_["delta"] = stop_;
    return events + named_event(end_) + named_event({{"type", "message_stop"}});
  }

  std::string whole(const ReplyHead& head, const std::vector<Choice>& choices, const Usage& usage) override {
    Json message = empty_message(head), &content = message["content"];
    const ChatMessage& turn = choices.front().message;
    if (!turn.reasoning.empty())
      content.push_back({{"type", "thinking"}, {"thinking", turn.reasoning}, {"signature", ""}});
    if (!turn.content.empty()) content.push_back({{"type", "text"}, {"text", turn.content}});
    for (std::size_t i = 0; i < turn.tool_calls.size(); ++i) {
      const ToolCall& call = turn.tool_calls[i];
      content.push_back(
          {{"type", "tool_use"}, {"id", call_id(head, 0, i)}, {"name", call.name}, {"input", call.arguments}});
    }
    message.update(stop_of(choices.front().finish_reason, choices.front().stop_reason));
    message["usage"] = messages_usage(usage);
    if (!head.warnings.empty()) message["warnings"] = head.warnings;
    return to_text(message);
  }

 private:
  static std::string begin(const ReplyHead& head, const ChunkNotes& notes) {
    Json message = empty_message(head);
    message["usage"] = messages_usage(notes.so_far != nullptr ? *notes.so_far : Usage());
    return named_event({{"type", "message_start"}, {"message", std::move(message)}});
  }
  std::string content_event(const ReplyHead& head, const ChoiceEvent& event, const ChatEvent& more) {
    if (more.kind == ChatEvent::Kind::kReasoning) return text("thinking", more.text);
    if (more.kind == ChatEvent::Kind::kContent) return text("text", more.text);
    const std::string events = open("tool_use", {{"type", "tool_use"},
                                                 {"id", call_id(head, event.index, event.calls)},
                                                 {"name", more.name},
                                                 {"input", Json::object()}});
    return events + delta({{"type", "input_json_delta"}, {"partial_json", more.text}}) + close();
  }
  std::string open(const std::string& kind, Json block) {
    std::string events = close();
    open_ = kind;
    return events +
           named_event({{"type", "content_block_start"}, {"index", index_}, {"content_block", std::move(block)}});
  }
  std::string close() {
    if (open_.empty()) return "";
    open_.clear();
    return named_event({{"type", "content_block_stop"}, {"index", index_++}});
  }
  std::string delta(Json delta) const {
    return named_event({{"type", "content_block_delta"}, {"index", index_}, {"delta", std::move(delta)}});
  }
  std::string text(const std::string& kind, const std::string& piece) {
    if (piece.empty()) return "";
    std::string events;
    if (open_ != kind) {
      Json block = {{"type", kind}, {kind, ""}};
      if (kind == "thinking") block["signature"] = "";
      events = open(kind, std::move(block));
    }
    return events + delta({{"type", kind + "_delta"}, {kind, piece}});
  }

  std::string open_;  ///< kind of the open block
  int index_ = 0;
  Json stop_, end_ = {{"type", "message_delta"}};
};

}  // namespace

ApiResult<CompletionRequest> parse_messages(std::string_view body, const ApiDefaults& defaults) {
  ASSIGN_OR_RETURN(const Json json, object_of(body));
  return read_body<CompletionRequest>(json, defaults, [&](const JsonFields& fields, CompletionRequest& request) {
    request.source.bytes = std::ssize(body);
    request.chat = true;
    read_request(fields, defaults, {.path = "/v1/messages", .stop = "stop_sequences", .one_reply = true}, request);
    read_conversation(fields, defaults, request.conversation, request.media, request.warnings);
    const bool of_today = fields.object("output_config").find("format") != nullptr;
    const FormatField format =
        of_today ? FormatField{"output_config", "format"} : FormatField{nullptr, "output_format"};
    const bool parallel = !fields.object("tool_choice").boolean("disable_parallel_tool_use", false);
    request.sampling.grammar =
        read_call_grammar(fields, request.conversation, messages_choice(fields),
                          read_answer_grammar(fields, body, format), defaults.controls, parallel);
    if (fields.object("thinking").text("display", "") == "omitted") request.include_reasoning = false;
    request.include_usage = request.usage_in_each_chunk = request.stream;
  });
}

ApiResult<TokenizeRequest> parse_messages_prompt(std::string_view body, const ApiDefaults& defaults) {
  ASSIGN_OR_RETURN(const Json json, object_of(body));
  return read_body<TokenizeRequest>(json, defaults, [&](const JsonFields& fields, TokenizeRequest& request) {
    request.source.bytes = std::ssize(body);
    refuse_unsupported(fields);
    std::vector<std::string> unsaid;  // a count has no place for warnings
    read_conversation(fields, defaults, request.text.emplace<Conversation>(), request.media, unsaid);
  });
}

std::vector<HttpRoute> messages_routes(const ChatBackend& backend) {
  HttpRoute messages{"POST", "/v1/messages", [backend](const HttpRequest& http) {
                       return backend.chat(http, parse_messages(http.body, backend.defaults),
                                           std::make_shared<MessagesWriter>());
                     }};
  HttpRoute count{"POST", "/v1/messages/count_tokens", [backend](const HttpRequest& http) {
                    const auto tokens = backend.count(http, parse_messages_prompt(http.body, backend.defaults));
                    if (!tokens) return error_reply(tokens.error());
                    return json_reply({{"input_tokens", *tokens}});
                  }};
  messages.error_form = count.error_form = [](const ApiError& error) { return to_text(error_json(error)); };
  return {std::move(messages), std::move(count)};
}

}  // namespace outrider
