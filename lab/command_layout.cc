#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/files.h"
#include "common/logging/logging.h"
#include "common/tokenizer/tokenizer.h"
#include "drafter-node/draft_engine.h"
#include "lab/commands.h"
#include "launch/command_support.h"
#include "verifier-node/backbone_engine.h"

namespace outrider {
namespace {
using nlohmann::json;

struct LayoutFlags {
  ModelFlags model;
  Position context = 512;
  std::int32_t draft_length = 4;
  std::filesystem::path out = "layout_decode.json";
  bool measure = false;
};

/// Memory of this process that belongs to no file.
std::int64_t anonymous_bytes() {
  malloc_trim(0);  // what loading has freed is not held by anybody
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("Anonymous:")) return std::stoll(line.substr(10)) * 1024;
  }
  throw std::runtime_error("/proc/self/smaps_rollup: no line 'Anonymous:'");
}

/// Collects what owners report: one entry per buffer, its parts within, offsets in the order of the report.
class Layout {
 public:
  BufferSink sink(const std::string& owner) {
    return [this, owner](const BufferFacts& facts) { add(owner, facts); };
  }

  json to_json() const {
    json buffers = json::array();
    std::size_t anonymous = 0, mapped = 0;
    std::map<std::string, std::size_t> owners;
    for (const Entry& entry : entries_) {
      std::size_t bytes = 0;
      bool same_type = true;
      json parts = json::array();
      std::int64_t elements = 0;
      for (const auto& [facts, offset] : entry.parts) {
        bytes += facts.bytes;
        std::int64_t count = 1;
        for (const std::int64_t n : facts.shape) count *= n;
        elements += count;
        same_type = same_type && facts.dtype == entry.parts[0].first.dtype;
        parts.push_back({{"name", facts.name},
                         {"dtype", facts.dtype},
                         {"shape", facts.shape},
                         {"bytes", facts.bytes},
                         {"offset", offset}});
      }
      const BufferFacts& first = entry.parts[0].first;
      const bool whole = entry.parts.size() == 1;
      // Several parts: the shape is their number of elements, or of bytes where they have several types.
      json object = {
          {"name", entry.name},
          {"owner", entry.owner},
          {"dtype", same_type ? first.dtype : "mixed"},
          {"shape", whole ? json(first.shape) : json({same_type ? elements : static_cast<std::int64_t>(bytes)})},
          {"bytes", bytes},
          {"offset", entry.parts[0].second},
          {"mapped", first.mapped}};
      if (!whole) object["parts"] = std::move(parts);
      buffers.push_back(std::move(object));
      (first.mapped ? mapped : anonymous) += bytes;
      if (!first.mapped) owners[entry.owner] += bytes;
    }
    return {
        {"buffers", std::move(buffers)},
        {"totals", {{"anonymous_bytes", anonymous}, {"mapped_bytes", mapped}, {"anonymous_bytes_by_owner", owners}}}};
  }

 private:
  struct Entry {
    std::string owner, name;
    std::vector<std::pair<BufferFacts, std::size_t>> parts;  ///< with offsets
  };
  void add(const std::string& owner, const BufferFacts& facts) {
    const std::string name = facts.name.substr(0, facts.name.find('.'));
    auto entry = std::find_if(entries_.begin(), entries_.end(),
                              [&](const Entry& e) { return e.owner == owner && e.name == name; });
    if (entry == entries_.end()) {
      entries_.push_back({owner, name, {}});
      entry = entries_.end() - 1;
    }
    std::size_t& end = facts.mapped ? mapped_end_ : end_[owner];
    entry->parts.emplace_back(facts, end);
    end += (facts.bytes + 63) / 64 * 64;
  }
  std::vector<Entry> entries_;
  std::map<std::string, std::size_t> end_;  ///< of each owner's memory
  std::size_t mapped_end_ = 0;
};

