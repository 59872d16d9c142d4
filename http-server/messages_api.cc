#include "http-server/messages_api.h"

#include <utility>

#include <fmt/format.h>

#include "common/base/json_fields.h"
#include "http-server/content_parts.h"

namespace outrider {
namespace {
using Json = nlohmann::json;

/// A block of an image, as the chat has it: its file, or its URL.
Json image_of(const Json& source) {
  const Json &media = member(source, "media_type"), &data = member(source, "data");
  if (member(source, "type") != "base64") return image_url_part(member(source, "url"));
  const bool whole = media.is_string() && data.is_string();
  return image_url_part(
      whole ? Json("data:" + media.get<std::string>() + ";base64," + data.get_ref<const std::string&>()) : Json());
}

/// Text of a block that may be a string, or a list of text blocks. What is no text stays, for the chat to refuse.
Json parts_of(const Json& content) {
  if (!content.is_array()) return content;
  Json parts = Json::array();
  for (const Json& block : content) {
    Json part = member(block, "type") == "image" ? image_of(member(block, "source")) : block;
    if (part.is_object()) part.erase("cache_control");
    parts.push_back(std::move(part));
  }
  return parts;
}

Json call_of(const Json& use) {
  return {{"id", member(use, "id")},
          {"type", "function"},
          {"function",
           {{"name", member(use, "name")},
            {"arguments", to_text(member(use, "input").is_null() ? Json::object() : member(use, "input"))}}}};
}

/// Adds what one message says: a user's may answer calls, an assistant's may make some.
void add_message(const Json& message, Json& messages) {
  const Json& content = member(message, "content");
  if (!content.is_array()) return messages.push_back(message);
  Json said = {{"role", member(message, "role")}}, parts = Json::array(), calls = Json::array();
  std::string thought;
  for (const Json& block : content) {
    const Json& type = member(block, "type");
    if (type == "tool_use") {
      calls.push_back(call_of(block));
    } else if (type == "tool_result") {
      Json result = parts_of(member(block, "content"));
      messages.push_back({{"role", "tool"},
                          {"tool_call_id", member(block, "tool_use_id")},
                          {"content", result.is_null() ? Json("") : std::move(result)}});
    } else if (type == "thinking" && member(block, "thinking").is_string()) {
      thought += block["thinking"].get<std::string>();
    } else if (type != "redacted_thinking") {
      parts.push_back(parts_of(Json::array({block}))[0]);
    }
  }
  if (parts.empty() && calls.empty() && thought.empty()) return;
  said["content"] = parts.empty() ? (calls.empty() ? Json("") : Json()) : std::move(parts);
  if (!calls.empty()) said["tool_calls"] = std::move(calls);
  if (!thought.empty()) said["reasoning"] = std::move(thought);
  messages.push_back(std::move(said));
}

Json chat_tool(const Json& tool) {
  const Json& type = member(tool, "type");
  if (!type.is_null() && type != "custom") return {{"type", type}};  // one that its server would run
  return {{"type", "function"},
          {"function",
           {{"name", member(tool, "name")},
            {"description", member(tool, "description")},
            {"strict", member(tool, "strict")},
            {"parameters", member(tool, "input_schema")}}}};
}

void add_tool_choice(const Json& choice, Json& chat) {
  const Json& type = member(choice, "type");
  chat["tool_choice"] = type == "any"    ? Json("required")
                        : type == "tool" ? Json{{"type", "function"}, {"function", {{"name", member(choice, "name")}}}}
                                         : type;
  if (member(choice, "disable_parallel_tool_use") == true) chat["parallel_tool_calls"] = false;
}

Json messages_usage(const Json& usage) {
  const Json& cached = member(member(usage, "prompt_tokens_details"), "cached_tokens");
  const std::int64_t read = cached.is_number() ? cached.get<std::int64_t>() : 0;
  return {{"input_tokens", usage.value("prompt_tokens", std::int64_t{0}) - read},
          {"cache_read_input_tokens", read},
          {"cache_creation_input_tokens", 0},
          {"output_tokens", member(usage, "completion_tokens")}};
}

/// @param choice  that is at its end
const char* stop_reason(const Json& choice) {
  const Json& finish_reason = member(choice, "finish_reason");
  if (member(choice, "stop_reason").is_string()) return "stop_sequence";
  return finish_reason == "length" ? "max_tokens" : finish_reason == "tool_calls" ? "tool_use" : "end_turn";
}

/// The stop text that ended it, or null.
Json stop_sequence(const Json& choice) {
  const Json& stop = member(choice, "stop_reason");
  return stop.is_string() ? stop : Json();
}

Json empty_message(const Json& chat) {
  return {{"id", "msg_" + chat.value("id", "")},
          {"type", "message"},
          {"role", "assistant"},
          {"model", member(chat, "model")},
          {"content", Json::array()},
          {"stop_reason", nullptr},
          {"stop_sequence", nullptr}};
}

class MessagesStream final : public StreamTranslator {
 public:
  std::string chunk(const Json& chunk) override {
    std::string events;
    const Json& usage = member(chunk, "usage");
    if (usage.is_object()) usage_ = messages_usage(usage);
    if (!std::exchange(begun_, true)) {
      Json message = empty_message(chunk);
      message["usage"] = usage_;
      events += named_event({{"type", "message_start"}, {"message", std::move(message)}});
    }
    for (const Json& choice : member(chunk, "choices")) {
      const Json& delta = member(choice, "delta");
      events += text("thinking", member(delta, "reasoning"));
      events += text("text", member(delta, "content"));
      for (const Json& call : member(delta, "tool_calls")) events += tool_use(call);
      if (!member(choice, "finish_reason").is_null()) last_ = choice;
    }
    return events;
  }

