// Memory that grows with the text: pages of K/V, and what the host has left for them.
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "common/compute/tensor/page_array.h"
#include "common/model/gemma4/kv_cache.h"
#include "common/os/host.h"
#include "common/pair/pair_files.h"
#include "tests/support/temporary_dir.h"

namespace outrider {
namespace {

std::size_t resident_pages(const PageArray& array) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> map((array.size() + page - 1) / page);
  EXPECT_EQ(mincore(const_cast<std::byte*>(array.data()), array.size(), map.data()), 0);
  std::size_t count = 0;
  for (const unsigned char state : map) count += state & 1;
  return count;
}

/// Returns true if the kernel gives the memory at `p` small pages alone, also where it prefers huge ones (VmFlags nh).
bool has_small_pages_alone(const std::byte* p) {
  std::ifstream maps("/proc/self/smaps");
  const auto address = reinterpret_cast<std::uintptr_t>(p);
  bool here = false;
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) here = begin <= address && address < end;
    if (here && line.starts_with("VmFlags:")) return line.find(" nh") != std::string::npos;
  }
  return false;
}

TEST(PageArray, TakesOnlyWhatWasWrittenAndKeepsItWhenItGrows) {
  PageArray array(std::size_t{1} << 30);
  array.data()[0] = std::byte{1};
  array.data()[512 << 20] = std::byte{2};
  EXPECT_EQ(resident_pages(array), 2u);
  EXPECT_TRUE(has_small_pages_alone(array.data()));
  array.grow(std::size_t{2} << 30);
  EXPECT_TRUE(has_small_pages_alone(array.data()));
  EXPECT_EQ(array.data()[0], std::byte{1});
  EXPECT_EQ(array.data()[512 << 20], std::byte{2});
  EXPECT_EQ(array.data()[(std::size_t{2} << 30) - 1], std::byte{0});
  PageArray moved = std::move(array);
  EXPECT_EQ(moved.data()[0], std::byte{1});
  EXPECT_EQ(array.size(), 0u);
}

TEST(PageArray, SaysWhenThereIsNoMemory) { EXPECT_THROW(PageArray(std::size_t{1} << 60), std::bad_alloc); }

TEST(KvCache, SlidingLayersStayWithinTheirRing) {
  // Gemma 4 E4B's layers that own K/V, at its largest context.
  std::vector<KvCache::LayerShape> shapes(24, {2, 256, 512});
  for (std::size_t i = 5; i < shapes.size(); i += 6) shapes[i] = {2, 512, 0};
  constexpr std::int64_t kRowsMax = 256, kPositions = 131072;
  KvCache cache(DType::kBf16, shapes, kRowsMax);
  while (cache.length() < kPositions) cache.extend(kRowsMax);
  std::size_t sliding = 0, full = 0;
  for (std::size_t i = 0; i < cache.layer_count(); ++i) {
    (cache.layer(i).ring_rows() > 0 ? sliding : full) += cache.layer(i).bytes_at(kPositions);
  }
  EXPECT_EQ(full, std::size_t{4} * 2 * 131072 * 2 * 512 * 2);
  // 513 rows that the drafter may see and 256 that may be rolled back.
  EXPECT_LE(sliding, std::size_t{20} * 2 * ((513 + 256) * 2 * 256 * 2 + 4096));
  // What a verifier reserves, but for the last page of a ring's K and V.
  EXPECT_NEAR(static_cast<double>(kv_cost_of(cache).bytes(kPositions)), static_cast<double>(full + sliding),
              20 * 2 * 4096);
  EXPECT_GE(cache.layer(5).view().capacity, kPositions);

  const std::vector<float> row(1024, 1.5f);
  cache.layer(5).write(kPositions - 1, row, row);
  std::vector<Bf16> k(1024), v(1024);
  cache.layer(5).read_raw(kPositions - 1, 1, reinterpret_cast<std::byte*>(k.data()),
                          reinterpret_cast<std::byte*>(v.data()));
  EXPECT_EQ(to_float(k[1023]), 1.5f);
}

