#include <cstddef>
#include <cstdint>
#include <span>

#include "common/checkpoint/gguf.h"
#include "common/checkpoint/gguf_config.h"
#include "common/checkpoint/gguf_names.h"
#include "common/model/config.h"
#include "common/tokenizer/tokenizer.h"

/// Everything that reads a GGUF file, on any bytes.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace outrider;
  Result<GgufFile> file = parse_gguf(std::as_bytes(std::span(data, size)), "fuzz.gguf");
  if (!file) return 0;
  if (const auto tokenizer = Tokenizer::from_gguf(file->metadata)) (void)tokenizer->encode("abc \n\xff<|turn>");
  GgufModel model;
  model.file = "fuzz.gguf";
  model.metadata = file->metadata;
  model.tensors = std::move(file->tensors);
  (void)hugging_face_tensors(model);
  if (const auto config = gguf_config(model)) {
    (void)parse_text_config(config->text, "fuzz.gguf");
    (void)parse_assistant_config(config->text, "fuzz.gguf");
  }
  return 0;
}
