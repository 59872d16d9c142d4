// What a hostile peer says to a coordinator, as fast as it goes: somebody without a key, who gets no further than the
// handshake, or one with a key whose messages are as the codec lets them in, and lie.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "common/base/random.h"
#include "common/base/time.h"
#include "common/model/checkpoint/model_files.h"
#include "common/model/gemma4/config.h"
#include "common/model/gemma4/weights.h"
#include "common/pair/pair_files.h"
#include "common/wire/transport/endpoint.h"
#include "tests/fuzz/drawn_messages.h"

namespace outrider {
namespace {

constexpr const char* kUsage =
    "usage: hostile garbage|handshakes|frames|stranger|drafter|verifier|client ADDRESS SECONDS MESSAGES SEED\n"
    "               [MODEL DTYPE KEY COORDINATOR_KEY]\n"
    "At most so many messages, and for so long; a stranger and those after it have the last four.\n";

struct Task {
  std::string kind, address;
  TimePoint end;
  std::int64_t messages_max = 0;
  CounterRng random{0};
  std::string model = {}, dtype = {};
  Security security = {};

  std::int64_t messages = 0, heard = 0, connections = 0;
  bool over() const { return messages >= messages_max || now() >= end; }
  std::string bytes(std::size_t count) {
    std::string text(count, '\0');
    for (char& c : text) c = static_cast<char>(random.next());
    return text;
  }
};

// ---- without a key ----

/// A TCP connection, of which nothing waits.
class Socket {
 public:
  explicit Socket(const std::string& address) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in where{};
    where.sin_family = AF_INET;
    where.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    // Closed by a reset: ten thousand a second would else use up the ports.
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    connected_ = ::connect(fd_, reinterpret_cast<const sockaddr*>(&where), sizeof where) == 0;
    const timeval patience{.tv_sec = 0, .tv_usec = 100'000};
    setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  }
  ~Socket() { close(fd_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  bool send(const std::string& bytes) {
    return connected_ && ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) == std::ssize(bytes);
  }

 private:
  int fd_;
  bool connected_ = false;
};

std::string greeting(const std::string& mechanism) {
  std::string text = std::string("\xff\0\0\0\0\0\0\0\1\x7f\3\0", 12) + mechanism;
  text.resize(64, '\0');
  return text;
}
std::string frame(std::uint8_t flags, const std::string& body) {
  std::string text{static_cast<char>(flags | 2)};  // of a long size
  for (int shift = 56; shift >= 0; shift -= 8) text += static_cast<char>(body.size() >> shift);
  return text + body;
}

/// What is no ZMTP.
void say_garbage(Task& task) {
  Socket socket(task.address);
  ++task.connections;
  socket.send(task.bytes(1 + task.random.below(4096)));
  ++task.messages;
}

/// A greeting, and the next steps of a handshake, wrong or not to their end; some peers stay.
void shake_hands(Task& task, std::deque<std::unique_ptr<Socket>>& staying) {
  constexpr std::array<const char*, 4> kMechanisms = {"CURVE", "NULL", "PLAIN", "NONE"};
  auto socket = std::make_unique<Socket>(task.address);
  ++task.connections;
  std::string said = greeting(kMechanisms[task.random.below(4)]);
  // As long as CURVE's HELLO, or not.
  std::string hello = "\5HELLO" + std::string("\1\0", 2) + std::string(72, '\0');
  hello += task.bytes(task.random.below(2) == 0 ? 120 : task.random.below(200));
  said += frame(4, hello);
  if (task.random.below(2) == 0) said.resize(task.random.below(said.size()));
  if (task.random.below(2) == 0 && !said.empty())
    said[task.random.below(said.size())] ^= static_cast<char>(task.random.next());
  socket->send(said);
  ++task.messages;
  if (task.random.below(8) == 0) staying.push_back(std::move(socket));
  if (staying.size() > 64) staying.pop_front();
}

/// Frames without end, of one message, or of a size that never comes.
void send_frames(Task& task) {
  Socket socket(task.address);
  ++task.connections;
  socket.send(greeting(task.random.below(2) == 0 ? "CURVE" : "NULL"));
  const std::uint8_t flags = static_cast<std::uint8_t>(task.random.below(8));
  const std::string one = frame(flags | 1, task.bytes(task.random.below(2000)));
  for (int frames = 0; frames < 1000 && !task.over() && socket.send(one); ++frames) ++task.messages;
}

// ---- with a key ----

PairFacts facts_of(const std::string& dir, const std::string& dtype) {
  const PairPaths pair = pair_paths(dir).value();
  const ModelFiles files = ModelFiles::open(pair.backbone).value();
  const TextConfig config = load_text_config(files).value();
  const auto weights = open_weights(files, parse_weight_type(dtype).value()).value();
  return pair_facts(config, *weights);
}

/// Somebody whose key is not in the list, again and again.
void knock(Task& task) {
  TransportContext context(task.security);
  const auto endpoint = Endpoint::connect(context, task.address).value();
  for (int i = 0; i < 10; ++i) (void)endpoint->send("", {.body = StatusRequest{}});
  for (int i = 0; i < 50 && !endpoint->connection_error() && !endpoint->connected(); ++i)
    endpoint->wait(std::chrono::milliseconds(1));
  task.heard += endpoint->receive().has_value();
  ++task.connections;
  ++task.messages;
}

/// Says what fits what it heard, and is not true; else anything.
class Liar {
 public:
  Liar(Task& task) : task_(task), context_(task.security) {
    if (task_.kind == "drafter" || task_.kind == "verifier") {
      hello_ = {.role = task_.kind == "drafter" ? Role::kDrafter : Role::kVerifier,
                .name = "liar",
                .facts = facts_of(task_.model, task_.dtype),
                .numeric_class = "lies"};
      // A verifier that gets texts may write what it likes (docs/security.md): this one lies about others' texts.
      if (hello_.role == Role::kVerifier) hello_.capacity.sessions_max = 0;
    }
  }