  std::string end(const Json& error) override {
    if (!error.is_null())
      return named_event(
          {{"type", "error"}, {"error", {{"type", "api_error"}, {"message", member(error, "message")}}}});
    std::string events = close();
    events += named_event({{"type", "message_delta"},
                           {"delta", {{"stop_reason", stop_reason(last_)}, {"stop_sequence", stop_sequence(last_)}}},
                           {"usage", usage_}});
    return events += named_event({{"type", "message_stop"}});
  }

 private:
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
  std::string text(const std::string& kind, const Json& piece) {
    if (!piece.is_string() || piece == "") return "";
    std::string events;
    if (open_ != kind) {
      Json block = {{"type", kind}, {kind, ""}};
      if (kind == "thinking") block["signature"] = "";
      events = open(kind, std::move(block));
    }
    return events + delta({{"type", kind + "_delta"}, {kind, piece}});
  }
  std::string tool_use(const Json& call) {
    const Json& function = member(call, "function");
    std::string events = open("tool_use", {{"type", "tool_use"},
                                           {"id", member(call, "id")},
                                           {"name", member(function, "name")},
                                           {"input", Json::object()}});
    events += delta({{"type", "input_json_delta"}, {"partial_json", member(function, "arguments")}});
    return events += close();
  }

  bool begun_ = false;
  std::string open_;  ///< kind of the block that is open
  int index_ = 0;
  Json usage_ = messages_usage(Json::object()), last_;
};

/// As Anthropic words an error.
HttpReply messages_error(HttpReply reply) {
  const Json body = Json::parse(reply.body, nullptr, /*allow_exceptions=*/false);
  const Json& error = member(body, "error");
  const char* type = reply.status == 404   ? "not_found_error"
                     : reply.status == 429 ? "rate_limit_error"
                     : reply.status >= 500 ? "api_error"
                                           : "invalid_request_error";
  reply.body = to_text({{"type", "error"}, {"error", {{"type", type}, {"message", member(error, "message")}}}});
  return reply;
}

}  // namespace

ApiResult<Json> chat_of_messages(std::string_view body) {
  ASSIGN_OR_RETURN(const Json request, parse_object(body));
  Json messages = Json::array();
  if (const Json& system = member(request, "system"); !system.is_null())
    messages.push_back({{"role", "system"}, {"content", parts_of(system)}});
  if (!member(request, "messages").is_array())
    return ApiError{.message = "messages is missing, wanted an array of messages", .param = "messages"};
  for (const Json& message : request["messages"]) add_message(message, messages);
  for (const Json& edit : member(member(request, "context_management"), "edits")) {
    if (member(edit, "type") != "clear_thinking_20251015")  // earlier thoughts are the template's business
      return ApiError{.message = fmt::format("context_management has {}, which is not supported", show(edit)),
                      .param = "context_management"};
  }
  ASSIGN_OR_RETURN(Json chat,
                   chat_of(request, {"messages", "system", "stop_sequences", "tools", "tool_choice", "output_config",
                                     "output_format", "context_management", "stream_options"}));
  // The reply goes on with what the assistant has begun to say.
  if (!messages.empty() && member(messages.back(), "role") == "assistant" && !messages.back().contains("tool_calls"))
    chat.emplace("continue_final_message", true);
  chat["messages"] = std::move(messages);
  const Json& of_today = member(member(request, "output_config"), "format");
  const Json& format = of_today.is_null() ? member(request, "output_format") : of_today;
  if (member(format, "type") == "json_schema")
    chat["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"schema", member(format, "schema")}}}};
  else if (!format.is_null())
    chat["response_format"] = format;
  if (request.contains("stop_sequences")) chat["stop"] = request["stop_sequences"];
  for (const Json& tool : member(request, "tools")) chat["tools"].push_back(chat_tool(tool));
  if (request.contains("tool_choice")) add_tool_choice(request["tool_choice"], chat);
  if (member(member(request, "thinking"), "display") == "omitted") chat["include_reasoning"] = false;
  if (member(request, "stream") == true)
    chat["stream_options"] = {{"include_usage", true}, {"continuous_usage_stats", true}};
  return chat;
}

Json message_of_chat(const Json& chat) {
  Json message = empty_message(chat), &content = message["content"];
  const Json& choice = chat.at("choices").at(0);
  const Json& said = choice.at("message");
  if (const Json& thought = member(said, "reasoning"); thought.is_string())
    content.push_back({{"type", "thinking"}, {"thinking", thought}, {"signature", ""}});
  if (const Json& text = member(said, "content"); text.is_string() && text != "")
    content.push_back({{"type", "text"}, {"text", text}});
  for (const Json& call : member(said, "tool_calls")) {
    const Json& function = member(call, "function");
    content.push_back({{"type", "tool_use"},
                       {"id", member(call, "id")},
                       {"name", member(function, "name")},
                       {"input", parse_json(function.value("arguments", "{}"))}});
  }
  message["stop_reason"] = stop_reason(choice);
  message["stop_sequence"] = stop_sequence(choice);
  message["usage"] = messages_usage(member(chat, "usage"));
  return message;
}

std::shared_ptr<StreamTranslator> messages_stream() { return std::make_shared<MessagesStream>(); }

std::vector<HttpRoute> messages_routes(HttpHandler chat, HttpHandler tokenize) {
  /// The chat's reply to a request of this API.
  const auto ask = [](const HttpHandler& handler, HttpRequest http) {
    const ApiResult<Json> body = chat_of_messages(http.body);
    if (!body) return error_reply(body.error());
    http.body = to_text(*body);
    return handler(http);
  };
  const auto messages = [chat = std::move(chat), ask](const HttpRequest& http) {
    HttpReply reply = ask(chat, http);
    if (reply.status != 200) return messages_error(std::move(reply));
    if (reply.next) return translated(std::move(reply), messages_stream());
    reply.body = to_text(message_of_chat(Json::parse(reply.body)));
    return reply;
  };
  const auto count = [tokenize = std::move(tokenize), ask](const HttpRequest& http) {
    HttpReply reply = ask(tokenize, http);
    if (reply.status != 200) return messages_error(std::move(reply));
    reply.body = to_text({{"input_tokens", Json::parse(reply.body).at("count")}});
    return reply;
  };
  return {{"POST", "/v1/messages", messages}, {"POST", "/v1/messages/count_tokens", count}};
}

}  // namespace outrider
