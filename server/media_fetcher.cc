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

}  // namespace

bool MediaFetcher::Domain::holds(const HttpUrl& url, const std::string& name) const {
  const bool of_port = port.empty() ? url.port == kDefaultPorts[url.tls] : url.port == port;
  if (!of_port) return false;
  const std::optional<IpAddress> ours = parse_ip_address(host), theirs = parse_ip_address(name);
  if (ours && theirs) return *ours == *theirs;
  return host == name || host == "*" || (host.starts_with("*.") && name.ends_with(host.substr(1)));
}

Result<MediaFetcher> MediaFetcher::create(const std::vector<std::string>& domains, Resolve resolve) {
  std::vector<Domain> read;
  for (const std::string& domain : domains) {
    const std::optional<HostPort> split = split_host_port(domain);
    const std::size_t star = split ? split->host.rfind('*') : 0;
    if (!split || (star != std::string::npos && split->host != "*" && (star != 0 || !split->host.starts_with("*."))))
      return Error(Errc::kInvalidArgument,
                   "--allowed-media-domains has '{}', wanted HOST, *.DOMAIN or *, perhaps with :PORT", domain);
    read.push_back({split->host, split->port});
  }
  return MediaFetcher(std::move(read), std::move(resolve));
}

Result<std::vector<std::string>> MediaFetcher::checked_addresses(const HttpUrl& url, TimePoint deadline,
                                                                 const Gone& gone) const {
  const auto allowed = [&](const std::string& name) {
    return std::ranges::any_of(domains_, [&](const Domain& domain) { return domain.holds(url, name); });
  };
  if (!allowed(url.host))
    return Error{Errc::kInvalidArgument,
                 "not allowed here: serve --allowed-media-domains would have to name " + url.server()};
  Result<std::vector<std::string>> addresses = resolve_(url.host, deadline, gone);
  if (!addresses) return addresses;
  for (const std::string& text : *addresses) {
    const std::optional<IpAddress> address = parse_ip_address(text);
    const auto names_it = [&](const Domain& domain) {
      return address && parse_ip_address(domain.host) == address && domain.holds(url, text);
    };
    if ((!address || !is_public(*address)) && std::ranges::none_of(domains_, names_it))
      return Error{Errc::kInvalidArgument,
                   "has an address that is not public: serve --allowed-media-domains would "
                   "have to name that very address"};
  }
  return addresses;
}

Result<std::string> MediaFetcher::fetch(const std::string& url, const std::function<Result<void>(std::int64_t)>& admit,
                                        TimePoint deadline, const Gone& gone) const {
  ASSIGN_OR_RETURN(const HttpUrl at, parse_http_url(url));
  const auto judge = [&](const HttpAnswer& head, std::int64_t length) -> Result<std::int64_t> {
    if (auto why = no_file(head)) return *why;
    const auto bytes_max = static_cast<std::int64_t>(kMediumBytesMax);
    RETURN_IF_ERROR(admit(length < 0 ? bytes_max : std::min(length, bytes_max)));
    return bytes_max;
  };
  ASSIGN_OR_RETURN(HttpAnswer answer,
                   follow_http({.url = at,
                                .addresses = {},
                                .headers = {{"User-Agent", "outrider"},
                                            {"Accept", "image/*, audio/*, video/*"},
                                            {"Accept-Encoding", "identity"}},
                                .deadline = deadline,
                                .gone = gone,
                                .admit = judge},
                               [&](const HttpUrl& place) { return checked_addresses(place, deadline, gone); }));
  return std::move(answer.body);
}

}  // namespace outrider