  /// Over one connection after the other: where it is cut off or held up, it dials again at once.
  void run() {
    while (!task_.over()) {
      endpoint_ = Endpoint::connect(context_, task_.address).value();
      while (!task_.over() && endpoint_->connections() == 0) endpoint_->wait(std::chrono::milliseconds(1));
      ++task_.connections;
      introduce();
      for (in_vain_ = 0; !task_.over() && endpoint_->connected() && in_vain_ < kPatience;) speak();
    }
  }

 private:
  static constexpr int kPatience = 20;  ///< messages one after the other that wait for a millisecond and find no place

  void speak() {
    while (auto received = endpoint_->receive()) {
      ++task_.heard;
      if (received->message) answer(*received->message);
    }
    for (int i = 0; i < 16; ++i) say(anything());
  }
  void say(const Message& message) {
    if (endpoint_->send("", message)) {
      ++task_.messages;
      in_vain_ = 0;
    } else {
      ++in_vain_;
      endpoint_->wait(std::chrono::milliseconds(1));
    }
  }
  void introduce() {
    if (!hello_.name.empty()) say({.body = hello_});
  }

  void answer(const Message& message) {
    const Body& body = message.body;
    if (std::holds_alternative<WhoAreYou>(body) || std::holds_alternative<Refuse>(body)) {
      if (task_.random.below(100) == 0) introduce();
      return;
    }
    if (message.session == SessionId{}) return;
    seen_ = message;
    Message lie{.session = message.session, .round = message.round, .base = message.base, .body = {}};
    if (const auto* draft = std::get_if<Draft>(&body)) {
      Candidates candidates;
      candidates.tokens.resize(task_.random.below(static_cast<std::uint64_t>(draft->draft_length) + 1));
      for (TokenId& token : candidates.tokens) token = static_cast<TokenId>(task_.random.below(1 << 20));
      candidates.draft_ns = static_cast<std::int64_t>(task_.random.next() >> 1);
      lie.body = candidates;
      if (task_.random.below(8) == 0) lie.body = NeedKv{static_cast<Position>(task_.random.below(1 << 20))};
      if (task_.random.below(32) == 0) lie.body = Failed{Errc::kUnavailable, "a lie"};
      say(lie);
    }
  }

  Message anything() {
    std::string input = task_.bytes(256);
    Drawer draw({reinterpret_cast<const std::uint8_t*>(input.data()), input.size()});
    Message message = MessageDrawer(draw).message();
    if (seen_ && task_.random.below(2) == 0) {
      message.session = seen_->session;
      if (task_.random.below(2) == 0) message.round = seen_->round, message.base = seen_->base;
    }
    // A word that the key does not allow ends this peer: seldom, or nothing else were heard.
    const bool asks = std::holds_alternative<Generate>(message.body) || std::holds_alternative<Step>(message.body) ||
                      std::holds_alternative<Cancel>(message.body);
    const bool hello = std::holds_alternative<Hello>(message.body);
    if ((asks != (task_.kind == "client") || hello) && task_.random.below(1000) != 0)
      message.body = task_.kind == "client" ? Body(StatusRequest{}) : Body(Heartbeat{task_.heard});
    return message;
  }

  Task& task_;
  TransportContext context_;
  std::unique_ptr<Endpoint> endpoint_;
  Hello hello_;
  std::optional<Message> seen_;
  int in_vain_ = 0;
};

void attack(Task& task) {
  std::deque<std::unique_ptr<Socket>> staying;
  const std::map<std::string, std::function<void()>> outside = {{"garbage", [&] { say_garbage(task); }},
                                                                {"handshakes", [&] { shake_hands(task, staying); }},
                                                                {"frames", [&] { send_frames(task); }},
                                                                {"stranger", [&] { knock(task); }}};
  const auto kind = outside.find(task.kind);
  if (kind == outside.end()) return Liar(task).run();
  while (!task.over()) kind->second();
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) {
  using namespace outrider;
  const std::vector<std::string> given(argv + 1, argv + argc);
  if (given.size() != 5 && given.size() != 9) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  Task task{.kind = given[0],
            .address = given[1],
            .end = now() + std::chrono::milliseconds(std::llround(1000 * std::stod(given[2]))),
            .messages_max = std::stoll(given[3]),
            .random = CounterRng(std::stoull(given[4]))};
  if (given.size() == 9) {
    task.model = given[5];
    task.dtype = given[6];
    task.security = {.key = given[7], .authorized = {}, .coordinator_keys = {given[8]}};
  }
  attack(task);
  std::printf("{\"messages\": %lld, \"connections\": %lld, \"heard\": %lld}\n", static_cast<long long>(task.messages),
              static_cast<long long>(task.connections), static_cast<long long>(task.heard));
}
