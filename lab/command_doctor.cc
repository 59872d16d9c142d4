#include <cstdio>
#include <filesystem>
#include <memory>
#include <vector>

#include "common/base/host.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/pack.h"
#include "common/kernels/isa.h"
#include "common/kernels/linear.h"
#include "common/kernels/team.h"
#include "lab/read_bandwidth.h"
#include "launch/command_support.h"

namespace outrider {
namespace {
namespace fs = std::filesystem;

void examine(const fs::path& path) {
  if (fs::exists(path / "pair.json")) {
    const PairPaths pair = or_throw(pair_paths(path));
    std::printf("%s: pair.json fits the packs beside it\n", path.string().c_str());
    examine(pair.backbone);
    examine(pair.assistant);
    return;
  }
  if (is_pack(path)) {
    const std::shared_ptr<const Pack> pack = or_throw(Pack::open(path));
    or_throw(pack->verify());
    std::printf("%s: all %zu checksums are right\n", path.string().c_str(), pack->entries().size());
    return;
  }
  const Checkpoint checkpoint = or_throw(Checkpoint::open(path));
  std::printf("%s: %zu tensors, all within their files; this format has no checksums\n", path.string().c_str(),
              checkpoint.tensors().size());
}

}  // namespace

void add_doctor_command(Command& app) {
  Command* command = app.add_subcommand("doctor", "Say what this machine can do, and verify packs");
  auto paths = std::make_shared<std::vector<fs::path>>();
  command->add_option("PATH", *paths, "Packs, pairs or checkpoints to examine");
  command->callback([paths] {
    std::printf("cpu: %s (in use: %s), %d threads; oneDNN %s\n", to_string(detect_isa()), to_string(active_isa()),
                team_size(), onednn_version().c_str());
    std::printf("memory: %.1f GiB free, read at %.1f GB/s\n", static_cast<double>(available_memory_bytes()) / (1 << 30),
                measure_read_bandwidth_gb_s());
    for (const fs::path& path : *paths) examine(path);
  });
}

}  // namespace outrider
