#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "common/base/result.h"
#include "server/http_server.h"

// Lines of a batch as pure functions: OpenAI's line to a request of the HTTP API, and its reply to a line of the
// output. The result depends on the line and the model only, not on time or chance (docs/batch.md).

namespace outrider {

/// A line of the input.
struct BatchRequest {
  std::string custom_id;
  std::string url;      ///< an endpoint of the HTTP API: /v1/chat/completions or /v1/completions
  nlohmann::json body;  ///< an object
};

/// The reason that a line has no reply.
struct BatchError {
  std::string custom_id = {};  ///< if it could be read
  int status = 0;              ///< HTTP's; 0: nothing was sent
  std::string code = {}, message = {};
  nlohmann::json body = {};  ///< of HTTP's reply
};

/// @param only_url  required of all lines; empty: either
Result<BatchRequest, BatchError> parse_batch_line(std::string_view line, std::string_view only_url = {});

/// Returns 32 hexadecimal digits, a function of `custom_id` alone: a part of every id in the output.
std::string id_of(std::string_view custom_id);
/// Seed of a line without one, or with null: the low 63 bits of XXH3's 128 of its custom_id.
std::int64_t seed_of(std::string_view custom_id);
/// Returns the body to send: with a seed; a chat without a limit on its answer gets the server's default, so that its
/// length does not depend on the verifier's memory.
std::string body_to_send(BatchRequest request);

struct BatchTokens {
  std::int64_t prompt = 0, completion = 0, drafted = 0, accepted = 0, cached = 0, reasoning = 0;
  BatchTokens& operator+=(const BatchTokens& other);
};

/// A line of the output, without its newline.
struct BatchReply {
  std::string line;
  BatchTokens tokens;
};
/// Reads a reply with status 200. @return an error for a reply that is not a JSON object
Result<BatchReply, BatchError> settle_reply(const BatchRequest& request, const std::string& reply_body);
/// Reads a reply with another status.
BatchError error_of(const BatchRequest& request, const HttpReply& reply);
/// Returns a line of the errors, without its newline. @param line_number  of the input, from 1
std::string error_line(const BatchError& error, std::uint64_t line_number);

/// Equal for lines with equal prompt starts: the high half covers the first 128 bytes, the whole the first 1,024.
std::uint64_t prefix_key(const BatchRequest& request);

}  // namespace outrider
