// What of http(s) URLs in requests is fetched, and from where: on servers of this machine, and names that the tests
// resolve themselves.
#include "server/media_fetcher.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <thread>

#include <gtest/gtest.h>

#include "common/http/tls.h"
#include "common/media/media_prompt.h"
#include "common/os/descriptor.h"
#include "server/http_server.h"
#include "tests/support/certificate.h"
#include "tests/support/free_port.h"
#include "tests/support/http_client.h"
#include "tests/support/temporary_dir.h"

namespace outrider {
namespace {
using Addresses = std::vector<std::string>;

TEST(IpAddresses, ThatOnlyThisMachineCanReachAreNotPublic) {
  const auto is_public_text = [](const std::string& text) { return is_public(parse_ip_address(text).value()); };
  for (const char* text : {"0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.127.255.255",
                           "127.0.0.1", "127.255.0.1", "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.8",
                           "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1", "198.19.255.255", "198.51.100.7",
                           "203.0.113.7", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
                           // IPv6: none, this host, in clothes, NAT64 of one's own, link, site, unique local,
                           // multicast, documentation, ...
                           "::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254",
                           "64:ff9b::10.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "100::1", "fe80::1", "febf::1",
                           "fec0::1", "fc00::1", "fd12:3456::1", "ff02::1", "2001::1", "2001:10::1", "2001:1ff::1",
                           "2001:db8::1", "2002:7f00:1::", "3fff:fff::1", "5f00::1"})
    EXPECT_FALSE(is_public_text(text)) << text;
  for (const char* text : {"1.1.1.1",         "8.8.8.8",
                           "9.255.255.255",   "11.0.0.0",
                           "100.63.255.255",  "100.128.0.0",
                           "126.255.255.255", "128.0.0.0",
                           "169.253.255.255", "169.255.0.0",
                           "172.15.255.255",  "172.32.0.0",
                           "192.0.1.0",       "192.167.255.255",
                           "192.169.0.0",     "198.17.255.255",
                           "198.20.0.0",      "223.255.255.255",
                           "::ffff:8.8.8.8",  "64:ff9b::8.8.8.8",
                           "2001:200::1",     "2001:4860:4860::8888",
                           "2606:4700::1111", "2a00:1450::1",
                           "3ffe::1"})
    EXPECT_TRUE(is_public_text(text)) << text;
  for (const char* text : {"", "localhost", "127.1", "0x7f.0.0.1", "1.2.3.4.5", "fe80::1%lo", "[::1]", "1.2.3.4 "})
    EXPECT_FALSE(parse_ip_address(text)) << text;
}

TEST(HttpUrls, AreReadStrictly) {
  const auto read = [](const std::string& url) {
    const Result<HttpUrl> parsed = parse_http_url(url);
    return parsed ? fmt::format("{} {} {} {}", parsed->tls, parsed->host, parsed->port, parsed->target)
                  : parsed.error().message;
  };
  EXPECT_EQ(read("https://Example.org/a/B.png?x=1&y=%20#part"), "true example.org 443 /a/B.png?x=1&y=%20");
  EXPECT_EQ(read("HTTP://example.org"), "false example.org 80 /");
  EXPECT_EQ(read("http://example.org:8080?x"), "false example.org 8080 /?x");
  EXPECT_EQ(read("http://[2001:DB8::1]:81/a"), "false 2001:db8::1 81 /a");
  for (const char* wrong : {"",
                            "example.org/a",
                            "ftp://example.org/",
                            "file:///etc/passwd",
                            "http://",
                            "http:///a",
                            "http://user@example.org/",
                            "http://user:secret@example.org/",
                            "http://example.org@127.0.0.1/",
                            "http://example.org:0/",
                            "http://example.org:65536/",
                            "http://example.org:/",
                            "http://example.org:8x/",
                            "http://[::1/",
                            "http://[::1]x/",
                            "http://[127.0.0.1]/",
                            "http://[]/",
                            "http://::1/",
                            "http://*.example.org/",
                            "http://exa mple.org/",
                            "http://example.org/a b",
                            "http://example.org/\r\nX: y",
                            "http://example.org\\@127.0.0.1/",
                            "http://ex\xc3\xa4.org/"})
    EXPECT_EQ(read(wrong), "is not a URL like https://HOST/PATH") << wrong;
  EXPECT_EQ(read("http://example.org/" + std::string(9000, 'a')), "is a URL of 9019 bytes, wanted at most 8192");
}

/// A fetcher for these domains. Names that are not in the table are looked up nowhere.
struct Fetcher {
  Fetcher(std::vector<std::string> domains, std::map<std::string, Addresses> names = {})
      : table(std::move(names)),
        fetch(fetch_from(domains, [this](const std::string& host, TimePoint, const Gone&) {
                  ++looked_up;
                  const auto known = table.find(host);
                  if (known != table.end()) return Result<Addresses>(known->second);
                  return parse_ip_address(host) ? Result<Addresses>(Addresses{host})
                                                : Result<Addresses>(Error{Errc::kNotFound, "nobody knows it"});
                }).value()) {}
  /// The file, or why it is not there.
  std::string operator()(const std::string& url) {
    const auto admit = [&](std::int64_t bytes) -> Result<void> {
      admitted.push_back(bytes);
      if (bytes > bytes_max) return Error{Errc::kUnavailable, "no room"};
      return {};
    };
    const Result<std::string> file = fetch(url, admit, now() + time, gone);
    return file ? *file : "error: " + file.error().message;
  }
  std::map<std::string, Addresses> table;
  int looked_up = 0;
  std::vector<std::int64_t> admitted;  ///< what it asked for
  std::int64_t bytes_max = std::numeric_limits<std::int64_t>::max();
  Duration time = std::chrono::minutes(1);
  Gone gone = [] { return false; };
  FetchMedium fetch;
};

/// A server of pictures here, which counts who asks.
struct PictureHost {
  explicit PictureHost(std::shared_ptr<TlsIdentity> tls = nullptr) {
    const auto reply = [this](int status, std::vector<std::pair<std::string, std::string>> headers,
                              std::string type = "image/png") {
      return [this, status, headers, type](const HttpRequest&) {
        ++asked;
        return HttpReply{.status = status, .body = "a picture", .content_type = type, .headers = headers};
      };
    };
    const auto redirect = [&](const char* path, int status, std::string location) {
      return HttpRoute{"GET", path, reply(status, {{"Location", std::move(location)}}, "text/html")};
    };
    const auto to_where_it_says = [this](const HttpRequest&) {
      ++asked;
      return HttpReply{.status = 302, .body = "", .headers = {{"Location", elsewhere}}};
    };
    server = HttpServer::start({.tls = std::move(tls), .allowed_hosts = {"*"}},
                               {{"GET", "/a.png", reply(200, {})},
                                {"GET", "/octets", reply(200, {}, "binary/octet-stream")},
                                {"GET", "/page", reply(200, {}, "text/html; charset=utf-8")},
                                {"GET", "/packed", reply(200, {{"Content-Encoding", "gzip"}})},
                                {"GET", "/forbidden", reply(403, {})},
                                redirect("/relative", 301, "a.png"),
                                redirect("/absolute", 307, "/a.png"),
                                redirect("/round", 308, "/round"),
                                redirect("/file", 302, "file:///etc/passwd"),
                                redirect("/nowhere", 302, ""),
                                {"GET", "/elsewhere", to_where_it_says}})
                 .value();
    here = fmt::format("127.0.0.1:{}", server->port());
  }
  std::string url(const std::string& path) const { return "http://" + here + path; }
  std::atomic<int> asked = 0;
  std::string elsewhere, here;
  std::unique_ptr<HttpServer> server;
};

TEST(MediaFetcher, GetsWhatIsAFileFromWhereItMay) {
  PictureHost host;
  Fetcher fetch({host.here});
  EXPECT_EQ(fetch(host.url("/a.png")), "a picture");
  EXPECT_EQ(fetch.admitted, std::vector<std::int64_t>{9}) << "by its length, before it is read";
  EXPECT_EQ(fetch(host.url("/octets")), "a picture");
  EXPECT_EQ(fetch(host.url("/page")),
            "error: " + host.here + ": sends text/html, wanted a picture, a sound or a video");
  EXPECT_EQ(fetch(host.url("/packed")), "error: " + host.here + ": sends it as gzip, wanted it as it is");
  EXPECT_EQ(fetch(host.url("/forbidden")), "error: " + host.here + ": answers with status 403");
  EXPECT_EQ(fetch(host.url("/lost")), "error: " + host.here + ": answers with status 404");
  EXPECT_EQ(fetch.admitted.size(), 2u) << "of what is no file nothing is read";
  fetch.bytes_max = 8;
  EXPECT_EQ(fetch(host.url("/a.png")), "error: " + host.here + ": no room");
  fetch.bytes_max = 9;
  EXPECT_EQ(fetch(host.url("/a.png")), "a picture");
}

TEST(MediaFetcher, ANameIsAllowedByItsOperatorOrRefused) {
  PictureHost host;
  const std::string port = fmt::format(":{}", host.server->port());
  const auto get_from = [&](const std::string& domain, const std::string& url) {
    Fetcher fetch({domain, host.here}, {{"a.example.org", {"127.0.0.1"}}, {"example.org", {"127.0.0.1"}}});
    return fetch("http://" + url + "/a.png");
  };
  EXPECT_EQ(get_from("a.example.org" + port, "a.example.org" + port), "a picture");
  EXPECT_EQ(get_from("A.Example.org" + port, "a.EXAMPLE.org" + port), "a picture");
  EXPECT_EQ(get_from("*.example.org" + port, "a.example.org" + port), "a picture");
  EXPECT_EQ(get_from("*" + port, "a.example.org" + port), "a picture");
  const auto refused = [](const std::string& server) {
    return "error: " + server + ": not allowed here: serve --allowed-media-domains would have to name " + server;
  };
  EXPECT_EQ(get_from("*.example.org" + port, "example.org" + port), refused("example.org" + port));
  EXPECT_EQ(get_from("example.org" + port, "a.example.org" + port), refused("a.example.org" + port));
  EXPECT_EQ(get_from("example.org" + port, "badexample.org" + port), refused("badexample.org" + port));
  EXPECT_EQ(get_from("*.example.org", "a.example.org" + port), refused("a.example.org" + port)) << "another port";
  EXPECT_EQ(get_from("*.example.org" + port, "a.example.org"), refused("a.example.org"));
  EXPECT_EQ(host.asked, 4);
  for (const char* wrong : {"", "https://example.org", "a b", "*example.org", "a.*", "*.a.*", "::1", "a:0", "a:b"})
    EXPECT_EQ(fetch_from({wrong}).error().message,
              fmt::format("--allowed-media-domains has '{}', wanted HOST, *.DOMAIN or *, perhaps with :PORT", wrong));
}

// Which the names of an operator's list may lead to, whoever owns them: only addresses that are public, or that are in
// the list themselves.
TEST(MediaFetcher, APrivateAddressIsReachedOnlyIfItIsNamedItself) {
  PictureHost host;
  const std::string port = fmt::format(":{}", host.server->port());
  const auto private_address = [&](const std::string& name) {
    return "error: " + name + port +
           ": has an address that is not public: serve --allowed-media-domains would have to name that very address";
  };
  Fetcher fetch({"*" + port},
                {{"inner", {"127.0.0.1"}}, {"mixed", {"8.8.8.8", "10.0.0.1"}}, {"v6", {"::ffff:7f00:1"}}});
  for (const char* name : {"inner", "mixed", "v6", "127.0.0.1", "169.254.169.254"})
    EXPECT_EQ(fetch(fmt::format("http://{}{}/a.png", name, port)), private_address(name));
  EXPECT_EQ(fetch("http://[::1]" + port + "/a.png"), private_address("[::1]"));
  EXPECT_EQ(fetch("http://unknown" + port + "/"), "error: unknown" + port + ": nobody knows it");
  Fetcher other_port({"*" + port, "127.0.0.1", "127.0.0.1:1"}, {{"inner", {"127.0.0.1"}}});
  EXPECT_EQ(other_port("http://inner" + port + "/a.png"), private_address("inner"));
  EXPECT_EQ(host.asked, 0);
  // The system's own look-up, which also takes addresses in other clothes.
  const FetchMedium real = fetch_from({"*" + port}).value();
  for (const char* name : {"localhost", "127.1", "0x7f000001", "2130706433", "0"}) {
    const auto file = real(
        fmt::format("http://{}{}/a.png", name, port), [](std::int64_t) { return Result<void>(); },
        now() + std::chrono::minutes(1), [] { return false; });
    EXPECT_EQ("error: " + file.error().message, private_address(name));
  }
  EXPECT_EQ(host.asked, 0);
  const FetchMedium named = fetch_from({"localhost" + port, host.here, "[::1]" + port}).value();
  const auto file = named(
      "http://localhost" + port + "/a.png", [](std::int64_t) { return Result<void>(); },
      now() + std::chrono::minutes(1), [] { return false; });
  EXPECT_EQ(file.value(), "a picture");
}

TEST(MediaFetcher, ANameIsLookedUpOnceSoThatItCannotChangeBehindTheCheck) {
  PictureHost host;
  const std::string port = fmt::format(":{}", host.server->port());
  Fetcher fetch({"pictures.example" + port, host.here}, {{"pictures.example", {"127.0.0.1"}}});
  EXPECT_EQ(fetch("http://pictures.example" + port + "/a.png"), "a picture");
  EXPECT_EQ(fetch.looked_up, 1);
  EXPECT_EQ(fetch("http://pictures.example" + port + "/absolute"), "a picture");
  EXPECT_EQ(fetch.looked_up, 3) << "and once for a redirection";
  fetch.table["pictures.example"] = {"127.0.0.2"};
  EXPECT_NE(fetch("http://pictures.example" + port + "/a.png").find("has an address that is not public"),
            std::string::npos);
}

TEST(MediaFetcher, ARedirectionIsRelativeToWhereItComesFrom) {
  const HttpUrl from = parse_http_url("https://host.example/a/b?x=1").value();
  EXPECT_EQ(absolute_url(from, "c?y=2"), "https://host.example/a/c?y=2");
  EXPECT_EQ(absolute_url(from, "/c"), "https://host.example/c");
  EXPECT_EQ(absolute_url(from, "//other.example/c"), "https://other.example/c");
  EXPECT_EQ(absolute_url(from, "?y=2"), "https://host.example/a/b?y=2");
}

TEST(MediaFetcher, RedirectionsAreCheckedAsURLsAre) {
  PictureHost host, inner;
  Fetcher fetch({host.here, fmt::format("*:{}", inner.server->port())}, {{"inner", {"127.0.0.1"}}});
  for (const char* path : {"/relative", "/absolute"}) EXPECT_EQ(fetch(host.url(path)), "a picture") << path;
  const int before = host.asked;
  EXPECT_EQ(fetch(host.url("/round")), "error: " + host.here + ": redirects after 5 redirections");
  EXPECT_EQ(host.asked, before + 6);
  EXPECT_EQ(fetch(host.url("/file")),
            "error: " + host.here + ": redirects to what is not a URL like https://HOST/PATH");
  EXPECT_EQ(fetch(host.url("/nowhere")), "error: " + host.here + ": redirects to nowhere");
  host.elsewhere = "http://example.org/";
  EXPECT_NE(fetch(host.url("/elsewhere")).find("error: example.org: not allowed here"), std::string::npos);
  for (const std::string& to : {inner.here, fmt::format("inner:{}", inner.server->port())}) {
    host.elsewhere = "http://" + to + "/a.png";
    EXPECT_NE(fetch(host.url("/elsewhere")).find("error: " + to + ": has an address that is not public"),
              std::string::npos);
  }
  EXPECT_EQ(inner.asked, 0);
}

/// A server that says what a test wants, byte by byte.
struct RawHost {
  /// @param talk  gets the socket of each who comes, once it has asked. @param flags  MSG_PEEK: with the question in it
  explicit RawHost(std::function<void(int)> talk, int flags = 0)
      : listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = loopback(0);
    socklen_t size = sizeof address;
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(listener, any, size) + listen(listener, 8) + getsockname(listener, any, &size), 0);
    here = fmt::format("127.0.0.1:{}", ntohs(address.sin_port));
    thread = std::jthread([this, talk = std::move(talk), flags] {
      for (int peer = accept(listener, nullptr, nullptr); peer >= 0; peer = accept(listener, nullptr, nullptr)) {
        char question[4096];
        if (recv(peer, question, sizeof question, flags) > 0) talk(peer);
        close(peer);
      }
    });
  }
  ~RawHost() {
    shutdown(listener, SHUT_RDWR);
    thread.join();
    close(listener);
  }
  /// @return whether the other end is still there.
  static bool say(int peer, const std::string& text) {
    return send(peer, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
  }
  int listener;
  std::string here;
  std::jthread thread;
};

TEST(HttpClient, WithoutAFileHandleSaysSo) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto answer = call_http({.url = parse_http_url("http://127.0.0.1:1/").value(), .addresses = {"127.0.0.1"}});
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, Errc::kIo);
  EXPECT_NE(answer.error().message.find("Too many open files"), std::string::npos) << answer.error().message;
}

