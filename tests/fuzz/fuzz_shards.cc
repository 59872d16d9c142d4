// What a shard's other end sends: hellos and tasks, frames of a gather, and the calls of the verifier that it follows.
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/http/tls.h"
#include "common/wire/transport/address.h"
#include "tests/fuzz/driver.h"
#include "tests/support/model_at.h"
#include "verifier-node/sequences.h"
#include "verifier-node/tcp_shards.h"

namespace outrider {
namespace {

using Bytes = std::span<const std::uint8_t>;
constexpr std::uint64_t kWeights = 7;

void say(int socket, Bytes bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
}

/// The second of two shards, whose first one's words are the input. What both compute together is zeros.
class FedShards final : public Shards {
 public:
  explicit FedShards(Bytes bytes) : Shards({1, 2}), left_(bytes) {}

 private:
  void gather_piece(Matrix<float> rows, Columns own) override {
    for (std::int64_t r = 0; r < rows.size(0); ++r) {
      if (own.count > 0) {
        std::fill_n(rows[r].data(), own.begin, 0.0f);
        continue;
      }
      if (left_.empty()) throw std::runtime_error("the input is over");
      const std::size_t bytes = static_cast<std::size_t>(rows.size(1)) * sizeof(float),
                        some = std::min(bytes, left_.size());
      std::memset(rows[r].data(), 0, bytes);
      std::memcpy(rows[r].data(), left_.data(), some);
      left_ = left_.subspan(some);
    }
  }
  Bytes left_;
};

void follow(Bytes bytes) {
  FedShards shards(bytes);
  static const ModelFiles files = model_at(std::string(OUTRIDER_SOURCE_DIR) + "/tests/goldens/odd/backbone");
  Sequences sequences(Backbone::load(files, WeightType::kInt8, 8, &shards).value());
  try {
    sequences.follow();
  } catch (const std::runtime_error&) {
  }
}

void gather(Bytes bytes) {
  int ends[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
  const Descriptor other(ends[1]);
  std::vector<ShardLink> links;
  links.emplace_back(Descriptor(ends[0]), nullptr);
  TcpShards first({0, 2}, std::move(links));
  say(other, bytes);
  ::shutdown(other, SHUT_WR);
  Tensor rows(2, 20);
  try {
    for (int i = 0; i < 3; ++i) first.gather(rows.view(), {0, 10});
  } catch (const std::runtime_error&) {
  }
}

/// A verifier's answer to a shard that wants to join.
void join(Bytes bytes) {
  static const Descriptor listening = listen_tcp("tcp://127.0.0.1:*").value();
  Descriptor verifier;
  const std::jthread dials([] { (void)join_shards(own_address(listening), {}, kWeights, {}); });
  while (verifier < 0) verifier = Descriptor(::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC));
  say(verifier, bytes);
  ::shutdown(verifier, SHUT_WR);
}

/// A stranger's hello, before a shard's own.
void hear(Bytes bytes) {
  const auto listener = ShardListener::listen("tcp://127.0.0.1:*", {}).value();
  std::jthread first([&] { CHECK(listener->gather_group({.place = {0, 2}}, kWeights, {}).value() != nullptr); });
  const Descriptor stranger = connect_tcp(listener->address(), std::chrono::seconds(10)).value();
  say(stranger, bytes);
  CHECK(join_shards(listener->address(), {}, kWeights, {}).value().has_value());
}

}  // namespace

FuzzSeeds fuzz_seeds() {
  const auto raw = [](const std::vector<std::int32_t>& words) {
    return std::string(reinterpret_cast<const char*>(words.data()), words.size() * sizeof words[0]);
  };
  const auto words = [&](std::vector<std::int32_t> calls) {
    calls.insert(calls.begin(), static_cast<std::int32_t>(calls.size()));
    return raw(calls);
  };
  const auto text = [](const std::string& json) {
    const auto size = static_cast<std::uint32_t>(json.size());
    return std::string(reinterpret_cast<const char*>(&size), sizeof size) + json;
  };
  // Open 1 and 2; a pass of three rows of 1, two of them drafts, and of one of 2.
  return {std::string(1, '\0') + words({0, 1, 0, 0, 2, 0, 4, 2, 1, 0, 3, 3, 2, 0, 5, 6, 7, 1, 1, 2, 0, 1, 1, 0, 0, 9}),
          // Open 1; a pass of three rows; keep one draft; copy, rename, release.
          std::string(1, '\0') + words({0, 1, 0, 4, 1, 1, 0, 3, 3, 0, 0, 5, 6, 7, 5, 0, 1,
                                        1, 2, 0, 1, 0, 2, 2, 2, 0, 3, 0, 3, 3, 0}),
          // A frame of zeros.
          std::string(1, '\1') + raw({0, 2, 10, 10}) + std::string(2 * 10 * sizeof(float), '\0'),
          '\2' + text(R"({"rank": 1, "count": 2, "dtype": "int8", "rows": 8, "peer_timeout": 3, "drain_wait": 0, )"
                      R"("verify_weights": false})"),
          '\3' + text(R"({"outrider": "0.0.9", "weights": "0000000000000007"})")};
}

}  // namespace outrider

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace outrider;
  if (size == 0) return 0;
  const Bytes bytes(data + 1, size - 1);
  switch (data[0] % 4) {
    case 0: follow(bytes); break;
    case 1: gather(bytes); break;
    case 2: join(bytes); break;
    default: hear(bytes);
  }
  return 0;
}
