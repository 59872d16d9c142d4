// Who gets in, as what, and what those are told who do not.
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <zmq.hpp>

#include "common/client/client.h"
#include "common/os/durable_file.h"
#include "common/os/files.h"
#include "common/wire/transport/keys.h"
#include "common/wire/transport/pump.h"
#include "tests/support/cluster_fixtures.h"

namespace outrider {
namespace {

using namespace std::chrono_literals;

Hello hello(Role role) { return {.role = role, .name = "w", .facts = {}, .capacity = {}}; }

/// A folder with the keys of a coordinator and of whoever is made, and the coordinator's list.
class Keys {
 public:
  Keys() { make("coordinator"); }

  std::filesystem::path file(const std::string& name) const { return dir_ / name; }
  std::filesystem::path list() const { return dir_ / "authorized_keys"; }
  Key make(const std::string& name) { return create_private_key(file(name)).value().open; }
  /// A key that may come as `role`, under its name.
  void make(const std::string& name, KeyRole role) { ASSERT_TRUE(authorize_key(list(), {role, make(name), name})); }
  std::string open(const std::string& name) const { return file(name).string() + ".pub"; }
  Security listening() const { return {.key = file("coordinator"), .authorized = list()}; }
  Security of(const std::string& name, const std::string& coordinator = "coordinator") const {
    return {.key = file(name), .authorized = {}, .coordinator_keys = {open(coordinator)}};
  }

 private:
  TemporaryDir dir_;
};

/// An endpoint that listens with keys, as the coordinator's loop serves it.
class KeyedCoordinator : public testing::Test {
 protected:
  KeyedCoordinator() {
    keys_.make("v", KeyRole::kVerifier);
    keys_.make("d", KeyRole::kDrafter);
    keys_.make("e", KeyRole::kEncoder);
    keys_.make("c", KeyRole::kClient);
    keys_.make("stranger");
    context_ = std::make_unique<TransportContext>(keys_.listening());
    bound_ = Endpoint::bind(*context_, "tcp://127.0.0.1:*", {.useless_per_second = kInVain}).value();
    pump_ = std::make_unique<Pump>(*bound_);
  }

  static constexpr int kInVain = 100;  ///< a second, slow enough for any machine to say more
  struct Dialled {
    std::unique_ptr<TransportContext> context;
    std::unique_ptr<Endpoint> endpoint;
  };
  Dialled dial(const Security& security) { return dial(security, bound_->address()); }
  static Dialled dial(const Security& security, const std::string& address) {
    auto context = std::make_unique<TransportContext>(security);
    auto endpoint = Endpoint::connect(*context, address).value();
    return {std::move(context), std::move(endpoint)};
  }
  /// What the coordinator makes of a message: of the first that it hears.
  struct Heard {
    std::optional<Message> message;
    std::optional<PeerId> gone;
  };
  Heard hear(Endpoint& from) {
    Heard heard;
    eventually([&] {
      pump_->receive([&](const PeerId&, Message message) { heard.message = std::move(message); },
                     [&](const PeerId& peer) { heard.gone = peer; });
      from.wait(1ms);
      return heard.message || heard.gone;
    });
    return heard;
  }
  Heard says(const std::string& who, Body body) {
    const Dialled peer = dial(keys_.of(who));
    EXPECT_TRUE(peer.endpoint->send("", {.body = std::move(body)}));
    Heard heard = hear(*peer.endpoint);
    if (heard.gone) refusal_ = next(*peer.endpoint);
    return heard;
  }
  static std::string next(Endpoint& endpoint) {
    std::optional<Received> received;
    eventually([&] {
      received = endpoint.receive();
      if (!received) endpoint.wait(1ms);
      return received.has_value();
    });
    const auto* refuse = received && received->message ? std::get_if<Refuse>(&received->message->body) : nullptr;
    return refuse == nullptr ? "no refusal" : refuse->message;
  }
  /// Why somebody does not get a connection; nothing that they say is heard.
  Error trouble_of(const Security& security) {
    const Dialled peer = dial(security);
    EXPECT_TRUE(peer.endpoint->send("", {.body = StatusRequest{}}));
    std::optional<Error> trouble;
    eventually([&] {
      EXPECT_FALSE(bound_->receive()) << "a stranger is heard";
      peer.endpoint->wait(1ms);
      trouble = peer.endpoint->connection_error();
      return trouble.has_value();
    });
    EXPECT_FALSE(bound_->receive()) << "a stranger is heard";
    return trouble.value_or(Error{Errc::kTimeout, "no trouble"});
  }

