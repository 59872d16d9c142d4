#include "common/wire/transport/endpoint.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <malloc.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <future>
#include <random>
#include <set>
#include <thread>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <zmq.hpp>

#include "common/client/client.h"
#include "common/wire/transport/codec.h"
#include "common/wire/transport/pump.h"
#include "common/wire/transport/receive_budget.h"
#include "schemas/outrider_generated.h"
#include "tests/support/free_port.h"
#include "tests/unit/protocol_support.h"

namespace outrider {
namespace {

using namespace std::chrono_literals;

// Nothing here waits for time to pass; this only ends a test that would hang.
constexpr Duration kHang = 300s;

Message numbered(std::uint32_t number) { return {SessionId{1}, RoundId{number}, 0, NeedKv{.have = 7}}; }

WireTensor tensor(DType dtype, std::vector<std::int64_t> shape, std::uint64_t seed) {
  std::size_t size = size_bytes(dtype);
  for (const std::int64_t extent : shape) size *= static_cast<std::size_t>(extent);
  const auto bytes = std::make_shared<std::vector<std::byte>>(size);
  std::mt19937_64 engine(seed);
  for (std::byte& b : *bytes) b = static_cast<std::byte>(engine());
  return {dtype, std::move(shape), SharedBytes(bytes, *bytes)};
}

Message draft_with_hidden(std::uint32_t round, std::int64_t bytes) {
  Draft draft;
  draft.hidden = tensor(DType::kU8, {bytes}, round);
  return {SessionId{1}, RoundId{round}, 0, draft};
}

bool same_bytes(const WireTensor& a, const WireTensor& b) { return std::ranges::equal(a.data.bytes(), b.data.bytes()); }

/// The next thing that arrives.
Received next(Endpoint& endpoint) {
  const TimePoint give_up = now() + kHang;
  while (now() < give_up) {
    if (std::optional<Received> received = endpoint.receive()) return std::move(*received);
    endpoint.wait(1s);
  }
  ADD_FAILURE() << "nothing arrived at " << endpoint.address();
  return {"", Error{Errc::kTimeout, "nothing arrived"}, 0};
}

/// Sends once there is room.
void send_patiently(Endpoint& endpoint, const PeerId& to, const Message& message) {
  const TimePoint give_up = now() + kHang;
  while (true) {
    const Result<std::size_t> sent = endpoint.send(to, message);
    if (sent) return;
    ASSERT_EQ(sent.error().code, Errc::kUnavailable) << sent.error().message;
    ASSERT_LT(now(), give_up);
    std::this_thread::yield();
  }
}

/// `server` binds to the parameter, clients connect to it.
class Transport : public testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Endpoint> bind(const EndpointOptions& options = {}) {
    return Endpoint::bind(context_, GetParam(), options).value();
  }
  std::unique_ptr<Endpoint> connect(const Endpoint& server, const EndpointOptions& options = {}) {
    return Endpoint::connect(context_, server.address(), options).value();
  }
  bool in_process() const { return std::string(GetParam()).starts_with("inproc"); }

  TransportContext context_;
};
INSTANTIATE_TEST_SUITE_P(Over, Transport, testing::Values("inproc://outrider", "tcp://127.0.0.1:*"),
                         [](const auto& param_info) {
                           return std::string(param_info.param, param_info.param[0] == 'i' ? 6 : 3);
                         });

TEST_P(Transport, MessagesCrossBothWays) {
  const auto server = bind();
  const auto client = connect(*server);
  const std::size_t sent = client->send("", numbered(1)).value();

  const Received request = next(*server);
  ASSERT_TRUE(request.message) << request.message.error().message;
  EXPECT_EQ(request.message->round, RoundId{1});
  EXPECT_EQ(request.wire_bytes, sent);
  EXPECT_FALSE(request.from.empty());

  ASSERT_TRUE(server->send(request.from, numbered(2)));
  const Received reply = next(*client);
  ASSERT_TRUE(reply.message) << reply.message.error().message;
  EXPECT_EQ(reply.message->round, RoundId{2});
  EXPECT_EQ(reply.from, "");
  EXPECT_FALSE(client->receive());
}

TEST_P(Transport, EveryPeerGetsItsOwnAnswersInOrder) {
  constexpr int kPeers = 12;
  constexpr std::uint32_t kMessages = 200;
  const auto server = bind();
  std::atomic<int> running = kPeers;
  std::vector<std::jthread> peers;
  for (int peer = 0; peer < kPeers; ++peer) {
    peers.emplace_back([&, peer] {
      const auto client = connect(*server);
      std::uint32_t asked = 0, answered = 0;
      while (answered < kMessages && !HasFatalFailure()) {
        // Up to ten in flight.
        for (; asked < kMessages && asked < answered + 10; ++asked) {
          Message message = numbered(asked);
          message.session = SessionId{static_cast<std::uint64_t>(peer)};
          send_patiently(*client, "", message);
        }
        const Received answer = next(*client);
        ASSERT_TRUE(answer.message) << answer.message.error().message;
        ASSERT_EQ(answer.message->session, SessionId{static_cast<std::uint64_t>(peer)});
        ASSERT_EQ(answer.message->round, RoundId{answered});
        ++answered;
      }
      --running;
      server->wake();
    });
  }
  while (running > 0 && !HasFailure()) {
    while (std::optional<Received> received = server->receive()) {
      ASSERT_TRUE(received->message) << received->message.error().message;
      send_patiently(*server, received->from, *received->message);
    }
    server->wait(1s);
  }
}

TEST_P(Transport, TensorsArriveWholeAndAligned) {
  const auto server = bind();
  const auto client = connect(*server);
  // Odd sizes put small frames at odd places in ZeroMQ's buffer; the large one has its own memory.
  const std::vector<std::int64_t> sizes = {0, 1, 7, 33, 100, 1001, 8191, 8193, 300'001, 9 << 20};
  for (std::uint32_t i = 0; i < sizes.size(); ++i) {
    const Message sent = draft_with_hidden(i, sizes[i]);
    ASSERT_TRUE(client->send("", sent));
    const Received received = next(*server);
    ASSERT_TRUE(received.message) << received.message.error().message;
    const WireTensor& before = *std::get<Draft>(sent.body).hidden;
    const WireTensor& after = *std::get<Draft>(received.message->body).hidden;
    EXPECT_TRUE(same_bytes(before, after)) << sizes[i] << " bytes";
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(after.data.bytes().data()) % 8, 0u) << sizes[i] << " bytes";
    if (in_process()) {
      EXPECT_EQ(before.data.bytes().data(), after.data.bytes().data());
    }
  }
}

TEST_P(Transport, AReceivedTensorOutlivesItsEndpointAndCanBeSentOn) {
  auto server = bind();
  auto client = connect(*server);
  const Message sent = draft_with_hidden(1, 10'000);
  ASSERT_TRUE(client->send("", sent));
  const Received first = next(*server);
  ASSERT_TRUE(server->send(first.from, *first.message));
  const Received second = next(*client);
  server.reset();
  client.reset();
  ASSERT_TRUE(second.message) << second.message.error().message;
  EXPECT_TRUE(same_bytes(*std::get<Draft>(sent.body).hidden, *std::get<Draft>(second.message->body).hidden));
}

TEST_P(Transport, AFullQueueRefusesAndLosesNothing) {
  const EndpointOptions small{.queue_messages_max = 4};
  const auto server = bind(small);
  const auto client = connect(*server, small);
  ASSERT_TRUE(client->send("", numbered(0)));
  const PeerId peer = next(*server).from;

  // Large enough that the kernel's TCP buffers fill up soon.
  std::uint32_t sent = 0;
  while (true) {
    const Result<std::size_t> result = server->send(peer, draft_with_hidden(sent, 1 << 20));
    if (!result) {
      EXPECT_EQ(result.error().code, Errc::kUnavailable) << result.error().message;
      break;
    }
    ASSERT_LT(++sent, 200u);
  }
  EXPECT_GE(sent, 4u);
  for (std::uint32_t round = 0; round < sent; ++round) {
    const Received received = next(*client);
    ASSERT_TRUE(received.message) << received.message.error().message;
    ASSERT_EQ(received.message->round, RoundId{round});
  }
}

TEST_P(Transport, APeerThatLeftIsGone) {
  const auto server = bind();
  auto client = connect(*server);
  ASSERT_TRUE(client->send("", numbered(0)));
  const PeerId peer = next(*server).from;
  ASSERT_TRUE(server->send(peer, numbered(1)));
  client.reset();

  const TimePoint give_up = now() + kHang;
  std::optional<Error> error;
  while (!error && now() < give_up) {
    server->wait(1ms);  // lets ZeroMQ notice
    if (const Result<std::size_t> sent = server->send(peer, numbered(2)); !sent) error = sent.error();
  }
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, Errc::kPeerGone) << error->message;
}

TEST_P(Transport, AnUnknownPeerIsGone) {
  const auto server = bind();
  const Result<std::size_t> sent = server->send("nobody", numbered(0));
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().code, Errc::kPeerGone);
  // Nothing of the failed message may stick to the next one.
  const auto client = connect(*server);
  ASSERT_TRUE(client->send("", numbered(3)));
  const PeerId peer = next(*server).from;
  ASSERT_FALSE(server->send("nobody", draft_with_hidden(4, 100)));
  ASSERT_TRUE(server->send(peer, numbered(5)));
  const Received received = next(*client);
  ASSERT_TRUE(received.message) << received.message.error().message;
  EXPECT_EQ(received.message->round, RoundId{5});
}

