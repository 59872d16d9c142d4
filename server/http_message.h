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

#include "server/api_error.h"
#include "server/api_key.h"
#include "server/trace_context.h"

// Endpoints take and give these structs, for the HTTP server and for calls from within the process.

namespace outrider {

/// Bytes of memory that a byte of a body counts as until it has been read: the most that parsing and tokenising were
/// seen to take (docs/lab/server.md). Nobody tokenises a file in base64. The API that makes a chat of it, the parser
/// and the decoder copy it.
inline constexpr std::int64_t kBytesPerBodyByte = 48, kBytesPerFileByte = 8;

struct HttpRequest {
  std::string method, path;     ///< without the query
  std::string query = {};       ///< as it was sent, without its ?
  std::string id = {};          ///< the part of the path that the route's {id} stands for
  std::string request_id = {};  ///< as X-Request-Id of the reply says it; of a call from within the process empty
  std::string body;
  /// The client, as far as the server can know: "key NAME", where keys have names; else the address of the other end
  /// (of IPv6 its /64). A proxy on this machine names its client (the last address in X-Forwarded-For, which is the
  /// proxy's own word).
  std::string client;
  std::shared_ptr<const ApiKey> key;  ///< null where the server has none
  /// Whose is what this request leaves here, and whose it may see: `client`, where its key has a name. Empty: all
  /// others', who see each other's.
  std::string owner() const { return key != nullptr && !key->name().empty() ? client : ""; }
  TraceContext trace = {};  ///< the trace that it is in, where the server has some
  /// @return whether nobody waits for the reply any more: the client has gone, or the server ends. Any thread may ask,
  /// as long as the handler runs or its reply lives.
  std::function<bool()> gone = [] { return false; };
  /// @return whether the server ends, while the client still reads why. It works as long as anybody has it.
  std::function<bool()> server_ends = [] { return false; };
  /// Called once, if nothing is wrong with the request and it has its memory: from here on it is being answered.
  std::function<void()> admitted = [] {};
  /// Counts so many bytes of memory as the request's until its reply is out, instead of what its body was counted as
  /// (kBytesPerBodyByte): the body has been read, and this is what was made of it. May be called several times. Until
  /// its last copy is gone, the request has that memory, and counts as open.
  /// @return why there is no room for it.
  std::function<std::optional<ApiError>(std::int64_t bytes)> hold = [](std::int64_t) {
    return std::optional<ApiError>();
  };
};

struct HttpReply {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers = {};
  /// Instead of `body`: its next piece; an empty one for "not yet", within about 100 ms; nothing at the end, which
  /// comes soon after the server ends. Destroyed early when the client has gone. What it throws breaks the reply off.
  std::function<std::optional<std::string>()> next = {};
  /// Bytes of all the pieces, where that is known: with fewer the client sees that the reply breaks off.
  std::optional<std::uint64_t> length = {};
  /// It is the error that `body` tells in a reply of error_reply(); other APIs word it otherwise.
  std::optional<ApiError> error = {};
};

/// An error as a reply; where the same may be of use later, it says when (Retry-After).
HttpReply error_reply(const ApiError& error);

/// The text with each %XX as the byte that it stands for; a % before anything else stays.
std::string percent_decoded(std::string_view text);

/// A server-sent event with this data, which is one line.
std::string data_event(std::string_view data);
/// Calls on_data with the data of each of these server-sent events, which are whole.
void each_event(std::string_view events, const std::function<void(std::string_view data)>& on_data);

/// Answers a request.
using HttpHandler = std::function<HttpReply(const HttpRequest&)>;

/// The error of a request whose handling has thrown. The log alone says what: it may name this server's files.
ApiError internal_error(const HttpRequest& request, const std::exception& thrown);
/// The handler's reply; if it throws, an internal_error().
HttpReply answer_with(const HttpHandler& handler, const HttpRequest& request);

enum class Access {
  kKey,            ///< whoever has a key, where the server has some
  kKeyOrPassword,  ///< as kKey, and a browser is told to ask its user for it
  kAnybody,
};

/// HttpRoute::takes of a form with files.
inline constexpr std::string_view kFormType = "multipart/form-data";

/// One entry of the route table. Handlers run on many threads at once; what one throws is a 500.
struct HttpRoute {
  std::string method;  ///< GET (HEAD too), DELETE or POST
  std::string path;    ///< {id} stands for one part of it, as in /v1/files/{id}/content
  HttpHandler handler;
  Access access = Access::kKey;
  std::string takes = "application/json";  ///< the type of a POST's body; empty: any
};

}  // namespace outrider