  Keys keys_;
  std::unique_ptr<TransportContext> context_;
  std::unique_ptr<Endpoint> bound_;
  std::unique_ptr<Pump> pump_;
  std::string refusal_;
};

TEST_F(KeyedCoordinator, HearsEachRoleAndKnowsItsName) {
  const Heard verifier = says("v", hello(Role::kVerifier));
  ASSERT_TRUE(verifier.message);
  EXPECT_EQ(std::get<Hello>(verifier.message->body).name, "v/w");
  EXPECT_TRUE(says("d", hello(Role::kDrafter)).message);
  EXPECT_TRUE(says("e", hello(Role::kEncoder)).message);
  EXPECT_TRUE(says("c", Generate{.prompt = {1}, .stop_ids = {}}).message);
  for (const char* who : {"v", "d", "e", "c"}) EXPECT_TRUE(says(who, StatusRequest{}).message) << who;
}

// Or one client could wait in another's place, or fill it.
TEST_F(KeyedCoordinator, NobodySaysForAnotherKeyWhoseTurnItIsNorWhosePrefixesItShares) {
  for (const auto& [said, heard] : {std::pair("", "c"), std::pair("alice", "c/alice")}) {
    const Heard text = says("c", Generate{.prompt = {1}, .stop_ids = {}, .on_behalf_of = said, .cache_scope = said});
    ASSERT_TRUE(text.message);
    EXPECT_EQ(std::get<Generate>(text.message->body).on_behalf_of, heard);
    EXPECT_EQ(std::get<Generate>(text.message->body).cache_scope, heard);
  }
  const std::string longest(kScopeBytes.max, 's');
  EXPECT_FALSE(says("c", Generate{.prompt = {1}, .stop_ids = {}, .cache_scope = longest}).message);
}

TEST_F(KeyedCoordinator, HoldsEveryRoleToItsKey) {
  struct Case {
    const char* who;
    Body body;
    const char* why;
  };
  for (const Case& wrong :
       {Case{"d", hello(Role::kVerifier), "the key of d is for a drafter; it may not join as a verifier"},
        Case{"v", hello(Role::kDrafter), "the key of v is for a verifier; it may not join as a drafter"},
        Case{"c", hello(Role::kVerifier), "the key of c is for a client; it may not join as a verifier"},
        Case{"c", hello(Role::kDrafter), "the key of c is for a client; it may not join as a drafter"},
        Case{"d", hello(Role::kEncoder), "the key of d is for a drafter; it may not join as an encoder"},
        Case{"e", hello(Role::kVerifier), "the key of e is for an encoder; it may not join as a verifier"},
        Case{"e", Cancel{}, "the key of e is for an encoder; it may not ask for texts"},
        Case{"c", Heartbeat{}, "the key of c is for a client; it may not send 'heartbeat'"},
        Case{"c", Verdict{}, "the key of c is for a client; it may not send 'verdict'"},
        Case{"d", Generate{.prompt = {1}, .stop_ids = {}}, "the key of d is for a drafter; it may not ask for texts"},
        Case{"v", Generate{.prompt = {1}, .stop_ids = {}}, "the key of v is for a verifier; it may not ask for texts"},
        Case{"v", Cancel{}, "the key of v is for a verifier; it may not ask for texts"}}) {
    const Heard heard = says(wrong.who, wrong.body);
    EXPECT_FALSE(heard.message) << wrong.why;
    EXPECT_EQ(refusal_, wrong.why);
  }
}

TEST_F(KeyedCoordinator, AKeyWithTwoLinesHasBothRoles) {
  const Key key = read_private_key(keys_.file("d")).value().open;
  ASSERT_TRUE(authorize_key(keys_.list(), {KeyRole::kClient, key, "d"}));
  eventually([&] { return says("d", Generate{.prompt = {1}, .stop_ids = {}}).message.has_value(); });
  EXPECT_TRUE(says("d", hello(Role::kDrafter)).message);
  EXPECT_FALSE(says("d", hello(Role::kVerifier)).message);
}

TEST_F(KeyedCoordinator, RefusesAStrangersKeyAndSaysSo) {
  const Error trouble = trouble_of(keys_.of("stranger"));
  EXPECT_EQ(trouble.code, Errc::kMismatch);
  EXPECT_EQ(trouble.message,
            bound_->address() + ": the coordinator refused our key (its authorized_keys has no line for it)");
}

TEST_F(KeyedCoordinator, RefusesWhoKnowsAnotherCoordinator) {
  const Error trouble = trouble_of(keys_.of("v", "stranger"));
  EXPECT_EQ(trouble.code, Errc::kMismatch);
  EXPECT_NE(trouble.message.find("this is not the coordinator whose key we know"), std::string::npos)
      << trouble.message;
}

TEST_F(KeyedCoordinator, RefusesWhoComesWithoutAKey) {
  const Error trouble = trouble_of({});
  EXPECT_NE(trouble.message.find("wants keys"), std::string::npos) << trouble.message;
}

// libzmq takes no security for a peer of its versions 2 and 3 whose greeting has none.
TEST_F(KeyedCoordinator, HearsNothingOfForeignSocketsWithoutAKey) {
  zmq::context_t zmq;
  for (const zmq::socket_type type : {zmq::socket_type::dealer, zmq::socket_type::req, zmq::socket_type::router}) {
    zmq::socket_t socket(zmq, type);
    socket.set(zmq::sockopt::linger, 0);
    socket.connect(bound_->address());
    socket.send(zmq::str_buffer("hello"), zmq::send_flags::dontwait);
    for (int i = 0; i < 50; ++i) {
      EXPECT_FALSE(bound_->receive());
      bound_->wait(1ms);
    }
  }
}

TEST_F(KeyedCoordinator, ARevokedKeyIsOutAtOnceAndAnAuthorizedOneIn) {
  const Dialled drafter = dial(keys_.of("d"));
  ASSERT_TRUE(drafter.endpoint->send("", {.body = hello(Role::kDrafter)}));
  ASSERT_TRUE(hear(*drafter.endpoint).message);

  EXPECT_EQ(revoke_keys(keys_.list(), "d").value(), 1);
  Heard heard;
  eventually([&] {  // as a worker does, twice a second
    EXPECT_TRUE(drafter.endpoint->send("", {.body = Heartbeat{}}));
    heard = hear(*drafter.endpoint);
    return heard.gone.has_value();
  });
  EXPECT_EQ(next(*drafter.endpoint), "this key was revoked");
  EXPECT_EQ(trouble_of(keys_.of("d")).code, Errc::kMismatch) << "a new connection";

  // Whoever was refused tries on, and gets in once the key is there.
  const Dialled stranger = dial(keys_.of("stranger"));
  ASSERT_TRUE(stranger.endpoint->send("", {.body = hello(Role::kDrafter)}));
  eventually([&] {
    stranger.endpoint->wait(1ms);
    return stranger.endpoint->connection_error().has_value();
  });
  const Key key = read_private_key(keys_.file("stranger")).value().open;
  ASSERT_TRUE(authorize_key(keys_.list(), {KeyRole::kDrafter, key, "new"}));
  const Heard late = hear(*stranger.endpoint);
  ASSERT_TRUE(late.message) << "what was sent before is not lost";
  EXPECT_EQ(std::get<Hello>(late.message->body).name, "new/w");
}

// An authorized client that talks at full speed would keep the coordinator from the others.
TEST_F(KeyedCoordinator, WhoSaysTooMuchInVainIsHeldUpAndNobodyElse) {
  const Dialled talker = dial(keys_.of("c"));
  const Dialled neighbour = dial(keys_.of("c"));  // of the same key
  const auto talk = [&] { return talker.endpoint->send("", {.body = StatusRequest{}}).has_value(); };
  ASSERT_TRUE(neighbour.endpoint->send("", {.body = StatusRequest{}}));
  ASSERT_TRUE(hear(*neighbour.endpoint).message);
  int heard = 0;
  PeerId ignored_peer;
  eventually([&] {
    for (int i = 0; i < kInVain; ++i) talk();
    talker.endpoint->wait(1ms);
    while (const auto received = bound_->receive()) {
      ++heard;
      if (bound_->count_useless_message()) ignored_peer = received->from;
    }
    return !ignored_peer.empty();
  });
  ASSERT_FALSE(ignored_peer.empty());
  EXPECT_GE(heard, kInVain);

  // Nothing more is heard. All queues fill, and then a turn of the loop takes so little of them that they stay full.
  const auto taken = [&] {
    int said = 0;
    for (int turn = 0; turn < 400; ++turn) {
      while (talk()) ++said;
      while (const auto received = bound_->receive()) EXPECT_NE(received->from, ignored_peer);
      bound_->wait(1ms);
    }
    return said;
  };
  EXPECT_TRUE(eventually([&] { return taken() < 10'000; })) << "64 a turn would be 25,600";

  // Others are heard beside it, those of its key too.
  ASSERT_TRUE(neighbour.endpoint->send("", {.body = Generate{.prompt = {1}, .stop_ids = {}}}));
  const Heard next = hear(*neighbour.endpoint);
  ASSERT_TRUE(next.message);
  EXPECT_TRUE(std::holds_alternative<Generate>(next.message->body));
  EXPECT_TRUE(says("v", hello(Role::kVerifier)).message);
}

// A worker that dialled anew at once would be given texts, and leave them, without end.
TEST_F(KeyedCoordinator, WhoseKeySaidTooMuchInVainJoinsNoMoreForAWhile) {
  const Dialled first = dial(keys_.of("d"));
  PeerId ignored_peer;
  eventually([&] {
    for (int i = 0; i < kInVain; ++i) (void)first.endpoint->send("", {.body = Heartbeat{}});
    first.endpoint->wait(1ms);
    while (const auto received = bound_->receive()) {
      if (bound_->count_useless_message()) ignored_peer = received->from;
    }
    return !ignored_peer.empty();
  });
  EXPECT_FALSE(says("d", hello(Role::kDrafter)).message);
  EXPECT_NE(refusal_.find("too much that was of no use was said under this key"), std::string::npos) << refusal_;
  EXPECT_TRUE(says("v", hello(Role::kVerifier)).message);

  // Another connection of which nothing is heard: the first is cut, and dials again.
  const Dialled second = dial(keys_.of("d"));
  eventually([&] {
    for (int i = 0; i < kInVain; ++i) (void)second.endpoint->send("", {.body = Heartbeat{}});
    second.endpoint->wait(1ms);
    first.endpoint->wait(1ms);
    while (bound_->receive()) bound_->count_useless_message();
    bound_->wait(1ms);
    return first.endpoint->connections() > 1;
  });
  EXPECT_GT(first.endpoint->connections(), 1);
}

TEST_F(KeyedCoordinator, WithoutItsListLetsNobodyIn) {
  std::filesystem::remove(keys_.list());
  eventually([&] { return trouble_of(keys_.of("v")).message.find("refused our key") != std::string::npos; });
  EXPECT_EQ(trouble_of(keys_.of("c")).code, Errc::kMismatch);
}

TEST_F(KeyedCoordinator, ALineThatMakesNoSenseAuthorizesNobodyAndTheOthersHold) {
  const std::string text = read_text(keys_.list()).value();
  const Key key = read_private_key(keys_.file("stranger")).value().open;
  ASSERT_TRUE(replace_text(keys_.list(), text + "drafters " + to_text(key) + " s\n"));
  eventually([&] { return says("v", hello(Role::kVerifier)).message.has_value(); });
  EXPECT_EQ(trouble_of(keys_.of("stranger")).code, Errc::kMismatch);
}

// While a coordinator's key changes, its workers know the old one and the new one.
TEST_F(KeyedCoordinator, OneOfTwoKnownKeysWillDo) {
  Security both = keys_.of("v", "stranger");
  both.coordinator_keys.push_back(keys_.open("coordinator"));
  const Dialled peer = dial(both);
  ASSERT_TRUE(peer.endpoint->send("", {.body = hello(Role::kVerifier)}));
  EXPECT_TRUE(hear(*peer.endpoint).message);
}

TEST_F(KeyedCoordinator, IsNotWhoListensInClear) {
  TransportContext plain;
  const auto clear = Endpoint::bind(plain, "tcp://127.0.0.1:*").value();
  const Dialled peer = dial(keys_.of("v"), clear->address());
  ASSERT_TRUE(peer.endpoint->send("", {.body = hello(Role::kVerifier)}));
  std::optional<Error> trouble;
  eventually([&] {
    EXPECT_FALSE(clear->receive()) << "said in clear";
    peer.endpoint->wait(1ms);
    trouble = peer.endpoint->connection_error();
    return trouble.has_value();
  });
  ASSERT_TRUE(trouble);
  EXPECT_NE(trouble->message.find("goes without keys"), std::string::npos) << trouble->message;
}

// A process that is stopped (SIGSTOP): its kernel takes connections.
TEST_F(KeyedCoordinator, OneThatIsFrozenIsNotTakenForAnotherOne) {
  const int frozen = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in where{};
  socklen_t size = sizeof where;
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(frozen, reinterpret_cast<const sockaddr*>(&where), sizeof where), 0);
  ASSERT_EQ(::listen(frozen, 8), 0);
  ASSERT_EQ(getsockname(frozen, reinterpret_cast<sockaddr*>(&where), &size), 0);
  const Dialled peer = dial(keys_.of("v"), fmt::format("tcp://127.0.0.1:{}", ntohs(where.sin_port)));
  std::optional<Error> trouble;
  eventually([&] {
    peer.endpoint->wait(1ms);
    trouble = peer.endpoint->connection_error();
    return trouble.has_value();
  });
  close(frozen);
  ASSERT_TRUE(trouble);
  EXPECT_EQ(trouble->code, Errc::kPeerGone);
  EXPECT_NE(trouble->message.find("does not answer"), std::string::npos) << trouble->message;
}

// While the coordinator is restarted its port may accept a connection and close it, as a stranger would.
TEST_F(KeyedCoordinator, OneThatWasThereMayComeBackThoughNowItHangsUp) {
  const Dialled before = dial(keys_.of("c"));
  eventually([&] {
    before.endpoint->wait(1ms);
    (void)before.endpoint->receive();
    return before.endpoint->was_there();
  });
  TransportContext plain;
  const auto clear = Endpoint::bind(plain, "tcp://127.0.0.1:*").value();
  Client client = Client::connect(*before.context, clear->address(), {.failover_wait = 1s}).value();
  const auto answer = client.generate({.prompt = {1}, .stop_ids = {}}, [](std::span<const TokenId>) {});
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, Errc::kPeerGone) << answer.error().message;
}

/// A TCP connection to `address` that has sent ZeroMQ's greeting with CURVE in it.
int greeted(const std::string& address) {
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(::connect(fd, reinterpret_cast<const sockaddr*>(&where), sizeof where), 0);
  const std::string greeting = std::string("\xff\0\0\0\0\0\0\0\1\x7f\3\0CURVE", 17) + std::string(47, '\0');
  EXPECT_EQ(::send(fd, greeting.data(), greeting.size(), MSG_NOSIGNAL), std::ssize(greeting));
  return fd;
}

// Once somebody is in, nothing bounds the frames of one message.
TEST_F(KeyedCoordinator, ATrainOfFramesEndsTheConnectionBeforeTheHandshake) {
  for (const std::string& frame : {std::string("\1\1x", 3), std::string("\4\5\5HELL", 7), std::string("\2\xff", 2)}) {
    const int fd = greeted(bound_->address());
    constexpr std::size_t kBytesMax = 64u << 20;
    std::string many;
    while (many.size() < (1u << 16)) many += frame;
    std::size_t sent = 0;
    for (ssize_t n = 0; n >= 0 && sent < kBytesMax; sent += static_cast<std::size_t>(std::max<ssize_t>(n, 0)))
      n = ::send(fd, many.data(), many.size(), MSG_NOSIGNAL);
    EXPECT_LT(sent, kBytesMax) << "taken";
    close(fd);
  }
  EXPECT_FALSE(bound_->receive());
}

TEST_F(KeyedCoordinator, WhoNeverShakesHandsIsHungUpOn) {
  const int fd = greeted(bound_->address());
  const std::string start("\6\0\0\0\0\4\0\0\0", 9);  // a command of 64 MiB, which never comes
  EXPECT_EQ(::send(fd, start.data(), start.size(), MSG_NOSIGNAL), std::ssize(start));
  char bytes[100];
  ssize_t got = 1;
  eventually([&] {
    got = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno != EAGAIN);
  });
  EXPECT_LE(got, 0);
  close(fd);
}

// ZeroMQ takes a frame of a handshake as large as one of a message.
TEST_F(KeyedCoordinator, AStrangerBringsNoMoreThanAHandshake) {
  const int fd = greeted(bound_->address());
  constexpr std::size_t kFrame = 32u << 20;
  const std::string start("\6\0\0\0\0\2\0\0\0", 9), part(1u << 16, 'x');
  ASSERT_EQ(::send(fd, start.data(), start.size(), MSG_NOSIGNAL), std::ssize(start));
  std::size_t sent = 0;
  for (ssize_t n = 0; n >= 0 && sent < kFrame; sent += static_cast<std::size_t>(std::max<ssize_t>(n, 0))) {
    n = ::send(fd, part.data(), std::min(part.size(), kFrame - sent), MSG_NOSIGNAL);
    EXPECT_FALSE(bound_->receive());
    bound_->wait(1ms);
  }
  EXPECT_LT(sent, kFrame) << "taken";
  close(fd);
}

TEST(Insecure, ConnectionsBeyondThisMachineAreRefusedWithoutKeys) {
  const Keys keys;
  setenv("XDG_CONFIG_HOME", keys.file("empty").c_str(), 1);
  for (const char* address : {"tcp://0.0.0.0:0", "tcp://localhost.example:0", "tcp://*:0", "tcp://[::]:0",
                              "tcp://eth0:0", "tcp://10.0.0.1:7070"}) {
    TransportContext context;
    const auto bound = Endpoint::bind(context, address);
    ASSERT_FALSE(bound) << address;
    EXPECT_EQ(bound.error().code, Errc::kInvalidArgument) << bound.error().message;
    EXPECT_NE(bound.error().message.find("there is no private key"), std::string::npos) << bound.error().message;
  }
  for (const char* address : {"tcp://10.0.0.1:7070", "tcp://node1:7070", "tcp://127.0.0.1:7070,tcp://node1:7070"}) {
    TransportContext context;
    const auto connected = Endpoint::connect(context, address);
    ASSERT_FALSE(connected) << address;
    EXPECT_NE(connected.error().message.find("outrider keys new"), std::string::npos) << connected.error().message;
  }
  TransportContext insecure(Security{.insecure = true});
  EXPECT_TRUE(Endpoint::bind(insecure, "tcp://0.0.0.0:0"));
  TransportContext both(Security{.key = keys.file("coordinator"), .insecure = true});
  EXPECT_FALSE(Endpoint::bind(both, "tcp://127.0.0.1:0"));

  // What lies at the default places is used beyond this machine only.
  TransportContext context;
  EXPECT_TRUE(Endpoint::bind(context, "tcp://127.0.0.1:0"));
  const std::filesystem::path folder = keys.file("empty") / "outrider";
  ASSERT_TRUE(create_private_key(folder / kPrivateKeyFile));
  const auto no_list = Endpoint::bind(context, "tcp://0.0.0.0:0");
  ASSERT_FALSE(no_list);
  EXPECT_NE(no_list.error().message.find("outrider keys authorize"), std::string::npos) << no_list.error().message;
  ASSERT_TRUE(authorize_key(folder / kAuthorizedFile, {KeyRole::kClient, new_key_pair().open, "c"}));
  EXPECT_TRUE(Endpoint::bind(context, "tcp://0.0.0.0:0"));
}

TEST(KeyFiles, OfOthersToReadAreRefused) {
  const Keys keys;
  const std::filesystem::path file = keys.file("coordinator");
  EXPECT_TRUE(read_private_key(file));
  // Of root's its group may read, whoever we are: Kubernetes mounts a Secret with fsGroup so.
  const bool of_root = geteuid() == 0;
  ASSERT_EQ(chmod(file.c_str(), 0640), 0);
  EXPECT_EQ(read_private_key(file).has_value(), of_root);
  ASSERT_EQ(chmod(file.c_str(), 0644), 0);
  const auto wide = read_private_key(file);
  ASSERT_FALSE(wide);
  EXPECT_EQ(wide.error().message, fmt::format("{0}: others may read this private key (mode 0644); run: chmod {1} {0}",
                                              file.string(), of_root ? 640 : 600));
  ASSERT_EQ(chmod(file.c_str(), 0400), 0);
  EXPECT_TRUE(read_private_key(file));
  EXPECT_FALSE(create_private_key(file)) << "overwritten";
}

TEST(KeyFiles, ThatCouldNotBeWrittenAreNotThere) {
  const TemporaryDir dir;
  rlimit room{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &room), 0);
  const rlimit none{0, room.rlim_max};
  std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &none);
  const Result<KeyPair> full = create_private_key(dir / "key");
  setrlimit(RLIMIT_FSIZE, &room);
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().message, (dir / "key").string() + ": cannot be written: File too large");
  std::filesystem::create_symlink("nowhere", dir / "key.pub");
  EXPECT_FALSE(create_private_key(dir / "key")) << "without its public half";
  std::filesystem::remove(dir / "key.pub");
  EXPECT_TRUE(create_private_key(dir / "key"));
}