TEST_P(Transport, MessagesSentBeforeTheOtherEndListensArriveWhenItDoes) {
  const std::string address = in_process() ? GetParam() : "tcp://127.0.0.1:" + std::to_string(free_port());
  const auto client = Endpoint::connect(context_, address).value();
  ASSERT_TRUE(client->send("", numbered(1)));
  ASSERT_TRUE(client->send("", numbered(2)));

  const auto server = Endpoint::bind(context_, address).value();
  EXPECT_EQ(next(*server).message.value().round, RoundId{1});
  EXPECT_EQ(next(*server).message.value().round, RoundId{2});
}

TEST_P(Transport, AnAddressInUseIsAnError) {
  const auto first = bind();
  const auto second = Endpoint::bind(context_, first->address());
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Errc::kIo);
  EXPECT_EQ(second.error().message, "cannot listen at " + first->address() + ": Address already in use");
}

// A lost wake-up would sleep for an hour, and the test's time limit would end it.
TEST(TransportWake, IsNeverLost) {
  constexpr int kWakes = 20'000;
  TransportContext context;
  const auto server = Endpoint::bind(context, "inproc://wake").value();
  std::atomic<int> asked = 0, seen = 0;
  std::jthread waker([&] {
    for (int i = 1; i <= kWakes; ++i) {
      asked = i;
      server->wake();
      // Sometimes let the other side fall asleep, sometimes run ahead of it.
      if (i % 3 == 0) {
        while (seen < i) std::this_thread::yield();
      }
    }
  });
  while (seen < kWakes) {
    server->wait(1h);
    seen = asked.load();
  }
}

TEST(TransportWake, BeforeTheWaitCounts) {
  TransportContext context;
  const auto server = Endpoint::bind(context, "inproc://wake").value();
  server->wake();
  server->wake();
  server->wait(1h);
}

TEST(TransportAddress, ThatMakesNoSenseIsAnError) {
  TransportContext context;
  for (const char* const address :
       {"", "nonsense", "carrier-pigeon://coop", "tcp://127.0.0.1:port", "tcp://127.0.0.1",
        "tcp://127.0.0.1:", "tcp://127.0.0.1:80x", "tcp://127.0.0.1:65536", "tcp://127.0.0.1:-1"}) {
    const auto bound = Endpoint::bind(context, address);
    ASSERT_FALSE(bound) << address;
    EXPECT_EQ(bound.error().code, Errc::kInvalidArgument) << bound.error().message;
    EXPECT_TRUE(bound.error().message.starts_with("cannot listen at " + std::string(address))) << bound.error().message;
    const auto connected = Endpoint::connect(context, address);
    ASSERT_FALSE(connected) << address;
    EXPECT_EQ(connected.error().code, Errc::kInvalidArgument) << connected.error().message;
  }
}

TEST(TransportAddress, OfAWildcardPortIsTheRealOne) {
  TransportContext context;
  for (const char* const address : {"tcp://127.0.0.1:0", "tcp://127.0.0.1:*"}) {
    const auto server = Endpoint::bind(context, address).value();
    EXPECT_TRUE(server->address().starts_with("tcp://127.0.0.1:"));
    EXPECT_FALSE(server->address().ends_with(":0") || server->address().ends_with("*")) << server->address();
  }
  TransportContext insecure(Security{.insecure = true});
  EXPECT_TRUE(Endpoint::bind(insecure, "tcp://*:*").value()->address().starts_with("tcp://0.0.0.0:"));
}

/// An IPv4 address of this machine beyond the loopback interface; empty: it has none.
std::string address_beyond_loopback() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return "";
  std::string found;
  for (const ifaddrs* each = list; each != nullptr && found.empty(); each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET) continue;
    const in_addr address = reinterpret_cast<const sockaddr_in*>(each->ifa_addr)->sin_addr;
    char text[INET_ADDRSTRLEN];
    if (ntohl(address.s_addr) >> 24 != 127 && inet_ntop(AF_INET, &address, text, sizeof text) != nullptr) found = text;
  }
  freeifaddrs(list);
  return found;
}

