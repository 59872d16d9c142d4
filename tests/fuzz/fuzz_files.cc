// Files that a person or an earlier run wrote: the first byte says which.
#include <fcntl.h>

#include <string>

#include <nlohmann/json.hpp>

#include "batch/input.h"
#include "batch/journal.h"
#include "cluster-launch/deadline.h"
#include "cluster-launch/facts.h"
#include "cluster-launch/host_set.h"
#include "cluster-launch/plan.h"
#include "cluster-launch/process_plan.h"
#include "cluster-launch/run_folder.h"
#include "common/base/json_fields.h"
#include "lab/experiment/journal.h"
#include "lab/experiment/plan.h"
#include "tests/fuzz/driver.h"
#include "tests/support/temporary_dir.h"

namespace {
using namespace outrider;

const TemporaryDir& folder() {
  static const TemporaryDir dir;
  return dir;
}

void launch_plan(const std::string& text) {
  const auto object = parse_json_object(text, "plan.json");
  if (!object) return;
  const auto plan = read_plan(*object, "plan.json");
  if (plan) (void)plan_processes(*plan, true);
  nlohmann::json placed = *object;
  (void)place_on_hosts(placed, text, "hosts");
}

void hosts(const std::string& text) {
  nlohmann::json plan = {{"verifiers", {{{"count", 1}}}}};
  (void)place_on_hosts(plan, text, "hosts");
  (void)expand_host_set(text);
  (void)parse_deadline(text);
  (void)facts_in(text, "host");
}

void run_folder(const std::string& text) {
  folder().write("run/plan.json", text);
  folder().write("run/ledger.jsonl", text);
  folder().write("run/coordinator.address", text);
  const auto run = RunFolder::open(folder() / "run");
  if (!run) return;
  (void)run->read_json("plan.json");
  (void)run->ledger();
  (void)run->addresses();
}

void batch_files(const std::string& text) {
  const std::filesystem::path path = folder().write("batch", text);
  for (const auto order : {BatchInput::Order::kInput, BatchInput::Order::kPrefix}) {
    const auto input = BatchInput::open(path, order);
    if (!input) continue;
    for (const std::uint32_t line : input->to_send({})) (void)input->read(line);
  }
  const auto file = DurableFile::open(path, O_RDONLY);
  if (file) (void)Journal::read(*file, [](const JournalEntry&) {});
  (void)Shard::parse(text.substr(0, 40));
}

void experiment(const std::string& text) {
  const auto plan = parse_plan(text, "plan.json");
  if (plan) (void)to_json(*plan);
  (void)read_journal(folder().write("cells.jsonl", text));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0]) {
    case 'p': launch_plan(text); break;
    case 'h': hosts(text); break;
    case 'r': run_folder(text); break;
    case 'b': batch_files(text); break;
    default: experiment(text);
  }
  return 0;
}