TEST(KeyFiles, OfSomethingElseAreNamed) {
  const Keys keys;
  const TemporaryDir dir;
  const std::string text = to_text(new_key_pair().open);
  EXPECT_FALSE(read_private_key(dir.path() / "none"));
  EXPECT_FALSE(read_private_key(keys.open("coordinator")));
  const auto secret = read_public_keys(keys.file("coordinator"));
  ASSERT_FALSE(secret);
  EXPECT_NE(secret.error().message.find("private key"), std::string::npos) << secret.error().message;
  EXPECT_FALSE(read_public_keys(dir.write("empty", "# nothing\n")));
  EXPECT_FALSE(read_public_keys(dir.write("short", text.substr(1))));
  EXPECT_EQ(read_public_keys(text.substr(1)).error().message,
            text.substr(1) +
                ": cannot open: No such file or directory, wanted a public key of 64 hexadecimal digits or "
                "a file of them");
  EXPECT_EQ(read_public_keys(dir.write("two", text + " old\n\n" + text + "\n")).value().size(), 2u);
  EXPECT_EQ(read_public_keys(text).value().size(), 1u);
}

TEST(KeyFiles, AreReadWhicheverEditorWroteThem) {
  const TemporaryDir dir;
  const KeyPair pair = create_private_key(dir / "id").value();
  const std::string mark = "\xEF\xBB\xBF", open = to_text(pair.open), secret = read_text(dir / "id").value();
  dir.write("id", mark + secret.substr(0, secret.size() - 1) + "\r\n");
  EXPECT_EQ(read_private_key(dir / "id").value().open, pair.open);
  EXPECT_EQ(read_public_keys(dir.write("known", mark + open + "\r\n" + open)).value().size(), 2u);
  const std::filesystem::path list = dir.write("list", mark + "client " + open + " one\r\ndrafter " + open + " two");
  EXPECT_EQ(parse_authorized_keys(read_text(list).value()).keys.size(), 2u);
  ASSERT_TRUE(authorize_key(list, {KeyRole::kVerifier, pair.open, "three"}));
  EXPECT_EQ(revoke_keys(list, "one").value(), 1);
  const AuthorizedKeys left = parse_authorized_keys(read_text(list).value());
  EXPECT_EQ(left.keys.size(), 2u);
  EXPECT_TRUE(left.problems.empty());
}

