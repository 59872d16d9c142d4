// Compares a backbone of several processes with one of as many threads in one process, in turns, with random weights,
// and measures the processes' gathers.
//   shards SHAPE TYPE LAYERS SHARDS THREADS_EACH [TURNS]
// Over TCP, with the keys of ~/.config/outrider beyond this machine, or without any: the first shard, then the others.
//   shards SHAPE TYPE LAYERS SHARDS THREADS_EACH TURNS listen|join tcp://HOST:PORT [insecure]
// Also compares two shards through this repository's relay, with and without a link's delay and bandwidth, in turns,
// with the expected cost of the link.
//   shards SHAPE TYPE LAYERS 2 THREADS_EACH TURNS link RTT_MS [MBIT]
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "common/base/time.h"
#include "common/compute/kernels/team.h"
#include "common/os/host.h"
#include "lab/link_emulator.h"
#include "lab/random_weights.h"
#include "lab/shapes.h"
#include "verifier-node/sequences.h"
#include "verifier-node/shared_memory_shards.h"
#include "verifier-node/tcp_shards.h"

namespace {

using namespace outrider;

constexpr std::int64_t kRowsMax = 128, kContext = 64;
constexpr std::int64_t kRows[] = {1, 5, 16, kRowsMax};

struct Setting {
  TextConfig config;
  WeightType type;
  int threads;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// @return the times of gathers, microseconds.
std::vector<double> gathers(Shards& shards, std::int64_t rows, std::int64_t width) {
  Tensor tensor(rows, width);
  std::vector<double> times;
  for (int i = 0; i < 3000; ++i) {
    const TimePoint start = now();
    shards.gather(tensor.view(), shards.place().share(width));
    times.push_back(1e6 * to_seconds(now() - start));
  }
  return times;
}

std::unique_ptr<Backbone> load(const Setting& setting, Shards* shards) {
  return Backbone::load(setting.config, random_weights(setting.type, "random"), kRowsMax, shards).value();
}

void gather_all(Shards& shards) {
  for (const auto& [rows, width] :
       {std::pair(1, 5376), std::pair(5, 5376), std::pair(128, 5376), std::pair(1, 262144)}) {
    const std::vector<double> times = gathers(shards, rows, width);
    if (shards.place().rank == 0)
      std::printf("gather of %d x %d floats: median %.1f us, least %.1f\n", rows, width, median(times),
                  *std::ranges::min_element(times));
  }
}

/// Counts another one's gathers.
class CountedShards final : public Shards {
 public:
  explicit CountedShards(Shards& inner) : Shards(inner.place()), inner_(inner) {}
  std::int64_t count = 0, bytes = 0;  ///< bytes: sent by this one

