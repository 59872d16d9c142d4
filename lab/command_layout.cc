#include <malloc.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <numeric>

#include <nlohmann/json.hpp>

#include "common/model/audio/sound_encoder.h"
#include "common/model/vision/picture_encoder.h"
#include "common/os/logging.h"
#include "lab/in_process_pair.h"
#include "lab/reporting.h"
#include "launch/command_support.h"

namespace outrider {
namespace {

struct LayoutFlags {
  ModelFlags model;
  ReportFlags report = {.out = "layout_decode.json"};
  Position context = 512;
  std::int32_t draft_length = 4;
  bool measure = false;
};

/// Returns this process's anonymous memory.
std::int64_t anonymous_bytes() {
  malloc_trim(0);  // memory freed by loading does not count
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("Anonymous:")) return std::stoll(line.substr(10)) * 1024;
  }
  throw std::runtime_error("/proc/self/smaps_rollup: no line 'Anonymous:'");
}

/// Collects reports of owners: one entry per buffer, with its parts, and offsets in the order of the report.
class Layout {
 public:
  BufferSink sink(const std::string& owner) {
    return [this, owner](const BufferFacts& facts) { add(owner, facts); };
  }
  std::vector<Row> rows() const {
    std::vector<Row> rows;
    for (const Buffer& b : buffers_) {
      // With several parts the shape is their number of elements, or of bytes if they have several types.
      const bool whole = b.parts.size() == 1, mixed = b.dtype == "mixed";
      const std::vector all = {mixed ? static_cast<std::int64_t>(b.bytes) : b.elements};
      rows.push_back({{"owner", b.owner, "owner"},
                      {"name", b.name, "buffer"},
                      {"dtype", b.dtype, "type"},
                      {"shape", whole ? b.first_shape : all},
                      {"bytes", b.bytes, "MiB", 3, kMiB},
                      {"offset", b.offset},
                      {"mapped", b.mapped, "mapped file"}});
      if (!whole) rows.back().push_back({"parts", b.parts});
    }
    return rows;
  }
  Row totals() const {
    std::map<std::string, std::size_t> owners;
    for (const Buffer& b : buffers_) {
      if (!b.mapped) owners[b.owner] += b.bytes;
    }
    return {{"anonymous_bytes", bytes(false)}, {"mapped_bytes", bytes(true)}, {"anonymous_bytes_by_owner", owners}};
  }
  std::size_t bytes(bool mapped) const {
    std::size_t sum = 0;
    for (const Buffer& b : buffers_) sum += b.mapped == mapped ? b.bytes : 0;
    return sum;
  }

 private:
  /// The parts of one owner with a common word before the point.
  struct Buffer {
    std::string owner, name, dtype;
    bool mapped;
    std::size_t offset;
    std::vector<std::int64_t> first_shape;
    std::size_t bytes = 0;
    std::int64_t elements = 0;
    std::vector<Row> parts = {};
  };
  void add(const std::string& owner, const BufferFacts& facts) {
    const std::string name = facts.name.substr(0, facts.name.find('.'));
    std::size_t& end = facts.mapped ? mapped_end_ : end_[owner];
    auto buffer = std::find_if(buffers_.begin(), buffers_.end(),
                               [&](const Buffer& b) { return b.owner == owner && b.name == name; });
    if (buffer == buffers_.end())
      buffer = buffers_.insert(buffer, {owner, name, facts.dtype, facts.mapped, end, facts.shape});
    buffer->parts.push_back({{"name", facts.name},
                             {"dtype", facts.dtype},
                             {"shape", facts.shape},
                             {"bytes", facts.bytes},
                             {"offset", end}});
    if (buffer->dtype != facts.dtype) buffer->dtype = "mixed";
    buffer->bytes += facts.bytes;
    buffer->elements += std::accumulate(facts.shape.begin(), facts.shape.end(), std::int64_t{1}, std::multiplies<>());
    end += (facts.bytes + 63) / 64 * 64;
  }
  std::vector<Buffer> buffers_;
  std::map<std::string, std::size_t> end_;  ///< of each owner's memory
  std::size_t mapped_end_ = 0;
};

/// Returns a picture with the default number of soft tokens.
Patches large_picture(const VisionConfig& config) {
  const std::int64_t side = config.soft_token_side(), columns = 20;
  const Picture picture{
      .height = kSoftTokensDefault / columns * side,
      .width = columns * side,
      .rgb = std::vector<std::uint8_t>(static_cast<std::size_t>(kSoftTokensDefault * side * side * 3))};
  return or_throw(cut_into_patches(picture, config));
}

