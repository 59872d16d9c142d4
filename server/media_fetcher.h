#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/base/time.h"
#include "common/http/http_client.h"
#include "server/api_server.h"

namespace outrider {

/// The signature of addresses_of().
using ResolveHost = std::function<Result<std::vector<std::string>>(const std::string& host, TimePoint, const Gone&)>;

/// Returns a function that fetches files from http(s) URLs in requests, from servers allowed by the operator, and never
/// from addresses that only this machine can reach: a name is resolved once, each of its addresses is checked, and the
/// connection goes to one of these (docs/http.md, "Media from URLs"). Any thread, many concurrently. Its errors have
/// the server's name: kInvalidArgument if it is not allowed, call_http()'s error, or that of `admit`, which is called
/// before the body is read, with an upper bound of its bytes.
/// @param domains  HOST[:PORT], *.DOMAIN[:PORT], or * for any; without a PORT 80 and 443. A numeric address may be a
/// private one. @return kInvalidArgument for an entry in another form
Result<FetchMedium> fetch_from(const std::vector<std::string>& domains, ResolveHost resolve = addresses_of);

}  // namespace outrider
