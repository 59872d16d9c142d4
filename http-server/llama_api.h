#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/tokenizer/tokenizer.h"
#include "http-server/api_server.h"
#include "http-server/dialect.h"

// llama.cpp's own endpoints, over those of OpenAI and vLLM: docs/http.md says which fields there are.

namespace outrider {

/// A request of /completion.
struct LlamaCompletion {
  nlohmann::json completion;                 ///< the body of the /v1/completions that is asked for
  nlohmann::json settings;                   ///< what was asked for, to be said again
  std::vector<std::string> response_fields;  ///< only these of the reply, as "a/b" of what is in an object; empty: all
  bool several = false;                      ///< a list of prompts: a list of answers
  bool return_tokens = false;
  std::size_t probs = 0;  ///< alternatives of each token; 0: no probabilities at all
};
/// @param stops  the model's own, which ignore_eos rules out
ApiResult<LlamaCompletion> parse_llama_completion(std::string_view body, const Tokenizer& tokenizer,
                                                  std::span<const TokenId> stops);

/// The reply's objects as they come: of a completion that is whole, or chunk by chunk.
class LlamaReply {
 public:
  /// @param tokenizer  outlives it
  LlamaReply(const LlamaCompletion& request, const Tokenizer& tokenizer) : request_(request), tokenizer_(tokenizer) {}
  /// @param completion  a text_completion
  nlohmann::json whole(const nlohmann::json& completion);
  /// @return an object for each choice that says something
  std::vector<nlohmann::json> chunk(const nlohmann::json& chunk);
  /// The last of each choice.
  std::vector<nlohmann::json> last() const;

 private:
  struct Choice {
    std::string text;
    std::size_t tokens = 0;
    std::vector<TokenId> prompt = {};
    nlohmann::json finish_reason = {}, stop_reason = {};
  };
  /// What both say of a choice's tokens.
  nlohmann::json said(const nlohmann::json& choice) const;
  nlohmann::json closing(std::size_t index) const;
  nlohmann::json probabilities(const nlohmann::json& logprobs) const;
  nlohmann::json scored(const std::string& name, const nlohmann::json& logprob) const;
  void take(const nlohmann::json& choice);

  const LlamaCompletion request_;
  const Tokenizer& tokenizer_;
  std::vector<Choice> choices_;
  nlohmann::json timings_, model_;
};

/// /completion, /props, /slots, /apply-template and the count of a chat's tokens.
/// @param api  outlives the routes. @param model_path  what /props says of the model
std::vector<HttpRoute> llama_routes(ApiServer& api, std::string model_path);

}  // namespace outrider
