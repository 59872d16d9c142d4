#include "lab/experiment/svg.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace outrider {
namespace {

constexpr double kWidth = 600, kHeight = 340, kLeft = 62, kRight = 150, kCharacter = 6.8, kTop = 34, kBottom = 48;

/// Formats a number for an axis.
std::string tick_text(double value) { return fmt::format("{:.4g}", value); }

/// One axis: maps values to places on the page.
class Scale {
 public:
  /// @param whole  ticks are whole numbers
  Scale(double low, double high, double from, double to, bool logarithmic, bool whole = false)
      : low_(low), high_(high > low ? high : low + 1), from_(from), to_(to), logarithmic_(logarithmic), whole_(whole) {}
  double operator()(double value) const {
    const double share = logarithmic_ ? std::log(std::max(value, 1e-12) / low_) / std::log(high_ / low_)
                                      : (value - low_) / (high_ - low_);
    return from_ + share * (to_ - from_);
  }
  /// Returns round values, about five.
  std::vector<double> ticks() const {
    std::vector<double> result;
    if (logarithmic_) {
      for (double decade = std::pow(10, std::floor(std::log10(low_))); decade <= high_; decade *= 10) {
        for (const double step : {1.0, 2.0, 5.0}) {
          const double tick = decade * step;
          if (tick >= low_ * 0.999 && tick <= high_ * 1.001) result.push_back(tick);
        }
      }
      if (result.size() >= 3) return result;
      result.clear();  // a short span has more round values between these
    }
    const double rough = (high_ - low_) / 5, decade = std::pow(10, std::floor(std::log10(rough)));
    const double rounded = decade * (rough / decade > 5 ? 10 : rough / decade > 2 ? 5 : rough / decade > 1 ? 2 : 1);
    const double step = whole_ ? std::max(1.0, rounded) : rounded;
    for (double tick = std::ceil(low_ / step) * step; tick <= high_ + step * 1e-6; tick += step)
      result.push_back(std::abs(tick) < step * 1e-6 ? 0 : tick);
    return result;
  }
  double low() const { return low_; }
  double high() const { return high_; }

 private:
  double low_, high_, from_, to_;
  bool logarithmic_, whole_;
};

std::string text_at(double x, double y, const std::string& text, const char* attributes) {
  return fmt::format("<text x='{:.1f}' y='{:.1f}' {}>{}</text>\n", x, y, attributes, escaped(text));
}

/// Returns the title of a vertical axis, at its left.
std::string upward_text(double middle, const std::string& text) {
  return fmt::format("<text transform='translate(14 {:.1f}) rotate(-90)' text-anchor='middle'>{}</text>\n", middle,
                     escaped(text));
}

/// Returns a path in the style of a series, or of its kind in the legend.
std::string line_path(const Series& series, const std::string& path) {
  return fmt::format("<path class='line s{}'{} d='{}'/>\n", series.index,
                     series.dashed ? " stroke-dasharray='5 4'" : "", path);
}

std::string opening(const std::string& title, double width, double height) {
  return fmt::format("<svg viewBox='0 0 {:.0f} {:.0f}' role='img' aria-label='{}'>\n", width, height, escaped(title)) +
         text_at(0, 16, title, "class='title'");
}

std::string axes_svg(const Chart& chart, const Scale& x, const Scale& y) {
  std::string svg;
  for (const double tick : y.ticks()) {
    svg += fmt::format("<path class='grid' d='M{:.1f} {:.1f}H{:.1f}'/>\n", kLeft, y(tick), kWidth - kRight);
    svg += text_at(kLeft - 6, y(tick) + 4, tick_text(tick), "text-anchor='end'");
  }
  for (const double tick : x.ticks())
    svg += text_at(x(tick), kHeight - kBottom + 18, tick_text(tick), "text-anchor='middle'");
  svg += fmt::format("<path class='axis' d='M{0:.1f} {1:.1f}V{2:.1f}H{3:.1f}'/>\n", kLeft, kTop, kHeight - kBottom,
                     kWidth - kRight);
  svg += text_at((kLeft + kWidth - kRight) / 2, kHeight - 10, chart.x_title, "text-anchor='middle'");
  return svg + upward_text((kTop + kHeight - kBottom) / 2, chart.y_title);
}

std::string series_svg(const Series& series, const Scale& x, const Scale& y) {
  std::string svg, path;
  for (std::size_t i = 0; i < series.points.size(); ++i) {
    const auto [px, py] = series.points[i];
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x(px), y(py));
    if (i < series.spans.size())
      svg += fmt::format("<path class='line s{}' d='M{:.1f} {:.1f}V{:.1f}'/>\n", series.index, x(px),
                         y(std::max(series.spans[i].first, y.low())), y(std::min(series.spans[i].second, y.high())));
    if (!series.dashed)
      svg += fmt::format("<circle class='s{}' cx='{:.1f}' cy='{:.1f}' r='3'/>\n", series.index, x(px), y(py));
  }
  return series.line ? line_path(series, path) + svg : svg;
}

