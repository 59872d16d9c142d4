#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

namespace outrider {

/// The word that was probably meant: the nearest within a few slips of the fingers. Empty: none is near.
std::string nearest(std::string_view word, const std::vector<std::string>& words);

/// Why a command line was not understood, for its user: the first word that nobody knows, and what was probably meant.
/// @param error  the parser's, for what is wrong otherwise
std::string explain(const CLI::App& app, const std::vector<std::string>& arguments, const CLI::ParseError& error);

}  // namespace outrider
