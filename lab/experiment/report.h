#pragma once

#include <string>
#include <vector>

#include "lab/json.h"

namespace outrider {

/// The attempt of each cell that stands: the one that is not void, or else the last.
/// @param lines  of cells.jsonl
std::vector<Json> standing_cells(const std::vector<Json>& lines);

/// It says how far off the predictions of cells that are not void were, as shares.
struct PredictionErrors {
  std::size_t count = 0, void_cells = 0;
  double median = 0, p90 = 0;
};
PredictionErrors prediction_errors(const std::vector<Json>& cells);
/// "8 predictions, off by ..."; without any, that there are none.
std::string to_text(const PredictionErrors& errors);

/// @return whole sentences: the round trip at which drafting over a link stops to pay here, and what would make a
/// longer one pay.
std::string verdict(const std::vector<Json>& cells);

/// The table of all cells: axes, rates, ratios, predictions.
std::string csv(const std::vector<Json>& cells);

/// One page without any other file or host: verdict, figures, table, machine.
/// @param lock  lock.json
std::string report_html(const Json& lock, const std::vector<Json>& cells);

/// The figures of a page of report_html(), each as an SVG file of its own, in light and dark.
std::vector<std::string> figures(const std::string& report);

}  // namespace outrider
