#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "common/base/ids.h"
#include "common/base/result.h"

/// The forms in which clients say what an answer must look like, each turned into the one that travels: XGrammar's
/// EBNF, whose rule `root` is the whole answer. None needs a vocabulary. All are for texts of anybody: bounded, and
/// what is not understood is refused by name (kInvalidArgument, kUnsupported, kOutOfRange), never ignored.
namespace outrider {

/// A grammar that is in that form already: GBNF as llama.cpp has it, or what vLLM's `grammar` takes. Escapes \xHH have
/// two digits, and branches that never end are left out. One from here comes out as it is.
Result<std::string> grammar_of_ebnf(const std::string& text);

/// The answer is all of a match.
Result<std::string> grammar_of_regex(const std::string& regex);

/// The answer is one of these. @pre none is empty
Result<std::string> grammar_of_choices(std::span<const std::string> choices);

/// The answer is a JSON object.
Result<std::string> grammar_of_json_object();

/// The answer is JSON that the schema (draft 2020-12) is content with, with the properties in the schema's order and
/// none but those that it names, unless additionalProperties says which.
/// @return kUnsupported for a keyword that cannot be followed exactly; the message names it and where it is.
/// @param quote  the quote token of Gemma 4's calls: the answer is such a value instead of JSON
Result<std::string> grammar_of_schema(const nlohmann::ordered_json& schema, std::optional<TokenId> quote = {});

/// The same of a schema, or a grammar, in a file.
Result<std::string> grammar_of_schema_file(const std::filesystem::path& path);
Result<std::string> grammar_of_file(const std::filesystem::path& path);

/// One of the two.
Result<std::string> either_grammar(const std::string& one, const std::string& other);

}  // namespace outrider
