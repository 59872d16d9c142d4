#pragma once

#include <string>
#include <vector>

#include "lab/json.h"

namespace outrider {

/// Returns the valid attempt of each cell: the one that is not void, or else the last. @param lines  of cells.jsonl
std::vector<Json> chosen_cells(const std::vector<Json>& lines);

/// Errors of the predictions of cells that are not void, as shares.
struct PredictionErrors {
  std::size_t count = 0, void_cells = 0;
  double median = 0, p90 = 0;
};
PredictionErrors prediction_errors(const std::vector<Json>& cells);
/// Returns "8 predictions, off by ...", or that there are none.
std::string to_text(const PredictionErrors& errors);

/// @return whole sentences: the round trip at which drafting over a link stops to pay here, and the conditions under
/// which a longer one would pay
std::string verdict(const std::vector<Json>& cells);

/// Returns the table of all cells: axes, rates, ratios, predictions.
std::string csv(const std::vector<Json>& cells);

/// Returns one self-contained page: verdict, figures, table, machine. @param lock  lock.json
std::string report_html(const Json& lock, const std::vector<Json>& cells);

/// Returns the figures of a report_html() page, each as a separate SVG file, in light and dark.
std::vector<std::string> figures(const std::string& report);

}  // namespace outrider
