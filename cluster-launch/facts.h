#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace outrider {

/// What this host is, as far as texts or speed depend on it: program, CPU, instruction set, libraries, and the weights'
/// fingerprints of models. A model that cannot be opened has its error instead.
/// @param dtype  of models that are no packs
nlohmann::ordered_json host_facts(const std::string& version, const std::vector<std::string>& models,
                                  const std::string& dtype);

/// What differs between two JSON objects, a line each: "/lock/hosts/node1/isa: \"avx2\" | \"avx512\"".
std::vector<std::string> differences(const nlohmann::json& a, const nlohmann::json& b);

}  // namespace outrider
