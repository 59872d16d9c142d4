// Shards that gather over TCP: what they gather, who may join, and what strangers' bytes do.
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <ctime>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/random.h"
#include "common/http/keyed_tls.h"
#include "common/wire/transport/address.h"
#include "tests/support/tcp_group.h"
#include "tests/support/temporary_dir.h"

namespace outrider {
namespace {

using namespace std::chrono_literals;

/// The keys of a verifier's host, of a shard that it lets in, and of others.
struct TcpShardsTest : testing::Test {
  TcpShardsTest() {
    for (const char* name : {"verifier", "shard", "drafter", "stranger"}) {
      const Key key = create_private_key(dir / name).value().open;
      const std::string role = name;
      if (role == "shard") (void)authorize_key(dir / "list", {KeyRole::kVerifier, key, name});
      if (role == "drafter") (void)authorize_key(dir / "list", {KeyRole::kDrafter, key, name});
    }
  }
  Security listening() const { return {.key = dir / "verifier", .authorized = dir / "list"}; }
  Security of(const std::string& name, const std::string& known = "verifier") const {
    return {.key = dir / name, .authorized = {}, .coordinator_keys = {(dir / known).string() + ".pub"}};
  }
  TemporaryDir dir;
};

/// Runs at each shard at once.
void at_each(const std::vector<std::unique_ptr<Shards>>& group, const std::function<void(Shards&)>& run) {
  std::vector<std::thread> threads;
  for (const auto& shards : group) threads.emplace_back([&] { run(*shards); });
  for (std::thread& thread : threads) thread.join();
}

/// What all shards of a gather's rows must have.
float number(std::int64_t gather, std::int64_t row, std::int64_t column) {
  return static_cast<float>(gather) + 0.5f * static_cast<float>(row) + static_cast<float>(column % 97);
}

TEST_F(TcpShardsTest, EachGetsAllColumns) {
  for (const bool keyed : {false, true}) {
    for (int count = 2; count <= 4; ++count) {
      const auto group = keyed ? tcp_group(count, listening(), of("shard")) : tcp_group(count);
      std::atomic<int> wrong = 0;
      at_each(group, [&](Shards& shards) {
        CounterRng rng(3);
        for (std::int64_t gather = 0; gather < 60; ++gather) {
          // The last are more than one piece, and more than sockets hold.
          const std::int64_t width = gather < 50 ? 1 + static_cast<std::int64_t>(rng.below(6000)) : 300'000,
                             height = gather < 50 ? 1 + static_cast<std::int64_t>(rng.below(17)) : 8;
          const int owner = static_cast<int>(rng.below(static_cast<std::uint64_t>(3 * count)));
          const int rank = shards.place().rank;
          // Of each its share, or all of one's.
          const Columns own = owner >= count ? shards.place().share(width)
                              : owner == rank ? Columns{0, width}
                                              : Columns{width, 0};
          Tensor rows(height, width);
          for (std::int64_t r = 0; r < height; ++r)
            for (std::int64_t c = own.begin; c < own.end(); ++c) rows.view()[r][c] = number(gather, r, c);
          shards.gather(rows.view(), own);
          for (std::int64_t r = 0; r < height; ++r)
            for (std::int64_t c = 0; c < width; ++c) wrong += rows.view()[r][c] != number(gather, r, c);
        }
      });
      EXPECT_EQ(wrong, 0) << count << " shards";
    }
  }
}

/// A listener that waits for one shard with weights 7, on a thread.
struct Waiting {
  explicit Waiting(const Security& security = {})
      : listener(ShardListener::listen("tcp://127.0.0.1:*", security).value()) {
    thread = std::jthread([this](std::stop_token stop) {
      first = listener->gather_group({.place = {0, 2}}, 7, stop).value();
    });
  }
  std::string address() const { return listener->address(); }
  Descriptor connect() const { return connect_tcp(address(), 10s).value(); }

