// Writes a Hugging Face directory as a GGUF file, for lab/benchmarks/quality.py: by the writer that the tests use.
#include <map>
#include <string>

#include "launch/command_line.h"
#include "tests/support/gguf_writer.h"

int main(int argc, char** argv) {
  using outrider::DType;
  const std::map<std::string, DType> types = {
      {"F32", DType::kF32}, {"BF16", DType::kBf16}, {"Q8_0", DType::kQ8_0}, {"Q4_0", DType::kQ4_0}};
  std::string model, type, out;
  CLI::App app("Writes a model as a GGUF file", "write_gguf");
  app.add_option("DIR", model, "A Hugging Face directory: a backbone or an assistant")->required();
  app.add_option("TYPE", type, "Of its matrices")->required()->check(CLI::IsMember(types));
  app.add_option("OUT", out, "The file")->required();
  CLI11_PARSE(app, argc, argv);
  outrider::write_gguf(model, out, {.type = types.at(type)});
  return 0;
}