/// Reports the memory of verifier, drafter and coordinator for one sequence.
void report_buffers(Layout& layout, const LayoutFlags& flags, const Backbone& backbone, const Assistant& assistant,
                    InProcessPair& pair) {
  const BufferSink verifier = layout.sink("verifier"), drafter = layout.sink("drafter"),
                   coordinator = layout.sink("coordinator");
  const auto block = [](const BufferSink& sink, const char* name, const char* dtype, std::size_t count,
                        std::size_t bytes) {
    sink({.name = name, .dtype = dtype, .shape = {static_cast<std::int64_t>(count)}, .bytes = bytes});
  };
  const auto ids = [&](const char* name, std::int64_t count) {
    block(coordinator, name, "I32", static_cast<std::size_t>(count), static_cast<std::size_t>(count) * sizeof(TokenId));
  };
  const std::size_t gemm = Linear::thread_scratch_bytes();
  backbone.report_buffers(verifier);
  block(verifier, "verifier_scratch.gemm", "U8", gemm, gemm);
  pair.cache().report_buffers(verifier, "target_kv_cache", flags.context);
  assistant.report_buffers(drafter);
  block(drafter, "drafter_scratch.gemm", "U8", gemm, gemm);
  pair.replica().report_buffers(drafter, flags.context);
  ids("candidate_tokens", flags.draft_length);
  ids("accepted_tokens", flags.draft_length + 1);
  ids("text_tokens", flags.context);  // prompt and answer of the request
}

void layout(const LayoutFlags& flags) {
  init_logging("outrider", "warn");
  const PairPaths pair = flags.model.pair();
  if (!ModelFlags::has_assistant(pair))
    throw CommandError("{} has no assistant beside it, wanted --assistant", pair.backbone.string());
  const WeightType type = flags.model.weight_type(pair);
  const ModelFiles files = open_model(pair.backbone), assistant_files = open_model(pair.assistant);
  const TextConfig config = or_throw(load_text_config(files));
  if (flags.context + flags.draft_length + 1 > config.max_position_embeddings) {
    throw CommandError("--context {} with {} drafts exceeds the model's {} positions", flags.context,
                       flags.draft_length, config.max_position_embeddings);
  }
  const auto load_assistant = [&] {
    return or_throw(Assistant::load(assistant_files, config, *or_throw(open_weights(files, type)), type));
  };
  // The runtime keeps memory after a pair was loaded and dropped: kernels compiled by oneDNN, OpenMP's threads.
  const std::int64_t bare = anonymous_bytes();
  if (flags.measure) {
    or_throw(Backbone::load(files, type, 1));
    load_assistant();
    (void)PictureEncoder::load(files, type);
  }
  const std::int64_t before = anonymous_bytes();

  const std::unique_ptr<Backbone> backbone = or_throw(Backbone::load(files, type, kRowsMax));
  const std::unique_ptr<Assistant> assistant = load_assistant();

  // One sequence: the prompt in chunks, then a round of drafts. Without measurements, one chunk suffices to bring every
  // buffer but the K/V to its size.
  std::vector<TokenId> prompt(
      static_cast<std::size_t>(flags.measure ? flags.context - 1 : std::min(flags.context - 1, kRowsMax)));
  for (std::size_t i = 0; i < prompt.size(); ++i)
    prompt[i] = static_cast<TokenId>((i * i + 5) % static_cast<std::size_t>(config.vocab_size));
  const Result<std::unique_ptr<PictureEncoder>> tower = PictureEncoder::load(files, type);
  if (tower) (*tower)->encode(large_picture((*tower)->config()));
  const Result<std::unique_ptr<SoundEncoder>> audio = SoundEncoder::load(files, type);
  if (audio) (*audio)->encode(std::vector<float>(static_cast<std::size_t>(kSamplesMax)));
  InProcessPair text(*backbone, assistant.get());
  text.prefill(prompt);
  text.round(flags.draft_length);

  Layout buffers;
  report_buffers(buffers, flags, *backbone, *assistant, text);
  if (tower) (*tower)->report_buffers(buffers.sink("verifier"));
  if (audio) (*audio)->report_buffers(buffers.sink("verifier"));
  Row report = {{"buffers", buffers.rows()},
                {"totals", buffers.totals()},
                {"model", Row{{"backbone", pair.backbone.string()},
                              {"assistant", pair.assistant.string()},
                              {"dtype", to_string(type)},
                              {"context", flags.context},
                              {"draft_length", flags.draft_length},
                              {"prefill_chunk", kRowsMax}}}};
  if (flags.measure) {
    const std::int64_t grown = anonymous_bytes() - before;
    const double share = static_cast<double>(buffers.bytes(false)) / static_cast<double>(grown);
    report.push_back(
        {"measured", Row{{"anonymous_bytes", grown}, {"layout_share", share}, {"runtime_bytes", before - bare}}});
  }
  write_report(flags.report, report, table(buffers.rows()) + key_lines(report));
}

}  // namespace

void add_layout_command(Command& app) {
  Command* command =
      app.add_subcommand("layout", "Write layout_decode.json: every long-lived buffer of a pair while it decodes, but "
                                   "no tokenizer");
  auto flags = std::make_shared<LayoutFlags>();
  flags->model.add_to(*command);
  add_number(*command, "--context", flags->context, 2, 1 << 20, "Positions of the sequence");
  add_number(*command, "--draft-length", flags->draft_length, 1, 32, "Drafts per round");
  flags->report.add_to(*command);
  command->add_flag("--measure", flags->measure,
                    "Run a text of that many positions and compare with the process's memory");
  command->callback([flags] { layout(*flags); });
}

}  // namespace outrider
