#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "common/base/json_fields.h"
#include "common/base/text.h"
#include "server/api_server.h"
#include "server/dialect.h"
#include "server/openai.h"
#include "server/refused_fields.h"

namespace outrider {
namespace {
using Json = nlohmann::json;

/// Reads logit_bias: pairs of a token or a text with a bias, or an object with either as keys. `false` means never.
/// @return null: invalid
Json biases_of(const Json& given, const Tokenizer& tokenizer) {
  Json biases = Json::object();
  const auto add = [&](const Json& what, const Json& bias) {
    if (!bias.is_number() && bias != false) return false;
    const Json value = bias.is_number() ? bias : Json(-100);
    if (what.is_number_integer()) return biases[std::to_string(what.get<std::int64_t>())] = value, true;
    if (!what.is_string()) return false;
    const auto& text = what.get_ref<const std::string&>();
    if (to_number<TokenId>(text)) return biases[text] = value, true;
    for (const TokenId token : tokenizer.encode(text, /*parse_special=*/false)) biases[std::to_string(token)] = value;
    return true;
  };
  bool ok = given.is_array() || given.is_object();
  if (given.is_object())
    for (const auto& [key, bias] : given.items()) ok = ok && add(key, bias);
  if (given.is_array())
    for (const Json& pair : given) ok = ok && pair.is_array() && pair.size() == 2 && add(pair[0], pair[1]);
  return ok ? biases : Json();
}

/// Removes and returns a field of a body.
Json take(Json& body, const char* key) {
  Json value = member(body, key);
  body.erase(key);
  return value;
}

/// Returns an object with the wanted fields of a reply.
Json pick(const Json& object, const std::set<std::string>& names) {
  if (names.empty()) return object;
  Json picked = Json::object();
  for (const std::string& name : names) {
    const Json* value = &object;
    for (std::size_t begin = 0; begin <= name.size();) {
      const std::size_t end = std::min(name.find('/', begin), name.size());
      value = &member(*value, name.substr(begin, end - begin).c_str());
      begin = end + 1;
    }
    if (!value->is_null()) picked[name] = *value;
  }
  return picked;
}

/// Returns the fields of a request that its reply repeats for each choice: as many as fit kBytesMax.
Json settings_of(const Json& request) {
  constexpr std::size_t kBytesMax = 8 << 10;
  Json settings = Json::object();
  std::size_t bytes = 0;
  for (const auto& [name, value] : request.items()) {
    if (name == "prompt") continue;
    const std::size_t more = name.size() + to_text(value).size();
    if (bytes + more > kBytesMax) continue;
    bytes += more;
    settings[name] = value;
  }
  return settings;
}

/// A request of /completion.
struct LlamaCompletion {
  CompletionRequest completion;
  Json settings;                             ///< the request's settings, repeated in the reply
  std::set<std::string> response_fields;     ///< of the reply, "a/b" for nested ones; empty: all
  bool several = false;                      ///< a list of prompts: a list of answers
  bool return_tokens = false;
  std::size_t probs = 0;  ///< alternatives per token; 0: no probabilities
};
/// @param stops  the model's own, which ignore_eos masks
ApiResult<LlamaCompletion> parse_llama_completion(std::string_view body, const Tokenizer& tokenizer,
                                                  std::span<const TokenId> stops, const ApiDefaults& defaults) {
  ASSIGN_OR_RETURN(Json json, parse_object(body));
  LlamaCompletion request;
  request.settings = settings_of(json);
  if (!json.contains("n_predict"))
    json["n_predict"] = json.contains("max_tokens") ? take(json, "max_tokens") : Json(-1);
  request.settings["n_predict"] = json["n_predict"];
  for (const auto& [name, neutral] : foreign_samplers()) request.settings[name] = neutral;
  if (!request.settings.contains("logit_bias")) request.settings["logit_bias"] = Json::array();
  if (member(json, "ignore_eos") == true && request.settings["logit_bias"].is_array())
    for (const TokenId stop : stops) request.settings["logit_bias"].push_back({{"token", stop}, {"bias", nullptr}});
  if (!request.settings.contains("adaptive_decay")) request.settings["adaptive_decay"] = nullptr;  // no decay
  const Json probs = take(json, "n_probs");
  if (!probs.is_null() && (!probs.is_number_integer() || probs < 0 || probs > kLogprobsMax))
    return ApiError{.message = fmt::format("n_probs is {}, wanted 0 to {}", show(probs), kLogprobsMax),
                    .param = "n_probs"};
  request.probs = probs.is_null() ? 0 : probs.get<std::size_t>();
  if (request.probs > 0) json["logprobs"] = request.probs;
  request.return_tokens = take(json, "return_tokens") == true;
  for (const Json& name : take(json, "response_fields"))
    if (name.is_string()) request.response_fields.insert(name.get<std::string>());
  if (const Json& heat = member(json, "temperature"); heat.is_number() && heat < 0) json["temperature"] = 0;
  if (const Json given = take(json, "logit_bias"); !given.is_null()) {
    json["logit_bias"] = biases_of(given, tokenizer);
    if (json["logit_bias"].is_null())
      return ApiError{
          .message = fmt::format("logit_bias is {}, wanted pairs of a token or text and its bias", show(given)),
          .param = "logit_bias"};
  }
  if (json.contains("n_cmpl")) json["n"] = take(json, "n_cmpl");
  request.several = lists_prompts(member(json, "prompt")) || (json.contains("n") && json["n"] != 1);
  json.erase("stream_options");
  ASSIGN_OR_RETURN(request.completion, completion_of(json, body, defaults, "/completion"));
  // The reply's objects need these.
  request.completion.return_token_ids = true;
  request.completion.include_usage = request.completion.stream;
  return request;
}

/// Writes a whole completion, or one object per event with content.
class LlamaWriter final : public ReplyWriter {
 public:
  /// @param tokenizer  outlives it
  LlamaWriter(LlamaCompletion request, const Tokenizer& tokenizer)
      : request_(std::move(request)), tokenizer_(tokenizer) {}