  std::unique_ptr<ShardListener> listener;
  std::unique_ptr<TcpShards> first;
  std::jthread thread;
};

TEST_F(TcpShardsTest, WhoDoesNotFitIsRefused) {
  Waiting plain;
  const auto other_weights = join_shards(plain.address(), {}, 8, {});
  ASSERT_FALSE(other_weights);
  EXPECT_EQ(other_weights.error().code, Errc::kMismatch);
  EXPECT_EQ(other_weights.error().message,
            "the verifier refuses this shard: the shard's weights are 0000000000000008, wanted 0000000000000007");
  ShardLink other_version(plain.connect(), nullptr);
  ASSERT_TRUE(other_version.write_text(R"({"outrider": "0.0.9", "weights": "0000000000000007"})"));
  std::optional<std::string> refusal;
  while (!refusal) refusal = other_version.read_text().value();
  EXPECT_EQ(*refusal, R"({"refused":"the shard is outrider 0.0.9, wanted )" OUTRIDER_VERSION R"("})");
  ASSERT_TRUE(join_shards(plain.address(), {}, 7, {}).value());

  Waiting keyed(listening());
  for (const auto& [security, why] : {std::pair(of("stranger"), "a key that is not in the list"),
                                      std::pair(of("drafter"), "a key that is for a drafter"),
                                      std::pair(of("shard", "stranger"), "a verifier with another key"),
                                      std::pair(Security(), "no key")}) {
    SCOPED_TRACE(why);
    std::stop_source enough;
    const auto refused = join_shards(keyed.address(), security, 7, enough.get_token());
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Errc::kPeerGone);
  }
  ASSERT_TRUE(join_shards(keyed.address(), of("shard"), 7, {}).value());

