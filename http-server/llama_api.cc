#include "http-server/llama_api.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "common/base/json_fields.h"
#include "common/base/text.h"
#include "http-server/dialect.h"
#include "http-server/openai.h"
#include "http-server/refused_fields.h"

namespace outrider {
namespace {
using Json = nlohmann::json;

constexpr std::string_view kTokenName = "token_id:";  ///< return_tokens_as_token_ids

bool is_mixed(const Json& list) {
  return std::ranges::any_of(list, &Json::is_number) && std::ranges::any_of(list, &Json::is_string);
}

/// A prompt as /v1/completions takes it; null: it is none.
Json prompt_of(const Json& prompt, const Tokenizer& tokenizer) {
  if (prompt.is_object()) return member(prompt, "multimodal_data").is_null() ? member(prompt, "prompt_string") : Json();
  if (!prompt.is_array() || !is_mixed(prompt)) return prompt;
  Json tokens = Json::array();
  for (const Json& part : prompt) {
    if (!part.is_string()) {
      tokens.push_back(part);
      continue;
    }
    for (const TokenId token : tokenizer.encode(part.get_ref<const std::string&>())) tokens.push_back(token);
  }
  return tokens;
}

/// logit_bias by token: pairs of a token or a text with a bias, or an object whose keys are either. `false` is never.
/// @return null: it is something else
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
  bool fine = given.is_array() || given.is_object();
  if (given.is_object())
    for (const auto& [key, bias] : given.items()) fine = fine && add(key, bias);
  if (given.is_array())
    for (const Json& pair : given) fine = fine && pair.is_array() && pair.size() == 2 && add(pair[0], pair[1]);
  return fine ? biases : Json();
}

/// Takes a field out of a body.
Json take(Json& body, const char* key) {
  Json value = member(body, key);
  body.erase(key);
  return value;
}

/// Only the wanted fields of a reply's object, by their names.
Json pick(const Json& object, const std::vector<std::string>& names) {
  if (names.empty()) return object;
  Json picked = Json::object();
  for (const std::string& name : names) {
    const Json* value = &object;
    for (std::size_t begin = 0; begin <= name.size() && value->is_object();) {
      const std::size_t end = std::min(name.find('/', begin), name.size());
      value = &member(*value, name.substr(begin, end - begin).c_str());
      begin = end + 1;
    }
    if (!value->is_null()) picked[name] = *value;
  }
  return picked;
}

/// A request of /completion.
struct LlamaCompletion {
  Json completion;                           ///< the body of the /v1/completions that is asked for
  Json settings;                             ///< what was asked for, to be said again
  std::vector<std::string> response_fields;  ///< only these of the reply, as "a/b" of what is in an object; empty: all
  bool several = false;                      ///< a list of prompts: a list of answers
  bool return_tokens = false;
  std::size_t probs = 0;  ///< alternatives of each token; 0: no probabilities at all
};
/// @param stops  the model's own, which ignore_eos rules out
ApiResult<LlamaCompletion> parse_llama_completion(std::string_view body, const Tokenizer& tokenizer,
                                                  std::span<const TokenId> stops) {
  ASSIGN_OR_RETURN(Json json, parse_object(body));
  LlamaCompletion request;
  request.settings = json;
  request.settings.erase("prompt");
  if (!json.contains("n_predict")) json["n_predict"] = json.contains("max_tokens") ? json["max_tokens"] : Json(-1);
  request.settings["n_predict"] = json["n_predict"];
  for (const auto& [name, neutral] : foreign_samplers()) request.settings[name] = neutral;
  if (!request.settings.contains("logit_bias")) request.settings["logit_bias"] = Json::array();
  if (member(json, "ignore_eos") == true && request.settings["logit_bias"].is_array())
    for (const TokenId stop : stops) request.settings["logit_bias"].push_back({{"token", stop}, {"bias", nullptr}});
  if (!request.settings.contains("adaptive_decay")) request.settings["adaptive_decay"] = nullptr;  // nothing decays
  const Json probs = take(json, "n_probs");
  if (!probs.is_null() && (!probs.is_number_integer() || probs < 0 || probs > kLogprobsMax))
    return ApiError{.message = fmt::format("n_probs is {}, wanted 0 to {}", show(probs), kLogprobsMax),
                    .param = "n_probs"};
  request.probs = probs.is_null() ? 0 : probs.get<std::size_t>();
  if (request.probs > 0) json["logprobs"] = request.probs;
  request.return_tokens = take(json, "return_tokens") == true;
  for (const Json& name : take(json, "response_fields"))
    if (name.is_string()) request.response_fields.push_back(name.get<std::string>());
  if (const Json& heat = member(json, "temperature"); heat.is_number() && heat < 0) json["temperature"] = 0;
  if (const Json given = take(json, "logit_bias"); !given.is_null()) {
    json["logit_bias"] = biases_of(given, tokenizer);
    if (json["logit_bias"].is_null())
      return ApiError{
          .message = fmt::format("logit_bias is {}, wanted pairs of a token or text and its bias", show(given)),
          .param = "logit_bias"};
  }
  if (json.contains("n_cmpl")) json["n"] = take(json, "n_cmpl");
  const Json prompt = take(json, "prompt");
  const bool list = prompt.is_array() && !prompt.empty() && !is_mixed(prompt) && !prompt.front().is_number();
  Json prompts = Json::array();
  for (const Json& one : list ? prompt : Json::array({prompt})) prompts.push_back(prompt_of(one, tokenizer));
  json["prompt"] = list ? std::move(prompts) : std::move(prompts.front());
  request.several = list || (json.contains("n") && json["n"] != 1);
  // What the reply's objects are made of.
  json["return_token_ids"] = json["return_tokens_as_token_ids"] = true;
  if (member(json, "stream") == true) json["stream_options"] = {{"include_usage", true}};
  request.completion = std::move(json);
  return request;
}

/// The reply's objects as they come: of a completion that is whole, or chunk by chunk.
class LlamaReply final : public StreamTranslator {
 public:
  /// @param tokenizer  outlives it
  LlamaReply(LlamaCompletion request, const Tokenizer& tokenizer)
      : request_(std::move(request)), tokenizer_(tokenizer) {}