std::string legend_svg(const std::vector<Series>& all) {
  std::string svg;
  double y = kTop + 8;
  for (const Series& series : all) {
    if (series.name.empty()) continue;
    svg += line_path(series, fmt::format("M{:.1f} {:.1f}h18", kWidth - kRight + 10, y));
    svg += text_at(kWidth - kRight + 32, y + 4, series.name, "");
    y += 17;
  }
  return svg;
}

}  // namespace

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string chart_svg(const Chart& chart) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  double x_low = kNone, x_high = -kNone, y_low = chart.logarithmic ? kNone : 0, y_high = -kNone;
  for (const Series& series : chart.series) {
    for (const auto& [x, y] : series.points) {
      x_low = std::min(x_low, x);
      x_high = std::max(x_high, x);
      y_low = std::min(y_low, y);
      y_high = std::max(y_high, y);
    }
    for (const auto& [low, high] : series.spans) y_high = std::max(y_high, high);
  }
  if (x_low > x_high) return "<p class='none'>" + escaped(chart.title) + ": nothing was measured for it.</p>\n";
  if (chart.logarithmic) {
    x_low = y_low = std::max(std::min(x_low, y_low), 1e-9) / 1.15;
    x_high = y_high = std::max(x_high, y_high) * 1.15;
  } else {
    y_high += (y_high - y_low) * 0.06;
  }
  const Scale x(x_low, x_high, kLeft, kWidth - kRight, chart.logarithmic, chart.whole_x);
  const Scale y(y_low, y_high, kHeight - kBottom, kTop, chart.logarithmic);
  double legend = 0;  // width of its names
  for (const Series& series : chart.series)
    legend = std::max(legend, 32 + kCharacter * static_cast<double>(series.name.size()));
  std::string svg = opening(chart.title, kWidth - kRight + std::max(kRight, legend), kHeight) + axes_svg(chart, x, y);
  if (chart.diagonal)
    svg += fmt::format("<path class='axis' stroke-dasharray='2 3' d='M{:.1f} {:.1f}L{:.1f} {:.1f}'/>\n", x(x.low()),
                       y(x.low()), x(x.high()), y(x.high()));
  for (const Series& series : chart.series) svg += series_svg(series, x, y);
  return svg + legend_svg(chart.series) + "</svg>\n";
}

std::string heatmap_svg(const Heatmap& map) {
  constexpr double kCellWidth = 64, kCellHeight = 34, kSide = 74, kClear = 9, kNumberWidth = 44;
  const double width = kSide + kCellWidth * static_cast<double>(map.columns.size()) + 10;
  const double bottom = kTop + kCellHeight * static_cast<double>(map.rows.size());
  std::string svg = opening(map.title, std::max(width, 420.0), bottom + kBottom);
  for (std::size_t r = 0; r < map.rows.size(); ++r) {
    const double y = kTop + kCellHeight * static_cast<double>(r);
    svg += text_at(kSide - 8, y + kCellHeight / 2 + 4, map.rows[r], "text-anchor='end'");
    for (std::size_t c = 0; c < map.columns.size(); ++c) {
      const double x = kSide + kCellWidth * static_cast<double>(c), value = map.values[r][c];
      if (value <= 0) continue;
      const double strength = std::clamp(std::abs(std::log2(value)) / 1.5, 0.0, 1.0) * 62;
      svg += fmt::format(
          "<rect x='{:.1f}' y='{:.1f}' width='{:.1f}' height='{:.1f}' style='fill:color-mix(in oklab,var(--{}) "
          "{:.0f}%,var(--surface))'/>\n",
          x + 1, y + 1, kCellWidth - 2, kCellHeight - 2,
          map.undecided[r][c] ? "rule"
          : value >= 1        ? "good"
                              : "bad",
          map.undecided[r][c] ? 45 : strength);
      const std::string shown = fmt::format("{:.2f}{}", value, map.hatched[r][c] ? "*" : "");
      svg += text_at(x + kCellWidth / 2, y + kCellHeight / 2 + 4, shown, "text-anchor='middle'");
    }
  }
  std::string path;
  for (std::size_t r = 0; r < map.line.size(); ++r) {
    if (std::isnan(map.line[r])) continue;
    const double x = kSide + kCellWidth * (map.line[r] + 0.5), y = kTop + kCellHeight * static_cast<double>(r);
    const double from_number = std::abs(map.line[r] - std::round(map.line[r])) * kCellWidth;
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x, y);
    path += from_number > kNumberWidth / 2
                ? fmt::format("v{:.1f}", kCellHeight)
                : fmt::format("v{:.1f}m0 {:.1f}v{:.1f}", kClear, kCellHeight - 2 * kClear, kClear);
  }
  if (!path.empty()) svg += fmt::format("<path class='even' d='{}'/>\n", path);
  for (std::size_t c = 0; c < map.columns.size(); ++c)
    svg += text_at(kSide + kCellWidth * (static_cast<double>(c) + 0.5), bottom + 18, map.columns[c],
                   "text-anchor='middle'");
  svg += text_at(kSide + (width - kSide) / 2, bottom + 38, map.x_title, "text-anchor='middle'");
  return svg + upward_text((kTop + bottom) / 2, map.y_title) + "</svg>\n";
}

}  // namespace outrider
