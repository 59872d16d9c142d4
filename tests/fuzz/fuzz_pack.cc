// The folder of a packed model: an input is its manifest.json, beside an image of 256 bytes.
#include <string>
#include <string_view>

#include "common/base/check.h"
#include "common/model/checkpoint/pack.h"
#include "tests/fuzz/driver.h"
#include "tests/support/temporary_dir.h"

namespace outrider {
namespace {

const TemporaryDir& folder() {
  static const TemporaryDir dir;
  return dir;
}

}  // namespace

FuzzSeeds fuzz_seeds() {
  const std::filesystem::path dir = folder() / "seed";
  std::unique_ptr<PackWriter> writer = PackWriter::create(dir).value();
  const std::string bytes(100, 'w');
  for (const char* name : {"model.embed_tokens.weight", "model.norm.weight"}) {
    CHECK(writer->add({.name = name, .type = "F32", .shape = {5, 5}, .layout = ""}, std::as_bytes(std::span(bytes))));
  }
  CHECK(writer->finish({.dtype = "bf16", .source = "here", .fingerprint = 1, .embedding_fingerprint = 2}));
  return {read_text(dir / "manifest.json").value()};
}

}  // namespace outrider

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace outrider;
  static const std::filesystem::path dir = folder().write("pack/weights.bump", std::string(256, 'w')).parent_path();
  folder().write("pack/manifest.json", {reinterpret_cast<const char*>(data), size});
  (void)is_pack(dir);
  const auto pack = Pack::open(dir);
  if (!pack) return 0;
  for (const PackEntry& entry : (*pack)->entries()) CHECK((*pack)->bytes(entry).size() == entry.size);
  (void)(*pack)->verify();
  return 0;
}