void layout(const LayoutFlags& flags) {
  init_logging("outrider", "warn");
  const PairPaths pair = flags.model.pair();
  const WeightType type = flags.model.weight_type(pair);
  const ModelFiles files = open_model(pair.backbone), assistant_files = open_model(pair.assistant);
  const TextConfig config = or_throw(load_text_config(files));
  if (flags.context + flags.draft_length + 1 > config.max_position_embeddings) {
    throw std::runtime_error(fmt::format("--context {}: with {} drafts more than the model's {} positions",
                                         flags.context, flags.draft_length, config.max_position_embeddings));
  }
  const auto load_assistant = [&] {
    return or_throw(Assistant::load(assistant_files, config, *or_throw(open_weights(files, type)), type));
  };
  // What stays of a pair that was loaded and dropped is the runtime's: kernels that oneDNN compiled, OpenMP's threads.
  const std::int64_t bare = anonymous_bytes();
  if (flags.measure) {
    or_throw(Backbone::load(files, type, 1));
    load_assistant();
  }
  const std::int64_t before = anonymous_bytes();

  const Result<Tokenizer> tokenizer = Tokenizer::load(files);  // a model without one can be laid out all the same
  const VerifierConfig verifier;
  BackboneEngine backbone(or_throw(Backbone::load(files, type, verifier.rows_max)));
  DraftEngine drafter(load_assistant(), {});

  // One session: the prompt in chunks, then a round of drafts. Where nothing is measured, a chunk is
  // enough to bring every buffer but the K/V to its size.
  const SessionId session{1};
  const Position prompt =
      flags.measure ? flags.context - 1 : std::min<Position>(flags.context - 1, verifier.prefill_chunk);
  std::vector<TokenId> answer;
  Verdict last;
  for (Position at = 0; at < prompt;) {
    VerifyWork work{
        .session = session, .round = {}, .base = at, .tokens = {}, .prefill = true, .last = true, .kv_from = at};
    for (; at < prompt && std::ssize(work.tokens) < verifier.prefill_chunk; ++at)
      work.tokens.push_back(static_cast<TokenId>((at * at + 5) % config.vocab_size));
    last = std::move(backbone.run({work}).front().verdict);
    drafter.run({.kind = DraftWork::Kind::kExtend, .session = session, .base = at, .kv = last.kv});
  }
  answer.push_back(last.next_token);
  const std::vector<TokenId> drafts =
      drafter
          .run({.kind = DraftWork::Kind::kDraft,
                .session = session,
                .base = prompt,
                .draft = {.token = last.next_token, .draft_length = flags.draft_length, .hidden = *last.hidden}})
          .tokens;
  VerifyWork work{.session = session, .round = {}, .base = prompt, .tokens = drafts, .kv_from = prompt};
  work.tokens.insert(work.tokens.begin(), last.next_token);
  last = std::move(backbone.run({work}).front().verdict);
  answer.insert(answer.end(), drafts.begin(), drafts.begin() + last.accepted);

  Layout result;
  backbone.report_buffers(result.sink("verifier"), flags.context);
  drafter.report_buffers(result.sink("drafter"), flags.context);
  const BufferSink coordinator = result.sink("coordinator");
  const auto ids = [&](const char* name, std::int64_t count) {
    coordinator(
        {.name = name, .dtype = "I32", .shape = {count}, .bytes = static_cast<std::size_t>(count) * sizeof(TokenId)});
  };
  ids("candidate_tokens", flags.draft_length);
  ids("accepted_tokens", flags.draft_length + 1);
  ids("text_tokens", flags.context);  // prompt and answer of the request
  if (tokenizer) {
    const auto bytes = tokenizer->memory_bytes();
    coordinator({.name = "tokenizer", .dtype = "U8", .shape = {static_cast<std::int64_t>(bytes)}, .bytes = bytes});
  }
  json object = result.to_json();
  object["model"] = {{"backbone", pair.backbone.string()}, {"assistant", pair.assistant.string()},
                     {"dtype", to_string(type)},           {"context", flags.context},
                     {"draft_length", flags.draft_length}, {"prefill_chunk", verifier.prefill_chunk}};
  const auto mib = [](const json& bytes) { return bytes.get<double>() / (1 << 20); };
  for (const json& buffer : object["buffers"]) {
    std::printf("%-12s %-28s %-6s %12.3f MiB%s\n", buffer["owner"].get<std::string>().c_str(),
                buffer["name"].get<std::string>().c_str(), buffer["dtype"].get<std::string>().c_str(),
                mib(buffer["bytes"]), buffer["mapped"].get<bool>() ? "  mapped file" : "");
  }
  const json& totals = object["totals"];
  std::printf("anonymous %.3f MiB, mapped %.3f MiB, %s at %lld positions\n", mib(totals["anonymous_bytes"]),
              mib(totals["mapped_bytes"]), to_string(type), static_cast<long long>(flags.context));
  if (flags.measure) {
    const std::int64_t grown = anonymous_bytes() - before;
    const double share = totals["anonymous_bytes"].get<double>() / static_cast<double>(grown);
    object["measured"] = {{"anonymous_bytes", grown}, {"layout_share", share}, {"runtime_bytes", before - bare}};
    std::printf("measured growth %.3f MiB: the layout is %.1f %% of it; the runtime takes %.3f MiB more\n",
                static_cast<double>(grown) / (1 << 20), 100 * share, static_cast<double>(before - bare) / (1 << 20));
  }
  or_throw(write_text(flags.out, object.dump(2) + "\n"));
}

}  // namespace

void add_layout_command(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("layout", "Write layout_decode.json: every long-lived buffer of a pair while it decodes");
  auto flags = std::make_shared<LayoutFlags>();
  flags->model.add_to(*command);
  command->add_option("--context", flags->context, "Positions of the session")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  command->add_option("--draft-length", flags->draft_length, "Drafts per round")
      ->check(CLI::Range(1, 32))
      ->capture_default_str();
  command->add_option("--out", flags->out, "File to write")->capture_default_str();
  command->add_flag("--measure", flags->measure,
                    "Run a text of that many positions and compare with what the process then takes");
  command->callback([flags] { layout(*flags); });
}

}  // namespace outrider