TEST(TransportAddress, OfAWorkerWithoutAKeySaysWhetherAnybodyCouldBeIt) {
  TransportContext context(Security{.insecure = true});
  const std::string beyond = address_beyond_loopback();
  for (const std::string& host : {std::string("127.0.0.1"), beyond}) {
    if (host.empty()) GTEST_SKIP() << "no network but loopback";
    const auto server = Endpoint::bind(context, "tcp://0.0.0.0:*").value();
    const std::string port = server->address().substr(server->address().rfind(':'));
    const auto worker = Endpoint::connect(context, "tcp://" + host + port).value();
    Hello said = hello(Role::kDrafter);
    said.unproven = host != beyond;  // what it says of itself does not travel
    ASSERT_TRUE(worker->send("", {.body = said}));
    const Received heard = next(*server);
    ASSERT_TRUE(heard.message) << heard.message.error().message;
    EXPECT_EQ(std::get<Hello>(heard.message->body).unproven, host == beyond) << host;
  }
  const auto server = Endpoint::bind(context, "inproc://unproven").value();
  const auto worker = Endpoint::connect(context, "inproc://unproven").value();
  ASSERT_TRUE(worker->send("", {.body = hello(Role::kDrafter)}));
  EXPECT_FALSE(std::get<Hello>(next(*server).message->body).unproven);
}

TEST(TransportAddress, OfAnotherHostCannotBeListenedAt) {
  TransportContext context(Security{.insecure = true});
  const auto server = Endpoint::bind(context, "tcp://192.0.2.1:5555");  // RFC 5737: nobody's
  ASSERT_FALSE(server);
  EXPECT_EQ(server.error().code, Errc::kIo);
  EXPECT_EQ(server.error().message, "cannot listen at tcp://192.0.2.1:5555: Cannot assign requested address");
}

TEST(TransportAddress, OfIpv6WorksForBothEnds) {
  TransportContext context;
  const auto bound = Endpoint::bind(context, "tcp://[::1]:*");
  if (!bound) GTEST_SKIP() << "no IPv6 on this machine: " << bound.error().message;
  Endpoint& server = **bound;
  EXPECT_TRUE(server.address().starts_with("tcp://[::1]:")) << server.address();
  const auto client = Endpoint::connect(context, server.address()).value();
  ASSERT_TRUE(client->send("", numbered(1)));
  EXPECT_EQ(next(server).message.value().round, RoundId{1});
}

/// What keeps `client` from being connected.
Error trouble_of(Endpoint& client) {
  const TimePoint give_up = now() + kHang;
  while (!client.connection_error() && now() < give_up) client.wait(1ms);
  return client.connection_error().value_or(Error{Errc::kTimeout, "no trouble"});
}

TEST(TransportAddress, ThatNobodyListensAtIsNamedWithTheReason) {
  TransportContext context(Security{.insecure = true});
  const std::string nobody = "tcp://127.0.0.1:" + std::to_string(free_port());
  const auto refused = Endpoint::connect(context, nobody).value();
  EXPECT_EQ(trouble_of(*refused).code, Errc::kPeerGone);
  EXPECT_EQ(trouble_of(*refused).message, nobody + ": connection refused");

  const std::string nowhere = "tcp://no-such-host.invalid:7070";
  const auto unresolved = Endpoint::connect(context, nowhere).value();
  EXPECT_EQ(trouble_of(*unresolved).code, Errc::kNotFound);
  EXPECT_TRUE(trouble_of(*unresolved).message.starts_with(nowhere + ": the name does not resolve"))
      << trouble_of(*unresolved).message;

  const auto both = Endpoint::connect(context, nobody + "," + nowhere).value();
  EXPECT_EQ(trouble_of(*both).code, Errc::kPeerGone) << "one of them may yet listen";
  for (const std::string& one : {nobody, nowhere})
    EXPECT_NE(trouble_of(*both).message.find(one + ": "), std::string::npos) << trouble_of(*both).message;
}

TEST(TransportAddress, OfSeveralTheFirstThatAnswersIsKeptUntilItIsLost) {
  TransportContext context;
  const std::string nobody = "tcp://127.0.0.1:" + std::to_string(free_port());
  auto first = Endpoint::bind(context, "tcp://127.0.0.1:*").value();
  const auto second = Endpoint::bind(context, "tcp://127.0.0.1:*").value();
  const std::string kept = first->address();
  const auto client = Endpoint::connect(context, nobody + "," + kept + "," + second->address()).value();
  ASSERT_TRUE(client->send("", numbered(1)));  // before it is known who answers
  std::optional<Received> received;
  const TimePoint give_up = now() + kHang;
  while (!(received = first->receive()) && now() < give_up) client->wait(1ms);
  ASSERT_TRUE(received);
  EXPECT_EQ(received->message.value().round, RoundId{1});
  EXPECT_EQ(client->address(), kept);
  EXPECT_FALSE(second->receive());

  first.reset();
  while (!(received = second->receive()) && now() < give_up) {
    (void)client->send("", numbered(2));
    client->wait(1ms);
  }
  ASSERT_TRUE(received);
  EXPECT_EQ(received->message.value().round, RoundId{2});
  EXPECT_EQ(client->address(), second->address());
}

/// Accepts a connection and says ZMTP's greeting and READY.
int accept_as_router(int listener) {
  const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  EXPECT_GE(fd, 0) << strerror(errno);
  std::string greeting = std::string("\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL", 16);
  greeting.resize(64, '\0');
  const std::string ready = std::string("\5READY\13Socket-Type\0\0\0\6ROUTER", 28);
  const std::string hello = greeting + '\4' + static_cast<char>(ready.size()) + ready;
  EXPECT_EQ(::send(fd, hello.data(), hello.size(), MSG_NOSIGNAL), std::ssize(hello));
  return fd;
}

