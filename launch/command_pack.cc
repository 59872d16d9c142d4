#include <cstdio>
#include <memory>
#include <optional>

#include "common/model/audio/sound_encoder.h"
#include "common/model/block_drafter/block_config.h"
#include "common/model/checkpoint/model_files.h"
#include "common/model/checkpoint/pack.h"
#include "common/model/gemma4/assistant.h"
#include "common/model/gemma4/backbone.h"
#include "common/model/tokenizer/tokenizer.h"
#include "common/model/vision/picture_encoder.h"
#include "launch/model_flags.h"

namespace outrider {
namespace {
namespace fs = std::filesystem;

/// Adds the files that a model needs besides its weights.
void add_texts(PackWriter& writer, const ModelFiles& files) {
  const auto add = [&](const char* name, const std::optional<ModelText>& text) {
    if (text) or_throw(writer.add_file(name, text->text));
    return text.has_value();
  };
  add("config.json", or_throw(files.config_json()));
  add("generation_config.json", or_throw(files.generation_config_json()));
  add("chat_template.jinja", or_throw(files.chat_template()));
  if (add("tokenizer.json", or_throw(files.tokenizer_json()))) return;
  // An assistant's GGUF may have no tokenizer: it uses its target's.
  const GgufMetadata* const metadata = files.gguf_metadata();
  if (metadata == nullptr || !metadata->contains("tokenizer.ggml.model")) return;
  const std::string tokenizer = or_throw(Tokenizer::from_gguf(*metadata)).to_json();
  or_throw(Tokenizer::parse(tokenizer, files.path().string()));  // reported here, not when the pack is used
  or_throw(writer.add_file("tokenizer.json", tokenizer));
}

/// One packed model in progress: `weights` records everything that a model requests.
struct Packing {
  /// @param off_grid  the choice of a program that loads the model without a pack: a pack has the same bits
  Packing(const ModelFiles& files, const fs::path& out, WeightType weight_type, OffGrid off_grid = OffGrid::kRound)
      : source(files.path()),
        writer(or_throw(PackWriter::create(out))),
        weights(packing_weights(or_throw(open_weights(files, weight_type, off_grid)), *writer)) {
    add_texts(*writer, files);
  }
  void finish(bool embedding_only = false) {
    or_throw(writer->finish({.dtype = to_string(weights->type()),
                             .source = fs::absolute(source).lexically_normal().string(),
                             .fingerprint = weights->fingerprint(),
                             .embedding_fingerprint = weights->embedding_fingerprint(),
                             .embedding_only = embedding_only}));
  }

  fs::path source;
  std::unique_ptr<PackWriter> writer;
  std::shared_ptr<const WeightSource> weights;
};

/// Also packs the towers of pictures and sounds, if any; text-only exports keep their configuration.
void pack_towers(const ModelFiles& files, const Packing& packing) {
  const std::shared_ptr<const WeightSource> weights =
      packing_weights(or_throw(open_weights(files, packing.weights->type(), OffGrid::kKeep)), *packing.writer);
  if (const Result<VisionConfig> vision = load_vision_config(files); vision && PictureEncoder::is_in(*vision, *weights))
    or_throw(PictureEncoder::load(*vision, weights));
  if (const Result<AudioConfig> audio = load_audio_config(files); audio && SoundEncoder::is_in(*audio, *weights))
    or_throw(SoundEncoder::load(*audio, weights));
}

void report(const fs::path& dir) {
  const std::shared_ptr<const Pack> pack = or_throw(Pack::open(dir));
  std::printf("%s: %s%s, %zu entries, %.1f MiB\n", dir.string().c_str(), pack->info().dtype.c_str(),
              pack->info().embedding_only ? ", embedding only" : "", pack->entries().size(),
              static_cast<double>(fs::file_size(dir / "weights.bump")) / (1 << 20));
}

void pack_backbone(const fs::path& source, const fs::path& out, WeightType type) {
  const ModelFiles files = open_model(source);
  if (is_block_drafter(source))
    throw CommandError("{}: a block drafter or EAGLE-3, which is not packed: it runs as it is", source.string());
  if (load_assistant_config(files)) {
    throw CommandError("{}: an assistant is packed together with its target: pack --pair TARGET {}", source.string(),
                       source.string());
  }
  const TextConfig config = or_throw(load_text_config(files));
  Packing packing(files, out, type);
  or_throw(Backbone::load(config, packing.weights, 1));
  pack_towers(files, packing);
  packing.finish();
  report(out);
}

/// Writes OUT/target, OUT/assistant and OUT/pair.json. For a drafter's host the target is its embedding alone.
void pack_pair(const PairPaths& pair, const fs::path& out, WeightType type, bool for_drafter) {
  const ModelFiles target_files = open_model(pair.backbone), assistant_files = open_model(pair.assistant);
  const TextConfig config = or_throw(load_text_config(target_files));
  const AssistantConfig assistant_config = or_throw(load_assistant_config(assistant_files));
  NewDirectory directory = or_throw(NewDirectory::create(out));
  Packing target(target_files, directory.path() / "target", type),
      assistant(assistant_files, directory.path() / "assistant", type, OffGrid::kKeep);
  or_throw(Assistant::load(assistant_config, assistant.weights, config, *target.weights));
  if (!for_drafter) {
    or_throw(Backbone::load(config, target.weights, 1));
    pack_towers(target_files, target);
  }
  target.finish(for_drafter);
  assistant.finish();
  or_throw(directory.add_file("pair.json", pair_json(config, assistant_config, target.weights->fingerprint(),
                                                     assistant.weights->fingerprint(), activation_dtype(type))));
  or_throw(directory.commit());
  report(out / "target");
  report(out / "assistant");
}

}  // namespace

void add_pack_command(Command& app) {
  Command* command = app.add_subcommand(
      "pack", "Convert a model to the layout of this machine's kernels, which is memory-mapped and loads at once");
  struct Flags {
    std::vector<fs::path> sources;
    fs::path out;
    ModelFlags model;
    std::string host;
    bool pair = false;
  };
  auto flags = std::make_shared<Flags>();
  flags->model.whole = false;  // its host may be another
  command
      ->add_option("SRC", flags->sources,
                   "A target, or with --pair a target and an assistant; paths or names on the hub")
      ->required()
      ->expected(1, 2);
  command->add_option("-o,--out", flags->out, "Directory to write; must not exist")->required();
  ModelFlags::add_dtype(*command, flags->model.dtype);
  auto* pair = command->add_flag("--pair", flags->pair, "Pack both and write pair.json");
  command
      ->add_option("--for", flags->host,
                   "drafter: pack only the target's embedding, which is all that a drafter's host needs")
      ->check(CLI::IsMember({"drafter"}))
      ->needs(pair);
  command->callback([flags] {
    if (flags->sources.size() != (flags->pair ? 2u : 1u)) {
      throw UsageError(flags->pair ? "pack --pair: give TARGET and ASSISTANT"
                                   : "pack: give one SRC, or --pair TARGET ASSISTANT");
    }
    for (fs::path& source : flags->sources) source = or_throw(model_path(source));
    const PairPaths paths{flags->sources[0], flags->pair ? flags->sources[1] : fs::path()};
    const WeightType type = flags->model.type_to_load(paths);
    if (flags->pair) {
      pack_pair(paths, flags->out, type, flags->host == "drafter");
    } else {
      pack_backbone(paths.backbone, flags->out, type);
    }
  });
}

}  // namespace outrider