 private:
  void gather_piece(Matrix<float> rows, Columns own) override {
    ++count;
    bytes += rows.size(0) * own.count * static_cast<std::int64_t>(sizeof(float));
    inner_.gather(rows, own);
  }
  Shards& inner_;
};

/// Returns the seconds of a pass of so many rows after kContext of them. @param counted  counts these rows' gathers
double pass(Sequences& sequences, std::int64_t rows, CountedShards* counted = nullptr) {
  const std::vector<TokenId> tokens(static_cast<std::size_t>(rows), 5), context(kContext, 7);
  sequences.open(SessionId{1});
  const Sequences::Rows first[] = {{SessionId{1}, context}},
                        more[] = {{SessionId{1}, tokens, std::min<std::int64_t>(rows, 16)}};
  sequences.forward(first, nullptr);
  if (counted != nullptr) counted->count = counted->bytes = 0;
  const TimePoint start = now();
  sequences.forward(more, nullptr);
  const double seconds = to_seconds(now() - start);
  sequences.release(SessionId{1});
  return seconds;
}

void compare(const Setting& setting, Shards& shards, int turns) {
  const int count = shards.place().count;
  constexpr std::size_t kCases = std::size(kRows);
  std::vector<double> times[2][kCases];
  std::barrier turn(2);
  const auto measure = [&](Sequences& sequences, std::size_t which) {
    for (int i = 0; i < 2 * turns; ++i, turn.arrive_and_wait()) {
      if (static_cast<std::size_t>(i) % 2 != which) continue;
      for (std::size_t c = 0; c < kCases; ++c) times[which][c].push_back(pass(sequences, kRows[c]));
    }
  };
  std::thread whole([&] {
    set_team_size(setting.threads * count);
    Sequences sequences(load(setting, nullptr));
    turn.arrive_and_wait();
    measure(sequences, 0);
  });
  std::thread split([&] {
    use_share_of_cores(0, count);
    set_team_size(setting.threads);
    gather_all(shards);
    Sequences sequences(load(setting, &shards));
    turn.arrive_and_wait();
    measure(sequences, 1);
  });
  whole.join();
  split.join();
  for (std::size_t c = 0; c < kCases; ++c) {
    const double one = median(times[0][c]), many = median(times[1][c]);
    std::printf("%lld rows: one process %.2f ms, %d shards %.2f ms, speed %.2f times\n",
                static_cast<long long>(kRows[c]), 1e3 * one, count, 1e3 * many, one / many);
  }
}

/// Follows the first shard until its end.
void follow(const Setting& setting, const std::string& address, const Security& security) {
  const JoinedShard joined = join_shards(address, security, 0, {}).value().value();
  use_share_of_cores(joined.task.place.rank, joined.task.place.count);
  set_team_size(setting.threads);
  try {
    gather_all(*joined.shards);
    Sequences(load(setting, joined.shards.get())).follow();
  } catch (const std::runtime_error&) {
  }
}

void compare_links(const Setting& setting, const Link& link, int turns) {
  const auto listener = ShardListener::listen("tcp://127.0.0.1:*", {}).value();
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("no pipe");
  prctl(PR_SET_TIMERSLACK, 1);  // nanoseconds: the relay sleeps for some microseconds
  if (fork() == 0) {            // before there are threads
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    char address[64] = {};
    if (read(ends[0], address, sizeof address - 1) > 0) follow(setting, address, {});
    _exit(0);
  }
  const auto emulator = LinkEmulator::start(listener->address()).value();
  if (write(ends[1], emulator->address().data(), emulator->address().size()) < 0) return;
  const std::unique_ptr<Shards> inner = listener->gather_group({.place = {0, 2}}, 0, {}).value();
  use_share_of_cores(0, 2);
  set_team_size(setting.threads);
  gather_all(*inner);
  CountedShards shards(*inner);
  Sequences sequences(load(setting, &shards));
  for (const std::int64_t rows : kRows) {
    std::vector<double> times[2];
    for (int i = 0; i < 2 * turns; ++i) {
      emulator->set(i % 2 == 0 ? Link{} : link);
      times[i % 2].push_back(pass(sequences, rows, &shards));
    }
    const double without = 1e3 * median(times[0]), with = 1e3 * median(times[1]);
    const double cost = static_cast<double>(shards.count) * link.rtt_ms / 2 +
                        1e3 * static_cast<double>(shards.bytes) * link.byte_s();
    std::printf("%lld rows: relay alone %.2f ms, with the link %.2f ms, computed %.2f ms (%lld gathers, %lld bytes), "
                "measured over computed %.2f\n",
                static_cast<long long>(rows), without, with, without + cost, static_cast<long long>(shards.count),
                static_cast<long long>(shards.bytes), with / (without + cost));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) {
    std::fprintf(stderr, "usage: shards SHAPE TYPE LAYERS SHARDS THREADS_EACH [TURNS [listen|join ADDRESS|link RTT_MS "
                 "[MBIT]]]\n");
    return 2;
  }
  const ModelShape shape = reduced(published_shape(argv[1]).value(), std::atoi(argv[3]));
  const Setting setting{.config = parse_text_config(backbone_config_json(shape), argv[1]).value(),
                        .type = parse_weight_type(argv[2]).value(),
                        .threads = std::atoi(argv[5])};
  const int count = std::atoi(argv[4]), turns = argc > 6 ? std::atoi(argv[6]) : 9;
  if (argc > 8) {
    const std::string side = argv[7], address = argv[8];
    const Security security{.insecure = argc > 9 && argv[9] == std::string("insecure")};
    if (side == "listen") {
      const auto first = ShardListener::listen(address, security).value();
      const std::unique_ptr<Shards> shards = first->gather_group({.place = {0, count}}, 0, {}).value();
      compare(setting, *shards, turns);
      return 0;
    }
    if (side == "link")
      compare_links(setting, {.rtt_ms = std::atof(argv[8]), .bandwidth_mbit = argc > 9 ? std::atof(argv[9]) : 0},
                    turns);
    else
      follow(setting, address, security);
    return 0;
  }
  const Descriptor memory = SharedMemoryShards::create(count).value();
  for (int rank = 1; rank < count; ++rank) {
    if (fork() != 0) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    use_share_of_cores(rank, count);
    set_team_size(setting.threads);
    const auto shards = SharedMemoryShards::join(memory, {rank, count}).value();
    gather_all(*shards);
    Sequences(load(setting, shards.get())).follow();
  }
  const auto shards = SharedMemoryShards::join(memory, {0, count}).value();
  compare(setting, *shards, turns);
}
