#include "server/media_fetcher.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "common/base/ascii.h"
#include "common/media/media_prompt.h"

namespace outrider {
namespace {

/// Returns the reason that a server's reply is no file, by its head.
std::optional<Error> no_file(const HttpAnswer& head) {
  if (head.status != 200) return Error(Errc::kNotFound, "answers with status {}", head.status);
  const std::string encoding = in_lower_case(head.header("content-encoding"));
  if (!encoding.empty() && encoding != "identity")
    return Error(Errc::kUnsupported, "sends it as {}, wanted it as it is", encoding);
  std::string type = in_lower_case(head.header("content-type"));
  type = type.substr(0, type.find_first_of("; "));
  const bool fits = type.empty() || type.starts_with("image/") || type.starts_with("audio/") ||
                    type.starts_with("video/") || type.ends_with("/octet-stream") || type == "application/ogg";
  if (fits) return std::nullopt;
  return Error(Errc::kUnsupported, "sends {}, wanted a picture, a sound or a video", type);
}

struct Domain {
  std::string host;  ///< in lower case; "*" any, "*.DOMAIN" any in it
  std::string port;  ///< empty: 80 and 443

  /// @param name  the URL's host, or one of its addresses
  bool holds(const HttpUrl& url, const std::string& name) const {
    const bool of_port = port.empty() ? url.port == kDefaultPorts[url.tls] : url.port == port;
    if (!of_port) return false;
    const std::optional<IpAddress> ours = parse_ip_address(host), theirs = parse_ip_address(name);
    if (ours && theirs) return *ours == *theirs;
    return host == name || host == "*" || (host.starts_with("*.") && name.ends_with(host.substr(1)));
  }
};

/// @return nothing if this address of the URL's host is allowed
Result<void> check_address(const std::vector<Domain>& domains, const HttpUrl& url, const std::string& text) {
  const std::optional<IpAddress> address = parse_ip_address(text);
  const auto names_it = [&](const Domain& domain) {
    return address && parse_ip_address(domain.host) == address && domain.holds(url, text);
  };
  if ((address && is_public(*address)) || std::ranges::any_of(domains, names_it)) return {};
  return Error{Errc::kInvalidArgument,
               "has an address that is not public: serve --allowed-media-domains would have to name that very address"};
}

}  // namespace

Result<FetchMedium> fetch_from(const std::vector<std::string>& domains, ResolveHost resolve) {
  std::vector<Domain> allowed;
  for (const std::string& domain : domains) {
    const std::optional<HostPort> split = split_host_port(domain);
    const std::size_t star = split ? split->host.rfind('*') : 0;
    if (!split || (star != std::string::npos && split->host != "*" && (star != 0 || !split->host.starts_with("*."))))
      return Error(Errc::kInvalidArgument,
                   "--allowed-media-domains has '{}', wanted HOST, *.DOMAIN or *, perhaps with :PORT", domain);
    allowed.push_back({split->host, split->port});
  }
  return FetchMedium([allowed, resolve = std::move(resolve)](
                         const std::string& url, const AdmitSound& admit, TimePoint deadline,
                         const Gone& gone) -> Result<std::string> {
    const auto addresses = [&](const HttpUrl& at) -> Result<std::vector<std::string>> {
      if (std::ranges::none_of(allowed, [&](const Domain& domain) { return domain.holds(at, at.host); }))
        return Error{Errc::kInvalidArgument,
                     "not allowed here: serve --allowed-media-domains would have to name " + at.server()};
      ASSIGN_OR_RETURN(std::vector<std::string> found, resolve(at.host, deadline, gone));
      for (const std::string& address : found) RETURN_IF_ERROR(check_address(allowed, at, address));
      return found;
    };
    const auto judge = [&](const HttpAnswer& head, std::int64_t length) -> Result<std::int64_t> {
      if (auto why = no_file(head)) return *why;
      const auto bytes_max = static_cast<std::int64_t>(kMediumBytesMax);
      RETURN_IF_ERROR(admit(length < 0 ? bytes_max : std::min(length, bytes_max)));
      return bytes_max;
    };
    ASSIGN_OR_RETURN(const HttpUrl at, parse_http_url(url));
    ASSIGN_OR_RETURN(HttpAnswer answer, follow_http({.url = at,
                                                     .addresses = {},
                                                     .headers = {{"User-Agent", "outrider"},
                                                                 {"Accept", "image/*, audio/*, video/*"},
                                                                 {"Accept-Encoding", "identity"}},
                                                     .deadline = deadline,
                                                     .gone = gone,
                                                     .admit = judge},
                                                    addresses));
    return std::move(answer.body);
  });
}

}  // namespace outrider
