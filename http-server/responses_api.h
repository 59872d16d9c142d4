#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "http-server/dialect.h"
#include "http-server/openai.h"

// OpenAI's Responses API: text, functions, thoughts, streams, conversations that the server remembers.

namespace outrider {

/// Responses and the conversations that they end, the newest of them; bounded. Any thread.
class ResponseStore {
 public:
  static constexpr std::size_t kCountMax = 1024, kBytesMax = 32 << 20;

  /// @param owner  only who says the same finds it
  void put(const std::string& id, const std::string& owner, const nlohmann::json& kept);
  /// @return null if there is none (any more).
  nlohmann::json get(const std::string& id, const std::string& owner) const;

 private:
  struct Entry {
    std::string owner, kept;  ///< as text: a tree takes ten times as much
  };
  mutable std::mutex mutex_;
  std::map<std::string, Entry> entries_;
  std::deque<std::string> oldest_first_;
  std::size_t bytes_ = 0;
};

/// A request as a chat completion's.
struct ResponsesRequest {
  nlohmann::json chat;     ///< the body of that
  nlohmann::json request;  ///< as it came, without its input
};
/// @param before  messages of the conversation that it goes on with
ApiResult<ResponsesRequest> chat_of_responses(nlohmann::json request, nlohmann::json before);
/// @param chat  a chat.completion. @return the response object.
nlohmann::json response_of_chat(const nlohmann::json& request, const std::string& id, const nlohmann::json& chat);

/// The routes of /v1/responses.
/// @param chat  the route of /v1/chat/completions
std::vector<HttpRoute> responses_routes(HttpHandler chat);

}  // namespace outrider
