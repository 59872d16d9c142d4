#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace outrider {

/// Google's assistant for a model of such a name: of gemma-4-SIZE-it and what others made of that,
/// gemma-4-SIZE-it-assistant; where "qat" is in the name too, gemma-4-SIZE-it-qat-q4_0-unquantized-assistant. Case, and
/// '_' for '-', do not matter.
/// @param model  "gemma-4-E4B-it-qat-w4a16-ct", "google_gemma-4-E4B-it-Q4_K_M". @return nothing for another name
std::optional<std::string> published_assistant(std::string_view model);

/// What the assistant of a model of this name may be called, best first: NAME-assistant, then published_assistant().
/// Empty for a name that says "assistant" itself.
std::vector<std::string> assistant_names(const std::string& model);

/// The same of the hub's repositories, ORG/NAME. Of Google's own models only the published one.
std::vector<std::string> assistant_repositories(const std::string& repository);

}  // namespace outrider