  const auto beyond = ShardListener::listen("tcp://0.0.0.0:*", {.key = dir / "none"});
  EXPECT_FALSE(beyond) << "without keys nobody listens to other machines";
  dir.write("broken", "verifier 12 shard\n");
  const auto broken =
      ShardListener::listen("tcp://127.0.0.1:*", {.key = dir / "verifier", .authorized = dir / "broken"});
  ASSERT_FALSE(broken);
  EXPECT_NE(broken.error().message.find("broken: line 1: '12' is no key"), std::string::npos) << broken.error().message;
}

TEST_F(TcpShardsTest, FewerBeginOnlyIfTheyAreEnoughAndHaveRoom) {
  constexpr std::int64_t kTooMuch = std::int64_t{1} << 50;
  const auto count_of = [](const FewerShards& fewer, int come) {
    const auto listener = ShardListener::listen("tcp://127.0.0.1:*", {}).value();
    std::stop_source stop;
    std::atomic<int> joined = 0;
    std::vector<std::jthread> others;
    for (int i = 0; i < come; ++i) {
      others.emplace_back([&] {
        const auto shard = join_shards(listener->address(), {}, 7, stop.get_token());
        joined += shard && shard->has_value();
      });
    }
    std::jthread ends([&] {  // what begins does so before: its shards wait for that alone
      if (fewer.least == 0 || fewer.least > come + 1 || fewer.matrix_mib == kTooMuch) {
        std::this_thread::sleep_for(500ms);
        stop.request_stop();
      }
    });
    const auto first = listener->gather_group({.place = {0, 4}}, 7, stop.get_token(), fewer).value();
    ends.join();
    others.clear();
    EXPECT_EQ(joined, first == nullptr ? 0 : first->place().count - 1);
    return first == nullptr ? 0 : first->place().count;
  };
  EXPECT_EQ(count_of({}, 2), 0) << "all must come";
  EXPECT_EQ(count_of({.least = 4}, 2), 0);
  EXPECT_EQ(count_of({.least = 2, .matrix_mib = kTooMuch}, 2), 0) << "no host has so much memory";
  EXPECT_EQ(count_of({.least = 3, .matrix_mib = 3}, 2), 3);
  EXPECT_EQ(count_of({.least = 1}, 0), 1) << "a whole verifier";
  EXPECT_EQ(count_of({.least = 1, .patience = 1h}, 3), 4) << "all have come";
}

// The connection that nobody can accept stays, and its socket is ready for ever.
TEST_F(TcpShardsTest, WithoutAFileHandleTheListenerWaits) {
  const auto listener = ShardListener::listen("tcp://127.0.0.1:*", {}).value();
  const Descriptor waits = connect_tcp(listener->address(), 10s).value(), status(::open("/proc/self/status", O_RDONLY));
  clockid_t clock;
  ASSERT_EQ(pthread_getcpuclockid(pthread_self(), &clock), 0);
  const auto cpu_time = [&] {
    timespec used{};
    clock_gettime(clock, &used);
    return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
  };
  // How often this thread has gone to sleep.
  const auto sleeps = [&] {
    std::string text(8192, '\0');
    (void)::pread(status, text.data(), text.size(), 0);
    const std::string key = "\nvoluntary_ctxt_switches:";
    return std::stol(text.substr(text.find(key) + key.size()));
  };
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{.rlim_cur = 3, .rlim_max = before.rlim_max};  // those that are open stay
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  std::stop_source stop;
  const auto most = cpu_time() + 500ms;
  std::jthread ends([&, enough = sleeps() + 5] {
    while (sleeps() < enough && cpu_time() < most) std::this_thread::sleep_for(1ms);
    stop.request_stop();
  });
  EXPECT_EQ(listener->gather_group({.place = {0, 2}}, 7, stop.get_token()).value(), nullptr);
  EXPECT_LT(cpu_time(), most);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

/// Bytes of a seed: at random, or of something that begins as a frame does.
std::vector<char> hostile_bytes(CounterRng& rng) {
  std::vector<char> bytes(rng.below(300));
  for (char& byte : bytes) byte = static_cast<char>(rng.below(256));
  if (rng.below(2) == 0 && bytes.size() >= 16) {
    const std::uint32_t header[] = {0, 1, static_cast<std::uint32_t>(rng.below(2)) * 0xfffffff0u,
                                    rng.below(2) == 0 ? 0xffffffffu : static_cast<std::uint32_t>(rng.below(20))};
    std::memcpy(bytes.data(), header, sizeof header);
  }
  if (rng.below(3) == 0 && bytes.size() >= 4) {
    const auto size = static_cast<std::uint32_t>(bytes.size() - 4);
    std::memcpy(bytes.data(), &size, sizeof size);
    if (rng.below(2) == 0) std::fill(bytes.begin() + 4, bytes.end(), '[');
  }
  return bytes;
}

TEST_F(TcpShardsTest, StrangersBytesEndTheirConnectionAndNothingElse) {
  for (const bool keyed : {false, true}) {
    Waiting waiting(keyed ? listening() : Security());
    CounterRng rng(11);
    std::vector<Descriptor> open;  // of which most say nothing more, and stay
    for (int i = 0; i < 200; ++i) {
      Descriptor stranger = waiting.connect();
      const std::vector<char> bytes = hostile_bytes(rng);
      (void)::send(stranger, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (rng.below(2) == 0) open.push_back(std::move(stranger));
    }
    const auto joined = join_shards(waiting.address(), keyed ? of("shard") : Security(), 7, {});
    ASSERT_TRUE(joined) << joined.error().message;
    waiting.thread.join();
    ASSERT_NE(waiting.first, nullptr);
  }
}

// One that has joined is no stranger, and may be broken all the same: its group ends, its verifier's process does not
// break.
TEST_F(TcpShardsTest, AShardsBrokenFramesEndTheGroup) {
  CounterRng rng(12);
  int ended = 0;
  for (int i = 0; i < 200; ++i) {
    Waiting waiting;
    ShardLink link(waiting.connect(), nullptr);
    ASSERT_TRUE(link.write_text(R"({"outrider": ")" OUTRIDER_VERSION R"(", "weights": "0000000000000007"})"));
    waiting.thread.join();
    const std::vector<char> bytes = hostile_bytes(rng);
    ASSERT_TRUE(bytes.empty() || link.write(bytes));
    link = ShardLink(Descriptor(), nullptr);
    Tensor rows(1, 20);
    try {
      waiting.first->gather(rows.view(), {0, 10});
    } catch (const std::runtime_error& gone) {
      EXPECT_EQ(std::string(gone.what()).substr(0, 20), "shard 1 of 2 is gone");
      ++ended;
    }
  }
  EXPECT_GE(ended, 150);
}

// RFC 8446 5.5: AES-GCM takes 2^24.5 records, at most 390 GB, with one key. A busy group sends that within hours.
TEST_F(TcpShardsTest, AKeyEncryptsFewRecords) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  const Descriptor here(ends[0]), there(ends[1]);
  const auto pair = [&](const char* name) {
    const KeyPair keys = read_private_key(dir / name).value();
    return CurveKeyPair{keys.secret, keys.open};
  };
  const auto client = tls_to_key(pair("shard"), pair("verifier").open, here),
             server = tls_from_keys(pair("verifier"), [](const CurveKey&) { return true; }, there);
  while (client->handshake().bytes + server->handshake().bytes < 2) {
  }
  constexpr std::ptrdiff_t kKeyUpdateBytes = 5 + 5 + 1 + 16;  // its record: head, message, type and tag
  std::vector<char> raw(64), byte(1);
  int updates = 0, wrong = 0;
  for (int i = 0; i < 150'000; ++i) {
    byte[0] = static_cast<char>(i);
    wrong += client->write(byte).bytes != 1;
    updates += ::recv(there, raw.data(), raw.size(), MSG_PEEK) > kKeyUpdateBytes;
    wrong += server->read(byte).bytes != 1 || byte[0] != static_cast<char>(i);
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_GE(updates, 1);
}

TEST_F(TcpShardsTest, AnEndIsSeenWithoutAGather) {
  auto group = tcp_group(3);
  const auto& first = dynamic_cast<TcpShards&>(*group[0]);
  EXPECT_TRUE(first.check());
  group[2].reset();
  while (first.check()) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(first.check().error().message.substr(0, 21), "shard 2 of 3 is gone:");
}

}  // namespace
}  // namespace outrider