// The coordinator reads the file itself, and the one who revokes a key a link to it.
TEST(KeyFiles, ThatALinkNamesAreTheOnesThatChange) {
  const TemporaryDir dir;
  const std::filesystem::path file = dir.write("etc/list", ""), link = dir / "list";
  std::filesystem::create_symlink("etc/list", link);
  ASSERT_EQ(chmod(file.c_str(), 0600), 0);
  ASSERT_TRUE(authorize_key(link, {KeyRole::kClient, new_key_pair().open, "box"}));
  EXPECT_EQ(parse_authorized_keys(read_text(file).value()).keys.size(), 1u);
  EXPECT_EQ(revoke_keys(link, "box").value(), 1);
  EXPECT_TRUE(parse_authorized_keys(read_text(file).value()).keys.empty());
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(std::filesystem::status(file).permissions(), std::filesystem::perms(0600));
}

TEST(KeyFiles, LoseNoKeyWhereSeveralAreAuthorizedAtOnce) {
  const TemporaryDir dir;
  const std::filesystem::path list = dir.write("etc/authorized_keys", ""), link = dir / "link";
  std::filesystem::create_symlink(list, link);
  {
    std::vector<std::jthread> at_once;
    for (int i = 0; i < 16; ++i) {
      at_once.emplace_back([&] {
        for (int k = 0; k < 20; ++k)
          EXPECT_TRUE(authorize_key(k % 2 == 0 ? list : link, {KeyRole::kClient, new_key_pair().open, "c"}));
      });
    }
  }
  EXPECT_EQ(parse_authorized_keys(read_text(list).value()).keys.size(), 320u);
}

