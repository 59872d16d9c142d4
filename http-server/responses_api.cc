#include "http-server/responses_api.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "common/base/json_fields.h"
#include "common/base/time.h"
#include "http-server/content_parts.h"
#include "http-server/random_id.h"
#include "http-server/response_store.h"

namespace outrider {
namespace {
using Json = nlohmann::json;

/// Text, whoever's, and pictures, as the chat has them. What is neither stays, for the chat to refuse.
Json content_of(const Json& content) {
  if (!content.is_array()) return content;
  Json parts = Json::array();
  for (const Json& part : content) {
    const Json& type = member(part, "type");
    const bool text = type == "input_text" || type == "output_text" || type == "text";
    if (type == "input_image" && !member(part, "image_url").is_null())  // else it is an uploaded file
      parts.push_back(image_url_part(member(part, "image_url"), member(part, "detail")));
    else
      parts.push_back(text ? Json{{"type", "text"}, {"text", member(part, "text")}} : part);
  }
  return parts;
}

/// The assistant's message that the next call or thought belongs to.
Json& assistant(Json& messages) {
  const bool open = !messages.empty() && member(messages.back(), "role") == "assistant";
  if (!open) messages.push_back({{"role", "assistant"}, {"content", nullptr}});
  return messages.back();
}

/// @return why it is none that can be added.
std::optional<ApiError> add_item(const Json& item, Json& messages) {
  const Json& type = member(item, "type");
  if (type == "function_call") {
    Json& message = assistant(messages);
    message["tool_calls"].push_back(
        {{"id", member(item, "call_id")},
         {"type", "function"},
         {"function", {{"name", member(item, "name")}, {"arguments", member(item, "arguments")}}}});
  } else if (type == "function_call_output") {
    messages.push_back(
        {{"role", "tool"}, {"tool_call_id", member(item, "call_id")}, {"content", content_of(member(item, "output"))}});
  } else if (type == "reasoning") {
    std::string thought;
    for (const Json& part : member(item, "content")) {
      if (const Json& text = member(part, "text"); text.is_string()) thought += text.get<std::string>();
    }
    if (!thought.empty()) messages.push_back({{"role", "assistant"}, {"content", nullptr}, {"reasoning", thought}});
  } else if (type.is_null() || type == "message") {
    const bool goes_on = member(item, "role") == "assistant" && !messages.empty() &&
                         messages.back().contains("reasoning") && messages.back()["content"].is_null() &&
                         !messages.back().contains("tool_calls");
    Json& message = goes_on ? messages.back() : messages.emplace_back(Json{{"role", member(item, "role")}});
    message["content"] = content_of(member(item, "content"));
  } else {
    return ApiError{.message = fmt::format("input has an item of type {}, which is not supported", show(type)),
                    .param = "input"};
  }
  return std::nullopt;
}

Json tool_of(const Json& tool) {
  if (member(tool, "type") != "function") return {{"type", member(tool, "type")}};  // one that its server would run
  Json function = {{"name", member(tool, "name")}, {"parameters", member(tool, "parameters")}};
  for (const char* key : {"description", "strict"}) {
    if (tool.contains(key)) function[key] = tool[key];
  }
  return {{"type", "function"}, {"function", std::move(function)}};
}

Json format_of(const Json& format) {
  if (member(format, "type") != "json_schema") return {{"type", member(format, "type")}};
  Json schema = format;
  schema.erase("type");
  return {{"type", "json_schema"}, {"json_schema", std::move(schema)}};
}

Json usage_of(const Json& usage) {
  const Json& cached = member(member(usage, "prompt_tokens_details"), "cached_tokens");
  const Json& thought = member(member(usage, "completion_tokens_details"), "reasoning_tokens");
  return {{"input_tokens", member(usage, "prompt_tokens")},
          {"input_tokens_details", {{"cached_tokens", cached.is_null() ? Json(0) : cached}}},
          {"output_tokens", member(usage, "completion_tokens")},
          {"output_tokens_details", {{"reasoning_tokens", thought.is_null() ? Json(0) : thought}}},
          {"total_tokens", member(usage, "total_tokens")}};
}

Json or_default(const Json& request, const char* key, Json otherwise) {
  const Json& value = member(request, key);
  return value.is_null() ? otherwise : value;
}

/// vLLM's: what the model read and wrote, as text and as tokens.
constexpr const char* kRawMessages = "enable_response_messages";

/// A response that has only begun.
Json begun_response(const Json& request, const std::string& id, const Json& created, const Json& model) {
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

// Items of an output, whole.
Json thought_item(const std::string& id, const Json& text) {
  return {{"id", id},
          {"type", "reasoning"},
          {"summary", Json::array()},
          {"content", {{{"type", "reasoning_text"}, {"text", text}}}},
          {"status", "completed"}};
}
/// @param choice  of a chat. @return its tokens with their log-probabilities, if it has some
Json logprobs_of(const Json& choice) {
  const Json& scores = member(member(choice, "logprobs"), "content");
  return scores.is_array() ? scores : Json::array();
}
Json text_part(const Json& text, Json logprobs = Json::array()) {
  return {{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}, {"logprobs", std::move(logprobs)}};
}
Json message_item(const std::string& id, const Json& text, Json logprobs = Json::array()) {
  return {{"id", id},
          {"type", "message"},
          {"status", "completed"},
          {"role", "assistant"},
          {"content", Json::array({text_part(text, std::move(logprobs))})}};
}
Json call_item(const std::string& id, const Json& call) {
  const Json& function = member(call, "function");
  return {{"id", id},
          {"type", "function_call"},
          {"status", "completed"},
          {"call_id", member(call, "id")},
          {"name", member(function, "name")},
          {"arguments", member(function, "arguments")}};
}

/// Makes a response of a chat's chunks, and the events that tell of it.
class ResponsesStream final : public StreamTranslator {
 public:
  /// Gets the message that the conversation has now, and the whole response.
  using OnEnd = std::function<void(const Json& message, const Json& response)>;
  /// @param tells  somebody wants the events
  ResponsesStream(Json request, std::string id, OnEnd on_end, bool tells = true)
      : request_(std::move(request)), id_(std::move(id)), on_end_(std::move(on_end)), tells_(tells) {}

  std::string chunk(const Json& chunk) override {
    std::string events;
    if (response_.is_null()) {
      response_ = begun_response(request_, id_, member(chunk, "created"), member(chunk, "model"));
      events += event("response.created", {{"response", response_}});
      events += event("response.in_progress", {{"response", response_}});
    }
    if (member(chunk, "usage").is_object()) usage_ = chunk["usage"];
    for (const char* ours : {"speculative", "metrics"}) {
      if (chunk.contains(ours)) response_[ours] = chunk[ours];
    }
    timings_ = member(chunk, "timings");
    for (const Json& choice : member(chunk, "choices")) {
      const Json& delta = member(choice, "delta");
      events += text("reasoning", member(delta, "reasoning"));
      events += text("message", member(delta, "content"), logprobs_of(choice));
      for (const Json& call : member(delta, "tool_calls")) events += function_call(call);
      if (!member(choice, "finish_reason").is_null()) finish_reason_ = choice["finish_reason"];
    }
    return events;
  }

  std::string end(const Json& error) override {
    std::string events;
    if (error.is_null() && response_["output"].empty() && open_.empty()) events = open("message");  // it says nothing
    events += close();
    if (!error.is_null()) {
      response_["status"] = "failed";
      response_["error"] = {{"code", "server_error"}, {"message", member(error, "message")}};
      return events + event("response.failed", {{"response", response_}});
    }
    const bool cut = finish_reason_ == "length";
    response_["status"] = cut ? "incomplete" : "completed";
    if (cut) response_["incomplete_details"] = {{"reason", "max_output_tokens"}};
    response_["usage"] = usage_of(usage_);
    on_end_(message_, response_);
    return events + event(cut ? "response.incomplete" : "response.completed", timed({{"response", response_}}));
  }

 private:
  std::string event(const char* type, Json data) {
    if (!tells_) return "";
    data["type"] = type;
    data["sequence_number"] = sequence_++;
    return named_event(data);
  }
  std::string item_event(const char* type, Json data) {
    data.update({{"output_index", response_["output"].size()}, {"item_id", item_id()}});
    return event(type, std::move(data));
  }
  /// Of the item that is next in the output; it begins as OpenAI's do.
  std::string item_id() const {
    const char* const kind = open_ == "reasoning" ? "rs" : open_.empty() ? "fc" : "msg";
    return fmt::format("{}_{}_{}", kind, id_, response_.at("output").size());
  }

  /// llama.cpp's timings_per_token.
  Json timed(Json data) const {
    if (member(request_, "timings_per_token") == true && timings_.is_object()) data["timings"] = timings_;
    return data;
  }

  /// Begins an item, after the one that is open.
  std::string open(const std::string& kind) {
    std::string events = close();
    open_ = kind;
    const bool thought = kind == "reasoning";
    Json item = thought ? thought_item(item_id(), "") : message_item(item_id(), "");
    item["status"] = "in_progress";
    item["content"] = Json::array();
    events += event("response.output_item.added", {{"output_index", response_["output"].size()}, {"item", item}});
    if (!thought) events += item_event("response.content_part.added", {{"content_index", 0}, {"part", text_part("")}});
    return events;
  }
  std::string text(const std::string& kind, const Json& piece, const Json& logprobs = Json::array()) {
    if (!piece.is_string() || piece == "") return "";
    const bool thought = kind == "reasoning";
    const std::string events = open_ == kind ? "" : open(kind);
    text_ += piece.get<std::string>();
    Json data = {{"content_index", 0}, {"delta", piece}};
    if (!thought) data["logprobs"] = logprobs;
    for (const Json& score : logprobs) logprobs_.push_back(score);
    return events +
           item_event(thought ? "response.reasoning_text.delta" : "response.output_text.delta", timed(std::move(data)));
  }
  /// Ends the item that is open.
  std::string close() {
    if (open_.empty()) return "";
    const bool thought = open_ == "reasoning";
    const std::string text = std::exchange(text_, "");
    const Json logprobs = std::exchange(logprobs_, Json::array());
    message_[thought ? "reasoning" : "content"] = text;
    Json data = {{"content_index", 0}, {"text", text}};
    if (!thought) data["logprobs"] = logprobs;
    std::string events =
        item_event(thought ? "response.reasoning_text.done" : "response.output_text.done", std::move(data));
    if (!thought)
      events += item_event("response.content_part.done", {{"content_index", 0}, {"part", text_part(text, logprobs)}});
    events += done(thought ? thought_item(item_id(), text) : message_item(item_id(), text, logprobs));
    open_.clear();
    return events;
  }
  std::string function_call(const Json& call) {
    std::string events = close();
    Json whole = call;
    whole.erase("index");
    message_["tool_calls"].push_back(std::move(whole));
    if (message_["content"] == "") message_["content"] = nullptr;
    const Json item = call_item(item_id(), call);
    Json begun = item;
    begun["status"] = "in_progress";
    begun["arguments"] = "";
    events += event("response.output_item.added", {{"output_index", response_["output"].size()}, {"item", begun}});
    events += item_event("response.function_call_arguments.delta", {{"delta", item["arguments"]}});
    events +=
        item_event("response.function_call_arguments.done", {{"arguments", item["arguments"]}, {"name", item["name"]}});
    return events + done(item);
  }
  std::string done(const Json& item) {
    std::string events =
        event("response.output_item.done", {{"output_index", response_["output"].size()}, {"item", item}});
    response_["output"].push_back(item);
    return events;
  }

  const Json request_;
  const std::string id_;
  const OnEnd on_end_;
  const bool tells_;
  Json response_, usage_, finish_reason_, timings_;
  Json message_ = {{"role", "assistant"}, {"content", ""}};
  std::string open_, text_;        ///< the item that is open, "reasoning" or "message", and its text
  Json logprobs_ = Json::array();  ///< of that text
  int sequence_ = 0;
};

struct Whole {
  Json message, response;  ///< as ResponsesStream::OnEnd has them
};
/// @param chat  a chat.completion: a chunk that says everything
Whole whole_of_chat(const Json& request, const std::string& id, Json chat) {
  Whole whole;
  const auto take = [&](const Json& message, const Json& response) { whole = {message, response}; };
  ResponsesStream stream(request, id, take, /*tells=*/false);
  for (Json& choice : chat["choices"]) choice["delta"] = std::move(choice["message"]);
  stream.chunk(chat);
  stream.end(nullptr);
  return whole;
}

/// A conversation with its last message, and the response that this is of.
Json kept(Json messages, const Json& message, Json response) {
  messages.push_back(message);
  return {{"messages", std::move(messages)}, {"response", std::move(response)}};
}

class ResponsesApi : public std::enable_shared_from_this<ResponsesApi> {
 public:
  ResponsesApi(HttpHandler chat, HttpHandler tokenize, HttpHandler detokenize, std::string model)
      : chat_(std::move(chat)),
        tokenize_(std::move(tokenize)),
        detokenize_(std::move(detokenize)),
        model_(std::move(model)) {}

  HttpReply respond(HttpRequest http) {
    ApiResult<ResponsesRequest> read = request_of(http);
    if (!read) return error_reply(read.error());
    auto& [body, asked] = *read;
    http.body = to_text(body);
    // Instructions are the request's own: the next one has its own.
    Json messages = std::move(body["messages"]);
    if (!member(asked, "instructions").is_null()) messages.erase(0);
    const std::string id = random_id("resp_");
    if (member(asked, "background") == true) return in_background(http, id, asked, std::move(messages));
    HttpReply reply = chat_(http);
    if (reply.status != 200) return reply;
    const bool wanted = or_default(asked, "store", true) == true;
    if (reply.next) {
      const auto keep = [self = shared_from_this(), id, wanted, owner = http.owner(), messages = std::move(messages)](
                            const Json& message, const Json& response) {
        if (wanted) self->store_.put(id, owner, kept(messages, message, response));
      };
      return translated(std::move(reply), std::make_shared<ResponsesStream>(asked, id, keep));
    }
    Json all = whole(id, asked, std::move(messages), reply);
    reply.body = to_text(all["response"]);
    if (wanted) store_.put(id, http.owner(), all);
    return reply;
  }

  HttpReply count(HttpRequest http) const {
    const ApiResult<ResponsesRequest> read = request_of(http);
    if (!read) return error_reply(read.error());
    http.body = to_text(read->chat);
    HttpReply reply = tokenize_(http);
    if (reply.status == 200)
      reply.body =
          to_text({{"object", "response.input_tokens"}, {"input_tokens", member(Json::parse(reply.body), "count")}});
    return reply;
  }

  /// One that is being made ends.
  HttpReply remove(const HttpRequest& http) {
    background_.cancel(http.id, http.owner());
    if (!store_.forget(http.id, http.owner())) return not_found(http);
    return {.status = 200, .body = to_text({{"id", http.id}, {"object", "response"}, {"deleted", true}})};
  }

  HttpReply retrieve(const HttpRequest& http) const {
    const Json response = remembered(http);
    return response.is_null() ? not_found(http) : HttpReply{.status = 200, .body = to_text(response)};
  }

  /// One that is over stays as it is.
  HttpReply cancel(const HttpRequest& http) {
    Json response = background_.cancel(http.id, http.owner());
    if (response.is_null()) response = remembered(http);
    if (response.is_null()) return not_found(http);
    if (member(response, "background") != true)
      return error_reply({.message = "Cannot cancel a synchronous response."});
    return {.status = 200, .body = to_text(response)};
  }

 private:
  ApiResult<ResponsesRequest> request_of(const HttpRequest& http) const {
    ASSIGN_OR_RETURN(Json request, parse_object(http.body));
    Json before = Json::array();
    if (const Json& previous = member(request, "previous_response_id"); !previous.is_null()) {
      before = previous.is_string() ? member(store_.get(previous, http.owner()), "messages") : Json();
      if (before.is_null())
        return ApiError{
            .status = 404,
            .message = fmt::format("there is no response {} to go on with, or not any more", show(previous)),
            .param = "previous_response_id"};
    }
    return chat_of_responses(std::move(request), std::move(before));
  }

  /// @param reply  of the chat. @return what is remembered of it.
  Json whole(const std::string& id, const Json& asked, Json messages, const HttpReply& reply) const {
    const Json answer = parse_json(reply.body);
    auto [message, response] = whole_of_chat(asked, id, answer);
    if (member(asked, kRawMessages) == true) {
      const Json& ids = member(answer.at("choices").at(0), "token_ids");
      const auto raw = [](const Json& text, const Json& tokens) {
        return Json::array({{{"type", "raw_message_tokens"}, {"message", text}, {"tokens", tokens}}});
      };
      response["input_messages"] =
          raw(member(member(answer, "__verbose"), "prompt"), member(answer, "prompt_token_ids"));
      response["output_messages"] = raw(text_of(ids), ids);
    }
    return kept(std::move(messages), message, std::move(response));
  }
  Json text_of(const Json& tokens) const {
    HttpRequest http;
    http.body = to_text({{"model", model_}, {"tokens", tokens}});
    return member(Json::parse(detokenize_(http).body), "prompt");
  }

  HttpReply in_background(const HttpRequest& http, const std::string& id, const Json& asked, Json messages) {
    Json response = begun_response(asked, id, unix_seconds(), model_);
    const auto finish = [this, id, asked, response, messages = std::move(messages)](const HttpReply& reply) {
      if (reply.status == 200) return whole(id, asked, messages, reply);
      const Json body = Json::parse(reply.body, nullptr, /*allow_exceptions=*/false);
      Json failed = response;
      failed["status"] = "failed";
      failed["error"] = {{"code", "server_error"}, {"message", member(member(body, "error"), "message")}};
      return Json{{"response", std::move(failed)}};
    };
    if (auto refusal = background_.begin(id, http, response, chat_, finish)) return *std::move(refusal);
    response["status"] = "queued";
    return {.status = 200, .body = to_text(response)};
  }

  Json remembered(const HttpRequest& http) const {
    Json response = background_.get(http.id, http.owner());
    return response.is_null() ? member(store_.get(http.id, http.owner()), "response") : response;
  }
  static HttpReply not_found(const HttpRequest& http) {  // vLLM's words
    return error_reply({.status = 404, .message = fmt::format("Response with id '{}' not found.", http.id)});
  }

  const HttpHandler chat_, tokenize_, detokenize_;
  const std::string model_;
  ResponseStore store_;
  BackgroundResponses background_{store_};  // last: its threads use the others
};

}  // namespace

ApiResult<ResponsesRequest> chat_of_responses(Json request, Json before) {
  const auto unsupported = [](const char* field) {
    return ApiError{.message = std::string(field) + " is not supported", .param = field};
  };
  if (member(request, "background") == true && member(request, "store") == false)
    return ApiError{.message = "background can only be used when `store` is true",
                    .param = "background"};  // vLLM's words
  for (const char* field : {"background", kRawMessages}) {
    if (member(request, field) == true && member(request, "stream") == true)
      return ApiError{.message = std::string(field) + " is not supported with stream", .param = field};
  }
  if (member(request, "truncation") == "auto") return unsupported("truncation");
  if (!member(request, "prompt").is_null()) return unsupported("prompt");
  if (member(member(request, "image"), "context_compression") == "enabled") return unsupported("image");
  Json messages = Json::array();
  if (const Json& instructions = member(request, "instructions"); !instructions.is_null())
    messages.push_back({{"role", "system"}, {"content", instructions}});
  for (Json& message : before) messages.push_back(std::move(message));
  const Json& input = member(request, "input");
  if (input.is_string())
    messages.push_back({{"role", "user"}, {"content", input}});
  else if (input.is_array())
    for (const Json& item : input) {
      if (auto refused = add_item(item, messages)) return *refused;
    }
  else
    return ApiError{.message = fmt::format("input is {}, wanted a string or a list of items", show(input)),
                    .param = "input"};
  ASSIGN_OR_RETURN(Json chat, chat_of(request, {"input", "instructions", "text", "tools", "tool_choice",
                                                "stream_options", "top_logprobs"}));
  chat["messages"] = std::move(messages);
  const Json &top = member(request, "top_logprobs"), &include = member(request, "include");
  const bool included = std::any_of(include.begin(), include.end(),
                                    [](const Json& what) { return what == "message.output_text.logprobs"; });
  if (included || !top.is_null()) {
    chat["logprobs"] = true;
    chat["top_logprobs"] = top;
  }
  if (request.contains("max_output_tokens")) chat["max_tokens"] = request["max_output_tokens"];
  for (const Json& tool : member(request, "tools")) chat["tools"].push_back(tool_of(tool));
  if (const Json& choice = member(request, "tool_choice"); choice.is_object())
    chat["tool_choice"] = {{"type", member(choice, "type")}, {"function", {{"name", member(choice, "name")}}}};
  else if (!choice.is_null())
    chat["tool_choice"] = choice;
  if (const Json& format = member(member(request, "text"), "format"); !format.is_null())
    chat["response_format"] = format_of(format);
  if (member(request, "stream") == true) chat["stream_options"] = {{"include_usage", true}};
  if (member(request, kRawMessages) == true) chat.update({{"return_token_ids", true}, {"verbose", true}});
  request.erase("input");  // which the chat has now, and which may be large
  return ResponsesRequest{std::move(chat), std::move(request)};
}

Json response_of_chat(const Json& request, const std::string& id, const Json& chat) {
  return whole_of_chat(request, id, chat).response;
}

std::vector<HttpRoute> responses_routes(HttpHandler chat, HttpHandler tokenize, HttpHandler detokenize,
                                        std::string model) {
  const auto api =
      std::make_shared<ResponsesApi>(std::move(chat), std::move(tokenize), std::move(detokenize), std::move(model));
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
