// How much processor time a grammar takes for a vocabulary, to be made ready and for its masks: answers by schemas as
// tools have them, as their tokens come.
//   grammar_masks [MODEL]
// MODEL is a directory with a tokenizer.json; models/nano/backbone unless given.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/checkpoint/model_files.h"
#include "common/grammar/grammar.h"
#include "common/grammar/grammar_text.h"
#include "common/tokenizer/tokenizer.h"

namespace outrider {
namespace {

struct Case {
  const char* name;
  const char* schema;  ///< empty: JSON of any kind
  std::vector<const char*> answers;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> kCases = {
      {"weather",
       R"({"type": "object", "properties": {"city": {"type": "string"}, "country": {"type": "string"},
           "unit": {"enum": ["celsius", "fahrenheit"]}, "days": {"type": "integer", "minimum": 1, "maximum": 14}},
           "required": ["city", "unit"]})",
       {R"({"city": "San Francisco", "country": "United States", "unit": "celsius", "days": 3})",
        R"({"city": "Zürich", "unit": "fahrenheit"})"}},
      {"search",
       R"({"type": "object", "properties": {"query": {"type": "string", "minLength": 1},
           "filters": {"type": "array", "items": {"type": "object", "properties": {"field": {"type": "string"},
           "operator": {"enum": ["eq", "ne", "lt", "gt", "in"]}, "value": {"type": ["string", "number", "boolean"]}},
           "required": ["field", "operator", "value"]}}, "limit": {"type": "integer"}}, "required": ["query"]})",
       {R"({"query": "annual reports of shipping companies", "filters": [{"field": "year", "operator": "gt", "value": )"
        R"(2019.5}, {"field": "language", "operator": "eq", "value": "en"}], "limit": 25})"}},
      {"event",
       R"({"type": "object", "properties": {"title": {"type": "string", "maxLength": 80},
           "start": {"type": "string", "format": "date-time"}, "end": {"type": "string", "format": "date-time"},
           "attendees": {"type": "array", "items": {"type": "string", "format": "email"}},
           "location": {"type": ["string", "null"]}, "repeats": {"type": "boolean"}},
           "required": ["title", "start", "attendees", "location"]})",
       {R"({"title": "Quarterly planning with the new team", "start": "2026-11-25T09:30:00Z", )"
        R"("end": "2026-11-25T11:00:00Z", "attendees": ["maria.keller@example.org", "jon@example.com"], )"
        R"("location": "Room 4, second floor", "repeats": false})"}},
      {"full title",  // its last tokens may hardly be longer than what is left of 80
       R"({"type": "object", "properties": {"title": {"type": "string", "maxLength": 80}}, "required": ["title"]})",
       {R"({"title": "Quarterly planning with the new team, minutes by Maria Keller and Jonathan Doeee"})"}},
      {"short titles",
       R"({"type": "object", "properties": {"title": {"type": "string", "minLength": 20, "maxLength": 100},
           "path": {"type": "string", "pattern": "^/[a-z0-9/_.-]{1,200}$"}}, "required": ["title", "path"]})",
       {R"({"title": "Quarterly planning with the new team", "path": "/usr/share/doc/outrider/readme.html"})"}},
      {"order",
       R"({"type": "object", "properties": {"customer": {"$ref": "#/$defs/person"}, "items": {"type": "array",
           "minItems": 1, "items": {"type": "object", "properties": {"sku": {"type": "string",
           "pattern": "^[A-Z]{3}-[0-9]{4}$"}, "quantity": {"type": "integer", "minimum": 1},
           "price": {"type": "number"}},
           "required": ["sku", "quantity", "price"]}}, "note": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
           "required": ["customer", "items"], "$defs": {"person": {"type": "object", "properties": {
           "name": {"type": "string"}, "address": {"type": "string"}}, "required": ["name"]}}})",
       {R"({"customer": {"name": "Ada Lovelace", "address": "12 St James's Square, London"}, "items": [)"
        R"({"sku": "ABC-1234", "quantity": 2, "price": 19.95}, {"sku": "XYZ-0007", "quantity": 10, "price": 3}], )"
        R"("note": "Please ring twice."})"}},
      {"any JSON",
       "",
       {R"({"summary": "The fox crosses the river and finds its brother.", "characters": ["fox", "brother"], )"
        R"("scores": {"humour": 0.25, "length": 120}, "finished": true, "next": null})"}},
  };
  return kCases;
}