  std::string event(const ReplyHead& head, const ChoiceEvent& event) override {
    model_ = head.model;
    if (event.index >= choices_.size()) choices_.resize(event.index + 1);
    Choice& seen = choices_[event.index];
    if (!event.notes.prompt_ids.empty()) seen.prompt_ids = event.notes.prompt_ids;
    seen.token_ids.insert(seen.token_ids.end(), event.notes.token_ids.begin(), event.notes.token_ids.end());
    if (event.notes.timed != nullptr) timings_ = timings_of(*event.notes.timed);
    const auto* more = std::get_if<ChatEvent>(&event.what);
    if (more != nullptr) seen.message.content += more->text;
    if (const auto* end = std::get_if<ChoiceEnds>(&event.what)) {
      seen.finish_reason = end->finish_reason;
      seen.stop_reason = end->stop_reason;
      return "";
    }
    if ((more == nullptr || more->text.empty()) && event.notes.token_ids.empty()) return "";
    Json object = content_json(event.index, more != nullptr ? more->text : "", event.notes.scores);
    object.update({{"stop", false},
                   {"tokens", event.notes.token_ids},
                   {"tokens_predicted", seen.token_ids.size()},
                   {"tokens_evaluated", seen.prompt_ids.size()}});
    if (event.notes.timed != nullptr) object["timings"] = timings_;
    return data_event(to_text(object));
  }
  std::string usage(const ReplyHead& head, const Usage& usage) override {
    const Json notes = reply_notes(head, usage);
    if (notes.contains("timings")) timings_ = notes["timings"];
    warnings_ = member(notes, "warnings");
    return "";
  }
  /// Returns the last object of each choice.
  std::string end(const ApiError* error) override {
    if (error != nullptr) return data_event(error_body(*error));
    std::string events;
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      Json object = closing(i, choices_[i]);
      object.update({{"content", ""}, {"tokens", Json::array()}});
      events += data_event(to_text(pick(object, request_.response_fields)));
    }
    return events;
  }
  std::string whole(const ReplyHead& head, const std::vector<Choice>& choices, const Usage& usage) override {
    model_ = head.model;
    this->usage(head, usage);
    Json list = Json::array();
    for (std::size_t i = 0; i < choices.size(); ++i) {
      Json object = closing(i, choices[i]);
      object.update(content_json(i, choices[i].message.content, choices[i].scores));
      object["tokens"] = request_.return_tokens ? Json(choices[i].token_ids) : Json::array();
      list.push_back(pick(object, request_.response_fields));
    }
    return to_text(request_.several ? list : list.at(0));
  }