TEST(KeyFiles, KeepTheirCommentsAndRefuseWhatWouldMislead) {
  const TemporaryDir dir;
  const std::filesystem::path list = dir.path() / "authorized_keys";
  const AuthorizedKey one{KeyRole::kDrafter, new_key_pair().open, "one"};
  const AuthorizedKey two{KeyRole::kClient, new_key_pair().open, "two"};
  dir.write("authorized_keys", "# ours");
  ASSERT_TRUE(authorize_key(list, one));
  ASSERT_TRUE(authorize_key(list, two));
  EXPECT_EQ(parse_authorized_keys(read_text(list).value()).keys, (std::vector{one, two}));
  EXPECT_FALSE(authorize_key(list, one)) << "twice";
  for (const char* name : {"", "a b", "a\nverifier", "x#", "\x1b[2J", "na\xc3me", "../n"})
    EXPECT_FALSE(authorize_key(list, {KeyRole::kDrafter, new_key_pair().open, name})) << name;
  EXPECT_EQ(revoke_keys(list, "one").value(), 1);
  EXPECT_EQ(revoke_keys(list, "one").value(), 0);
  const std::string text = read_text(list).value();
  EXPECT_TRUE(text.starts_with("# ours\n")) << text;
  EXPECT_EQ(parse_authorized_keys(text).keys, std::vector{two});
  const AuthorizedKeys bad = parse_authorized_keys("drafter abc x\nking " + to_text(one.key) + " x\ndrafter\n");
  EXPECT_TRUE(bad.keys.empty());
  EXPECT_EQ(bad.problems.size(), 3u);
}

