#include "batch/batch_line.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "batch/hash.h"
#include "common/base/json_fields.h"
#include "server/openai.h"

namespace outrider {
namespace {
using Json = nlohmann::json;

constexpr const char* kChatUrl = "/v1/chat/completions";
constexpr const char* kCompletionsUrl = "/v1/completions";

std::int64_t count(const Json& object, const char* key) {
  const Json& value = member(object, key);
  return value.is_number_integer() ? value.get<std::int64_t>() : 0;
}

/// Derives the calls' ids from the reply's id.
void settle_call_ids(Json& choice, const std::string& id) {
  if (!choice.is_object() || !choice.contains("message") || !choice["message"].is_object()) return;
  Json& calls = choice["message"]["tool_calls"];
  if (!calls.is_array()) {
    if (calls.is_null()) choice["message"].erase("tool_calls");
    return;
  }
  for (std::size_t k = 0; k < calls.size(); ++k) {
    if (calls[k].is_object()) calls[k]["id"] = fmt::format("call_{}_{}_{}", id, count(choice, "index"), k);
  }
}

/// Returns up to `bytes_max` bytes from the start of the model's input.
std::string first_text(const Json& value, std::size_t bytes_max) {
  if (value.is_string()) return value.get_ref<const std::string&>().substr(0, bytes_max);
  std::string text;
  if (value.is_array()) {
    for (const Json& element : value) {
      if (text.size() >= bytes_max) break;
      text += element.is_number_integer() ? fmt::format("{},", element.get<std::int64_t>())
                                          : first_text(element, bytes_max - text.size());
    }
  } else if (value.is_object()) {
    for (const char* key : {"role", "text", "content"}) {
      if (text.size() < bytes_max) text += first_text(member(value, key), bytes_max - text.size());
    }
  }
  return text;
}

}  // namespace

Result<BatchRequest, BatchError> parse_batch_line(std::string_view line, std::string_view only_url) {
  constexpr const char* kBadLine = "invalid_json_line";
  if (json_nesting(line) > kJsonDepthMax + 1)
    return BatchError{.code = kBadLine, .message = fmt::format("nests deeper than {} levels", kJsonDepthMax + 1)};
  Json json = parse_json(line);
  if (json.is_discarded()) return BatchError{.code = kBadLine, .message = "is not JSON in UTF-8"};
  if (!json.is_object())
    return BatchError{.code = kBadLine, .message = fmt::format("is {}, wanted an object", show(json))};
  FirstError wrong{.file = ""};
  const JsonFields fields(json, "", wrong);
  BatchRequest request;
  request.custom_id = fields.text("custom_id", {}, "a text that names the line");
  if (request.custom_id.empty()) fields.wrong("custom_id", "a text that names the line");
  fields.choice("method", "POST", {"POST"});
  request.url = fields.choice("url", {}, {kChatUrl, kCompletionsUrl});
  if (!only_url.empty() && request.url != only_url)
    fields.wrong("url", fmt::format("{}, as all of the batch", only_url));
  if (!member(json, "body").is_object()) fields.wrong("body", "an object, the request's body");
  const JsonFields body = fields.object("body");
  if (body.find("stream") != nullptr && *body.find("stream") != false) body.refuse("stream", "is not for a batch");
  if (wrong.error)
    return BatchError{.custom_id = request.custom_id, .code = "invalid_request", .message = wrong.error->message};
  request.body = std::move(json["body"]);
  return request;
}

std::string id_of(std::string_view custom_id) { return hex(hash128(custom_id)); }

std::int64_t seed_of(std::string_view custom_id) {
  return static_cast<std::int64_t>(hash128(custom_id)[1] & std::numeric_limits<std::int64_t>::max());
}

std::string body_to_send(BatchRequest request) {
  Json body = std::move(request.body);
  const auto given = [&](const char* key) { return !member(body, key).is_null(); };
  if (!given("seed")) body["seed"] = seed_of(request.custom_id);
  const auto limits = [&](const char* key) { return given(key) && body[key] != -1; };
  const bool needs_limit = request.url == kChatUrl || std::ranges::any_of(kLengthNames, given);
  if (needs_limit && std::ranges::none_of(kLengthNames, limits)) body["max_tokens"] = kMaxChatTokens;
  return to_text(body);
}

BatchTokens& BatchTokens::operator+=(const BatchTokens& other) {
  prompt += other.prompt;
  completion += other.completion;
  drafted += other.drafted;
  accepted += other.accepted;
  cached += other.cached;
  reasoning += other.reasoning;
  return *this;
}

Result<BatchReply, BatchError> settle_reply(const BatchRequest& request, const std::string& reply_body) {
  Json body = parse_json(reply_body);
  if (!body.is_object()) {
    return BatchError{.custom_id = request.custom_id,
                      .status = 200,
                      .code = "invalid_reply",
                      .message = fmt::format("the reply is not a JSON object: {}", show(Json(reply_body)))};
  }
  const Json& usage = member(body, "usage");
  const Json& speculative = member(body, "speculative");
  BatchReply reply{.line = {},
                   .tokens = {.prompt = count(usage, "prompt_tokens"),
                              .completion = count(usage, "completion_tokens"),
                              .drafted = count(speculative, "drafted_tokens"),
                              .accepted = count(speculative, "accepted_tokens"),
                              .cached = count(member(usage, "prompt_tokens_details"), "cached_tokens"),
                              .reasoning = count(member(usage, "completion_tokens_details"), "reasoning_tokens")}};
  const std::string id = id_of(request.custom_id);
  body["id"] = fmt::format("{}-{}", request.url == kChatUrl ? "chatcmpl" : "cmpl", id);
  body["created"] = 0;
  // Describes how the answer came about: drafts, cached tokens, times.
  body.erase("speculative");
  body.erase("metrics");
  body.erase("timings");
  if (body.contains("usage") && body["usage"].is_object()) body["usage"].erase("prompt_tokens_details");
  if (body.contains("choices") && body["choices"].is_array()) {
    for (Json& choice : body["choices"]) settle_call_ids(choice, body["id"].get<std::string>());
  }
  reply.line = to_text({{"id", "batch_req_" + id},
                        {"custom_id", request.custom_id},
                        {"response", {{"status_code", 200}, {"request_id", "req_" + id}, {"body", std::move(body)}}},
                        {"error", nullptr}});
  return reply;
}

BatchError error_of(const BatchRequest& request, const HttpReply& reply) {
  BatchError error{.custom_id = request.custom_id, .status = reply.status, .code = {}, .message = {}};
  error.body = parse_json(reply.body);
  if (error.body.is_discarded()) error.body = reply.body;
  const Json& details = member(error.body, "error");
  for (const char* key : {"type", "code"}) {
    if (member(details, key).is_string()) error.code = member(details, key).get<std::string>();
  }
  error.message = member(details, "message").is_string() ? member(details, "message").get<std::string>()
                                                         : fmt::format("HTTP status {}", reply.status);
  return error;
}

std::string error_line(const BatchError& error, std::uint64_t line_number) {
  const bool named = !error.custom_id.empty();
  const std::string id = named ? id_of(error.custom_id) : id_of(fmt::format("line {}", line_number));
  Json response;
  if (error.status != 0) response = {{"status_code", error.status}, {"request_id", "req_" + id}, {"body", error.body}};
  return to_text({{"id", "batch_req_" + id},
                  {"custom_id", named ? Json(error.custom_id) : Json()},
                  {"response", std::move(response)},
                  {"error", {{"code", error.code}, {"message", error.message}, {"line", line_number}}}});
}

std::uint64_t prefix_key(const BatchRequest& request) {
  constexpr std::size_t kNear = 128, kFar = 1024;
  const std::string text = first_text(member(request.body, request.url == kChatUrl ? "messages" : "prompt"), kFar);
  const auto half = [&](std::size_t bytes) { return hash64(std::string_view(text).substr(0, bytes)) >> 32; };
  return half(kNear) << 32 | half(kFar);
}

}  // namespace outrider
