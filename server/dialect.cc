#include "server/dialect.h"

#include <utility>

#include "common/base/json_fields.h"
#include "server/api_server.h"

namespace outrider {

ChatBackend chat_backend(ApiServer& api) {
  return {
      .chat = [&api](const HttpRequest& http, ApiResult<CompletionRequest> request,
                     const std::shared_ptr<ReplyWriter>& writer) { return api.chat(http, std::move(request), writer); },
      .count = [&api](const HttpRequest& http,
                      ApiResult<TokenizeRequest> prompt) { return api.count(http, std::move(prompt)); },
      .text_of =
          [&api](const std::vector<TokenId>& tokens) {
            return api.text().tokenizer.decode(tokens, /*skip_special=*/false);
          },
      .defaults = api.defaults()};
}

std::string named_event(const nlohmann::json& data) {
  return "event: " + data.at("type").get<std::string>() + "\n" + data_event(to_text(data));
}

}  // namespace outrider