/// In microseconds: what others do on the core does not count.
/// @param whose  this thread's, unless it says otherwise
double processor_us(clockid_t whose = CLOCK_THREAD_CPUTIME_ID) {
  timespec spent{};
  clock_gettime(whose, &spent);
  return 1e6 * static_cast<double>(spent.tv_sec) + 1e-3 * static_cast<double>(spent.tv_nsec);
}

struct Times {
  std::vector<double> us;
  double mean() const {
    double sum = 0;
    for (const double t : us) sum += t;
    return sum / static_cast<double>(us.size());
  }
  double quantile(double q) {
    std::ranges::sort(us);
    return us[std::min(us.size() - 1, static_cast<std::size_t>(q * static_cast<double>(us.size())))];
  }
};

void print(const char* name, double ready_s, Times masks, Times accepts) {
  std::printf("%-12s %7.2f %7zu %9.1f %9.1f %9.1f %9.1f %9.2f\n", name, ready_s, masks.us.size(), masks.mean(),
              masks.quantile(0.5), masks.quantile(0.99), masks.quantile(1), accepts.mean());
}

/// Follows an answer token by token, and makes the mask of each place.
Result<void> follow(const std::shared_ptr<const Grammar>& grammar, TokenId stop, std::span<const TokenId> tokens,
                    Times* masks, Times* accepts) {
  GrammarState state(grammar, {stop});
  for (const TokenId token : tokens) {
    const double start = processor_us();
    state.allowed();
    const double made = processor_us();
    if (!state.accept(token)) return Error{Errc::kInvalidArgument, "an answer does not follow its schema"};
    masks->us.push_back(made - start);
    accepts->us.push_back(processor_us() - made);
  }
  return {};
}

Result<void> run(const char* model, int turns) {
  ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::open(model));
  ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::load(files));
  const std::optional<TokenId> stop = tokenizer.find("<eos>");
  if (!stop) return Error{Errc::kUnsupported, "a tokenizer without <eos>"};
  GrammarCompiler compiler(
      [&]() -> Result<GrammarVocabulary> { return grammar_vocabulary(tokenizer, tokenizer.vocab_size()); });
  RETURN_IF_ERROR(compiler.wait_for("root ::= \"\""));  // the vocabulary itself
  std::printf("%lld tokens, s to make ready, us a mask\n%-12s %7s %7s %9s %9s %9s %9s %9s\n",
              static_cast<long long>(tokenizer.vocab_size()), "schema", "ready", "masks", "mean", "median", "99 %",
              "most", "accept");
  Times all, all_accepts;
  double all_ready_s = 0;
  for (const Case& c : cases()) {
    ASSIGN_OR_RETURN(const std::string text, *c.schema == '\0'
                                                 ? grammar_of_json_object()
                                                 : grammar_of_schema(nlohmann::ordered_json::parse(c.schema)));
    const double start = processor_us(CLOCK_PROCESS_CPUTIME_ID);
    ASSIGN_OR_RETURN(const auto grammar, compiler.wait_for(text));
    const double ready_s = 1e-6 * (processor_us(CLOCK_PROCESS_CPUTIME_ID) - start);
    all_ready_s += ready_s;
    Times masks, accepts;
    for (const char* answer : c.answers) {
      std::vector<TokenId> tokens = tokenizer.encode(answer, /*parse_special=*/false);
      tokens.push_back(*stop);
      for (int i = 0; i < turns; ++i) RETURN_IF_ERROR(follow(grammar, *stop, tokens, &masks, &accepts));
    }
    all.us.insert(all.us.end(), masks.us.begin(), masks.us.end());
    all_accepts.us.insert(all_accepts.us.end(), accepts.us.begin(), accepts.us.end());
    print(c.name, ready_s, masks, accepts);
  }
  print("all", all_ready_s, all, all_accepts);
  return {};
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) {
  const auto done = outrider::run(argc > 1 ? argv[1] : "models/nano/backbone", 20);
  if (!done) std::fprintf(stderr, "%s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
