#include "http-server/media_fetcher.h"

#include <arpa/inet.h>

#include <algorithm>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "common/base/ascii.h"
#include "common/base/text.h"
#include "common/media_prompt/media_prompt.h"

namespace outrider {
namespace {

/// Addresses that begin with the same bits.
struct Prefix {
  IpAddress bytes;
  int bits;

  bool holds(const IpAddress& address) const {
    for (int bit = 0; bit < bits; bit += 8) {
      const auto at = static_cast<std::size_t>(bit / 8);
      const int differs = address[at] ^ bytes[at];
      if ((differs >> std::max(0, bit + 8 - bits)) != 0) return false;
    }
    return true;
  }
};

constexpr Prefix v4(std::uint8_t a, std::uint8_t b, std::uint8_t c, int bits) {
  return {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, 0}, 96 + bits};
}

constexpr Prefix kMapped = v4(0, 0, 0, 0);                 // ::ffff:0:0
constexpr Prefix kNat64 = {{0x00, 0x64, 0xff, 0x9b}, 96};  // 64:ff9b::, by which IPv6 reaches IPv4
constexpr Prefix kGlobal = {{0x20}, 3};                    // 2000::, of which
constexpr auto kGlobalForOthers = std::to_array<Prefix>({
    {{0x20, 0x01, 0x00, 0x00}, 23},  // protocols, Teredo among them
    {{0x20, 0x01, 0x0d, 0xb8}, 32},
    {{0x3f, 0xff, 0x00}, 20},  // documentation
    {{0x20, 0x02}, 16},        // 6to4
});
constexpr auto kNotPublic = std::to_array<Prefix>({
    v4(0, 0, 0, 8), v4(127, 0, 0, 8),                              // this host
    v4(10, 0, 0, 8), v4(172, 16, 0, 12), v4(192, 168, 0, 16),      // private
    v4(100, 64, 0, 10),                                            // providers'
    v4(169, 254, 0, 16),                                           // this link, where clouds tell a machine its secrets
    v4(192, 0, 0, 24), v4(198, 18, 0, 15), v4(192, 88, 99, 24),    // protocols, benchmarks, 6to4
    v4(192, 0, 2, 24), v4(198, 51, 100, 24), v4(203, 0, 113, 24),  // documentation
    v4(224, 0, 0, 4), v4(240, 0, 0, 4),                            // multicast; reserved, and broadcast
});

bool any_holds(std::span<const Prefix> prefixes, const IpAddress& address) {
  return std::ranges::any_of(prefixes, [&](const Prefix& prefix) { return prefix.holds(address); });
}

constexpr std::size_t kUrlBytesMax = 8 << 10;

/// HOST[:PORT], with brackets around an IPv6 address.
struct HostPort {
  std::string host, port;  ///< in lower case; perhaps empty
};
std::optional<HostPort> split_host_port(std::string_view text) {
  HostPort split;
  std::string_view rest;
  if (text.starts_with('[')) {
    const std::size_t end = std::min(text.find(']'), text.size() - 1);
    split.host = in_lower_case(text.substr(1, end - 1));
    rest = text.substr(end + 1);
    if (text[end] != ']' || !parse_ip_address(split.host) || split.host.find(':') == split.host.npos)
      return std::nullopt;
  } else {
    const std::size_t end = std::min(text.find(':'), text.size());
    split.host = in_lower_case(text.substr(0, end));
    rest = text.substr(end);
    if (split.host.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-_.*") != split.host.npos ||
        split.host.empty() || split.host.size() > 253)
      return std::nullopt;
  }
  if (rest.empty()) return split;
  const std::uint16_t port = to_number<std::uint16_t>(rest.substr(1)).value_or(0);
  if (rest[0] != ':' || port == 0) return std::nullopt;
  split.port = std::to_string(port);
  return split;
}

/// What the URL of a redirection means, seen from where it came.
std::string absolute(const HttpUrl& from, const std::string& location) {
  const std::size_t scheme = location.find_first_of(":/?#");
  if (scheme != location.npos && location[scheme] == ':') return location;
  const std::string protocol = from.tls ? "https:" : "http:", origin = protocol + "//" + from.server();
  if (location.starts_with("//")) return protocol + location;
  if (location.starts_with('/')) return origin + location;
  const std::string path = from.target.substr(0, from.target.find('?'));
  return origin + path.substr(0, path.rfind('/') + 1) + location;
}

/// @return the value of the first header of this name, empty if there is none.
std::string header(const HttpReply& reply, std::string_view name) {
  const auto found = std::ranges::find(reply.headers, name, &std::pair<std::string, std::string>::first);
  return found == reply.headers.end() ? "" : found->second;
}

bool is_redirection(const HttpReply& reply) {
  static constexpr int kStatuses[] = {301, 302, 303, 307, 308};
  return std::ranges::find(kStatuses, reply.status) != std::end(kStatuses);
}

/// Why what a server sends, as far as the head of its reply says, is no file.
std::optional<Error> no_file(const HttpReply& head) {
  if (head.status != 200) return Error(Errc::kNotFound, "answers with status {}", head.status);
  const std::string encoding = in_lower_case(header(head, "content-encoding"));
  if (!encoding.empty() && encoding != "identity")
    return Error(Errc::kUnsupported, "sends it as {}, wanted it as it is", encoding);
  std::string type = in_lower_case(header(head, "content-type"));
  type = type.substr(0, type.find_first_of("; "));
  const bool fits = type.empty() || type.starts_with("image/") || type.starts_with("audio/") ||
                    type.starts_with("video/") || type.ends_with("/octet-stream") || type == "application/ogg";
  if (fits) return std::nullopt;
  return Error(Errc::kUnsupported, "sends {}, wanted a picture, a sound or a video", type);
}

}  // namespace

