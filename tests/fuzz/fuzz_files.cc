// Files that a person or an earlier run wrote, and what the hub says of a model: the first byte says which.
#include <fcntl.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "batch/input.h"
#include "batch/journal.h"
#include "common/base/check.h"
#include "common/base/json_fields.h"
#include "common/http/url.h"
#include "common/hub/hub.h"
#include "lab/experiment/journal.h"
#include "lab/experiment/plan.h"
#include "launch/cluster/deadline.h"
#include "launch/cluster/facts.h"
#include "launch/cluster/host_set.h"
#include "launch/cluster/plan.h"
#include "launch/cluster/process_plan.h"
#include "launch/cluster/run_folder.h"
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

/// A name, a place to redirect to or a commit, and behind its line a list of files or an index.
void hub(const std::string& text) {
  const std::string line = text.substr(0, text.find('\n')), rest = text.substr(std::min(line.size() + 1, text.size()));
  const std::optional<HubName> name = HubName::parse(line);
  if (name) CHECK(HubName::parse(name->text()).value().text() == name->text(), "{}", line);
  (void)shown_model(line);
  (void)cache_of(line);
  if (const auto url = parse_http_url("https://hub.example/a/b")) (void)parse_http_url(absolute_url(*url, line));

  const auto outside = [](const std::string& file) {
    return file.empty() || file.front() == '/' || *std::filesystem::path(file).lexically_normal().begin() == "..";
  };
  if (const auto listing = read_listing(rest)) {
    for (const auto need : {HubNeed::kAll, HubNeed::kText}) {
      const auto files = choose_files(listing->names(), name ? name->file : "", need);
      if (files) CHECK(std::ranges::none_of(files->names, outside), "{}", rest);
    }
  }
  const auto shards = shards_of_index(rest, "index");
  if (shards) CHECK(std::ranges::none_of(*shards, outside), "{}", rest);

  const HubName cached{.repository = "a/b"};
  const std::filesystem::path commit = cached.folder() + "/snapshots/" + std::string(40, '0');
  for (const char* file : {"config.json", "tokenizer.json", "model-1.safetensors"})
    if (!std::filesystem::exists(folder() / "hub" / commit / file)) folder().write("hub" / commit / file, "");
  folder().write("hub" / commit / "model.safetensors.index.json", rest);
  folder().write("hub/" + cached.folder() + "/refs/main", line);
  if (const auto found = find_in_cache(folder() / "hub", cached)) CHECK(found->path == folder() / "hub" / commit);
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
    case 'u': hub(text); break;
    default: experiment(text);
  }
  return 0;
}