 private:
  /// Returns the members about a choice's tokens, for stream and reply.
  Json content_json(std::size_t index, const std::string& text, const std::vector<TokenScore>& scores) const {
    Json object = {{"index", index}, {"content", text}, {"id_slot", -1}};
    if (request_.probs > 0) object["completion_probabilities"] = probabilities(scores);
    return object;
  }
  Json closing(std::size_t index, const Choice& choice) const {
    const auto* word = std::get_if<std::string>(&choice.stop_reason);
    Json object = {{"index", index},
                   {"id_slot", -1},
                   {"stop", true},
                   {"model", model_},
                   {"tokens_predicted", choice.token_ids.size()},
                   {"tokens_evaluated", choice.prompt_ids.size()},
                   {"tokens_cached", choice.prompt_ids.size() + choice.token_ids.size()},
                   {"generation_settings", request_.settings},
                   {"prompt", tokenizer_.decode(choice.prompt_ids, /*skip_special=*/false)},
                   {"has_new_line", choice.message.content.find('\n') != std::string::npos},
                   {"truncated", false},
                   {"stop_type", choice.finish_reason == "length" ? "limit"
                                 : word != nullptr                ? "word"
                                                                  : "eos"},
                   {"stopping_word", word != nullptr ? *word : ""}};
    if (!timings_.is_null()) object["timings"] = timings_;
    if (!warnings_.is_null()) object["warnings"] = warnings_;
    return object;
  }
  Json probabilities(const std::vector<TokenScore>& scores) const {
    Json list = Json::array();
    for (const TokenScore& score : scores) {
      Json entry = scored(score.token, score.scored ? Json(score.token.logprob) : Json());
      // Includes the chosen token, even if not among the most probable. Equal tokens are ordered by name.
      std::vector<std::tuple<float, std::string, const ScoredText*>> top;
      if (score.scored) top.emplace_back(-score.token.logprob, std::to_string(score.token.id), &score.token);
      for (const ScoredText& other : score.top)
        if (score.scored && other.id != score.token.id)
          top.emplace_back(-other.logprob, std::to_string(other.id), &other);
      std::ranges::sort(top);
      Json& others = entry["top_logprobs"] = Json::array();
      for (std::size_t k = 0; k < std::min(top.size(), request_.probs); ++k) {
        const auto& [cost, name, text] = top[k];
        others.push_back(scored(*text, -cost));
      }
      list.push_back(std::move(entry));
    }
    return list;
  }
  static Json scored(const ScoredText& text, const Json& logprob) {
    const auto bytes = std::vector<std::uint8_t>(text.bytes.begin(), text.bytes.end());
    return {{"id", text.id}, {"token", text.bytes}, {"bytes", bytes}, {"logprob", logprob}};
  }

  const LlamaCompletion request_;
  const Tokenizer& tokenizer_;
  std::vector<Choice> choices_;  ///< of a stream, so far
  std::string model_;
  Json timings_, warnings_;
};

}  // namespace

std::vector<HttpRoute> llama_routes(ApiServer& api) {
  const auto completion = [&api](const HttpRequest& http) {
    const Tokenizer& tokenizer = api.text().tokenizer;
    ApiResult<LlamaCompletion> request =
        parse_llama_completion(http.body, tokenizer, api.text().stop_ids(), api.defaults());
    if (!request) return api.complete(http, /*chat=*/false, request.error(), openai_writer());
    CompletionRequest asked = std::move(request->completion);
    const auto writer = std::make_shared<LlamaWriter>(*std::move(request), tokenizer);
    return api.complete(http, /*chat=*/false, std::move(asked), writer);
  };
  const auto count = [&api](const HttpRequest& http) {
    const ApiResult<std::int64_t> tokens = api.count(http, parse_tokenize(http.body, api.defaults()));
    if (!tokens) return error_reply(tokens.error());
    return json_reply({{"input_tokens", *tokens}});
  };
  const auto props = [&api](const HttpRequest&) {
    const TextSide& text = api.text();
    const SamplingParams advised = text.advised();
    const auto spelled = [&](std::optional<TokenId> id) {
      return id ? Json(text.tokenizer.token_text(*id)) : Json("");
    };
    const std::vector<TokenId>& stops = text.stop_ids();
    return json_reply({{"model_path", api.model_name()},  // clients do not see its path
                       {"model_alias", api.model_name()},
                       {"build_info", api.version()},
                       {"total_slots", 1},  // no slots: sequences share the memory
                       {"default_generation_settings",
                        {{"n_ctx", text.context_max},
                         {"params",
                          {{"temperature", advised.temperature},
                           {"top_k", advised.top_k},
                           {"top_p", advised.top_p},
                           {"min_p", advised.min_p},
                           {"repeat_penalty", advised.repetition_penalty},
                           {"n_predict", -1},
                           {"seed", -1}}}}},
                       {"bos_token", spelled(text.tokenizer.find("<bos>"))},
                       {"eos_token", spelled(stops.empty() ? std::nullopt : std::optional(stops.front()))},
                       {"modalities", {{"vision", text.vision.has_value()}, {"audio", text.audio.has_value()}}}});
  };
  const auto slots = [](const HttpRequest&) {
    return error_reply({.status = 501, .message = "there are no slots: /v1/outrider/status says what is at work"});
  };
  return {{"POST", "/completion", completion},
          {"POST", "/v1/chat/completions/input_tokens", count},
          {"POST", "/apply-template", [&api](const HttpRequest& http) { return api.apply_template(http); }},
          {"GET", "/props", props},
          {"GET", "/slots", slots}};
}

}  // namespace outrider