  /// @param completion  a text_completion
  Json whole(const Json& completion) {
    model_ = member(completion, "model");
    timings_ = member(completion, "timings");
    Json list = Json::array();
    for (const Json& choice : member(completion, "choices")) {
      take(choice);
      Json object = closing(choices_.size() - 1);
      object.update(said(choice));
      object["tokens"] = request_.return_tokens ? member(choice, "token_ids") : Json::array();
      list.push_back(pick(object, request_.response_fields));
    }
    return request_.several ? list : list.at(0);
  }
  /// An object for each choice that says something.
  std::string chunk(const Json& chunk) override {
    model_ = member(chunk, "model");
    if (const Json& timings = member(chunk, "timings"); timings.is_object()) timings_ = timings;
    std::string events;
    for (const Json& choice : member(chunk, "choices")) {
      take(choice);
      // A beginning, or an end.
      if (choice.value("text", "").empty() &&
          (member(choice, "token_ids").empty() || !member(choice, "finish_reason").is_null()))
        continue;
      Json object = said(choice);
      const Choice& known = choices_[member(choice, "index").get<std::size_t>()];
      object.update({{"stop", false},
                     {"tokens", member(choice, "token_ids")},
                     {"tokens_predicted", known.tokens},
                     {"tokens_evaluated", known.prompt.size()}});
      if (const Json& timings = member(chunk, "timings"); timings.is_object()) object["timings"] = timings;
      events += event(object);
    }
    return events;
  }
  /// The last of each choice.
  std::string end(const Json& error) override {
    if (!error.is_null()) return event({{"error", error}});
    std::string events;
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      Json object = closing(i);
      object.update({{"content", ""}, {"tokens", Json::array()}});
      events += event(pick(object, request_.response_fields));
    }
    return events;
  }

