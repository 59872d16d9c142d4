#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace outrider {

/// Returns Google's assistant for a model's name: for gemma-4-SIZE-it and derivatives of it, gemma-4-SIZE-it-assistant;
/// if "qat" is in the name too, gemma-4-SIZE-it-qat-q4_0-unquantized-assistant. Ignores case, and treats '_' as '-'.
/// @param model  "gemma-4-E4B-it-qat-w4a16-ct", "google_gemma-4-E4B-it-Q4_K_M" @return none for another name
std::optional<std::string> published_assistant(std::string_view model);

/// Returns possible names of a model's assistant, best first: NAME-assistant, then published_assistant(). Empty for a
/// name that contains "assistant".
std::vector<std::string> assistant_names(const std::string& model);

/// The same for the hub's repositories, ORG/NAME. For Google's own models only the published one.
std::vector<std::string> assistant_repositories(const std::string& repository);

}  // namespace outrider