// ZeroMQ keeps a connection that was left while messages wait to be sent over it.
TEST(TransportAddress, OfAConnectionThatWasLeftTheEndIsNotThatOfTheNextOne) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in where = loopback(0);
  socklen_t size = sizeof where;
  ASSERT_EQ(::bind(listener, reinterpret_cast<const sockaddr*>(&where), sizeof where), 0);
  ASSERT_EQ(::listen(listener, 8), 0);
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&where), &size), 0);
  TransportContext context;
  const auto client = Endpoint::connect(context, "tcp://127.0.0.1:" + std::to_string(ntohs(where.sin_port)),
                                        {.queue_messages_max = 4, .linger = 2s})
                          .value();
  const auto wait_until_connected = [&](int connections) {
    const TimePoint give_up = now() + kHang;
    while ((!client->connected() || client->connections() < connections) && now() < give_up) client->wait(1ms);
    ASSERT_TRUE(client->connected());
  };
  const int left = accept_as_router(listener);
  wait_until_connected(1);
  const Message large = draft_with_hidden(1, 1 << 20);
  while (client->send("", large)) continue;  // until all queues are full
  client->redial();
  EXPECT_FALSE(client->connected());
  const int next_one = accept_as_router(listener);
  wait_until_connected(2);
  close(left);
  // A message that comes after the end of the one that was left.
  const SharedBytes heartbeat = encode({.body = Heartbeat{}})[0];
  std::string frame = std::string(2, '\0');
  frame[1] = static_cast<char>(heartbeat.bytes().size());
  frame.append(reinterpret_cast<const char*>(heartbeat.bytes().data()), heartbeat.bytes().size());
  ASSERT_EQ(::send(next_one, frame.data(), frame.size(), MSG_NOSIGNAL), std::ssize(frame));
  EXPECT_TRUE(next(*client).message);
  client->wait(0ms);
  EXPECT_TRUE(client->connected());
  close(next_one);
  close(listener);
}

TEST(TransportAddress, LocalhostIsTriedAtAllItsAddresses) {
  TransportContext context;
  const auto server = Endpoint::bind(context, "tcp://127.0.0.1:*").value();
  const std::string port = server->address().substr(server->address().rfind(':'));
  const auto client = Endpoint::connect(context, "tcp://localhost" + port).value();
  ASSERT_TRUE(client->send("", numbered(1)));
  std::optional<Received> received;
  const TimePoint give_up = now() + kHang;
  while (!(received = server->receive()) && now() < give_up) client->wait(1ms);
  ASSERT_TRUE(received);
}