// ---- the program ----

/// A coordinator of programs with keys, its workers and `outrider run`.
TEST(ThreeProcesses, WithKeysTellTheSameStory) {
  Keys keys;
  keys.make("v", KeyRole::kVerifier);
  keys.make("d", KeyRole::kDrafter);
  keys.make("c", KeyRole::kClient);
  Coordinator coordinator("tcp://127.0.0.1:*", {"--key", keys.file("coordinator"), "--authorized", keys.list()});
  const auto as = [&](std::vector<std::string> arguments, const std::string& who) {
    arguments.insert(arguments.end(), {"--key", keys.file(who), "--coordinator-key", keys.open("coordinator")});
    return arguments;
  };
  Program verifier(as({"verifier", "--join", coordinator.address, "--dtype", "f32"}, "v"));
  Program drafter(as({"drafter", "--join", coordinator.address, "--dtype", "f32"}, "d"));
  TransportContext context(keys.of("c"));
  Client client = connect_when_joined(context, coordinator.address, 1, 1);
  const NanoGolden golden = nano_goldens().front();
  const Generation story = answer(client, request_for(golden, 4));
  EXPECT_EQ(story.tokens, golden.greedy);
  EXPECT_GT(story.metrics.accepted_tokens, 0);
  EXPECT_FALSE(lines_with(coordinator.program.err(), {"d/drafter-", "joined"}).empty()) << coordinator.program.err();

  Program stranger(as({"run", "Hello", "--connect", coordinator.address}, "d"));
  EXPECT_EQ(describe(stranger.wait()), "exit 1");
  EXPECT_NE(stranger.err().find("may not ask for texts"), std::string::npos) << stranger.err();
  Program keyless({"run", "Hello", "--connect", coordinator.address});
  EXPECT_EQ(describe(keyless.wait()), "exit 1");
  EXPECT_NE(keyless.err().find("wants keys"), std::string::npos) << keyless.err();
}

