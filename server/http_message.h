#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "server/api_error.h"
#include "server/api_key.h"
#include "server/trace_context.h"

// Messages of endpoints, for the HTTP server and for calls within the process.

namespace outrider {

/// Memory that a byte of a body counts as until it has been read: the peak of parsing and tokenising
/// (docs/lab/server.md). Base64 files are not tokenised, but copied by the API, the parser and the decoder.
inline constexpr std::int64_t kBytesPerBodyByte = 48, kBytesPerFileByte = 8;

/// Prefix of a key's name in the name of its client. No address begins so.
inline constexpr std::string_view kKeyClient = "key ";

struct HttpRequest {
  std::string method, path;     ///< without the query
  std::string query = {};       ///< as sent, without its ?
  std::string id = {};          ///< the part of the path for the route's {id} or *
  std::string request_id = {};  ///< the reply's X-Request-Id; empty for a call within the process
  std::string body;
  /// The client, as far as known: "key NAME" if keys have names; else the address of the other end (for IPv6 its /64).
  /// A proxy on this machine names its client (the last address in X-Forwarded-For, which the proxy itself has added).
  std::string client;
  std::shared_ptr<const ApiKey> key;  ///< null if the server has none
  /// Owner of stored results of this request: `client`, if its key has a name. Empty: shared by all other clients.
  std::string owner() const { return key != nullptr && !key->name().empty() ? client : ""; }
  TraceContext trace = {};  ///< its trace, if the server has traces
  /// @return true when the reply is not awaited any more: the client has left, or the server ends. Any thread, while
  /// the handler runs or its reply exists
  std::function<bool()> gone = [] { return false; };
  /// @return true when the server ends, while the client can still read the reason. Valid for as long as a copy exists
  std::function<bool()> server_ends = [] { return false; };
  /// Called once, after the request was found valid and has its memory: it is now being answered.
  std::function<void()> admitted = [] {};
  /// Reserves memory for the request until its reply is sent, in place of its body's (kBytesPerBodyByte): the body has
  /// been read, and this is the result's. May be called several times. Until its last copy is destroyed, the request
  /// keeps the memory, and counts as open. @return an error if there is no room
  std::function<std::optional<ApiError>(std::int64_t bytes)> reserve = [](std::int64_t) {
    return std::optional<ApiError>();
  };
};

struct HttpReply {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers = {};
  /// Instead of `body`: returns its next piece; an empty one for "not yet", within about 100 ms; none at the end, which
  /// comes soon after the server ends. Destroyed early when the client has left. An exception breaks the reply off.
  std::function<std::optional<std::string>()> next = {};
  /// Total bytes of the pieces, if known: with fewer the client detects a truncated reply.
  std::optional<std::uint64_t> length = {};
  /// The error in `body` of an error_reply(), in OpenAI's form unless the route has another.
  std::optional<ApiError> error = {};
};

/// Makes a reply with status 200.
HttpReply json_reply(const nlohmann::json& json);
/// Makes an error reply, with Retry-After if a retry may succeed.
HttpReply error_reply(const ApiError& error);

/// Decodes each %XX; a % before anything else stays.
std::string percent_decoded(std::string_view text);

/// Makes a server-sent event with this one-line data.
std::string data_event(std::string_view data);
/// The same with the data's `type` as its name.
std::string named_event(const nlohmann::json& data);
/// Calls on_data with the data of each of these complete server-sent events.
void each_event(std::string_view events, const std::function<void(std::string_view data)>& on_data);

/// Answers a request.
using HttpHandler = std::function<HttpReply(const HttpRequest&)>;

/// Logs an exception of a request's handler. @return the client's error, without the text, which may name files here
ApiError internal_error(std::string_view request_id, std::string_view path, const std::exception& thrown);
/// The handler's reply; if it throws, an internal_error().
HttpReply answer_with(const HttpHandler& handler, const HttpRequest& request);

enum class Access {
  kKey,            ///< any valid key, if the server has some
  kKeyOrPassword,  ///< as kKey, and makes browsers ask their user for it
  kAnybody,
};

/// HttpRoute::takes of a form with files.
inline constexpr std::string_view kFormType = "multipart/form-data";

/// One entry of the route table. Handlers run on many threads at once; what one throws is a 500.
struct HttpRoute {
  std::string method;  ///< GET (also HEAD), DELETE or POST
  std::string path;    ///< {id} stands for one part, as in /v1/files/{id}/content; * at its end for the rest
  HttpHandler handler;
  Access access = Access::kKey;
  /// Content type of a POST's body. Empty: it needs none; such a request creates nothing, and does not count
  /// against its key's limits.
  std::string takes = "application/json";
  /// Makes the body of the route's errors, including the server's own; empty: error_body().
  std::function<std::string(const ApiError&)> error_form = {};
};

}  // namespace outrider
