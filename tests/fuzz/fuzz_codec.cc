// Frames as they come from a socket. An input is frames, each after its length in four bytes.
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/base/random.h"
#include "common/wire/transport/codec.h"
#include "tests/fuzz/drawn_messages.h"
#include "tests/fuzz/driver.h"
#include "tests/support/message_text.h"

namespace outrider {
namespace {

Frames frames_of(const std::uint8_t* data, std::size_t size) {
  Frames frames;
  for (std::uint32_t length = 0; size >= sizeof(length) && frames.size() < 16; data += length, size -= length) {
    std::memcpy(&length, data, sizeof(length));
    data += sizeof(length);
    size -= sizeof(length);
    length = std::min<std::uint32_t>(length, static_cast<std::uint32_t>(size));
    const auto owner = std::make_shared<std::vector<std::uint8_t>>(data, data + length);
    frames.emplace_back(owner, std::as_bytes(std::span(*owner)));
  }
  return frames;
}

}  // namespace

/// Of each kind several.
FuzzSeeds fuzz_seeds() {
  FuzzSeeds seeds;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CounterRng random(seed);
    std::vector<std::uint8_t> bytes(600);
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random.next());
    Drawer drawer(bytes);
    std::string& input = seeds.emplace_back();
    for (const SharedBytes& frame : encode(MessageDrawer(drawer).message())) {
      const auto length = static_cast<std::uint32_t>(frame.bytes().size());
      input.append(reinterpret_cast<const char*>(&length), sizeof(length));
      input.append(reinterpret_cast<const char*>(frame.bytes().data()), length);
    }
  }
  return seeds;
}

}  // namespace outrider

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace outrider;
  const Result<Message> message = decode(frames_of(data, size));
  if (!message) {
    CHECK(!message.error().message.empty());
    return 0;
  }
  // What was let in can be said again, and is the same then.
  const Result<Message> again = decode(encode(*message));
  CHECK(again, "{}", again.error().message);
  CHECK(*again == *message, "{} and {}", to_text(*again), to_text(*message));
  return 0;
}
