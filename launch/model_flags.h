#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "common/client/text_side.h"
#include "common/pair/pair_files.h"
#include "launch/command_line.h"
#include "launch/suitable_type.h"

namespace outrider {

/// Opens the model at a path.
ModelFiles open_model(const std::filesystem::path& path);

/// Loads a client's part of a model, and warns if its chat format was guessed.
TextSide load_text_side(const ModelFiles& files);

/// Options of all commands with a model.
struct ModelFlags {
  std::filesystem::path model, backbone, assistant;  ///< no model: the nano pair
  std::string dtype;                                 ///< empty: suitable_type()
  bool no_assistant = false;
  bool whole = true;  ///< the whole backbone is loaded: the default type must fit the memory

  void add_to(Command& command);
  /// @param dtype  the default; empty: suitable_type()
  static void add_dtype(Command& command, std::string& dtype);
  PairPaths pair(PairNeed need = {}) const;
  /// @param paths  from pair()
  static bool has_assistant(const PairPaths& paths);
  /// @return true if our own cluster gets a drafter. If drafts are wanted and no assistant was given, logs once which
  /// assistant was found, or that there is none. @param paths  from pair()
  bool wants_drafter(const PairPaths& paths, bool drafts_wanted) const;
  /// @param paths  from pair()
  WeightType weight_type(const PairPaths& paths) const;
  /// The same, for weights that are loaded next. Logs an unexpected type.
  WeightType type_to_load(const PairPaths& paths) const;

 private:
  mutable std::optional<SuitableType> suitable_;  ///< computed once, since loading changes the free memory
};

/// Returns a model's name for clients without --served-model-name: the directory of the pair, or of the backbone;
/// ORG/NAME for a model in the hub's cache.
std::string served_name(const std::filesystem::path& backbone);

}  // namespace outrider
