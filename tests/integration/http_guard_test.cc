// outrider serve against strangers: pages of other sites, wrong keys, and one client who wants everything.
#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>

#include "server/http_server.h"
#include "tests/support/certificate.h"
#include "tests/support/http_client.h"
#include "tests/support/temporary_dir.h"

namespace outrider {
namespace {

std::unique_ptr<HttpServer> started(HttpOptions options, std::vector<HttpRoute> routes) {
  return HttpServer::start(std::move(options), std::move(routes)).value();
}

/// The one route, which says who asked.
HttpRoute who() {
  return {"GET", "/who", [](const HttpRequest& request) {
            return HttpReply{.status = 200, .body = request.client, .content_type = "text/plain"};
          }};
}
HttpRoute echo() {
  return {"POST", "/echo", [](const HttpRequest& request) { return HttpReply{.status = 200, .body = request.body}; }};
}
HttpRoute health() {
  return {"GET", "/health", [](const HttpRequest&) { return HttpReply{.body = "{}"}; }, Access::kAnybody};
}

Response ask_raw(const HttpServer& server, const std::string& request) {
  Connection connection(server.port());
  connection.send(request);
  return connection.response();
}

TEST(WebGuardOfServer, ARequestWithoutAHostOrWithTwoIs400) {
  const auto server = started({}, {who()});
  EXPECT_EQ(ask_raw(*server, "GET /who HTTP/1.1\r\n\r\n").status, 400);
  EXPECT_EQ(ask_raw(*server, "GET /who HTTP/1.1\r\nHost:\r\n\r\n").status, 400);
  EXPECT_EQ(ask_raw(*server, "GET /who HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n").status, 400);
  EXPECT_EQ(ask_raw(*server, "GET /who HTTP/1.0\r\n\r\n").status, 200) << "which no browser speaks";
}

TEST(WebGuardOfServer, ANameThatWasMadeToPointHereReachesNothing) {
  const auto server = started({}, {who(), health()});
  const auto as = [&](const std::string& host, const std::string& path) {
    const std::string request = "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n";
    return ask_raw(*server, request);
  };
  for (const char* path : {"/who", "/health", "/nothing"}) {
    const Response refused = as("evil.example:8000", path);
    EXPECT_EQ(refused.status, 403) << path;
    EXPECT_EQ(json_of(refused)["error"]["code"], "host_not_allowed");
  }
  EXPECT_EQ(as("127.0.0.1:8000", "/who").status, 200);
  const auto named = started({.allowed_hosts = {"outrider.example"}}, {who()});
  EXPECT_EQ(ask_raw(*named, "GET /who HTTP/1.1\r\nHost: outrider.example\r\n\r\n").status, 200);
  EXPECT_EQ(ask_raw(*named, "GET /who HTTP/1.1\r\nHost: evil.example\r\n\r\n").status, 403);
  const auto keyed = started({.keys = ApiKeys::of("secret")}, {who()});
  EXPECT_EQ(ask_raw(*keyed, "GET /who HTTP/1.1\r\nHost: any.example\r\n\r\n").status, 401) << "a key is asked instead";
}

TEST(WebGuardOfServer, APageElsewhereMayAskOnlyIfItWasNamed) {
  const auto server = started({.allowed_origins = {"https://chat.example"}}, {who(), echo()});
  const auto from = [&](const std::string& origin, const std::string& more = "") {
    return get(server->port(), "/who", "Origin: " + origin + "\r\n" + more);
  };
  EXPECT_EQ(from("http://evil.example").status, 403);
  EXPECT_EQ(from("null").status, 403);
  EXPECT_EQ(from("http://localhost").status, 200) << "its own page";
  const Response shared = from("https://chat.example");
  EXPECT_EQ(shared.status, 200);
  EXPECT_NE(shared.head.find("Access-Control-Allow-Origin: https://chat.example\r\n"), shared.head.npos) << shared.head;
  EXPECT_NE(shared.head.find("Access-Control-Expose-Headers: X-Request-Id, request-id, "), shared.head.npos);
  EXPECT_EQ(from("http://localhost").head.find("Access-Control"), std::string::npos);
  const auto preflight = [&](const std::string& origin) {
    return ask_raw(*server, "OPTIONS /echo HTTP/1.1\r\nHost: localhost\r\nOrigin: " + origin +
                                "\r\nAccess-Control-Request-Method: POST\r\n\r\n");
  };
  const Response may = preflight("https://chat.example");
  EXPECT_EQ(may.status, 200);
  EXPECT_NE(may.head.find("Access-Control-Allow-Headers: Authorization, Content-Type\r\n"), may.head.npos) << may.head;
  const Response library = ask_raw(*server,
                                   "OPTIONS /echo HTTP/1.1\r\nHost: localhost\r\nOrigin: https://chat.example"
                                   "\r\nAccess-Control-Request-Headers: x-stainless-os\r\n\r\n");
  EXPECT_NE(library.head.find("Access-Control-Allow-Headers: x-stainless-os\r\n"), library.head.npos) << library.head;
  EXPECT_EQ(preflight("http://evil.example").status, 403);
}

TEST(KeysOfServer, EachNameIsAClientOfItsOwnWithItsOwnLimits) {
  TemporaryDir dir;
  // Of alpha and beta.
  const auto file =
      dir.write("keys",
                "alice sha256:8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8 max_requests=1\n"
                "bob sha256:f44e64e75f3948e9f73f8dfa94721c4ce8cbb4f265c4790c702b2d41cfbf2753\n");
  std::promise<void> entered, leave;
  const HttpRoute wait = {"POST", "/wait", [&](const HttpRequest&) {
                            entered.set_value();
                            leave.get_future().wait();
                            return HttpReply{.body = "{}"};
                          }};
  HttpRoute cancel = echo();
  cancel.path = "/cancel";
  cancel.takes = "";
  const auto server = started({.keys = ApiKeys::load(file).value()}, {who(), echo(), wait, cancel});
  const std::string alice = "Authorization: Bearer alpha\r\n", bob = "Authorization: Bearer beta\r\n";
  EXPECT_EQ(get(server->port(), "/who", alice).body, "key alice");
  EXPECT_EQ(get(server->port(), "/who", bob).body, "key bob");
  Connection busy(server->port());
  busy.send("POST", "/wait", "{}", alice);
  entered.get_future().wait();
  const Response refused = post(server->port(), "/echo", "{}", alice);
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(json_of(refused)["error"]["type"], "rate_limit_error");
  EXPECT_NE(refused.head.find("Retry-After: 1\r\n"), refused.head.npos) << refused.head;
  EXPECT_EQ(post(server->port(), "/cancel", "{}", alice).status, 200) << "her request that is open";
  EXPECT_EQ(post(server->port(), "/echo", "{}", bob).status, 200);
  leave.set_value();
  EXPECT_EQ(busy.response().status, 200);
  EXPECT_TRUE(eventually([&] { return post(server->port(), "/echo", "{}", alice).status == 200; }));
  dir.write("keys", "# nobody\n");
  EXPECT_EQ(get(server->port(), "/who", alice).status, 401);
}

TEST(HttpServer, ARouteThatTakesNoBodyNeedsNoLength) {
  HttpRoute cancel = echo();
  cancel.takes = "";
  const auto server = started({}, {cancel});
  Connection client(server->port());
  for (int i = 0; i < 2; ++i) {
    client.send("POST /echo HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_EQ(client.response().status, 200) << "and the connection goes on";
  }
  EXPECT_EQ(post(server->port(), "/echo", "{}").body, "{}");
}

TEST(KeysOfServer, TokensAreCountedAndBounded) {
  TemporaryDir dir;
  const auto file =
      dir.write("keys",
                "alice sha256:8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8 tokens_per_minute=20\n"
                "bob sha256:f44e64e75f3948e9f73f8dfa94721c4ce8cbb4f265c4790c702b2d41cfbf2753 tokens_per_minute=20\n");
  Serve serve({"--api-keys", file}, /*wait_until_ready=*/false);
  const std::string alice = "Authorization: Bearer alpha\r\n", bob = "Authorization: Bearer beta\r\n";
  ASSERT_TRUE(eventually([&] { return get(serve.port, "/ready", alice).status == 200; }));
  const std::string body = R"({"prompt": "Once upon a time", "max_tokens": 40, "ignore_eos": true})";
  const std::string too_long = Json{{"prompt", std::vector<int>(10'000, 5)}}.dump();
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(post(serve.port, "/v1/completions", too_long, alice).status, 400) << "which costs nothing";
  EXPECT_EQ(post(serve.port, "/v1/completions", body, alice).status, 200) << "the first is taken, however long";
  const Response refused = post(serve.port, "/v1/completions", body, alice);
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(json_of(refused)["error"]["message"], "the key 'alice' has used its 20 tokens a minute");
  EXPECT_EQ(get(serve.port, "/v1/models", alice).status, 200);
  const std::string chat = Json{{"messages", {{{"role", "user"}, {"content", std::string(4000, 'x')}}}}}.dump();
  EXPECT_EQ(post(serve.port, "/apply-template", chat, bob).status, 200);
  EXPECT_EQ(post(serve.port, "/apply-template", chat, bob).status, 429);
  Program wrong({"serve", "--api-keys", dir.write("wrong", "alice alpha\n")});
  EXPECT_EQ(describe(wrong.wait()), "exit 1");
  EXPECT_NE(wrong.err().find("wrong:1: 'alpha' of alice, wanted sha256:"), std::string::npos) << wrong.err();
}

TEST(KeysOfServer, WhatOneAskedTellsAnotherNothing) {
  TemporaryDir dir;
  const auto file = dir.write("keys",
                              "alice sha256:8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8\n"
                              "bob sha256:f44e64e75f3948e9f73f8dfa94721c4ce8cbb4f265c4790c702b2d41cfbf2753\n");
  const std::string alice = "Authorization: Bearer alpha\r\n", bob = "Authorization: Bearer beta\r\n";
  for (const bool share : {false, true}) {
    std::vector<std::string> options = {"--api-keys", file};
    if (share) options.push_back("--share-prefixes");
    Serve serve(options, /*wait_until_ready=*/false);
    ASSERT_TRUE(eventually([&] { return get(serve.port, "/ready", alice).status == 200; }));
    const auto cached = [&](const std::string& key, const std::string& salt) {
      Json request = {{"prompt", std::vector<int>(100, 5)}, {"max_tokens", 1}, {"cache_salt", salt}};
      const Json reply = json_of(post(serve.port, "/v1/completions", request.dump(), key));
      return reply["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>();
    };
    EXPECT_EQ(cached(alice, ""), 0);
    EXPECT_EQ(cached(alice, ""), 99);
    EXPECT_EQ(cached(bob, ""), share ? 99 : 0);
    EXPECT_EQ(cached(alice, "salt"), 0);
    EXPECT_EQ(cached(alice, "salt"), 99);
  }
}

TEST(ConnectionsOfServer, OneAddressLeavesRoomForOthersAndForItsOwnNextRequest) {
  const auto server = started({.connections_max = 8}, {health()});
  std::vector<std::unique_ptr<Connection>> idle;
  for (int i = 0; i < 20; ++i) {
    // One whose thread has not come to it yet is not idle.
    EXPECT_TRUE(eventually([&] {
      idle.push_back(std::make_unique<Connection>(server->port()));
      if (i % 2 == 0) return true;  // which has not said a word
      idle.back()->send("GET", "/health", "");
      return idle.back()->response().status == 200;
    })) << i;
  }
  EXPECT_TRUE(eventually([&] { return get(server->port(), "/health").status == 200; })) << "in place of an idle one";
  for (std::uint32_t address = 2; address < 5; ++address) {
    Connection stranger(server->port(), address);
    stranger.send("GET", "/health", "");
    EXPECT_EQ(stranger.response().status, 200);
  }
  EXPECT_EQ(idle.front()->all(), "") << "the first to go";
}

TEST(ConnectionsOfServer, SlowRequestsOfOneAddressTakeOnlyItsOwnRoom) {
  const auto server = started({.connections_max = 8}, {health()});
  std::vector<std::unique_ptr<Connection>> slow;
  EXPECT_TRUE(eventually([&] {
    slow.push_back(std::make_unique<Connection>(server->port()));
    slow.back()->send("GET /health HTTP/1.1\r\nHost: loc");
    return get(server->port(), "/health").status == 503;
  })) << "its address is slow";
  Connection stranger(server->port(), /*from=*/2);
  stranger.send("GET", "/health", "");
  EXPECT_EQ(stranger.response().status, 200);
}

/// What curl says to an address of this machine. Empty, with the reason in the test's output, where there is none.
std::string curl(const HttpServer& server, const std::filesystem::path& trusted, const std::string& more) {
  const std::string command = fmt::format("curl -sS --max-time 60 --cacert '{}' {} https://localhost:{}/echo 2>&1",
                                          trusted.string(), more, server.port());
  FILE* const pipe = popen(command.c_str(), "r");
  std::string said;
  char bytes[4096];
  for (std::size_t got = 0; (got = fread(bytes, 1, sizeof bytes, pipe)) > 0;) said.append(bytes, got);
  pclose(pipe);
  return said;
}

TEST(TlsOfServer, IsSpokenWithTheCertificateThatItsFilesHaveNow) {
  if (std::system("command -v curl openssl > /dev/null") != 0) GTEST_SKIP() << "no curl or no openssl on this machine";
  std::signal(SIGPIPE, SIG_IGN);
  TemporaryDir dir;
  make_certificate(dir, "first");
  make_certificate(dir, "second");
  const auto copy = [&](const char* from) {
    for (const char* end : {".pem", ".key"})
      std::filesystem::copy_file(dir.path() / (std::string(from) + end), dir.path() / (std::string("live") + end),
                                 std::filesystem::copy_options::overwrite_existing);
  };
  copy("first");
  const HttpRoute stream = {"GET", "/echo", [](const HttpRequest&) {
                              return HttpReply{.status = 200, .body = "", .next = [left = 3]() mutable {
                                                 return left-- > 0 ? std::optional<std::string>("piece ")
                                                                   : std::nullopt;
                                               }};
                            }};
  const auto server = started({.tls = TlsIdentity::load(dir.path() / "live.pem", dir.path() / "live.key").value(),
                               .keys = ApiKeys::of("secret")},
                              {echo(), stream});
  const std::string key = "-H 'Authorization: Bearer secret' ";
  EXPECT_EQ(curl(*server, dir.path() / "first.pem", key), "piece piece piece ");
  const std::string body(300'000, 'x');  // many records
  const auto file = dir.write("body", body);
  EXPECT_TRUE(curl(*server, dir.path() / "first.pem",
                   key + "-H 'Content-Type: application/json' --data-binary @" + file.string()) == body);
  EXPECT_NE(curl(*server, dir.path() / "second.pem", key).find("certificate"), std::string::npos);
  copy("second");
  EXPECT_EQ(curl(*server, dir.path() / "second.pem", key), "piece piece piece ");
  dir.write("live.key", "nothing");
  EXPECT_EQ(curl(*server, dir.path() / "second.pem", key), "piece piece piece ") << "those before hold on";
  Connection plain(server->port());
  plain.send("GET", "/echo", "");
  EXPECT_EQ(plain.response().status, 0) << "not in clear";
}

TEST(TlsOfServer, AgreesOnAKeyForEachConnectionAndOnNothingOfOld) {
  if (std::system("command -v openssl > /dev/null") != 0) GTEST_SKIP() << "no openssl on this machine";
  TemporaryDir dir;
  make_certificate(dir, "ec");
  make_certificate(dir, "rsa", "rsa:2048");
  for (const std::string kind : {"ec", "rsa"}) {
    const auto identity = TlsIdentity::load(dir.path() / (kind + ".pem"), dir.path() / (kind + ".key")).value();
    const auto server = started({.tls = identity}, {echo()});
    const auto shakes_hands = [&](const std::string& options) {
      return std::system(fmt::format("openssl s_client -connect localhost:{} {} < /dev/null > /dev/null 2>&1",
                                     server->port(), options)
                             .c_str()) == 0;
    };
    const std::string mark = kind == "ec" ? "ECDSA" : "RSA";
    EXPECT_TRUE(shakes_hands("-tls1_3"));
    for (const char* cipher : {"AES128-GCM-SHA256", "AES256-GCM-SHA384", "CHACHA20-POLY1305"})
      EXPECT_TRUE(shakes_hands(fmt::format("-tls1_2 -cipher ECDHE-{}-{}", mark, cipher))) << kind << cipher;
    for (const std::string cipher : {"AES128-SHA", "AES256-SHA256", "AES128-GCM-SHA256", "DHE-RSA-AES128-GCM-SHA256",
                                     "ECDHE-RSA-AES128-SHA", "ECDHE-ECDSA-AES256-SHA384", "kRSA", "ECDHE+SHA1"})
      EXPECT_FALSE(shakes_hands("-tls1_2 -cipher " + cipher + ":@SECLEVEL=0")) << kind << cipher;
    EXPECT_FALSE(shakes_hands("-tls1_1 -cipher ALL:@SECLEVEL=0"));
  }
}

TEST(TlsOfServer, FilesThatAreNoneAreNamed) {
  TemporaryDir dir;
  const auto wrong = dir.write("wrong.pem", "nothing");
  const auto error = [&](const std::filesystem::path& certificate) {
    return TlsIdentity::load(certificate, wrong).error().message;
  };
  EXPECT_NE(error(wrong).find("wrong.pem: "), std::string::npos) << error(wrong);
  EXPECT_NE(error("/nowhere.pem").find("/nowhere.pem: cannot open"), std::string::npos) << error("/nowhere.pem");
  Program serve({"serve", "--tls-cert", wrong});
  EXPECT_EQ(describe(serve.wait()), "exit 2") << "without its key";
}

/// A chat whose body has so many bytes.
std::string body_of(std::size_t bytes) { return "{\"x\": \"" + std::string(bytes - 9, ' ') + "\"}"; }

TEST(MemoryOfServer, LargeBodiesWaitForRoomAndAStrangerFindsIt) {
  std::atomic<int> reading = 0;
  std::promise<void> leave;
  const std::shared_future<void> left = leave.get_future().share();
  const HttpRoute read = {"POST", "/echo", [&, left](const HttpRequest& request) {
                            ++reading;
                            left.wait();
                            return HttpReply{.status = 200, .body = std::to_string(request.body.size())};
                          }};
  // Room for two bodies of the longest.
  const auto server = started({.request_bytes_max = 100'000,
                               .file_bytes_max = 0,
                               .memory_bytes_max = 0,
                               .request_timeout = std::chrono::seconds(3)},
                              {read});
  const std::string body = body_of(100'000);
  Connection first(server->port()), second(server->port()), stranger(server->port(), 2);
  first.send("POST", "/echo", body);
  EXPECT_TRUE(eventually([&] { return reading == 1; }));
  second.send("POST", "/echo", body);
  const Response refused = second.response();
  EXPECT_EQ(refused.status, 503) << "one address has half of it";
  EXPECT_NE(refused.head.find("Retry-After"), refused.head.npos);
  stranger.send("POST", "/echo", body);
  EXPECT_TRUE(eventually([&] { return reading == 2; }));
  leave.set_value();
  EXPECT_EQ(first.response().body, "100000");
  EXPECT_EQ(stranger.response().body, "100000");
}

TEST(MemoryOfServer, WhatARequestHoldsIsBounded) {
  const HttpRoute hold = {"POST", "/hold", [](const HttpRequest& request) {
                            const auto refused = request.reserve(std::stoll(request.body));
                            return HttpReply{.status = refused ? refused->status : 200, .body = "{}"};
                          }};
  const auto server = started({.request_bytes_max = 100, .file_bytes_max = 0, .memory_bytes_max = 10'000}, {hold});
  EXPECT_EQ(post(server->port(), "/hold", "5000").status, 200);
  EXPECT_EQ(post(server->port(), "/hold", "5001").status, 413) << "more than one may ever have";
  EXPECT_EQ(post(server->port(), "/hold", "5000").status, 200) << "what the first had is free again";
}

TEST(MemoryOfServer, OutOfDescriptorsItIsBusyNotBroken) {
  Serve serve;
  rlimit limit{};
  ASSERT_EQ(prlimit(serve.program.pid(), RLIMIT_NOFILE, nullptr, &limit), 0);
  Connection client(serve.port);
  client.send("GET", "/health", "");
  EXPECT_EQ(client.response().status, 200);
  const rlimit none{.rlim_cur = 3, .rlim_max = limit.rlim_max};  // those that are open stay so
  ASSERT_EQ(prlimit(serve.program.pid(), RLIMIT_NOFILE, &none, nullptr), 0);
  client.send("POST", "/v1/completions", R"({"prompt": "Once", "max_tokens": 2})");
  const Response busy = client.response();
  EXPECT_EQ(busy.status, 503) << busy.body;
  EXPECT_NE(busy.head.find("Retry-After"), busy.head.npos);
  ASSERT_EQ(prlimit(serve.program.pid(), RLIMIT_NOFILE, &limit, nullptr), 0);
  client.send("POST", "/v1/completions", R"({"prompt": "Once", "max_tokens": 2})");
  EXPECT_EQ(client.response().status, 200);
}

TEST(MemoryOfServer, APromptLongerThanTheContextIsRefusedBeforeItIsCopied) {
  Serve serve;
  const auto peak = [&] {
    std::ifstream status(fmt::format("/proc/{}/status", serve.program.pid()));
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) / 1024;
    }
    return 0LL;
  };
  const Json request = {{"prompt", std::vector<int>(500'000, 5)}, {"n", 64}};
  const auto before = peak();
  const Response refused = post(serve.port, "/v1/completions", request.dump());
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(json_of(refused)["error"]["code"], "context_length_exceeded");
  EXPECT_LT(peak() - before, 64 * 500'000 * 4 / 1'000'000) << "MiB, which 64 copies would have";
}

}  // namespace
}  // namespace outrider
