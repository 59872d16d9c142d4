#include "launch/model_flags.h"

#include <system_error>

#include "common/base/complain.h"
#include "common/base/names.h"

namespace outrider {

ModelFiles open_model(const std::filesystem::path& path) { return or_throw(ModelFiles::open(path)); }

TextSide load_text_side(const ModelFiles& files) {
  TextSide text = or_throw(TextSide::load(files));
  if (!text.chat_format.warning.empty()) complain("{}", text.chat_format.warning);
  return text;
}

void ModelFlags::add_to(Command& command) {
  const HelpGroup group(command, "Model");
  command.add_option(
      "-m,--model", model,
      "A model: a Hugging Face directory, a .gguf file or a pack, with NAME-assistant beside it if there is one; "
      "ORG/NAME[@REVISION][:GGUF] on the Hugging Face hub, which is downloaded once; or the directory of a pair: "
      "with pair.json, or with backbone/ and assistant/ (default: the nano pair)");
  command.add_option("--backbone", backbone,
                     "The target alone: a Hugging Face directory, a .gguf file, a pack, or a name on the hub");
  auto* given = command.add_option("--assistant", assistant, "The assistant alone, in the forms of --backbone");
  command.add_flag("--no-assistant", no_assistant, "Decode plainly, or with drafts looked up in the text")
      ->excludes(given);
  command.add_flag_callback("--offline", forbid_asking_hub,
                            "Never download: models by name must be in the cache (as HF_HUB_OFFLINE=1)");
  add_dtype(command, dtype);
}

void ModelFlags::add_dtype(Command& command, std::string& dtype) {
  command.add_option("--dtype", dtype, "Weights: " + names_of(kWeightTypes))
      ->check([](const std::string& name) {
        const auto type = parse_weight_type(name);
        return type ? std::string() : type.error().message;
      })
      ->default_str(dtype.empty() ? "a pack's own; else bf16, or what suits the file and the memory" : dtype);
}

PairPaths ModelFlags::pair(PairNeed need) const {
  need.assistant = need.assistant && assistant.empty() && !no_assistant;
  const bool alone = model.empty() && !backbone.empty();  // nano's assistant is for nano
  PairPaths paths = or_throw(alone ? model_pair(backbone, need) : pair_paths(model, need));
  if (!alone && !backbone.empty()) paths.backbone = or_throw(model_path(backbone, need.files));
  if (!assistant.empty() || no_assistant) paths.assistant = or_throw(model_path(assistant));
  return paths;
}

bool ModelFlags::has_assistant(const PairPaths& paths) {
  std::error_code ignored;
  return !paths.assistant.empty() && std::filesystem::exists(paths.assistant, ignored);
}

bool ModelFlags::wants_drafter(const PairPaths& paths, bool drafts_wanted) const {
  if (!drafts_wanted) return false;
  if (!assistant.empty()) return true;
  const bool found = has_assistant(paths);
  if (!found && !no_assistant)
    complain("{} has no assistant beside it: decoding plainly; --assistant names one", shown_model(paths.backbone));
  if (found && paths.assistant == assistant_beside(paths.backbone))
    complain("drafting with {}", shown_model(paths.assistant));
  return found;
}

WeightType ModelFlags::weight_type(const PairPaths& paths) const {
  if (!dtype.empty()) return or_throw(parse_weight_type(dtype));
  if (!suitable_) suitable_ = or_throw(whole ? suitable_type(paths) : suitable_type(paths, std::nullopt));
  return suitable_->type;
}

WeightType ModelFlags::type_to_load(const PairPaths& paths) const {
  const WeightType type = weight_type(paths);
  if (suitable_ && !suitable_->why.empty())
    complain("{} as {}: {} (--dtype chooses another type)", shown_model(paths.backbone), to_string(type),
             suitable_->why);
  return type;
}

std::string served_name(const std::filesystem::path& backbone) {
  if (backbone.extension() == ".gguf") return backbone.stem().string();
  if (const auto name = HubName::of_path(backbone)) return name->repository;
  const std::filesystem::path path = std::filesystem::weakly_canonical(backbone);
  if (path.filename() == "backbone") return path.parent_path().filename().string();
  return path.filename().string();
}

}  // namespace outrider