/// proc and sys of a made-up host.
class Host {
 public:
  void put(const std::string& path, const std::string& text) { root_.write(path, text); }
  std::optional<std::int64_t> available() const { return available_memory_bytes(root_.path()); }
  std::optional<double> cores() const { return granted_cores(root_.path()); }
  int nodes() const { return memory_node_count(root_.path()); }
  std::vector<int> share(int rank, int count) const { return share_of_cores(rank, count, root_.path()); }

 private:
  TemporaryDir root_;
};

TEST(HostMemory, IsTheSmallestLimitThatApplies) {
  Host host;
  EXPECT_EQ(host.available(), std::nullopt) << "nothing says";
  host.put("proc/meminfo", "MemTotal:  16000 kB\nMemAvailable:   8000 kB\n");
  EXPECT_EQ(host.available(), 8000 * 1024);

  host.put("proc/self/cgroup", "0::/user/session\n");
  host.put("sys/fs/cgroup/user/session/memory.max", "max\n");
  host.put("sys/fs/cgroup/user/session/memory.current", "1000\n");
  EXPECT_EQ(host.available(), 8000 * 1024) << "no limit";
  host.put("sys/fs/cgroup/user/memory.max", "5000\n");
  host.put("sys/fs/cgroup/user/memory.current", "2000\n");
  host.put("sys/fs/cgroup/user/memory.stat", "anon 100\ninactive_file 700\n");
  EXPECT_EQ(host.available(), 5000 - 2000 + 700) << "a group further up, its idle cache can go";

  host.put("proc/self/cgroup", "9:name=systemd:/\n4:memory:/box\n0::/\n");
  host.put("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "900\n");
  host.put("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "1000\n");
  EXPECT_EQ(host.available(), 0) << "over its limit";
}

TEST(HostCores, AreTheFewestThatAGroupOnThePathGrants) {
  Host host;
  EXPECT_EQ(host.cores(), std::nullopt) << "nothing says";
  host.put("proc/self/cgroup", "0::/user/session\n");
  host.put("sys/fs/cgroup/user/session/cpu.max", "max 100000\n");
  EXPECT_EQ(host.cores(), std::nullopt) << "no limit";
  host.put("sys/fs/cgroup/user/cpu.max", "350000 100000\n");
  EXPECT_EQ(host.cores(), 3.5) << "a group further up";
  host.put("sys/fs/cgroup/user/session/cpu.max", "200000 100000\n");
  EXPECT_EQ(host.cores(), 2);

  host.put("proc/self/cgroup", "4:memory:/box\n3:cpu,cpuacct:/box\n");
  host.put("sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "-1\n");
  host.put("sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(host.cores(), std::nullopt) << "version 1 says none with -1";
  host.put("sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "50000\n");
  EXPECT_EQ(host.cores(), 0.5);
}

TEST(HostCores, AreDealtOutByMemoryNode) {
  Host host;
  EXPECT_EQ(host.nodes(), 1) << "nothing says";
  const std::vector<int> all = host.share(0, 1);  // those that this process may use
  ASSERT_FALSE(all.empty());
  // The last one is a node of its own, before all others; the third node has memory alone.
  host.put("sys/devices/system/node/node0/cpulist", std::to_string(all.back()) + "\n");
  host.put("sys/devices/system/node/node1/cpulist",
           all.back() > 0 ? fmt::format("0-{},4000\n", all.back() - 1) : "4000\n");
  host.put("sys/devices/system/node/node2/cpulist", "\n");
  const int count = static_cast<int>(all.size());
  EXPECT_EQ(host.nodes(), count > 1 ? 2 : 1) << "nodes without a core for this process do not count";
  EXPECT_EQ(host.share(0, count), std::vector<int>{all.back()});
  for (int rank = 1; rank < count; ++rank)
    EXPECT_EQ(host.share(rank, count), std::vector<int>{all[static_cast<std::size_t>(rank) - 1]});
  EXPECT_TRUE(host.share(0, count + 1).empty()) << "fewer cores than shares";

  // A thread that may use the last core alone, as of a container with the cores of one socket.
  std::thread([&] {
    cpu_set_t last;
    CPU_ZERO(&last);
    CPU_SET(all.back(), &last);
    ASSERT_EQ(sched_setaffinity(0, sizeof last, &last), 0);
    EXPECT_EQ(host.nodes(), 1);
  }).join();
}

}  // namespace
}  // namespace outrider
