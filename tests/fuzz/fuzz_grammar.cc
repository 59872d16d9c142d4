// What clients say of the form of an answer, as far as it goes without a vocabulary: the first byte says how.
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/check.h"
#include "common/decoding/grammar/grammar_text.h"
#include "common/decoding/grammar/limits.h"
#include "server/openai.h"
#include "tests/fuzz/driver.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace outrider;
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto check = [](const Result<std::string>& grammar) {
    if (grammar) CHECK(grammar->size() <= kGrammarBytesMax, "{} bytes", grammar->size());
  };
  switch (data[0]) {
    case 'g': check(grammar_of_ebnf(text)); break;
    case 'r': check(grammar_of_regex(text)); break;
    case 'c': check(grammar_of_choices(std::vector<std::string>{text.empty() ? "a" : text, "b"})); break;
    default: {
      if (json_nesting(text) > kJsonDepthMax) break;  // as the server does
      const auto schema = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
      if (!schema.is_discarded()) check(grammar_of_schema(schema));
    }
  }
  return 0;
}
