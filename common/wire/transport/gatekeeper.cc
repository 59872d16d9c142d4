#include "common/wire/transport/gatekeeper.h"

#include <zmq.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <vector>

namespace outrider {
namespace {

constexpr int kTickMs = 100;  ///< longest delay until a stop or a change of the file is seen

/// Receives the frames of one message.
std::vector<std::string> receive_all(void* socket) {
  std::vector<std::string> frames;
  for (int more = 1; more != 0;) {
    zmq_msg_t frame;
    zmq_msg_init(&frame);
    const int size = zmq_msg_recv(&frame, socket, ZMQ_DONTWAIT);
    if (size >= 0) frames.emplace_back(static_cast<const char*>(zmq_msg_data(&frame)), static_cast<std::size_t>(size));
    more = size >= 0 ? zmq_msg_more(&frame) : 0;
    zmq_msg_close(&frame);
  }
  return frames;
}

}  // namespace

Gatekeeper::Gatekeeper(void* socket, std::filesystem::path authorized)
    : socket_(socket), authorized_(std::move(authorized)) {}

Result<std::unique_ptr<Gatekeeper>> Gatekeeper::start(void* context, const std::filesystem::path& authorized) {
  void* const socket = zmq_socket(context, ZMQ_REP);
  if (socket == nullptr) return Error(Errc::kIo, "cannot check keys: {}", zmq_strerror(errno));
  auto keeper = std::unique_ptr<Gatekeeper>(new Gatekeeper(socket, authorized));
  RETURN_IF_ERROR(keeper->read());
  if (zmq_bind(socket, "inproc://zeromq.zap.01") != 0)
    return Error(Errc::kIo, "cannot check keys: {}", zmq_strerror(errno));
  keeper->thread_ = std::jthread([raw = keeper.get()](std::stop_token stop) { raw->serve(stop); });
  return keeper;
}

Gatekeeper::~Gatekeeper() {
  if (thread_.joinable()) {
    thread_.request_stop();
    thread_.join();
  }
  zmq_close(socket_);
}

std::optional<Identity> Gatekeeper::identity(const char* user_id) const {
  const std::optional<Key> key = user_id == nullptr ? std::nullopt : parse_key(user_id);
  if (!key) return std::nullopt;
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(*key);
  return found == known_.end() ? std::nullopt : std::optional(found->second);
}

Result<void> Gatekeeper::read() {
  const auto [lines, sound] = read_authorized_keys(authorized_.path());
  std::map<Key, Identity> known;
  for (const AuthorizedKey& line : lines) {
    Identity& identity = known[line.key];
    if (identity.name.empty()) identity.name = line.name;
    identity.roles |= 1u << static_cast<unsigned>(line.role);
  }
  {
    const std::lock_guard lock(mutex_);
    known_ = std::move(known);
  }
  return sound;
}

void Gatekeeper::read_again_when_changed() {
  if (!authorized_.changed()) return;
  const Result<void> result = read();
  if (result) {
    log_info("event=authorized_keys_read file={} keys={}", authorized_.path().string(), known_.size());
  } else {
    log_warn("event=authorized_keys_read file={} keys={} reason=\"{}; what cannot be read authorizes nobody\"",
             authorized_.path().string(), known_.size(), result.error().message);
  }
}

void Gatekeeper::serve(std::stop_token stop) {
  while (!stop.stop_requested()) {
    zmq_pollitem_t item{socket_, 0, ZMQ_POLLIN, 0};
    const int ready = zmq_poll(&item, 1, kTickMs);
    read_again_when_changed();
    if (ready > 0) answer_one();
  }
}

void Gatekeeper::answer_one() {
  // Version, request, domain, address, identity, mechanism, credentials (https://rfc.zeromq.org/spec/27/).
  const std::vector<std::string> request = receive_all(socket_);
  Key key{};
  const bool readable = request.size() == 7 && request[0] == "1.0" && request[2] == kDomain && request[5] == "CURVE" &&
                        request[6].size() == key.size();
  if (readable) std::ranges::copy(request[6], key.begin());
  const std::string text = to_text(key);
  const std::optional<Identity> identity = readable ? this->identity(text.c_str()) : std::nullopt;
  const std::string request_id = request.size() > 1 ? request[1] : "";
  const std::array<std::string, 6> reply{
      "1.0", request_id, identity ? "200" : "400", identity ? "" : "this key is not authorized", identity ? text : "",
      ""};
  for (std::size_t i = 0; i < reply.size(); ++i)
    zmq_send(socket_, reply[i].data(), reply[i].size(), i + 1 < reply.size() ? ZMQ_SNDMORE : 0);
  if (identity) return;
  if (const auto more = limit_.pass(now()))
    log_warn("event=key_refused from={} key={}{}", readable ? request[3] : "?", readable ? text : "?", *more);
}

}  // namespace outrider
