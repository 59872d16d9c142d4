#include "server/api_error.h"

#include <nlohmann/json.hpp>

#include "common/base/json_fields.h"

namespace outrider {

std::string error_body(const ApiError& error) {
  const char* type = error.status >= 500   ? "server_error"
                     : error.status == 429 ? "rate_limit_error"
                     : error.status == 401 ? "authentication_error"
                                           : "invalid_request_error";
  nlohmann::json body = {{"message", error.message}, {"type", type}, {"param", nullptr}, {"code", nullptr}};
  if (!error.param.empty()) body["param"] = error.param;
  if (!error.code.empty()) body["code"] = error.code;
  return to_text({{"error", std::move(body)}});
}

}  // namespace outrider
