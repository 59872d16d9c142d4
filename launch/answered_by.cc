#include "launch/answered_by.h"

#include <fmt/format.h>

#include "batch/hash.h"
#include "common/model/checkpoint/pack.h"

namespace outrider {
namespace {

/// Fingerprint of the files that determine prompts, and with the weights the answers.
std::string text_fingerprint(const ModelFiles& files) {
  StreamedHash hash;
  for (const auto& text : {or_throw(files.config_json()), or_throw(files.generation_config_json()),
                           or_throw(files.chat_template()), or_throw(files.tokenizer_json())}) {
    hash.add(text ? text->text : "");
    hash.add(std::string_view("\0", 1));
  }
  return hex(hash.value());
}

std::uint64_t weights_fingerprint(const std::filesystem::path& backbone) {
  if (is_pack(backbone)) return or_throw(Pack::open(backbone))->info().fingerprint;
  return or_throw(open_model(backbone).checkpoint()).fingerprint();
}

}  // namespace

Manifest answered_by(const ModelFlags& model, const PairPaths& pair, const std::string& name, bool here) {
  Manifest manifest = {{"answered_by", "outrider"},
                       {"model", name},
                       {"model_files", text_fingerprint(open_model(pair.backbone))},
                       {"program", OUTRIDER_VERSION}};
  if (here) {
    manifest["dtype"] = to_string(model.weight_type(pair));
    manifest["weights"] = fmt::format("{:016x}", weights_fingerprint(pair.backbone));
  }
  return manifest;
}

}  // namespace outrider