// RFC 9110, 15.2: a client parses them even where it expects none.
TEST(HttpClient, ReadsTheFinalAnswerBehindInterimOnes) {
  const auto asked = [](const std::string& interim) {
    RawHost host([&](int peer) { RawHost::say(peer, interim + "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n."); });
    return call_http({.url = parse_http_url("http://" + host.here + "/").value(),
                      .addresses = {"127.0.0.1"},
                      .admit = [](const HttpAnswer&, std::int64_t) { return Result<std::int64_t>(1); }});
  };
  const std::string hints = "HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n";
  const auto answer = asked("HTTP/1.1 100 Continue\r\n\r\n" + hints);
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(answer->header("link"), "");
  EXPECT_EQ(answer->body, ".");
  std::string endless;
  for (int i = 0; i < 100; ++i) endless += hints;
  EXPECT_EQ(asked(endless).value().status, 103);
}

// As many as a server or a batch has under way: each has the handle of its socket, and no other.
TEST(HttpClient, TakesOneFileHandleForACall) {
  const auto open_files = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
  };
  RawHost host([](int peer) { RawHost::say(peer, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n."); });
  const HttpUrl url = parse_http_url("http://" + host.here + "/").value();
  const auto call = [&](const std::function<void()>& meanwhile) {
    return call_http({.url = url, .addresses = {"127.0.0.1"}, .admit = [&](const HttpAnswer&, std::int64_t) {
                        meanwhile();
                        return Result<std::int64_t>(1);
                      }});
  };
  ASSERT_TRUE(call([] {})) << "what all calls share is there from now on";
  std::ptrdiff_t one = 0, two = 0;
  ASSERT_TRUE(call([&] {
    one = open_files();
    EXPECT_TRUE(call([&] { two = open_files(); }));
  }));
  EXPECT_LE(two - one, 2) << "a call's, and the server's";
}

// A reply may take hours, and a host that has lost its power sends no end.
TEST(HttpClient, AsksWhetherTheHostIsStillThere) {
  RawHost host([](int peer) { RawHost::say(peer, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n."); });
  int asks = 0;
  ASSERT_TRUE(call_http({.url = parse_http_url("http://" + host.here + "/").value(),
                         .addresses = {"127.0.0.1"},
                         .admit = [&](const HttpAnswer&, std::int64_t) {
                           for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
                             int on = 0;
                             socklen_t size = sizeof on;
                             getsockopt(std::stoi(entry.path().filename()), SOL_SOCKET, SO_KEEPALIVE, &on, &size);
                             asks += on;
                           }
                           return Result<std::int64_t>(1);
                         }}));
  EXPECT_EQ(asks, 1);
}

/// An address of this machine that never answers who connects to it, as one behind a wall: its queue is full.
struct SilentAddress {
  explicit SilentAddress(std::uint16_t port) {
    const sockaddr_in address = loopback(port);
    const auto* const here = reinterpret_cast<const sockaddr*>(&address);
    EXPECT_EQ(bind(listener, here, sizeof address) + listen(listener, 0), 0) << strerror(errno);
    EXPECT_EQ(connect(only_one, here, sizeof address), 0) << strerror(errno);
  }
  Descriptor listener{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  Descriptor only_one{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
};

TEST(MediaFetcher, AnAddressThatIsSilentLeavesTimeForTheOthers) {
  const auto picture = [](const HttpRequest&) { return HttpReply{.body = "a picture", .content_type = "image/png"}; };
  const std::uint16_t number = free_port();
  const auto server =
      HttpServer::start({.host = "127.0.0.2", .port = number, .allowed_hosts = {"*"}}, {{"GET", "/a.png", picture}})
          .value();
  const std::string port = fmt::format(":{}", number);
  const SilentAddress silent(number);
  Fetcher fetch({"*" + port, "127.0.0.1" + port, "127.0.0.2" + port, "127.0.0.3" + port},
                {{"first", {"127.0.0.1", "127.0.0.2"}},
                 {"middle", {"127.0.0.3", "127.0.0.1", "127.0.0.2"}},
                 {"alone", {"127.0.0.1"}},
                 {"last", {"127.0.0.3", "127.0.0.1"}}});
  fetch.time = std::chrono::seconds(4);
  for (const char* name : {"first", "middle"})
    EXPECT_EQ(fetch(fmt::format("http://{}{}/a.png", name, port)), "a picture");
  fetch.time = std::chrono::milliseconds(300);
  for (const std::string name : {"alone", "last"})
    EXPECT_EQ(fetch("http://" + name + port + "/a.png"), "error: " + name + port + ": timed out");
  fetch.time = std::chrono::minutes(10);
  fetch.gone = [asked = 0]() mutable { return ++asked > 3; };
  EXPECT_EQ(fetch("http://first" + port + "/a.png"), "error: first" + port + ": nobody waits any longer");
}

constexpr const char* kHead = "HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n";

TEST(MediaFetcher, WhatNeverEndsIsCutOff) {
  RawHost endless([](int peer) {
    bool there = RawHost::say(peer, std::string(kHead) + "\r\n");
    while (there) there = RawHost::say(peer, std::string(1 << 16, 'x'));
  });
  Fetcher fetch({endless.here});
  EXPECT_EQ(fetch("http://" + endless.here + "/"), "error: " + endless.here + ": its reply is too long");
  EXPECT_EQ(fetch.admitted, std::vector<std::int64_t>{kMediumBytesMax}) << "before it is read";
  RawHost chunks([](int peer) {
    bool there = RawHost::say(peer, std::string(kHead) + "Transfer-Encoding: chunked\r\n\r\n");
    while (there) there = RawHost::say(peer, "10000\r\n" + std::string(1 << 16, 'x') + "\r\n");
  });
  EXPECT_EQ(Fetcher({chunks.here})("http://" + chunks.here + "/"), "error: " + chunks.here + ": its reply is too long");
  for (const char* begun : {"1;", "0\r\nX: "}) {  // the line of a chunk, a trailer
    RawHost line([&](int peer) {
      RawHost::say(peer, std::string(kHead) + "Transfer-Encoding: chunked\r\n\r\n" + begun);
      RawHost::say(peer, std::string(1 << 20, 'x'));
    });
    EXPECT_EQ(Fetcher({line.here})("http://" + line.here + "/"), "error: " + line.here + ": its reply is too long");
  }
  std::atomic<bool> taken = false;
  RawHost huge([&](int peer) {
    RawHost::say(peer, std::string(kHead) + "Content-Length: 1099511627776\r\n\r\n");
    char more;
    taken = recv(peer, &more, 1, 0) != 0;  // it hangs up
  });
  EXPECT_EQ(Fetcher({huge.here})("http://" + huge.here + "/"),
            "error: " + huge.here + ": its reply has 1099511627776 bytes, wanted at most 33554432");
  RawHost head([](int peer) {
    bool there = RawHost::say(peer, kHead);
    while (there) there = RawHost::say(peer, "X: " + std::string(1000, 'x') + "\r\n");
  });
  EXPECT_EQ(Fetcher({head.here})("http://" + head.here + "/"), "error: " + head.here + ": header limit exceeded");
  EXPECT_FALSE(taken);
}

TEST(MediaFetcher, WhatIsSlowIsGivenUp) {
  std::atomic<bool> over = false;
  RawHost slow([&](int peer) {
    bool there = RawHost::say(peer, std::string(kHead) + "Content-Length: 1000000\r\n\r\n");
    while (there && !over) {
      there = RawHost::say(peer, "x");
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  });
  Fetcher fetch({slow.here});
  fetch.time = std::chrono::milliseconds(300);
  EXPECT_EQ(fetch("http://" + slow.here + "/"), "error: " + slow.here + ": timed out");
  fetch.time = std::chrono::minutes(10);
  std::atomic<int> asked = 0;
  fetch.gone = [&] { return ++asked > 3; };
  EXPECT_EQ(fetch("http://" + slow.here + "/"), "error: " + slow.here + ": nobody waits any longer");
  RawHost silent([&](int) {
    while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  });
  Fetcher of_silent({silent.here});
  of_silent.time = std::chrono::milliseconds(300);
  EXPECT_EQ(of_silent("http://" + silent.here + "/"), "error: " + silent.here + ": timed out");
  RawHost breaks_off([](int peer) { RawHost::say(peer, std::string(kHead) + "Content-Length: 9\r\n\r\nhalf"); });
  EXPECT_EQ(Fetcher({breaks_off.here})("http://" + breaks_off.here + "/"),
            "error: " + breaks_off.here + ": partial message");
  over = true;
}

TEST(MediaFetcher, TlsIsForTheHostAndByTheSystemsTrust) {
  if (std::system("command -v openssl > /dev/null") != 0) GTEST_SKIP() << "no openssl on this machine";
  TemporaryDir dir;
  make_certificate(dir, "own");
  const std::string certificate = dir.path() / "own.pem";
  PictureHost host(TlsIdentity::load(certificate, dir.path() / "own.key").value()), plain;
  const std::string port = fmt::format(":{}", host.server->port());
  Fetcher fetch({"localhost" + port, host.here, plain.here}, {{"localhost", {"127.0.0.1"}}});
  EXPECT_NE(fetch("https://localhost" + port + "/a.png").find("certificate verify failed"), std::string::npos);
  ASSERT_EQ(setenv("SSL_CERT_FILE", certificate.c_str(), 1), 0);  // OpenSSL's name for the system's trust store
  EXPECT_EQ(fetch("https://localhost" + port + "/a.png"), "a picture");
  EXPECT_NE(fetch("https://" + host.here + "/a.png").find("certificate verify failed"), std::string::npos)
      << "it is another host's";
  host.elsewhere = plain.url("/a.png");
  EXPECT_EQ(fetch("https://localhost" + port + "/elsewhere"),
            "error: localhost" + port + ": redirects from https to http");
  unsetenv("SSL_CERT_FILE");
  EXPECT_EQ(plain.asked, 0);
}

// Of a body without a length its end is TLS's word alone: whoever cuts the connection must not have shortened a file.
TEST(MediaFetcher, ABodyEndsWhereTlsSaysSo) {
  if (std::system("command -v openssl > /dev/null") != 0) GTEST_SKIP() << "no openssl on this machine";
  TemporaryDir dir;
  make_certificate(dir, "own");
  const std::string certificate = dir.path() / "own.pem";
  const std::shared_ptr<TlsIdentity> identity = TlsIdentity::load(certificate, dir.path() / "own.key").value();
  enum class End { kTls, kSocket, kReset };
  std::atomic<End> end = End::kTls;
  RawHost host(
      [&](int peer) {
        fcntl(peer, F_SETFL, O_NONBLOCK);
        const std::unique_ptr<TlsSession> session = identity->session(peer);
        const auto finish = [&](auto attempt) {
          for (TlsSession::Attempt came = attempt(); came.bytes == 0 && came.wait_for != 0; came = attempt()) {
            pollfd state{.fd = peer, .events = came.wait_for, .revents = 0};
            poll(&state, 1, 1000);
          }
        };
        std::array<char, 4096> question;
        const std::string reply = std::string(kHead) + "\r\nhalf";
        finish([&] { return session->handshake(); });
        finish([&] { return session->read(question); });
        finish([&] { return session->write(reply); });
        const linger at_once{.l_onoff = 1, .l_linger = 0};
        if (end == End::kTls) session->end();
        std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the half of it is there
        if (end == End::kReset) setsockopt(peer, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
      },
      MSG_PEEK);
  ASSERT_EQ(setenv("SSL_CERT_FILE", certificate.c_str(), 1), 0);
  const std::string place = "localhost" + host.here.substr(host.here.find(':'));
  Fetcher fetch({place, host.here}, {{"localhost", {"127.0.0.1"}}});
  EXPECT_EQ(fetch("https://" + place + "/"), "half");
  for (const End cut : {End::kSocket, End::kReset}) {
    end = cut;
    EXPECT_TRUE(fetch("https://" + place + "/").starts_with("error: ")) << static_cast<int>(cut);
  }
  unsetenv("SSL_CERT_FILE");
}

}  // namespace
}  // namespace outrider
