#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "common/base/time.h"
#include "common/compute/kernels/isa.h"
#include "common/compute/kernels/linear.h"
#include "common/compute/kernels/team.h"
#include "common/compute/tensor/tensor.h"
#include "common/model/checkpoint/checkpoint.h"
#include "common/model/checkpoint/pack.h"
#include "common/os/host.h"
#include "lab/read_bandwidth.h"
#include "launch/model_flags.h"

namespace outrider {
namespace {
namespace fs = std::filesystem;

void examine(const fs::path& path) {
  const bool packed = fs::exists(path / "pair.json");
  if (packed || (fs::exists(path / "backbone") && !fs::exists(path / "config.json"))) {
    const PairPaths pair = or_throw(pair_paths(path));
    if (packed) std::printf("%s: pair.json fits the packs beside it\n", path.string().c_str());
    examine(pair.backbone);
    if (ModelFlags::has_assistant(pair)) examine(pair.assistant);
    return;
  }
  if (is_pack(path)) {
    const std::shared_ptr<const Pack> pack = or_throw(Pack::open(path));
    or_throw(pack->verify());
    std::printf("%s: all %zu checksums match\n", path.string().c_str(), pack->entries().size());
    return;
  }
  const Checkpoint checkpoint = or_throw(Checkpoint::open(path));
  std::printf("%s: %zu tensors, all within their files; this format has no checksums\n", path.string().c_str(),
              checkpoint.tensors().size());
}

/// @return the time of five rows over the time of one row, for a matrix larger than any cache, like a backbone's: the
/// cost of a round with four drafts relative to a plain one, without the drafting. At least 1: less is a neighbour's
/// doing. Takes about a second
double five_rows(WeightType type) {
  constexpr std::int64_t kIn = 2048, kOut = 16384, kRows = 5;
  double ratio = 0;
  // Runs on a thread that ends, with its workers.
  std::thread([&] {
    const std::vector<std::uint16_t> weights(static_cast<std::size_t>(kIn * kOut), 0x3c00);  // any number
    const auto rows = WeightRows::of(DType::kBf16, reinterpret_cast<const std::byte*>(weights.data()), kOut);
    const Linear linear = Linear::pack(type, kIn, {&rows, 1});
    Tensor x(padded_rows(kRows), kIn), y(padded_rows(kRows), kOut);
    double best[2] = {1e9, 1e9};
    for (int pass = 0; pass < 30; ++pass) {  // in turns, so that a neighbour affects both alike
      for (const std::int64_t count : {std::int64_t{1}, kRows}) {
        const TimePoint start = now();
        linear.forward(x.view().rows(0, count), y.view().rows(0, count));
        double& least = best[count == 1 ? 0 : 1];
        least = std::min(least, to_seconds(now() - start));
      }
    }
    ratio = std::max(1.0, best[1] / best[0]);
  }).join();
  return ratio;
}

/// Prints the drafts that can be expected on this machine.
void judge_drafts() {
  constexpr double kTokens = 3;  // per round with two of four drafts accepted
  const double bf16 = five_rows(WeightType::kBf16), int8 = five_rows(WeightType::kInt8);
  const double most = kTokens / std::min(bf16, int8);
  const char* const verdict = most >= 1.5   ? "drafts pay if the drafter is fast"
                              : most >= 1.1 ? "drafts gain little"
                                            : "drafts gain nothing, and 'auto' mostly leaves them out";
  std::printf(
      "drafts: on %s 5 rows take %.1f times as long as 1 row in bf16, and %.1f times in int8; with 2 of 4 drafts "
      "accepted, decoding is at most %.1f and %.1f times as fast as without drafts; %s\n",
      to_string(active_isa()), bf16, int8, kTokens / bf16, kTokens / int8, verdict);
}

}  // namespace

void add_doctor_command(Command& app) {
  Command* command = app.add_subcommand("doctor", "Report what this machine can run, and verify packs");
  auto paths = std::make_shared<std::vector<fs::path>>();
  command->add_option("PATH", *paths, "Packs, pairs or checkpoints to examine");
  command->callback([paths] {
    std::printf("cpu: %s (in use: %s), %d threads; oneDNN %s\n", to_string(detect_isa()), to_string(active_isa()),
                team_size(), onednn_version().c_str());
    const std::optional<std::int64_t> free = available_memory_bytes();
    std::printf("memory: %s, read at %.1f GB/s\n",
                free ? fmt::format("{:.1f} GiB free", static_cast<double>(*free) / (1 << 30)).c_str() : "unknown",
                measure_read_bandwidth_gb_s());
    judge_drafts();
    for (const fs::path& path : *paths) examine(or_throw(model_path(path)));
  });
}

}  // namespace outrider
