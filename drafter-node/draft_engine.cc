#include "drafter-node/draft_engine.h"

#include <cstring>

#include "common/base/time.h"
#include "common/kernels/kernel_table.h"

namespace outrider {
namespace {

void append(DonorReplica& replica, const KvRows& kv) {
  if (kv.empty()) return;
  LayerKv* const layers[] = {&replica.sliding, &replica.full};
  CHECK(kv.donors.size() == std::size(layers));
  for (std::size_t i = 0; i < std::size(layers); ++i) {
    const DonorDelta& donor = kv.donors[i];
    layers[i]->write_raw(donor.first, kv.to - donor.first, donor.key.data.bytes().data(), donor.value.data.bytes().data());
  }
  replica.length = kv.to;
}

std::vector<float> to_floats(const WireTensor& row) {
  const std::span<const std::byte> bytes = row.data.bytes();
  std::vector<float> floats(bytes.size() / size_bytes(row.dtype));
  if (row.dtype == DType::kF32) {
    std::memcpy(floats.data(), bytes.data(), bytes.size());
  } else {
    kernels().from_bf16(reinterpret_cast<const Bf16*>(bytes.data()), static_cast<std::int64_t>(floats.size()), floats.data());
  }
  return floats;
}

}  // namespace

DraftEngine::Drafts DraftEngine::run(const DraftWork& work) {
  if (work.kind == DraftWork::Kind::kRelease) {
    replicas_.erase(work.session);
    return {};
  }
  auto replica = replicas_.find(work.session);
  if (replica == replicas_.end()) replica = replicas_.emplace(work.session, assistant_->make_replica()).first;
  append(replica->second, work.kv);
  if (work.kind == DraftWork::Kind::kExtend) return {};
  const std::vector<float> hidden = to_floats(work.hidden);
  const TimePoint start = now();
  Drafts drafts;
  drafts.tokens = assistant_->draft(work.token, hidden, replica->second, work.base, work.draft_length, stop_ids_);
  drafts.draft_ns = (now() - start).count();
  return drafts;
}

void DraftEngine::report_buffers(const BufferSink& sink, Position positions) const {
  assistant_->report_buffers(sink);
  sink({.name = "drafter_scratch.gemm", .dtype = "U8", .shape = {static_cast<std::int64_t>(Linear::thread_scratch_bytes())},
        .bytes = Linear::thread_scratch_bytes()});
  for (const auto& [session, replica] : replicas_) replica.report_buffers(sink, positions);
}

}  // namespace outrider