TEST(KeysCommand, MakesAuthorizesListsAndRevokes) {
  const TemporaryDir dir;
  const std::string key = dir.path() / "k" / "id", list = dir.path() / "l" / "keys";
  Program made({"keys", "new", "--key", key});
  EXPECT_EQ(describe(made.wait()), "exit 0") << made.err();
  Program shown({"keys", "public", "--key", key});
  shown.wait();
  EXPECT_EQ(shown.out(), made.out());
  EXPECT_TRUE(parse_key(made.out().substr(0, 64))) << made.out();
  Program again({"keys", "new", "--key", key});
  EXPECT_EQ(describe(again.wait()), "exit 1");
  Program let_in({"keys", "authorize", "drafter", "d1", key + ".pub", "--authorized", list});
  EXPECT_EQ(describe(let_in.wait()), "exit 0") << let_in.err();
  Program from_pipe({"keys", "authorize", "client", "me", "--authorized", list}, Program::Input::kWritten);
  from_pipe.write(made.out());
  EXPECT_EQ(describe(from_pipe.wait()), "exit 0") << from_pipe.err();
  Program listed({"keys", "list", "--authorized", list});
  listed.wait();
  EXPECT_EQ(lines_with(listed.out(), {made.out().substr(0, 64) + " d1"}).size(), 1u) << listed.out();
  Program revoked({"keys", "revoke", "d1", "--authorized", list});
  EXPECT_EQ(describe(revoked.wait()), "exit 0") << revoked.err();
  Program nobody({"keys", "revoke", "d1", "--authorized", list});
  EXPECT_EQ(describe(nobody.wait()), "exit 1");
  Program king({"keys", "authorize", "king", "k", key + ".pub", "--authorized", list});
  EXPECT_EQ(describe(king.wait()), "exit 1");
  // Neither what lists the keys nor what wants them obeys a line of the file.
  dir.write("l/keys", "client " + made.out().substr(0, 64) + " \x1b[31mred\n");
  Program shows({"keys", "list", "--authorized", list});
  EXPECT_EQ(describe(shows.wait()), "exit 1");
  Program wants({"coordinator", "--listen", "tcp://127.0.0.1:*", "--key", key, "--authorized", list});
  EXPECT_EQ(describe(wants.wait()), "exit 1");
  for (const std::string& err : {shows.err(), wants.err()}) {
    EXPECT_NE(err.find("'?[31mred' is no name"), std::string::npos) << err;
    EXPECT_EQ(err.find('\x1b'), std::string::npos) << err;
  }
}

}  // namespace
}  // namespace outrider
