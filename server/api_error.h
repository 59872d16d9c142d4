#pragma once

#include <string>

namespace outrider {

/// An error as OpenAI's API words it. The `type` follows from the status.
struct ApiError {
  int status = 400;        ///< of HTTP
  std::string message;     ///< one line for the person who wrote the client
  std::string param = "";  ///< the field that is wrong, as in "messages[2].role"; empty: null
  std::string code = "";   ///< what a program may branch on, as in "model_not_found"; empty: null
  int retry_after_s = 1;   ///< of 429 and 503: when to come back
};

/// {"error": {"message", "type", "param", "code"}}
std::string error_body(const ApiError& error);

}  // namespace outrider
