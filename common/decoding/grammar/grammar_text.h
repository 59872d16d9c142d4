#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "common/base/ids.h"
#include "common/base/result.h"

/// Converts the forms in which clients constrain an answer into the form on the wire: XGrammar's EBNF, whose rule
/// `root` matches the whole answer. None needs a vocabulary. All accept untrusted text: sizes are bounded, and anything
/// unsupported is refused by name (kInvalidArgument, kUnsupported, kOutOfRange), never ignored.
namespace outrider {

/// Checks a grammar that is already EBNF: llama.cpp's GBNF, or vLLM's `grammar`. Escapes \xHH have two digits, and
/// branches that never end are removed. Idempotent.
Result<std::string> grammar_of_ebnf(const std::string& text);

/// The answer must match the expression as a whole.
Result<std::string> grammar_of_regex(const std::string& regex);

/// The answer must be one of these. @pre none is empty
Result<std::string> grammar_of_choices(std::span<const std::string> choices);

/// The answer must be a JSON object.
Result<std::string> grammar_of_json_object();

/// The answer must be JSON that is valid by the schema (draft 2020-12), with the properties in the schema's order and
/// no others, unless additionalProperties allows them.
/// @return kUnsupported for a keyword that cannot be followed exactly; the message has the keyword and its location
/// @param quote  the quote token of Gemma 4's calls: the answer is a value in that form instead of JSON
Result<std::string> grammar_of_schema(const nlohmann::ordered_json& schema, std::optional<TokenId> quote = {});

/// The same for a file with a schema or a grammar.
Result<std::string> grammar_of_schema_file(const std::filesystem::path& path);
Result<std::string> grammar_of_file(const std::filesystem::path& path);

/// The answer must match one of the two.
Result<std::string> either_grammar(const std::string& one, const std::string& other);

}  // namespace outrider
