// The part of ApiServer that counts and converts tokens: /tokenize, /detokenize and their kind.
#include <utility>

#include <nlohmann/json.hpp>

#include "common/base/utf8.h"
#include "server/api_server.h"
#include "server/choice_reader.h"

namespace outrider {
namespace {
using Json = nlohmann::json;

/// Memory of a token's text or bytes in a reply of /tokenize.
constexpr std::int64_t kBytesPerPiece = 400;

}  // namespace

ApiResult<ApiServer::RenderedPrompt> ApiServer::prompt_of(const HttpRequest& http,
                                                          ApiResult<TokenizeRequest> asked) const {
  ASSIGN_OR_RETURN(TokenizeRequest request, std::move(asked));
  if (auto refused = count_body(http, request.source, request.media)) return *refused;
  RenderedPrompt prompt{.tokens = {}, .media = {}, .form = request.form};
  if (const auto* text = std::get_if<std::string>(&request.text)) {
    prompt.tokens = text_.tokenizer.encode(*text, request.parse_special);
    if (request.add_special_tokens) prompt.tokens = with_bos(text_.tokenizer, std::move(prompt.tokens));
    return prompt;
  }
  ASSIGN_OR_RETURN(prompt.tokens, perceive(http, request.source, std::move(request.media),
                                           std::get<Conversation>(request.text), prompt.media));
  return prompt;
}

ApiResult<std::int64_t> ApiServer::count(const HttpRequest& http, ApiResult<TokenizeRequest> request) const {
  ASSIGN_OR_RETURN(const RenderedPrompt prompt, prompt_of(http, std::move(request)));
  spend(http.key, std::ssize(prompt.tokens));
  return std::ssize(prompt.tokens);
}

HttpReply ApiServer::tokenize(const HttpRequest& http) const {
  const ApiResult<RenderedPrompt> prompt = prompt_of(http, parse_tokenize(http.body, defaults_));
  if (!prompt) return error_reply(prompt.error());
  const auto& [tokens, media, form] = *prompt;
  if (form.pieces || form.token_strings)
    if (const auto refused = http.reserve(std::ssize(tokens) * kBytesPerPiece)) return error_reply(*refused);
  spend(http.key, std::ssize(tokens));
  if (form.of_llama) {
    Json pieces = Json::array();
    for (std::size_t i = 0; form.pieces && i < tokens.size(); ++i) {
      const std::string piece = token_bytes(text_.tokenizer, tokens[i]);
      // A partial character is given as bytes.
      pieces.push_back(
          {{"id", tokens[i]},
           {"piece", is_utf8(piece) ? Json(piece) : Json(std::vector<std::uint8_t>(piece.begin(), piece.end()))}});
    }
    return json_reply({{"tokens", form.pieces ? std::move(pieces) : Json(tokens)}});
  }
  Json strings;
  if (form.token_strings) {
    strings = Json::array();
    for (const TokenId token : tokens) strings.push_back(text_.tokenizer.token_text(token));
  }
  return json_reply(
      {{"count", tokens.size()}, {"max_model_len", text_.context_max}, {"tokens", tokens}, {"token_strs", strings}});
}

HttpReply ApiServer::detokenize(const HttpRequest& http) const {
  const ApiResult<DetokenizeRequest> request = parse_detokenize(http.body, defaults_);
  if (!request) return error_reply(request.error());
  const std::string text = text_.tokenizer.decode(request->tokens, /*skip_special=*/false);
  Json reply = {{"prompt", text}};
  if (!request->of_vllm) reply["content"] = text;  // llama.cpp's name for it
  return json_reply(reply);
}

HttpReply ApiServer::tokenizer_info() const {
  const auto spelled = [&](const char* token) { return text_.tokenizer.find(token) ? Json(token) : Json(); };
  const std::vector<TokenId>& stops = text_.stop_ids();
  return json_reply({{"tokenizer_class", "GemmaTokenizer"},  // the class that computes it in transformers
                     {"model_max_length", text_.context_max},
                     {"vocab_size", text_.vocab_size},
                     {"add_bos_token", true},
                     {"bos_token", spelled("<bos>")},
                     {"eos_token", stops.empty() ? Json() : Json(text_.tokenizer.token_text(stops.front()))},
                     {"pad_token", spelled("<pad>")},
                     {"unk_token", spelled("<unk>")}});
}

HttpReply ApiServer::apply_template(const HttpRequest& http) const {
  const ApiResult<TokenizeRequest> parsed = parse_tokenize(http.body, defaults_);
  if (!parsed) return error_reply(parsed.error());
  const auto* conversation = std::get_if<Conversation>(&parsed->text);
  if (conversation == nullptr) return error_reply({.message = "messages is missing", .param = "messages"});
  if (const auto refused = count_body(http, parsed->source, parsed->media)) return error_reply(*refused);
  const ApiResult<std::vector<TokenId>> rendered = render(parsed->source, *conversation);
  if (!rendered) return error_reply(rendered.error());
  spend(http.key, std::ssize(*rendered));
  return json_reply({{"prompt", text_.tokenizer.decode(*rendered, /*skip_special=*/false)}});
}

}  // namespace outrider