// ZeroMQ would try to accept the same connection again and again, with a core of its own.
TEST(TransportLimits, WithoutFileHandlesWhoDialsIsTurnedAwayAndOthersAreServed) {
  TransportContext context;
  const auto server = Endpoint::bind(context, "tcp://127.0.0.1:*").value();
  const auto good = Endpoint::connect(context, server->address()).value();
  ASSERT_TRUE(good->send("", numbered(1)));
  std::this_thread::sleep_for(200ms);  // the message is there before the server has read that its connection is
  const PeerId peer = next(*server).from;

  const sockaddr_in address =
      loopback(static_cast<std::uint16_t>(std::stoi(server->address().substr(server->address().rfind(':') + 1))));
  std::vector<int> diallers;
  for (int i = 0; i < 20; ++i) diallers.push_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{256, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<int> handles;
  for (int fd = 0; (fd = dup(diallers[0])) >= 0;) handles.push_back(fd);
  EXPECT_EQ(errno, EMFILE);
  // Closed by the other end, without a greeting; or greeted, where ZeroMQ's thread takes the spare handle first. Then
  // there is one for the next all the same.
  const TimePoint give_up = now() + kHang;
  for (const int dialler : diallers) {
    EXPECT_EQ(::connect(dialler, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0) << strerror(errno);
    char byte = 0;
    ssize_t got = -1;
    while ((got = recv(dialler, &byte, 1, MSG_DONTWAIT)) < 0 && errno == EAGAIN && now() < give_up) server->wait(1ms);
    EXPECT_GE(got, 0) << "a connection that nobody can accept waits at the door";
  }
  EXPECT_TRUE(server->send(peer, numbered(2))) << "who is there is served";
  EXPECT_EQ(next(*good).message.value().round, RoundId{2});
  for (const int fd : handles) close(fd);
  for (const int dialler : diallers) close(dialler);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);

  const auto late = Endpoint::connect(context, server->address()).value();
  ASSERT_TRUE(late->send("", numbered(3)));
  EXPECT_EQ(next(*server).message.value().round, RoundId{3});
}

/// Whether the other end has closed it.
bool is_cut(int fd) {
  pollfd state{.fd = fd, .events = POLLRDHUP, .revents = 0};
  return poll(&state, 1, 0) > 0;
}

/// The kernel tells the other end of a cut a moment later on a busy machine.
bool becomes_cut(int fd) {
  for (const TimePoint give_up = now() + kHang; !is_cut(fd) && now() < give_up;) std::this_thread::yield();
  return is_cut(fd);
}

/// Connections to and from a listener of our own.
class Connections {
 public:
  explicit Connections(std::size_t count) {
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = loopback(0);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0) << strerror(errno);
    EXPECT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
    EXPECT_EQ(listen(listener, 8), 0);
    while (ours.size() < count) {
      theirs.push_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      EXPECT_EQ(::connect(theirs.back(), reinterpret_cast<sockaddr*>(&address), size), 0) << strerror(errno);
      ours.push_back(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    }
    close(listener);
  }
  ~Connections() {
    for (const int fd : ours) close(fd);
    for (const int fd : theirs) close(fd);
  }
  static void send(int fd, std::size_t bytes) {
    EXPECT_EQ(::send(fd, std::string(bytes, 'x').data(), bytes, MSG_NOSIGNAL), static_cast<ssize_t>(bytes));
  }
  std::vector<int> ours, theirs;
};

TEST(InflowTest, WhoHasNotShakenHandsBringsNoMoreThanAHandshake) {
  const Connections connections(3);
  const auto [stranger, modest, admitted] =
      std::tie(connections.theirs[0], connections.theirs[1], connections.theirs[2]);
  ReceiveBudget receive_budget({.message_bytes_max = 1 << 20, .keys = true});
  for (const int fd : connections.ours) receive_budget.opened(fd);
  Connections::send(connections.ours[2], 64 + 170 + 67);  // greeting, WELCOME and READY
  for (std::string read(301, 0); recv(admitted, read.data(), read.size(), MSG_PEEK) < std::ssize(read);) {
  }
  Connections::send(stranger, 5000);
  Connections::send(modest, 700);
  Connections::send(admitted, 5000);
  TimePoint time{1h};
  for (const TimePoint give_up = now() + kHang; !is_cut(stranger) && now() < give_up; time += 1s)
    receive_budget.check(time);
  EXPECT_TRUE(is_cut(stranger));
  receive_budget.check(time);
  EXPECT_FALSE(is_cut(modest));
  EXPECT_FALSE(is_cut(admitted));
}

TEST(InflowTest, OfTooManyStrangersTheFirstGo) {
  const Connections connections(ReceiveBudget::kStrangersMax + 20);
  ReceiveBudget receive_budget({.message_bytes_max = 1 << 20, .keys = true});
  for (const int fd : connections.ours) receive_budget.opened(fd);
  receive_budget.check(TimePoint(1h));
  for (std::size_t i = 0; i < 20; ++i) EXPECT_TRUE(becomes_cut(connections.theirs[i])) << i;
  for (std::size_t i = 20; i < connections.theirs.size(); ++i) EXPECT_FALSE(is_cut(connections.theirs[i])) << i;
}

TEST(InflowTest, WhoseLongMessageIsComingInIsAlive) {
  const Connections connections(3);
  ReceiveBudget receive_budget({.message_bytes_max = 1 << 20});
  for (const int fd : connections.ours) receive_budget.opened(fd);
  const auto [slow, brief, unknown] = std::tie(connections.theirs[0], connections.theirs[1], connections.theirs[2]);
  receive_budget.on_received(connections.ours[0], "slow");
  receive_budget.on_received(connections.ours[1], "brief");
  TimePoint time{1h};
  const auto arriving = [&] {
    receive_budget.check(time += 1s);
    return receive_budget.arriving();
  };
  EXPECT_TRUE(arriving().empty());
  Connections::send(slow, 3000);
  Connections::send(brief, 100);  // a heartbeat that was not read yet
  Connections::send(unknown, 3000);
  std::vector<PeerId> peers;
  for (const TimePoint give_up = now() + kHang; peers.empty() && now() < give_up;) peers = arriving();
  EXPECT_EQ(peers, std::vector<PeerId>{"slow"});
  EXPECT_TRUE(arriving().empty()) << "nothing more has come";
  Connections::send(slow, 10);
  peers.clear();
  for (const TimePoint give_up = now() + kHang; peers.empty() && now() < give_up;) peers = arriving();
  EXPECT_EQ(peers, std::vector<PeerId>{"slow"});
  receive_budget.on_received(connections.ours[0], "slow");
  arriving();
  Connections::send(slow, 100);
  EXPECT_TRUE(arriving().empty()) << "the long one is there, and this is none";
}

TEST(InflowTest, ALongMessageIsLeavingAsLongAsItsPeerTakesSomeOfIt) {
  const Connections connections(2);
  ReceiveBudget receive_budget({.message_bytes_max = 1 << 20});
  for (const int fd : connections.ours) receive_budget.opened(fd);
  const int to_slow = connections.ours[0], slow = connections.theirs[0];
  receive_budget.on_received(to_slow, "slow");
  receive_budget.on_received(connections.ours[1], "brief");
  TimePoint time{1h};
  const auto leaving = [&] {
    receive_budget.check(time += 1s);
    return receive_budget.leaving();
  };
  EXPECT_TRUE(leaving().empty());
  // As much as the kernels of both sides hold.
  const std::vector<char> piece(1 << 16);
  while (send(to_slow, piece.data(), piece.size(), MSG_DONTWAIT) > 0) {
  }
  Connections::send(connections.ours[1], 100);
  std::vector<PeerId> peers;
  for (const TimePoint give_up = now() + kHang; peers.empty() && now() < give_up;) peers = leaving();
  EXPECT_EQ(peers, std::vector<PeerId>{"slow"});
  // It takes no more: after what was under way nothing moves.
  for (const TimePoint give_up = now() + kHang; !peers.empty() && now() < give_up; peers = leaving())
    std::this_thread::sleep_for(100ms);
  EXPECT_TRUE(peers.empty()) << "nobody takes any of it";
  std::vector<char> taken(1 << 17);
  for (const TimePoint give_up = now() + kHang; peers.empty() && now() < give_up; peers = leaving())
    recv(slow, taken.data(), taken.size(), MSG_DONTWAIT);
  EXPECT_EQ(peers, std::vector<PeerId>{"slow"});
}

TEST(InflowTest, WithoutAHandleTheFirstThatHaveSaidNothingGo) {
  const Connections connections(5);
  ReceiveBudget receive_budget({.message_bytes_max = 1 << 20});
  for (const int fd : connections.ours) receive_budget.opened(fd);
  receive_budget.on_received(connections.ours[0], "worker");
  EXPECT_EQ(receive_budget.cut_silent(TimePoint(1h)), 2);
  for (const std::size_t i : {1, 2}) EXPECT_TRUE(becomes_cut(connections.theirs[i])) << i;
  for (const std::size_t i : {0, 3, 4}) EXPECT_FALSE(is_cut(connections.theirs[i])) << i;
}

TEST(InflowTest, WhoseHandleIsAnothersNowIsNeitherAliveNorCutInItsPlace) {
  const Connections connections(1);
  const int handle = connections.ours[0];
  ReceiveBudget receive_budget({.message_bytes_max = 1 << 20});
  receive_budget.opened(handle);
  receive_budget.on_received(handle, "gone");
  receive_budget.closed(handle);
  receive_budget.opened(handle);
  receive_budget.on_received(handle, "gone");  // what it had said was taken only now
  receive_budget.on_received(handle, "here");
  TimePoint time{1h};
  receive_budget.cut(handle, "gone", time, "in_vain", "said too much");
  receive_budget.check(time);
  Connections::send(connections.theirs[0], 3000);
  std::vector<PeerId> peers;
  for (const TimePoint give_up = now() + kHang; peers.empty() && now() < give_up; peers = receive_budget.arriving())
    receive_budget.check(time += 1s);
  EXPECT_EQ(peers, std::vector<PeerId>{"here"});
  EXPECT_FALSE(is_cut(connections.theirs[0]));
  receive_budget.cut(handle, "here", time, "in_vain", "said too much");
  EXPECT_TRUE(becomes_cut(connections.theirs[0]));
}

/// Memory of this process that is no file's, in bytes.
std::int64_t anonymous_memory() {
  std::int64_t size = 0, resident = 0, shared = 0;
  std::ifstream("/proc/self/statm") >> size >> resident >> shared;
  return (resident - shared) * sysconf(_SC_PAGESIZE);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they keep what is freed
// ZeroMQ's thread, which drops what it has of them, need not have had a core when memory is given back.
TEST(InflowTest, HalfMessagesThatAreDroppedLateAreGivenBackToo) {
  const Connections connections(32);
  ReceiveBudget receive_budget({.message_bytes_max = 1});  // 128 MiB for all half messages
  for (const int fd : connections.ours) receive_budget.opened(fd);
  for (const int fd : connections.theirs) Connections::send(fd, 40'000);
  std::uint64_t came = 0;
  for (const TimePoint give_up = now() + kHang; came < 32 * 40'000 && now() < give_up;) {
    came = 0;
    for (const int fd : connections.ours) came += Arrival::bytes_of(fd)->received;
  }
  TimePoint time{1h};
  const auto look = [&] {
    receive_budget.check(time += 1s);
    return anonymous_memory();
  };
  look();
  std::vector<std::unique_ptr<char[]>> halves;
  for (int i = 0; i < 80'000; ++i) halves.push_back(std::make_unique<char[]>(2000));
  const auto behind = std::make_unique<char[]>(2000);  // else the allocator gives them back by itself
  look();
  const std::int64_t most = look();
  for (const TimePoint give_up = now() + kHang; std::ranges::count_if(connections.theirs, is_cut) < 16;)
    ASSERT_LT(now(), give_up) << "half of them were to be cut";
  look();
  EXPECT_GT(look(), most - (8 << 20)) << "dropped already";
  halves.clear();
  for (const int fd : connections.ours) receive_budget.closed(fd);
  EXPECT_LT(look(), most - (100 << 20));
}
#endif

/// A server, a peer that behaves, and a ZeroMQ socket that need not.
class HostilePeer : public testing::Test {
 protected:
  HostilePeer() : hostile_(zmq_, zmq::socket_type::dealer) {
    hostile_.set(zmq::sockopt::linger, 0);
    hostile_.connect(server_->address());
  }

  static constexpr WireLimits kSmallLimits{
      .header_bytes_max = 1000, .tensor_bytes_max = 1000, .message_bytes_max = 1 << 20};

  void send_raw(const std::vector<std::string>& parts) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      hostile_.send(zmq::buffer(parts[i]), i + 1 < parts.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
    }
  }
  void send_raw(const Message& message) {
    std::vector<std::string> parts;
    for (const SharedBytes& frame : encode(message)) {
      parts.emplace_back(reinterpret_cast<const char*>(frame.bytes().data()), frame.bytes().size());
    }
    send_raw(parts);
  }
  /// A TCP connection that has said ZMTP's greeting and READY, and heard the server's.
  int shake_hands() const {
    const std::string address = server_->address();
    const sockaddr_in peer = loopback(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(::connect(fd, reinterpret_cast<const sockaddr*>(&peer), sizeof peer), 0) << strerror(errno);
    std::string greeting = std::string("\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL", 16);
    greeting.resize(64, '\0');
    const std::string ready = std::string("\5READY\13Socket-Type\0\0\0\6DEALER", 28);
    const std::string hello = greeting + '\4' + static_cast<char>(ready.size()) + ready;
    EXPECT_EQ(::send(fd, hello.data(), hello.size(), MSG_NOSIGNAL), std::ssize(hello));
    std::string heard;
    for (char byte = 0; heard.find("ROUTER") == heard.npos && recv(fd, &byte, 1, 0) == 1;) heard += byte;
    return fd;
  }
  /// A good peer's message arrives, perhaps after some of the hostile peer's that are errors.
  void expect_others_undisturbed() {
    ASSERT_TRUE(good_->send("", numbered(77)));
    Received received = next(*server_);
    while (!received.message) {
      ASSERT_NE(received.message.error().code, Errc::kTimeout);
      received = next(*server_);
    }
    ASSERT_EQ(received.message->round, RoundId{77});
    ASSERT_TRUE(server_->send(received.from, numbered(78)));
    ASSERT_EQ(next(*good_).message.value().round, RoundId{78});
  }

  TransportContext context_;
  std::unique_ptr<Endpoint> server_ = Endpoint::bind(context_, "tcp://127.0.0.1:*", {.limits = kSmallLimits}).value();
  std::unique_ptr<Endpoint> good_ = Endpoint::connect(context_, server_->address()).value();
  zmq::context_t zmq_;
  zmq::socket_t hostile_;
};

TEST_F(HostilePeer, SpeakingAnotherVersionIsNamedAndCanBeRefused) {
  flatbuffers::FlatBufferBuilder builder;
  const auto body = wire::CreateHeartbeat(builder).Union();
  wire::FinishEnvelopeBuffer(
      builder, wire::CreateEnvelope(builder, kProtocolVersion + 41, 0, 0, 0, 0, wire::Body::Heartbeat, body));
  send_raw({std::string(reinterpret_cast<const char*>(builder.GetBufferPointer()), builder.GetSize())});

  const Received received = next(*server_);
  ASSERT_FALSE(received.message);
  EXPECT_EQ(received.message.error().code, Errc::kVersionMismatch);
  EXPECT_EQ(received.message.error().message, fmt::format("peer speaks protocol version {}, this node speaks {}",
                                                          kProtocolVersion + 41, kProtocolVersion));

  const Error& error = received.message.error();
  ASSERT_TRUE(server_->send(received.from, {{}, {}, 0, Refuse{error.code, error.message}}));
  zmq::message_t reply;
  ASSERT_TRUE(hostile_.recv(reply));
  const SharedBytes header(nullptr, {reply.data<const std::byte>(), reply.size()});
  const Message refusal = decode({&header, 1}).value();
  EXPECT_EQ(std::get<Refuse>(refusal.body).code, Errc::kVersionMismatch);
  expect_others_undisturbed();
}

TEST_F(HostilePeer, SendingGarbageFramesIsReported) {
  send_raw({"not an envelope"});
  const Received received = next(*server_);
  ASSERT_FALSE(received.message);
  EXPECT_EQ(received.message.error().code, Errc::kMalformed);
  EXPECT_EQ(received.wire_bytes, 15u);
  expect_others_undisturbed();
}

TEST_F(HostilePeer, SendingTooManyFramesIsReportedOnce) {
  send_raw(std::vector<std::string>(5000, "x"));
  const Received received = next(*server_);
  ASSERT_FALSE(received.message);
  EXPECT_EQ(received.message.error().code, Errc::kOutOfRange) << received.message.error().message;
  EXPECT_EQ(received.wire_bytes, 5000u);
  // Its next message stands for itself.
  send_raw(numbered(9));
  EXPECT_EQ(next(*server_).message.value().round, RoundId{9});
  expect_others_undisturbed();
}

TEST_F(HostilePeer, SendingAFrameBeyondTheLimitIsDisconnectedAndNotRead) {
  send_raw({std::string(1001, 'x')});
  expect_others_undisturbed();
  // ZeroMQ reconnects; what was on its way when the connection closed is lost, so say it again
  // until it is heard.
  const TimePoint give_up = now() + kHang;
  std::optional<Received> received;
  while (!received && now() < give_up) {
    send_raw(numbered(9));
    server_->wait(10ms);
    received = server_->receive();
  }
  ASSERT_TRUE(received);
  ASSERT_TRUE(received->message) << received->message.error().message;
  EXPECT_EQ(received->message->round, RoundId{9});
}

TEST_F(HostilePeer, WritingRandomBytesToThePortDisturbsNobody) {
  const std::string address = server_->address();
  const sockaddr_in peer = loopback(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));

  // ZeroMQ takes bytes that do not start like a greeting for its version 1, and delivers what then
  // looks like messages; decode() refuses them. The start of a ZMTP 3.0 greeting, so that some of
  // the garbage gets past the first check.
  const std::string greeting = std::string("\xff\0\0\0\0\0\0\0\x01\x7f\x03\0", 12) + "NULL" + std::string(16, '\0') +
                               '\0' + std::string(31, '\0');
  for (std::uint32_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 engine(seed);
    std::string bytes = seed % 2 == 0 ? greeting.substr(0, seed * 2) : "";
    for (std::uint64_t i = engine() % 5000; i > 0; --i) bytes.push_back(static_cast<char>(engine()));

    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_GE(fd, 0);
    ASSERT_EQ(::connect(fd, reinterpret_cast<const sockaddr*>(&peer), sizeof peer), 0) << strerror(errno);
    // The server may hang up in the middle; that is its right.
    for (std::size_t done = 0; done < bytes.size();) {
      const ssize_t n = ::send(fd, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
      if (n <= 0) break;
      done += static_cast<std::size_t>(n);
    }
    ASSERT_NO_FATAL_FAILURE(expect_others_undisturbed());
    close(fd);
  }
}

TEST_F(HostilePeer, SendingAMessageWithoutEndIsCutOff) {
  const int fd = shake_hands();
  std::string frames;
  while (frames.size() < (1u << 16)) frames += std::string("\1\310", 2) + std::string(200, 'x');
  constexpr std::size_t kFar = 1u << 30;
  std::size_t sent = 0;
  const TimePoint give_up = now() + kHang;
  bool cut = false;
  while (!cut && sent < kFar && now() < give_up) {
    const std::size_t at = sent % frames.size();
    const ssize_t n = ::send(fd, frames.data() + at, frames.size() - at, MSG_NOSIGNAL | MSG_DONTWAIT);
    cut = is_cut(fd);
    sent += static_cast<std::size_t>(std::max<ssize_t>(n, 0));
    EXPECT_FALSE(server_->receive());
    if (n < 0) server_->wait(1ms);
  }
  EXPECT_TRUE(cut) << sent << " bytes were taken";
  EXPECT_GT(sent, kSmallLimits.message_bytes_max + (16u << 20)) << "a message may have so many";
  close(fd);
  expect_others_undisturbed();
}

// Empty frames take 64 bytes each and travel in two. None of these peers sends as much as a message may have.
TEST_F(HostilePeer, SendingManyHalfMessagesIsCutOffForTheirMemory) {
  std::vector<int> peers;
  for (int i = 0; i < 16; ++i) peers.push_back(shake_hands());
  std::string frames;
  while (frames.size() < (1u << 16)) frames += std::string("\1\0", 2);
  const std::int64_t before = anonymous_memory();
  std::int64_t most = 0;
  const auto look = [&] {
    EXPECT_FALSE(server_->receive());
    server_->wait(60ms);
    return anonymous_memory() - before;
  };
  // A mebibyte at a time, and the next one once ZeroMQ has its 32 of memory: none waits in front of it, whoever has the
  // cores. All of it would take a gibibyte.
  std::size_t cut = 0;
  std::int64_t sent = 0;
  for (const TimePoint give_up = now() + kHang; cut < peers.size() / 2 && now() < give_up;) {
    for (const int fd : peers)
      sent += std::max<ssize_t>(::send(fd, frames.data(), frames.size(), MSG_NOSIGNAL | MSG_DONTWAIT), 0);
    for (std::int64_t held = 0; held < 24 * sent && cut == 0 && now() < give_up;) {
      held = look();
      most = std::max(most, held);
      cut = static_cast<std::size_t>(std::ranges::count_if(peers, is_cut));
    }
  }
  EXPECT_GE(cut, peers.size() / 2);
#if !defined(__SANITIZE_THREAD__)  // it adds to each block
  EXPECT_LT(most, 320 << 20);
#endif
  for (const int fd : peers) close(fd);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they keep what is freed
  std::int64_t left = most;
  for (const TimePoint give_up = now() + kHang; left > 64 << 20 && now() < give_up;) left = look();
  EXPECT_LT(left, 64 << 20) << "what they took is given back";
#endif
  expect_others_undisturbed();
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they keep what is freed
// Some 25 KiB each; ZeroMQ has freed them then, and the allocator would keep them.
TEST_F(HostilePeer, ThatLeavesTakesItsMemoryAlong) {
  expect_others_undisturbed();
  malloc_trim(0);  // what other tests have left
  const std::int64_t before = anonymous_memory();
  std::vector<int> peers;
  for (int i = 0; i < 400; ++i) peers.push_back(shake_hands());
  EXPECT_FALSE(server_->receive());
  const std::int64_t most = anonymous_memory() - before;
  EXPECT_GT(most, 6 << 20) << "or there is nothing to give back";
  for (const int fd : peers) close(fd);
  std::int64_t left = most;
  for (const TimePoint give_up = now() + kHang; left > most / 4 && now() < give_up;
       left = anonymous_memory() - before) {
    EXPECT_FALSE(server_->receive());
    server_->wait(60ms);
  }
  EXPECT_LE(left, most / 4);
  expect_others_undisturbed();
}
#endif

TEST_F(HostilePeer, MayBringAsMuchAsItLikesInMessages) {
  const std::vector<std::string> parts(3, std::string(1000, 'x'));
  std::set<PeerId> peers;
  std::size_t heard = 0;
  const TimePoint start = now();  // long enough for many looks at what came
  for (int sent = 0; heard < 3 * (kSmallLimits.message_bytes_max + (16u << 20)) || now() - start < 1s; ++sent) {
    if (sent % 100 == 0) server_->wait(1ms);
    if (hostile_.send(zmq::buffer(parts[0]), zmq::send_flags::dontwait | zmq::send_flags::sndmore))
      send_raw({parts[1], parts[2]});
    while (const auto received = server_->receive()) {
      peers.insert(received->from);
      heard += received->wire_bytes;
    }
    ASSERT_LT(peers.size(), 2u) << "its connection was cut";
  }
  expect_others_undisturbed();
}

// ---- pump ----

/// A coordinator's pump with two clients; `reader` reads, `sleeper` has asked and then reads no more.
class PumpTest : public testing::Test {
 protected:
  PumpTest() : bound_(Endpoint::bind(context_, "inproc://pump").value()), pump_(*bound_) {
    for (auto* client : {&sleeper_, &reader_}) {
      *client = Endpoint::connect(context_, "inproc://pump").value();
      EXPECT_TRUE((*client)->send("", numbered(0)));
      PeerId from;
      for (const TimePoint start = now(); from.empty() && now() - start < kHang; bound_->wait(10ms)) {
        pump_.receive([&](const PeerId& peer, const Message&) { from = peer; });
      }
      (client == &sleeper_ ? sleeper_id_ : reader_id_) = from;
    }
  }
  void send(std::vector<Outgoing> outgoing) {
    pump_.send(
        outgoing, [&](const Message&, std::size_t) { ++sent_; }, [&](const PeerId& peer) { gone_.push_back(peer); });
  }
  static Message text(std::int64_t index) { return {SessionId{1}, {}, 0, Tokens{.index = index, .tokens = {7}}}; }
  static Message scores(Position first) { return {SessionId{1}, {}, 0, PromptScores{first, {{}}}}; }

  TransportContext context_;
  std::unique_ptr<Endpoint> bound_, sleeper_, reader_;
  PeerId sleeper_id_, reader_id_;
  Pump pump_;
  int sent_ = 0;
  std::vector<PeerId> gone_;
};

TEST_F(PumpTest, TextWaitsInOrderForAClientThatReadsLate) {
  constexpr std::int64_t kTexts = 3000;
  for (std::int64_t i = 0; i < kTexts; ++i) send({{sleeper_id_, i % 2 == 0 ? scores(i) : text(i)}});
  EXPECT_LT(sent_, kTexts) << "nothing had to wait";
  std::int64_t read = 0;
  for (const TimePoint start = now(); read < kTexts && now() - start < kHang;) {
    if (const auto received = sleeper_->receive()) {
      ASSERT_EQ(*received->message, read % 2 == 0 ? scores(read) : text(read));
      ++read;
    } else {
      send({});
    }
  }
  EXPECT_EQ(read, kTexts);
  EXPECT_TRUE(gone_.empty());
}

TEST_F(PumpTest, AClientThatNeverReadsIsAsGoodAsGoneAndOthersDoNotWait) {
  std::int64_t read = 0;
  for (std::int64_t i = 0; i < 10'000 && gone_.empty(); ++i) {
    send({{sleeper_id_, text(i)}, {reader_id_, text(i)}});
    if (i % 100 != 99) continue;
    for (const TimePoint start = now(); read <= i && now() - start < kHang;) {
      if (const auto received = reader_->receive()) {
        ASSERT_EQ(std::get<Tokens>(received->message->body).index, read++);
      } else {
        send({});
        reader_->wait(1ms);
      }
    }
  }
  EXPECT_EQ(gone_, std::vector{sleeper_id_});
}

// Callers look at the logprobs of each token.
// One that asked with each answer would be taken for a hostile peer (Endpoint::count_useless_message).
TEST(ClientTest, WhoWaitsForWorkersAsksTwentyTimesASecond) {
  TransportContext context;
  const auto coordinator = Endpoint::bind(context, "inproc://coordinator").value();
  std::atomic<bool> over = false;
  const TimePoint begin = now();
  auto waiting = std::async(std::launch::async, [&] {
    Client client = Client::connect(context, "inproc://coordinator").value();
    return client.wait_for_workers(1, 1, [&]() -> Result<void> {
      return over ? Result<void>(Error{Errc::kTimeout, "enough"}) : Result<void>();
    });
  });
  const PeerId client = next(*coordinator).from;
  int asked = 1;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(coordinator->send(client, {.body = Status{}}));  // to earlier questions
  while (now() < begin + 500ms) {
    coordinator->wait(1ms);
    while (coordinator->receive()) {
      ++asked;
      EXPECT_TRUE(coordinator->send(client, {.body = Status{}}));
    }
  }
  EXPECT_LE(asked, 2 + to_seconds(now() - begin) / 0.05);
  over = true;
  EXPECT_FALSE(waiting.get());
}

TEST(ClientTest, AnAnswerWithoutTheLogprobsThatWereAskedForIsAnError) {
  TransportContext context;
  const auto coordinator = Endpoint::bind(context, "inproc://coordinator").value();
  auto answer = std::async(std::launch::async, [&] {
    Client client = Client::connect(context, "inproc://coordinator").value();
    return client.generate({.prompt = {1}, .max_tokens = 4, .stop_ids = {}, .sampling = {.logprobs = 0}},
                           [](std::span<const TokenId>) { ADD_FAILURE(); });
  });
  const Received asked = next(*coordinator);
  EXPECT_TRUE(coordinator->send(asked.from, {asked.message->session, {}, 0, Tokens{.index = 0, .tokens = {7}}}));
  const Result<Generation> generation = answer.get();
  ASSERT_FALSE(generation);
  EXPECT_EQ(generation.error().code, Errc::kMalformed);
}

// The client has all of it, and over HTTP somebody has read it.
TEST(ClientTest, AnAnswerThatHasEndedIsNotLostWithItsVerifierOrCoordinator) {
  TransportContext context;
  const auto coordinator = Endpoint::bind(context, "inproc://coordinator").value();
  for (const Body& last : {Body(Failed{Errc::kPeerGone, "verifier v closed its connection"}),
                           Body(Refuse{Errc::kUnavailable, "going away"})}) {
    auto answer = std::async(std::launch::async, [&] {
      Client client = Client::connect(context, "inproc://coordinator").value();
      return client.generate({.prompt = {1}, .max_tokens = 9, .stop_ids = {}, .sampling = {.logprobs = 0}},
                             [&](std::span<const TokenId>) { client.end_answer(2); });
    });
    const Received asked = next(*coordinator);
    const auto send = [&](Body body) {
      EXPECT_TRUE(coordinator->send(asked.from, {asked.message->session, {}, 0, std::move(body)}));
    };
    send(Tokens{.index = 0, .tokens = {7, 8, 9}, .logprobs = {{-1, {}}, {-2, {}}, {-3, {}}}});
    const Received cancel = next(*coordinator);
    ASSERT_TRUE(cancel.message && std::holds_alternative<Cancel>(cancel.message->body));
    EXPECT_EQ(std::get<Cancel>(cancel.message->body).keep, 2);
    send(Tokens{.index = 3, .tokens = {10}, .logprobs = {{-4, {}}}});  // was under way
    send(last);
    const Result<Generation> generation = answer.get();
    ASSERT_TRUE(generation) << generation.error().message;
    EXPECT_EQ(generation->tokens, (std::vector<TokenId>{7, 8}));
    EXPECT_EQ(generation->logprobs.size(), 2u);
    EXPECT_EQ(generation->reason, FinishReason::kStop);
    while (coordinator->receive()) {
    }
  }
}

}  // namespace
}  // namespace outrider
