#include "common/wire/transport/address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>

#include <fmt/format.h>

#include "common/base/text.h"
#include "common/os/descriptor.h"

namespace outrider {
namespace {

constexpr const char* kTcp = "tcp://";

struct HostPort {
  std::string host, port;  ///< host without brackets
};

HostPort host_and_port(const std::string& address) {
  const std::string rest = address.substr(std::strlen(kTcp));
  const std::size_t colon = std::min(rest.rfind(':'), rest.size());
  std::string host = rest.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return {std::move(host), colon < rest.size() ? rest.substr(colon + 1) : ""};
}

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

/// @param flags  getaddrinfo's. @param failed  receives its error
AddressList look_up(const HostPort& where, int flags, int* failed) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  *failed = getaddrinfo(where.host.c_str(), where.port.c_str(), &hints, &list);
  return AddressList(*failed == 0 ? list : nullptr, freeaddrinfo);
}

/// Returns an empty string for an address other than TCP over IPv4 or IPv6.
std::string numeric_address(const sockaddr& address, socklen_t size) {
  char host[NI_MAXHOST], port[NI_MAXSERV];
  constexpr int kNumbers = NI_NUMERICHOST | NI_NUMERICSERV;
  if (getnameinfo(&address, size, host, sizeof host, port, sizeof port, kNumbers) != 0) return "";
  const bool ipv6 = address.sa_family == AF_INET6;
  return fmt::format("{}{}{}{}:{}", kTcp, ipv6 ? "[" : "", host, ipv6 ? "]" : "", port);
}

/// @param query  getsockname or getpeername
std::string address_of(int socket, decltype(::getsockname)* query) {
  sockaddr_storage storage{};
  auto& address = reinterpret_cast<sockaddr&>(storage);
  socklen_t size = sizeof storage;
  return query(socket, &address, &size) == 0 ? numeric_address(address, size) : "";
}

}  // namespace

bool is_sane(const std::string& address) {
  if (!address.starts_with(kTcp)) return true;
  const std::size_t begin = std::strlen(kTcp), colon = address.rfind(':');
  const std::string host = address.substr(begin, std::max(begin, colon) - begin), port = address.substr(colon + 1);
  if (host.find(':') != host.npos && !(host.starts_with('[') && host.ends_with(']'))) return false;
  return port == "*" || to_number<std::uint16_t>(port);
}

Result<std::vector<std::string>> split_addresses(const std::string& addresses) {
  std::vector<std::string> list;
  for (std::size_t begin = 0, end = 0; end != addresses.npos; begin = end + 1) {
    end = addresses.find(',', begin);
    std::string address = addresses.substr(begin, end == addresses.npos ? end : end - begin);
    const bool sane = address.starts_with(kTcp) && is_sane(address) && !address.ends_with('*');
    const std::string host = sane ? host_and_port(address).host : "";
    const bool tcp = !host.empty() && host != "*";
    if (!tcp && !(address.starts_with("inproc://") && end == address.npos && begin == 0)) {
      return Error(Errc::kInvalidArgument, "cannot connect to {}: wanted {}, or several of them with commas between",
                   address, kAddressForm);
    }
    list.push_back(std::move(address));
  }
  return list;
}

bool is_local(const std::string& address) {
  if (address.starts_with("inproc://")) return true;
  if (!address.starts_with(kTcp)) return false;
  const HostPort where = host_and_port(address);
  if (where.host == "localhost") return true;
  // getaddrinfo would take * for the loopback interface.
  in_addr ipv4{};
  in6_addr ipv6{};
  if (inet_pton(AF_INET, where.host.c_str(), &ipv4) == 1) return ntohl(ipv4.s_addr) >> 24 == 127;
  return inet_pton(AF_INET6, where.host.c_str(), &ipv6) == 1 && IN6_IS_ADDR_LOOPBACK(&ipv6) != 0;
}

Result<std::vector<std::string>> resolve(const std::string& address) {
  const HostPort where = host_and_port(address);
  int failed = 0;
  const AddressList list = look_up(where, 0, &failed);
  if (!list) return Error(Errc::kNotFound, "the name does not resolve ({})", gai_strerror(failed));
  std::vector<std::string> numeric;
  for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
    std::string one = numeric_address(*entry->ai_addr, entry->ai_addrlen);
    if (one.empty()) continue;
    if (std::ranges::find(numeric, one) == numeric.end()) numeric.push_back(std::move(one));
  }
  return numeric;
}

Result<Descriptor> connect_tcp(const std::string& numeric, Duration wait) {
  const auto failed = [&](std::string why) -> Error {
    why[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(why[0])));
    return {Errc::kPeerGone, std::move(why)};
  };
  int unknown = 0;
  const AddressList list = look_up(host_and_port(numeric), AI_NUMERICHOST, &unknown);
  if (!list) return failed(gai_strerror(unknown));
  Descriptor fd(::socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd < 0) return failed(std::generic_category().message(errno));
  int error = ::connect(fd, list->ai_addr, list->ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    pollfd ready{fd, POLLOUT, 0};
    socklen_t size = sizeof error;
    if (::poll(&ready, 1, static_cast<int>(to_ms(wait))) == 0) {
      error = ETIMEDOUT;
    } else {
      ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    }
  }
  if (error != 0) return failed(std::generic_category().message(error));
  return fd;
}

std::string why_unreachable(const std::string& numeric) {
  const Result<Descriptor> connected = connect_tcp(numeric, std::chrono::milliseconds(250));
  return connected ? "" : connected.error().message;
}

Result<Descriptor> listen_tcp(const std::string& address) {
  if (!address.starts_with(kTcp) || !is_sane(address))
    return Error(Errc::kInvalidArgument, "cannot listen at {}: wanted {}", address, kAddressForm);
  HostPort where = host_and_port(address);
  if (where.port == "*") where.port = "0";
  if (where.host == "*") where.host = "0.0.0.0";  // as in ZeroMQ
  int unknown = 0;
  const AddressList list = look_up(where, AI_PASSIVE, &unknown);
  if (!list) return Error(Errc::kNotFound, "cannot listen at {}: {}", address, gai_strerror(unknown));
  Descriptor fd(::socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  if (fd < 0 || ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      ::bind(fd, list->ai_addr, list->ai_addrlen) != 0 || ::listen(fd, SOMAXCONN) != 0)
    return Error(Errc::kIo, "cannot listen at {}: {}", address, std::generic_category().message(errno));
  return fd;
}

std::string own_address(int socket) { return address_of(socket, ::getsockname); }

std::string peer_address(int socket) { return address_of(socket, ::getpeername); }

}  // namespace outrider
