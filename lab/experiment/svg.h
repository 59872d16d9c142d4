#pragma once

#include <string>
#include <utility>
#include <vector>

namespace outrider {

/// Escapes text for HTML and SVG.
std::string escaped(const std::string& text);

/// A curve or a set of points of a chart. Its colour is the `index`-th of the page's.
struct Series {
  std::string name = {};
  int index = 0;
  std::vector<std::pair<double, double>> points = {};
  bool line = true, dashed = false;
  std::vector<std::pair<double, double>> spans = {};  ///< low and high of each point's y; empty: none are drawn
};

struct Chart {
  std::string title = {}, x_title = {}, y_title = {};
  std::vector<Series> series = {};
  bool logarithmic = false;  ///< both axes
  bool diagonal = false;     ///< draws the line where both axes are equal
  bool whole_x = false;      ///< x counts things: no marks between whole numbers
};
/// Returns a chart as an SVG element, or a line that says that there is nothing to show.
std::string chart_svg(const Chart& chart);

/// A map of ratios by two axes with equidistant values. 1 is neutral, values above have the good colour.
struct Heatmap {
  std::string title = {}, x_title = {}, y_title = {};
  std::vector<std::string> columns = {}, rows = {};  ///< labels
  std::vector<std::vector<double>> values = {};      ///< [row][column]; 0: not measured
  std::vector<std::vector<bool>> hatched = {};       ///< void ones
  std::vector<std::vector<bool>> undecided = {};     ///< the interval spans 1: grey, whatever the median
  std::vector<double> line = {};  ///< per row: where a line crosses it, in columns from 0; NaN: nowhere
};
std::string heatmap_svg(const Heatmap& map);

}  // namespace outrider