 private:
  struct Choice {
    std::string text;
    std::size_t tokens = 0;
    std::vector<TokenId> prompt = {};
    Json finish_reason = {}, stop_reason = {};
  };
  static std::string event(const Json& object) { return "data: " + to_text(object) + "\n\n"; }
  /// What both say of a choice's tokens.
  Json said(const Json& choice) const {
    Json object = {{"index", member(choice, "index")}, {"content", member(choice, "text")}, {"id_slot", -1}};
    if (request_.probs > 0) object["completion_probabilities"] = probabilities(member(choice, "logprobs"));
    return object;
  }
  Json closing(std::size_t index) const {
    const Choice& choice = choices_[index];
    const bool word = choice.stop_reason.is_string();
    Json object = {{"index", index},
                   {"id_slot", -1},
                   {"stop", true},
                   {"model", model_},
                   {"tokens_predicted", choice.tokens},
                   {"tokens_evaluated", choice.prompt.size()},
                   {"tokens_cached", choice.prompt.size() + choice.tokens},
                   {"generation_settings", request_.settings},
                   {"prompt", tokenizer_.decode(choice.prompt, /*skip_special=*/false)},
                   {"has_new_line", choice.text.find('\n') != std::string::npos},
                   {"truncated", false},
                   {"stop_type", choice.finish_reason == "length" ? "limit"
                                 : word                           ? "word"
                                                                  : "eos"},
                   {"stopping_word", word ? choice.stop_reason : Json("")}};
    if (!timings_.is_null()) object["timings"] = timings_;
    return object;
  }
  Json probabilities(const Json& logprobs) const {
    Json list = Json::array();
    const Json& tokens = member(logprobs, "tokens");
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      Json entry = scored(tokens[i].get<std::string>(), logprobs["token_logprobs"][i]);
      std::vector<std::pair<double, std::string>> top;
      for (const auto& [name, logprob] : logprobs["top_logprobs"][i].items())
        top.emplace_back(-logprob.get<double>(), name);
      std::ranges::sort(top);  // the chosen one is there too, perhaps beyond the most probable
      Json& others = entry["top_logprobs"] = Json::array();
      for (std::size_t k = 0; k < std::min(top.size(), request_.probs); ++k)
        others.push_back(scored(top[k].second, -top[k].first));
      list.push_back(std::move(entry));
    }
    return list;
  }
  Json scored(const std::string& name, const Json& logprob) const {
    const TokenId id =
        to_number<TokenId>(std::string_view(name).substr(std::min(kTokenName.size(), name.size()))).value_or(0);
    const std::string text = token_bytes(tokenizer_, id);
    Json bytes = Json::array();
    for (const char byte : text) bytes.push_back(static_cast<unsigned char>(byte));
    return {{"id", id}, {"token", text}, {"bytes", std::move(bytes)}, {"logprob", logprob}};
  }
  void take(const Json& choice) {
    const auto index = member(choice, "index").get<std::size_t>();
    if (index >= choices_.size()) choices_.resize(index + 1);
    Choice& known = choices_[index];
    known.text += choice.value("text", "");
    if (const Json& ids = member(choice, "prompt_token_ids"); ids.is_array())
      known.prompt = ids.get<std::vector<TokenId>>();
    known.tokens += member(choice, "token_ids").size();
    if (const Json& reason = member(choice, "finish_reason"); !reason.is_null()) {
      known.finish_reason = reason;
      known.stop_reason = member(choice, "stop_reason");
    }
  }

  const LlamaCompletion request_;
  const Tokenizer& tokenizer_;
  std::vector<Choice> choices_;
  Json timings_, model_;
};

}  // namespace

std::vector<HttpRoute> llama_routes(ApiServer& api, std::string model_path) {
  const auto completion = [&api](const HttpRequest& asked) {
    const Tokenizer& tokenizer = api.text().tokenizer;
    const ApiResult<LlamaCompletion> request = parse_llama_completion(asked.body, tokenizer, api.text().stop_ids());
    if (!request) return error_reply(request.error());
    HttpRequest http = asked;
    http.body = to_text(request->completion);
    HttpReply reply = api.completion(http);
    if (reply.status != 200) return reply;
    if (reply.next) return translated(std::move(reply), std::make_shared<LlamaReply>(*request, tokenizer));
    reply.body = to_text(LlamaReply(*request, tokenizer).whole(Json::parse(reply.body)));
    return reply;
  };
  const auto count = [&api](const HttpRequest& http) {
    HttpReply reply = api.tokenize(http);
    if (reply.status == 200) reply.body = to_text({{"input_tokens", Json::parse(reply.body).at("count")}});
    return reply;
  };
  const auto props = [&api, model_path = std::move(model_path)](const HttpRequest&) {
    const TextSide& text = api.text();
    const SamplingParams advised = text.advised();
    const auto spelled = [&](std::optional<TokenId> id) {
      return id ? Json(text.tokenizer.token_text(*id)) : Json("");
    };
    const std::vector<TokenId>& stops = text.stop_ids();
    return HttpReply{
        .status = 200,
        .body = to_text({{"model_path", model_path},
                         {"model_alias", api.model_name()},
                         {"build_info", api.version()},
                         {"total_slots", 1},  // there are none: texts share what memory there is
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
                         {"modalities", {{"vision", text.vision.has_value()}, {"audio", text.audio.has_value()}}}})};
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
