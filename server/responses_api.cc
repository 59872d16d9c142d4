#include "server/dialect.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "common/base/json_fields.h"
#include "common/base/time.h"
#include "server/answer_grammar.h"
#include "server/content_parts.h"
#include "server/random_id.h"
#include "server/refused_fields.h"
#include "server/request_memory.h"
#include "server/request_reader.h"
#include "server/response_store.h"

namespace outrider {
namespace {
using Json = nlohmann::json;

/// Reads text, of any role, and pictures.
void read_parts(const JsonFields& fields, const char* key, ChatMessage& message, std::vector<MediumFile>& media) {
  read_content(fields, key, message, [&](const JsonFields& part, const std::string& type) {
    if (type == "input_text" || type == "output_text")
      message.parts.push_back({.text = part.text("text")});
    else if (type != "input_image" || part.find("image_url") == nullptr)  // for example an uploaded file
      read_part(part, type, message, media);
    else if (may_have_medium(part, type, message))
      read_picture(part, "image_url", part.name(), message, media);
  });
}

/// Returns the assistant's message for the next item of its turn.
ChatMessage& assistant(std::vector<ChatMessage>& messages) {
  if (messages.empty() || messages.back().role != ChatMessage::Role::kAssistant)
    messages.emplace_back().role = ChatMessage::Role::kAssistant;
  return messages.back();
}

/// Adds a message. Text after a thought or a call of the same turn joins their message.
void read_message(const JsonFields& item, std::vector<ChatMessage>& messages, std::vector<MediumFile>& media) {
  ChatMessage message = read_role(item);
  read_parts(item, "content", message, media);
  if (message.role != ChatMessage::Role::kAssistant) return messages.push_back(std::move(message));
  for (const ContentPart& part : std::exchange(message.parts, {})) message.content += part.text;
  const ChatMessage* const before = messages.empty() ? nullptr : &messages.back();
  const bool goes_on = before != nullptr && before->role == ChatMessage::Role::kAssistant &&
                       (!before->tool_calls.empty() || (before->content.empty() && !before->reasoning.empty()));
  if (goes_on)
    messages.back().content += message.content;
  else
    messages.push_back(std::move(message));
}

void read_item(const JsonFields& item, std::vector<ChatMessage>& messages, std::vector<MediumFile>& media) {
  const std::string type = item.text("type", "message");
  if (type == "message") {
    read_message(item, messages, media);
  } else if (type == "function_call" || type == "custom_tool_call") {
    ToolCall call = read_call(item);
    call.id = item.text("call_id", "");
    if (type == "custom_tool_call") call.arguments = {{"input", item.text("input")}};
    if (item.find("namespace") != nullptr) call.name = read_name(item, "namespace") + "." + call.name;
    assistant(messages).tool_calls.push_back(std::move(call));
  } else if (type == "function_call_output" || type == "custom_tool_call_output") {
    ChatMessage result;
    result.role = ChatMessage::Role::kTool;
    result.tool_call_id = item.text("call_id", {}, "the id of the call that this answers");
    read_parts(item, "output", result, media);
    make_answer(result);
    messages.push_back(std::move(result));
  } else if (type == "reasoning") {
    ChatMessage thought;
    thought.role = ChatMessage::Role::kAssistant;
    item.each("content", "an array of parts",
              [&](const JsonFields& part) { thought.reasoning += part.text("text", ""); });
    if (!thought.reasoning.empty()) messages.push_back(std::move(thought));
  } else {
    item.refuse("type", fmt::format("is {}, which is not supported", show(type)));
  }
}

/// The conversation up to an earlier response, which it includes.
struct EarlierTurns {
  std::vector<ChatMessage> messages;
  std::vector<MediumFile> media;
};
ApiResult<EarlierTurns> earlier_turns(const Json& kept, const ApiDefaults& defaults) {
  if (kept.is_null()) return EarlierTurns();
  return read_body<EarlierTurns>(kept, defaults, [](const JsonFields& fields, EarlierTurns& earlier) {
    const auto read = [&](const JsonFields& item) { read_item(item, earlier.messages, earlier.media); };
    fields.each("items", "items", read);
    fields.object("response").each("output", "items", read);
  });
}

/// Adds a tool that the client runs: a function, or a custom tool, which is a function of one text; or a namespace of
/// such tools.
/// @param space  the namespace and a dot, before the tool's name
/// @return false for another
bool read_tool(const JsonFields& tool, const std::string& space, std::vector<ToolDeclaration>& tools) {
  const std::string type = tool.text("type", {}, "\"function\"");
  if (type == "namespace" && space.empty()) {
    const std::string name = read_name(tool);
    tool.each("tools", "an array of tools", [&](const JsonFields& more) {
      if (!read_tool(more, name + ".", tools)) more.wrong("type", "\"function\" or \"custom\"");
    });
    return true;
  }
  if (type != "function" && type != "custom") return false;
  ToolDeclaration& read = tools.emplace_back(read_function(tool, "parameters"));
  read.name.insert(0, space);
  if (type == "function") return true;
  read.parameters = {
      {"type", "object"}, {"properties", {{"input", {{"type", "string"}}}}}, {"required", Json::array({"input"})}};
  if (const std::string grammar = tool.object("format").text("definition", ""); !grammar.empty())
    read.description += "\nThe input follows this grammar:\n" + grammar;
  return true;
}

void read_conversation(const JsonFields& fields, const ApiDefaults& defaults, EarlierTurns earlier,
                       Conversation& conversation, std::vector<MediumFile>& media, std::vector<std::string>& warnings) {
  std::vector<ChatMessage>& messages = conversation.messages = std::move(earlier.messages);
  media = std::move(earlier.media);
  const Json* const input = fields.find("input");
  if (input != nullptr && input->is_string())
    messages.emplace_back().content = input->get<std::string>();
  else if (input != nullptr && input->is_array())
    fields.each("input", "", [&](const JsonFields& item) { read_item(item, messages, media); });
  else
    fields.wrong("input", "a string or a list of items");
  if (fields.find("instructions") != nullptr) {  // not inherited by the next one
    ChatMessage& system = *messages.emplace(messages.begin());
    system.role = ChatMessage::Role::kSystem;
    system.content = fields.text("instructions");
  }
  finish_turns(fields, "input", conversation, media);
  read_tools(fields, defaults, conversation, warnings,
             [&](const JsonFields& tool) { return read_tool(tool, "", conversation.tools); });
  if (read_tool_choice(fields, /*of_chat=*/false).kind == ToolChoice::Kind::kNone) conversation.tools.clear();
  read_ending(fields, /*goes_on=*/false, conversation);
}

/// Refuses features of this API that Outrider lacks.
void refuse_other_ways(const JsonFields& fields) {
  const auto is = [&](const char* key, const Json& value) { return member(fields.raw(), key) == value; };
  if (is("background", true) && is("store", false))
    fields.refuse("background", "can only be used when `store` is true");  // vLLM's words
  if (is("background", true) && is("stream", true)) fields.refuse("background", "is not supported with stream");
  if (is("truncation", "auto")) fields.refuse("truncation", "is not supported");
  if (fields.find("prompt") != nullptr) fields.refuse("prompt", "is not supported");
  if (member(member(fields.raw(), "image"), "context_compression") == "enabled")
    fields.refuse("image", "is not supported");
}

RequestSource source_of(const ResponsesBody& body) {
  return {.turns = "input", .bytes = std::ssize(body.text) + body.before_bytes};
}

Json usage_of(const Usage& usage) {
  return {{"input_tokens", usage.prompt_tokens},
          {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
          {"output_tokens", usage.completion_tokens},
          {"output_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

Json or_default(const Json& request, const char* key, Json otherwise) {
  const Json& value = member(request, key);
  return value.is_null() ? otherwise : value;
}

/// Makes a response that has just begun.
Json begun_response(const Json& request, const std::string& id, std::int64_t created, const std::string& model) {
  return {{"id", id},
          {"object", "response"},
          {"background", or_default(request, "background", false)},
          {"created_at", created},
          {"status", "in_progress"},
          {"error", nullptr},
          {"incomplete_details", nullptr},
          {"instructions", member(request, "instructions")},
          {"max_output_tokens", member(request, "max_output_tokens")},
          {"metadata", or_default(request, "metadata", Json::object())},
          {"model", model},
          {"output", Json::array()},
          {"parallel_tool_calls", or_default(request, "parallel_tool_calls", true)},
          {"previous_response_id", member(request, "previous_response_id")},
          {"reasoning", or_default(request, "reasoning", {{"effort", nullptr}, {"summary", nullptr}})},
          {"store", or_default(request, "store", true)},
          {"temperature", member(request, "temperature")},
          {"text", or_default(request, "text", {{"format", {{"type", "text"}}}})},
          {"tool_choice", or_default(request, "tool_choice", "auto")},
          {"tools", or_default(request, "tools", Json::array())},
          {"top_p", member(request, "top_p")},
          {"truncation", "disabled"},
          {"usage", nullptr}};
}

// Complete items of an output.
Json thought_item(const std::string& id, const Json& text) {
  return {{"id", id},
          {"type", "reasoning"},
          {"summary", Json::array()},
          {"content", {{{"type", "reasoning_text"}, {"text", text}}}},
          {"status", "completed"}};
}
/// As text. @param logprobs  a JSON array
std::string text_part(const std::string& text, std::string_view logprobs) {
  return with_member(to_text({{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}}), "logprobs",
                     logprobs);
}
Json message_item(const std::string& id, const char* status) {
  return {{"id", id}, {"type", "message"}, {"status", status}, {"role", "assistant"}};
}
/// @param tools  the request's: the called one determines namespace and type (see read_tool())
Json call_item(const Json& tools, const std::string& id, const std::string& call_id, const std::string& name,
               const std::string& arguments) {
  Json item = {{"id", id}, {"status", "completed"}, {"call_id", call_id}, {"name", name}};
  const Json* list = &tools;
  const auto space = std::find_if(tools.begin(), tools.end(), [&](const Json& tool) {
    return member(tool, "type") == "namespace" && name.starts_with(tool["name"].get<std::string>() + ".");
  });
  if (space != tools.end()) {
    const std::string of = (*space)["name"];
    item["namespace"] = of;
    item["name"] = name.substr(of.size() + 1);
    list = &member(*space, "tools");
  }
  const bool custom = std::any_of(list->begin(), list->end(), [&](const Json& tool) {
    return member(tool, "type") == "custom" && member(tool, "name") == item["name"];
  });
  item["type"] = custom ? "custom_tool_call" : "function_call";
  if (!custom) return item["arguments"] = arguments, item;
  const Json input = member(parse_json(arguments), "input");
  item["input"] = input.is_string() ? input : Json(arguments);
  return item;
}

/// Builds a response from a chat's events, and writes its own events. Only text has scores.
class ResponsesWriter final : public ReplyWriter {
 public:
  /// Receives the complete response, as JSON.
  using OnEnd = std::function<void(const std::string& response)>;
  ResponsesWriter(Json request, std::string id, OnEnd on_end)
      : request_(std::move(request)), id_(std::move(id)), on_end_(std::move(on_end)) {}

  std::string event(const ReplyHead& head, const ChoiceEvent& event) override {
    timings_ = event.notes.timed != nullptr ? timings_of(*event.notes.timed) : Json();
    add_entries(scores_, content_logprobs(head, event.notes.scores));
    return std::visit(Overloaded{[&](const ChoiceBegins&) { return begin(head); },
                                 [&](const ChatEvent& more) { return content_event(head, event, more); },
                                 [&](const TokensAlone& tokens) {
                                   if (tokens.end_thought) scores_.clear();
                                   return std::string();
                                 },
                                 [&](const ChoiceEnds& end) {
                                   finish_reason_ = end.finish_reason;
                                   return std::string();
                                 },
                                 [](const ReportedRound&) { return std::string(); }},
                      event.what);
  }

  std::string usage(const ReplyHead& head, const Usage& usage) override {
    usage_ = usage_of(usage);
    Json notes = reply_notes(head, usage);
    timings_ = member(notes, "timings");
    notes.erase("timings");
    response_.update(notes);
    return "";
  }

  std::string end(const ApiError* error) override {
    std::string events;
    if (error == nullptr && items_ == 0 && open_.empty()) events = open("message");  // an empty answer
    events += close();
    if (error != nullptr) {
      response_["status"] = "failed";
      response_["error"] = {{"code", "server_error"}, {"message", error->message}};
      return events + event("response.failed", response_data());
    }
    const bool cut = finish_reason_ == "length";
    response_["status"] = cut ? "incomplete" : "completed";
    if (cut) response_["incomplete_details"] = {{"reason", "max_output_tokens"}};
    response_["usage"] = usage_;
    on_end_(response_text());
    return events + event(cut ? "response.incomplete" : "response.completed", timed(response_data()));
  }

  std::string whole(const ReplyHead& head, const std::vector<Choice>&, const Usage& usage) override {
    this->usage(head, usage);
    end(nullptr);
    return response_text();
  }

 private:
  std::string begin(const ReplyHead& head) {
    response_ = begun_response(request_, id_, head.created, head.model);
    response_.erase("output");
    const std::string created = event("response.created", response_data());
    return created + event("response.in_progress", response_data());
  }
  std::string response_text() const { return with_member(to_text(response_), "output", "[" + output_ + "]"); }
  std::string response_data() const { return with_member("{}", "response", response_text()); }
  std::string content_event(const ReplyHead& head, const ChoiceEvent& event, const ChatEvent& more) {
    const std::string scores = std::exchange(scores_, "");  // scores of thoughts and calls are not shown
    if (more.kind == ChatEvent::Kind::kReasoning) return text("reasoning", more.text, "");
    if (more.kind == ChatEvent::Kind::kContent) return text("message", more.text, scores);
    return function_call(call_id(head, event.index, event.calls), more.name, more.text);
  }
  /// @param data  a JSON object
  std::string event(const char* type, std::string data) {
    if (!tells_) return "";
    data = with_member(std::move(data), "type", to_text(type));
    data = with_member(std::move(data), "sequence_number", std::to_string(sequence_++));
    return fmt::format("event: {}\n{}", type, data_event(data));
  }
  std::string item_event(const char* type, std::string data) {
    data = with_member(std::move(data), "output_index", std::to_string(items_));
    return event(type, with_member(std::move(data), "item_id", to_text(item_id())));
  }
  /// Returns the id of the next output item, with OpenAI's prefix.
  std::string item_id() const {
    const char* const kind = open_ == "reasoning" ? "rs" : open_.empty() ? "fc" : "msg";
    return fmt::format("{}_{}_{}", kind, id_, items_);
  }

  /// llama.cpp's timings_per_token.
  std::string timed(std::string data) const {
    if (member(request_, "timings_per_token") != true || !timings_.is_object()) return data;
    return with_member(std::move(data), "timings", to_text(timings_));
  }

  /// Begins an item, after ending the open one.
  std::string open(const std::string& kind) {
    std::string events = close();
    open_ = kind;
    const bool thought = kind == "reasoning";
    Json item = thought ? thought_item(item_id(), "") : message_item(item_id(), "in_progress");
    item.update({{"status", "in_progress"}, {"content", Json::array()}});
    events += event("response.output_item.added", to_text({{"output_index", items_}, {"item", std::move(item)}}));
    if (!thought) events += item_event("response.content_part.added", part_data(text_part("", "[]")));
    return events;
  }
  static std::string part_data(const std::string& part) { return with_member(R"({"content_index":0})", "part", part); }
  std::string text(const std::string& kind, const std::string& piece, const std::string& scores) {
    if (piece.empty()) return "";
    const bool thought = kind == "reasoning";
    const std::string events = open_ == kind ? "" : open(kind);
    text_ += piece;
    add_entries(logprobs_, scores);
    std::string data = timed(to_text({{"content_index", 0}, {"delta", piece}}));
    if (thought) return events + item_event("response.reasoning_text.delta", std::move(data));
    return events +
           item_event("response.output_text.delta", with_member(std::move(data), "logprobs", "[" + scores + "]"));
  }
  /// Ends the open item.
  std::string close() {
    if (open_.empty()) return "";
    const std::string text = std::exchange(text_, ""), logprobs = "[" + std::exchange(logprobs_, "") + "]";
    std::string events, data = to_text({{"content_index", 0}, {"text", text}});
    if (open_ == "reasoning") {
      events += item_event("response.reasoning_text.done", std::move(data));
      events += done(to_text(thought_item(item_id(), text)));
    } else {
      const std::string part = text_part(text, logprobs);
      events += item_event("response.output_text.done", with_member(std::move(data), "logprobs", logprobs));
      events += item_event("response.content_part.done", part_data(part));
      events += done(with_member(to_text(message_item(item_id(), "completed")), "content", "[" + part + "]"));
    }
    open_.clear();
    return events;
  }
  std::string function_call(const std::string& call_id, const std::string& name, const std::string& arguments) {
    std::string events = close();
    const Json item = call_item(member(request_, "tools"), item_id(), call_id, name, arguments);
    const bool custom = item["type"] == "custom_tool_call";
    const char* const given = custom ? "input" : "arguments";
    const std::string what = custom ? "response.custom_tool_call_input" : "response.function_call_arguments";
    Json begun = item, all = {{given, item[given]}};
    begun["status"] = "in_progress";
    begun[given] = "";
    if (!custom) all["name"] = item["name"];
    events += event("response.output_item.added", to_text({{"output_index", items_}, {"item", begun}}));
    events += item_event((what + ".delta").c_str(), to_text({{"delta", item[given]}}));
    events += item_event((what + ".done").c_str(), to_text(all));
    return events + done(to_text(item));
  }
  std::string done(const std::string& item) {
    const std::string index = to_text({{"output_index", items_}});
    add_entries(output_, item);
    ++items_;
    return event("response.output_item.done", with_member(index, "item", item));
  }

  const Json request_;
  const std::string id_;
  const OnEnd on_end_;
  const bool tells_ = member(request_, "stream") == true;  ///< events are wanted
  Json response_, usage_, timings_;  ///< response_ without its output
  std::string finish_reason_;
  std::string open_, text_;      ///< the open item, "reasoning" or "message", and its text
  std::string scores_;           ///< of tokens whose text follows, as entries of a JSON array
  std::string logprobs_;         ///< scores of the open item's text
  std::string output_;           ///< complete items, as entries of a JSON array
  std::size_t items_ = 0;        ///< their number
  int sequence_ = 0;
};

class ResponsesApi : public std::enable_shared_from_this<ResponsesApi> {
 public:
  explicit ResponsesApi(ChatBackend backend) : backend_(std::move(backend)) {}

  HttpReply respond(const HttpRequest& http) {
    ApiResult<ResponsesBody> read = read_request_body(http);
    if (!read) return error_reply(read.error());
    ApiResult<CompletionRequest> request = parse_responses(*read, backend_.defaults);
    const std::string id = random_id("resp_");
    Json items = items_of(*read);
    Json asked = std::move(read->json);
    if (request && member(asked, "background") == true)
      return in_background(http, id, *std::move(request), asked, items);
    const bool wanted = or_default(asked, "store", true) == true;
    const auto keep = [self = shared_from_this(), id, wanted, owner = http.owner(),
                       items = std::move(items)](const std::string& response) {
      if (wanted) self->store_.put(id, owner, kept_text(items, response));
    };
    return backend_.chat(http, std::move(request), std::make_shared<ResponsesWriter>(std::move(asked), id, keep));
  }

  HttpReply count(const HttpRequest& http) const {
    const ApiResult<ResponsesBody> read = read_request_body(http);
    if (!read) return error_reply(read.error());
    const ApiResult<std::int64_t> tokens = backend_.count(http, parse_responses_prompt(*read, backend_.defaults));
    if (!tokens) return error_reply(tokens.error());
    return json_reply({{"object", "response.input_tokens"}, {"input_tokens", *tokens}});
  }

  /// Removes a response, and ends one in progress.
  HttpReply remove(const HttpRequest& http) {
    background_.cancel(http.id, http.owner());
    if (!store_.forget(http.id, http.owner())) return not_found(http);
    return json_reply({{"id", http.id}, {"object", "response"}, {"deleted", true}});
  }

  HttpReply retrieve(const HttpRequest& http) const {
    const ApiResult<Json> response = remembered(http);
    if (!response) return error_reply(response.error());
    return response->is_null() ? not_found(http) : json_reply(*response);
  }

  /// Cancels a response. A finished one stays unchanged.
  HttpReply cancel(const HttpRequest& http) {
    ApiResult<Json> response = background_.cancel(http.id, http.owner());
    if (response->is_null()) response = remembered(http);
    if (!response) return error_reply(response.error());
    if (response->is_null()) return not_found(http);
    if (member(*response, "background") != true)
      return error_reply({.message = "Cannot cancel a synchronous response."});
    return json_reply(*response);
  }

 private:
  ApiResult<ResponsesBody> read_request_body(const HttpRequest& http) const {
    ResponsesBody body{.json = {}, .text = http.body};
    ASSIGN_OR_RETURN(body.json, parse_object(http.body));
    if (const Json& previous = member(body.json, "previous_response_id"); !previous.is_null()) {
      const std::string kept = previous.is_string() ? store_.text(previous, http.owner()) : "";
      ASSIGN_OR_RETURN(body.before, tree_of(http, kept));
      body.before_bytes = std::ssize(kept);
      if (member(body.before, "items").is_null())
        return ApiError{
            .status = 404,
            .message = fmt::format("there is no response {} to go on with, or not any more", show(previous)),
            .param = "previous_response_id",
            .code = "previous_response_not_found"};
    }
    if (const auto wrong = resolve_references(http, body)) return *wrong;
    return body;
  }
  /// Replaces each item_reference of an input by the stored item. Begins at the end, since the latest response is
  /// stored with the items of earlier ones: mostly a single response is parsed.
  std::optional<ApiError> resolve_references(const HttpRequest& http, ResponsesBody& body) const {
    const auto input = body.json.find("input");
    if (input == body.json.end() || !input->is_array()) return std::nullopt;
    std::map<std::string, Json> known;
    std::int64_t held = body.before_bytes * kBytesPerBodyByte;
    for (auto item = input->rbegin(); item != input->rend(); ++item) {
      if (member(*item, "type") != "item_reference") continue;
      const std::string id = member(*item, "id").is_string() ? member(*item, "id").get<std::string>() : "";
      if (!known.contains(id)) {
        const std::size_t begin = id.find('_') + 1, end = std::max(id.rfind('_'), begin);  // item_id() made it
        const std::string kept = store_.text(id.substr(begin, end - begin), http.owner());
        ApiResult<Json> tree = tree_of(http, kept, held);
        if (!tree) return tree.error();
        held += counted_bytes(kept);
        for (Json* list : {&(*tree)["items"], &(*tree)["response"]["output"]})
          for (Json& of_store : *list)
            if (member(of_store, "id").is_string()) known.emplace(of_store["id"], std::move(of_store));
      }
      const auto found = known.find(id);
      if (found == known.end())
        return ApiError{
            .status = 404,
            .message = fmt::format("there is no item {}, or not any more: wanted the item itself", show(id)),
            .param = "input"};
      const auto bytes = std::ssize(to_text(found->second));
      held += bytes * kBytesPerBodyByte;
      if (const auto refused = http.reserve(counted_bytes(http.body) + held)) return refused;
      body.before_bytes += bytes;
      *item = found->second;
    }
    return std::nullopt;
  }
  /// Removes and returns all items of the conversation so far from a body.
  static Json items_of(ResponsesBody& body) {
    Json items = body.before.is_null() ? Json::array() : std::move(body.before["items"]);
    if (!body.before.is_null())
      for (Json& item : body.before["response"]["output"]) items.push_back(std::move(item));
    Json input = std::move(body.json["input"]);
    body.json.erase("input");
    if (input.is_string()) input = Json::array({{{"role", "user"}, {"content", std::move(input)}}});
    for (Json& item : input) items.push_back(std::move(item));
    return items;
  }

  HttpReply in_background(const HttpRequest& http, const std::string& id, CompletionRequest request, const Json& asked,
                          const Json& items) {
    Json response = begun_response(asked, id, unix_seconds(), backend_.defaults.model);
    const auto all = std::make_shared<std::string>();  // to be stored
    const auto keep = [all, items](const std::string& whole) { *all = kept_text(items, whole); };
    const auto chat = [this, request = std::move(request),
                       writer = std::make_shared<ResponsesWriter>(asked, id, keep)](
                          const HttpRequest& of_job) { return backend_.chat(of_job, request, writer); };
    const auto finish = [all, response](const HttpReply& reply) {
      if (!reply.error) return *all;
      Json failed = response;
      failed["status"] = "failed";
      failed["error"] = {{"code", "server_error"}, {"message", reply.error->message}};
      return to_text({{"response", std::move(failed)}});
    };
    if (auto refusal = background_.begin(id, http, response, chat, finish)) return *std::move(refusal);
    response["status"] = "queued";
    return json_reply(response);
  }

  /// Returns the stored text of a response that follows `items`.
  static std::string kept_text(const Json& items, const std::string& response) {
    return with_member(to_text({{"items", items}}), "response", response);
  }
  /// Parses a stored response once there is memory for it beside the request's body, and `held`. @return null if there
  /// is none
  static ApiResult<Json> tree_of(const HttpRequest& http, const std::string& kept, std::int64_t held = 0) {
    if (kept.empty()) return Json();
    if (const auto refused = http.reserve(counted_bytes(http.body) + held + counted_bytes(kept))) return *refused;
    return parse_json(kept);
  }
  ApiResult<Json> remembered(const HttpRequest& http) const {
    Json response = background_.get(http.id, http.owner());
    if (!response.is_null()) return response;
    ASSIGN_OR_RETURN(const Json kept, tree_of(http, store_.text(http.id, http.owner())));
    return member(kept, "response");
  }
  static HttpReply not_found(const HttpRequest& http) {  // vLLM's words
    return error_reply({.status = 404, .message = fmt::format("Response with id '{}' not found.", http.id)});
  }

  const ChatBackend backend_;
  ResponseStore store_;
  BackgroundResponses background_{store_};  // last: its threads use the others
};

}  // namespace

ApiResult<CompletionRequest> parse_responses(const ResponsesBody& body, const ApiDefaults& defaults) {
  ASSIGN_OR_RETURN(EarlierTurns earlier, earlier_turns(body.before, defaults));
  return read_body<CompletionRequest>(body.json, defaults, [&](const JsonFields& fields, CompletionRequest& request) {
    request.source = source_of(body);
    request.chat = request.of_events = true;
    refuse_other_ways(fields);
    const Json& include = member(fields.raw(), "include");
    const bool included = std::any_of(include.begin(), include.end(),
                                      [](const Json& what) { return what == "message.output_text.logprobs"; });
    const bool scores = included || fields.find("top_logprobs") != nullptr;
    read_request(fields, defaults,
                 {.path = "/v1/responses", .max_tokens = "max_output_tokens", .logprobs = scores, .one_reply = true},
                 request);
    read_conversation(fields, defaults, std::move(earlier), request.conversation, request.media, request.warnings);
    request.sampling.grammar =
        read_call_grammar(fields, request.conversation, read_tool_choice(fields, /*of_chat=*/false),
                          read_answer_grammar(fields, body.text, {"text", "format"}), defaults.controls);
    request.include_usage = request.stream;
  });
}

ApiResult<TokenizeRequest> parse_responses_prompt(const ResponsesBody& body, const ApiDefaults& defaults) {
  ASSIGN_OR_RETURN(EarlierTurns earlier, earlier_turns(body.before, defaults));
  return read_body<TokenizeRequest>(body.json, defaults, [&](const JsonFields& fields, TokenizeRequest& request) {
    request.source = source_of(body);
    refuse_other_ways(fields);
    refuse_unsupported(fields);
    std::vector<std::string> unsaid;  // a count has no place for warnings
    read_conversation(fields, defaults, std::move(earlier), request.text.emplace<Conversation>(), request.media,
                      unsaid);
  });
}

std::vector<HttpRoute> responses_routes(ChatBackend backend) {
  const auto api = std::make_shared<ResponsesApi>(std::move(backend));
  std::vector<HttpRoute> routes = {
      {"POST", "/v1/responses", [api](const HttpRequest& http) { return api->respond(http); }},
      {"GET", "/v1/responses/{id}", [api](const HttpRequest& http) { return api->retrieve(http); }},
      {"POST", "/v1/responses/{id}/cancel", [api](const HttpRequest& http) { return api->cancel(http); }},
      {"POST", "/v1/responses/input_tokens", [api](const HttpRequest& http) { return api->count(http); }},
      {"DELETE", "/v1/responses/{id}", [api](const HttpRequest& http) { return api->remove(http); }}};
  routes[2].takes = "";
  return routes;
}

}  // namespace outrider