std::optional<IpAddress> parse_ip_address(const std::string& text) {
  IpAddress address = kMapped.bytes;
  if (inet_pton(AF_INET, text.c_str(), address.data() + 12) == 1) return address;
  if (inet_pton(AF_INET6, text.c_str(), address.data()) == 1) return address;
  return std::nullopt;
}

bool is_public(const IpAddress& address) {
  if (kMapped.holds(address)) return !any_holds(kNotPublic, address);
  if (kNat64.holds(address)) {
    IpAddress of_v4 = kMapped.bytes;
    std::copy(address.begin() + 12, address.end(), of_v4.begin() + 12);
    return is_public(of_v4);
  }
  return kGlobal.holds(address) && !any_holds(kGlobalForOthers, address);
}

Result<HttpUrl> parse_http_url(std::string_view url) {
  const Error wrong{Errc::kMalformed, "is not a URL like https://HOST/PATH"};
  if (url.size() > kUrlBytesMax)
    return Error(Errc::kMalformed, "is a URL of {} bytes, wanted at most {}", url.size(), kUrlBytesMax);
  if (!std::ranges::all_of(url, [](char c) { return c > 0x20 && c < 0x7f && c != '\\'; })) return wrong;
  const std::size_t scheme = url.find("://");
  const std::string name = in_lower_case(url.substr(0, std::min(scheme, url.size())));
  if (scheme == url.npos || (name != "http" && name != "https")) return wrong;
  url.remove_prefix(scheme + 3);
  const std::size_t path = std::min(url.find_first_of("/?#"), url.size());
  const std::optional<HostPort> host = split_host_port(url.substr(0, path));
  if (!host || host->host.find('*') != std::string::npos) return wrong;
  HttpUrl read{.tls = name == "https", .host = host->host, .port = host->port, .target = "/"};
  if (read.port.empty()) read.port = kDefaultPorts[read.tls];
  const std::string_view target = url.substr(path, url.find('#') - path);
  read.target = target.starts_with('/') ? std::string(target) : "/" + std::string(target);
  return read;
}

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
  ASSIGN_OR_RETURN(HttpUrl at, parse_http_url(url));
  for (int redirections = 0;; ++redirections) {
    const auto named = [&](const Error& error) { return Error{error.code, at.server() + ": " + error.message}; };
    Result<std::vector<std::string>> addresses = checked_addresses(at, deadline, gone);
    if (!addresses) return named(addresses.error());
    const auto judge = [&](const HttpReply& head, std::int64_t length) -> Result<std::int64_t> {
      if (is_redirection(head)) return 0;
      if (auto why = no_file(head)) return *why;
      const auto bytes_max = static_cast<std::int64_t>(kMediumBytesMax);
      RETURN_IF_ERROR(admit(length < 0 ? bytes_max : std::min(length, bytes_max)));
      return bytes_max;
    };
    Result<HttpReply> reply = call_http({.url = at,
                                         .addresses = *std::move(addresses),
                                         .headers = {{"User-Agent", "outrider"},
                                                     {"Accept", "image/*, audio/*, video/*"},
                                                     {"Accept-Encoding", "identity"}},
                                         .deadline = deadline,
                                         .gone = gone,
                                         .admit = judge});
    if (!reply) return named(reply.error());
    if (!is_redirection(*reply)) return std::move(reply->body);
    if (redirections == kRedirectsMax)
      return named({Errc::kUnsupported, "redirects after {} redirections", redirections});
    const std::string location = header(*reply, "location");
    if (location.empty()) return named({Errc::kUnsupported, "redirects to nowhere"});
    const Result<HttpUrl> next = parse_http_url(absolute(at, location));
    if (!next) return named({next.error().code, "redirects to what " + next.error().message});
    if (at.tls && !next->tls) return named({Errc::kUnsupported, "redirects from https to http"});
    at = *next;
  }
}

}  // namespace outrider
