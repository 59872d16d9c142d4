#pragma once

#include <string>

namespace outrider {

/// Status of a request whose client has left: nginx's.
inline constexpr int kClientGone = 499;

/// An error in OpenAI's form. The `type` follows from the status.
struct ApiError {
  int status = 400;        ///< HTTP's
  std::string message;     ///< one line for the client's developer
  std::string param = "";  ///< the invalid field, such as "messages[2].role"; empty: null
  std::string code = "";   ///< for programs, such as "model_not_found"; empty: null
  int retry_after_s = 1;   ///< for 429 and 503: when to retry
};

/// {"error": {"message", "type", "param", "code"}}
std::string error_body(const ApiError& error);

}  // namespace outrider
