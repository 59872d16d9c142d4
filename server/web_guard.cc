#include "server/web_guard.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <utility>

#include <fmt/format.h>

#include "common/base/ascii.h"
#include "common/http/url.h"

namespace outrider {
namespace {

/// @return a client's text, cut short for a message
std::string_view shown(std::string_view text) { return text.substr(0, 100); }

bool has(const std::vector<std::string>& list, std::string_view wanted) {
  return std::ranges::find(list, wanted) != list.end();
}

}  // namespace

WebGuard::WebGuard(std::vector<std::string> hosts, std::vector<std::string> origins)
    : hosts_(std::move(hosts)), origins_(std::move(origins)) {
  for (std::string& host : hosts_) host = in_lower_case(host);
  for (std::string& origin : origins_) origin = in_lower_case(origin);
}

std::optional<ApiError> WebGuard::check_host(std::string_view host) const {
  if (has(hosts_, "*")) return std::nullopt;
  const std::optional<HostPort> read = split_host_port(host);
  if (read && (has(hosts_, read->host) || parse_ip_address(read->host) || read->host.ends_with(".localhost")))
    return std::nullopt;
  return ApiError{
      .status = 403,
      .message = fmt::format("this server is not known as '{}': --allowed-host would let that name in", shown(host)),
      .code = "host_not_allowed"};
}

bool WebGuard::shares_with(std::string_view origin) const {
  return has(origins_, "*") || has(origins_, in_lower_case(origin));
}

std::optional<ApiError> WebGuard::check_origin(std::string_view origin, std::string_view host) const {
  const std::size_t scheme = origin.find("://");
  const bool own = scheme != origin.npos && in_lower_case(origin.substr(scheme + 3)) == in_lower_case(host);
  if (own || shares_with(origin)) return std::nullopt;
  return ApiError{
      .status = 403,
      .message = fmt::format("pages of '{}' may not use this server: --allowed-origin would let them", shown(origin)),
      .code = "origin_not_allowed"};
}

std::string wrong_host(const std::string& host) {
  const std::optional<HostPort> read = split_host_port(host);
  const bool is_name = read && read->host == in_lower_case(host) && host.find('*') == host.npos;
  return is_name || host == "*" ? "" : fmt::format("'{}', wanted a name as llm.example, without a port; or *", host);
}

std::string wrong_origin(const std::string& origin) {
  // null and file://: of a page without a server, such as a file
  if (origin == "*" || origin == "null" || origin == "file://") return "";
  const std::size_t end = std::min(origin.find("://"), origin.size());
  const std::string scheme = in_lower_case(origin.substr(0, end));
  const std::optional<HostPort> read = end == origin.size() ? std::nullopt : split_host_port(origin.substr(end + 3));
  const bool own_port = read && ((scheme == "http" && read->port == kDefaultPorts[0]) ||
                                 (scheme == "https" && read->port == kDefaultPorts[1]));
  if (read && !scheme.empty() && !own_port && origin.find('*') == origin.npos) return "";
  return fmt::format(
      "'{}', wanted SCHEME://HOST[:PORT] as a browser writes it, without a path or the scheme's own "
      "port; or *",
      origin);
}

std::vector<std::string> own_names(const std::string& listens_at) {
  std::array<char, HOST_NAME_MAX + 1> machine{};
  if (gethostname(machine.data(), machine.size() - 1) != 0) machine[0] = '\0';
  std::vector<std::string> names = {"localhost", listens_at};
  if (machine[0] != '\0') names.emplace_back(machine.data());
  return names;
}

}  // namespace outrider
