#include "lab/experiment/report.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/text.h"
#include "lab/experiment/plan.h"
#include "lab/experiment/svg.h"
#include "lab/statistics.h"

namespace outrider {

std::string_view style_css();  ///< of the page

namespace {

using Cells = std::vector<const Json*>;

bool is_void(const Json& cell) { return !cell["void"].is_null(); }
bool predicted(const Json& cell) { return cell["predicted"].is_object(); }
double axis(const Json& cell, const char* name) { return cell["axes"][name].get<double>(); }
double ratio(const Json& cell, const char* name) { return cell["ratios"][name]["median"].get<double>(); }
double rate(const Json& cell, ExperimentArm arm) { return cell["arms"][to_string(arm)]["tok_per_sec"].get<double>(); }
/// @return the arm's name in prose.
const char* shown_name(ExperimentArm arm) {
  return arm == ExperimentArm::kNgram ? "n-gram" : arm == ExperimentArm::kColocated ? "co-located" : to_string(arm);
}
/// The result of a cell: a remote drafter pays if the interval of its speed-up is above 1, does not if it is below, and
/// is undecided if the interval spans 1.
enum class Pays { kYes, kNo, kUndecided };
Pays pays(const Json& cell, const char* name = "remote/plain") {
  const Json& interval = cell["ratios"][name];
  return interval["low"] > 1 ? Pays::kYes : interval["high"] < 1 ? Pays::kNo : Pays::kUndecided;
}
bool has(const Json& cell, ExperimentArm arm) { return cell["arms"].contains(to_string(arm)); }
/// @return the value for a person: 0 and not 0.0
std::string short_text(const Json& value) {
  return value.is_number_float() ? fmt::format("{:.4g}", value.get<double>()) : plain_text(value);
}

std::vector<std::string> varied_axes_of(const std::vector<Json>& cells) {
  std::vector<Json> axes;
  for (const Json& cell : cells) axes.push_back(cell["axes"]);
  return varied_axes(axes);
}

/// Groups cells that differ only in the axes `but`, by their common values of the varied ones: "draft_length 4".
std::map<std::string, Cells> groups(const std::vector<Json>& cells, const std::vector<std::string>& but) {
  std::map<std::string, Cells> result;
  const std::vector<std::string> varied = varied_axes_of(cells);
  for (const Json& cell : cells) {
    std::vector<std::string> shared;
    for (const std::string& name : varied) {
      if (std::ranges::find(but, name) == but.end()) shared.push_back(name + " " + short_text(cell["axes"][name]));
    }
    result[fmt::format("{}", fmt::join(shared, ", "))].push_back(&cell);
  }
  return result;
}

/// Returns the different values of an axis, ascending.
std::vector<double> values_of(const Cells& cells, const char* name) {
  std::vector<double> values;
  for (const Json* cell : cells) values.push_back(axis(*cell, name));
  std::ranges::sort(values);
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

/// Returns two figures side by side, with the common values of their cells.
std::string pair_html(const std::string& left, const std::string& right, const std::string& group) {
  return "<figure class='pair'>" + left + right + "<figcaption>" + escaped(group) + "</figcaption></figure>\n";
}

/// @return a value's place between columns, counted from 0; at most half a column beyond the first or the last
double column_of(double value, const std::vector<double>& columns) {
  if (value < columns.front()) return -0.5;
  for (std::size_t i = 0; i + 1 < columns.size(); ++i) {
    if (value <= columns[i + 1]) return static_cast<double>(i) + (value - columns[i]) / (columns[i + 1] - columns[i]);
  }
  return static_cast<double>(columns.size()) - 0.5;
}

/// Returns t_d on the remote drafter's host, which cells of earlier programs lack. @pre predicted(cell)
double remote_draft_ms(const Json& cell) {
  const Json& terms = cell["predicted"];
  return terms.value("remote_draft_ms_per_token",
                     terms["draft_ms_per_token"].get<double>() + axis(cell, "drafter_added_ms"));
}

/// The reasons that a remote drafter is slower than one beside the verifier, in ascending order.
struct Slowness {
  double stopped = 0;   ///< share of the time
  double added_ms = 0;  ///< per draft
  auto operator<=>(const Slowness&) const = default;

  static Slowness of(const Json& cell) {
    return {1 - cell["axes"].value("drafter_cpu_share", 1.0), axis(cell, "drafter_added_ms")};
  }
};

std::string row_label(const Json& cell) {
  if (!predicted(cell)) {
    const Slowness slow = Slowness::of(cell);
    const std::string added = fmt::format("+{:.4g} ms", slow.added_ms);
    return slow.stopped > 0 ? fmt::format("{}, {:.4g} of a CPU", added, 1 - slow.stopped) : added;
  }
  const double verify = cell["predicted"]["verify_ms"];
  return fmt::format("{:.2f}", verify > 0 ? remote_draft_ms(cell) / verify : 0);
}

Heatmap heatmap(const Cells& cells, const char* name, const std::string& title, bool with_line) {
  const std::vector<double> columns = values_of(cells, "rtt_ms");
  std::set<Slowness> rows;
  for (const Json* cell : cells) rows.insert(Slowness::of(*cell));
  Heatmap map{.title = title, .x_title = "round trip, ms", .y_title = "t_d / t_v"};
  map.rows.resize(rows.size());
  map.values.assign(rows.size(), std::vector<double>(columns.size()));
  map.hatched.assign(rows.size(), std::vector<bool>(columns.size()));
  map.undecided = map.hatched;
  map.line.assign(rows.size(), std::numeric_limits<double>::quiet_NaN());
  for (const double column : columns) map.columns.push_back(fmt::format("{:.4g}", column));
  for (const Json* cell : cells) {
    const auto row = static_cast<std::size_t>(std::distance(rows.begin(), rows.find(Slowness::of(*cell))));
    const auto column = static_cast<std::size_t>(std::ranges::find(columns, axis(*cell, "rtt_ms")) - columns.begin());
    map.values[row][column] = ratio(*cell, name);
    map.hatched[row][column] = is_void(*cell);
    map.undecided[row][column] = pays(*cell, name) == Pays::kUndecided;
    if (map.rows[row].empty()) map.rows[row] = row_label(*cell);
    if (!with_line || !predicted(*cell)) continue;
    const Json& even = (*cell)["predicted"]["break_even_rtt_ms"];
    map.line[row] = even.is_null() ? -0.5 : column_of(even.get<double>(), columns);
  }
  return map;
}

std::string maps_html(const std::vector<Json>& cells) {
  std::string html;
  for (const auto& [name, group] : groups(cells, {"rtt_ms", "drafter_added_ms", "drafter_cpu_share"})) {
    if (values_of(group, "rtt_ms").size() < 2) continue;
    html += pair_html(heatmap_svg(heatmap(group, "remote/plain", "Remote over plain", true)),
                      heatmap_svg(heatmap(group, "remote/colocated", "Remote over co-located", false)), name);
  }
  if (html.empty()) return "";
  return "<h2>When does a remote drafter pay?</h2>\n" + html +
         "<p class='note'>Tokens per second with the drafter behind the link, over plain decoding and over a drafter "
         "beside the verifier. Rows: t_d / t_v, the time of one draft over the time of the verifying pass. The heavy "
         "line is the predicted break-even round trip: left of it a remote drafter should be faster than plain. "
         "Grey: undecided, the interval of 95 % spans 1. A star: the cell is void.</p>\n";
}

Series arm_series(const Cells& cells, ExperimentArm arm, int index) {
  Series series{.name = shown_name(arm), .index = index};
  for (const Json* cell : cells) series.points.emplace_back(axis(*cell, "clients"), rate(*cell, arm));
  return series;
}

/// Returns a ratio of every cell by the number of clients; `value` returns it, or none.
template <class Value>
Series by_clients(const Cells& cells, const char* name, int index, bool dashed, Value value) {
  Series series{.name = name, .index = index, .dashed = dashed};
  for (const Json* cell : cells) {
    if (predicted(*cell)) series.points.emplace_back(axis(*cell, "clients"), value(*cell));
  }
  return series;
}

std::string clients_html(const std::vector<Json>& cells) {
  std::string html;
  for (auto& [name, unsorted] : groups(cells, {"clients"})) {
    if (values_of(unsorted, "clients").size() < 2) continue;
    Cells group = unsorted;
    std::ranges::sort(group, {}, [](const Json* cell) { return axis(*cell, "clients"); });
    Chart rates{
        .title = "Throughput", .x_title = "clients", .y_title = "tokens per second, all clients", .whole_x = true};
    for (std::size_t i = 0; i < kArms.size(); ++i) {
      if (has(*group.front(), kArms[i])) rates.series.push_back(arm_series(group, kArms[i], int(i)));
    }
    if (!has(*group.front(), ExperimentArm::kColocated)) {
      html += pair_html(chart_svg(rates), "", name);
      continue;
    }
    Chart gain{.title = "Remote over co-located", .x_title = "clients", .y_title = "ratio", .whole_x = true};
    Series measured{.name = "measured", .index = 3};
    for (const Json* cell : group) {
      const Json& seen = (*cell)["ratios"]["remote/colocated"];
      measured.points.emplace_back(axis(*cell, "clients"), seen["median"]);
      measured.spans.emplace_back(seen["low"], seen["high"]);
    }
    const auto of = [](const char* key) { return [key](const Json& cell) { return cell["predicted"][key]; }; };
    gain.series = {measured, by_clients(group, "1 + g t_d/t_v", 0, true, of("capacity")),
                   by_clients(group, "with T(M)", 1, true, of("capacity_shared"))};
    html += pair_html(chart_svg(rates), chart_svg(gain), name);
  }
  if (html.empty()) return "";
  return "<h2>How many clients does a verifier carry?</h2>\n" + html +
         "<p class='note'>Closed loop: each client asks again as soon as it has its answer. Dashed: how many times as "
         "much a saturated verifier could do if its drafter cost it nothing, by the published form and by the measured "
         "T(M). Drafters that share the verifier's cores, as in a run on one machine, cannot reach it.</p>\n";
}

/// Returns latencies at arrival rates: by arm, the 50th and 99th percentile.
std::string arrivals_html(const std::vector<Json>& cells) {
  const auto rate_of = [](const Json& cell) { return cell["axes"].value("request_rate", 0.0); };
  std::vector<Json> open;
  std::ranges::copy_if(cells, std::back_inserter(open), [&](const Json& cell) { return rate_of(cell) > 0; });
  if (open.empty()) return "";
  std::ranges::stable_sort(open, {}, rate_of);
  std::string html;
  for (const auto& [name, group] : groups(open, {"request_rate"})) {
    Chart half{.title = "Half", .x_title = "requests per second", .y_title = "latency, ms"};
    Chart late{.title = "99 in 100", .x_title = "requests per second", .y_title = "latency, ms"};
    for (std::size_t i = 0; i < kArms.size(); ++i) {
      if (!has(*group.front(), kArms[i])) continue;
      for (const auto& [chart, share] : {std::pair(&half, "p50"), {&late, "p99"}}) {
        Series series{.name = shown_name(kArms[i]), .index = static_cast<int>(i)};
        for (const Json* cell : group)
          series.points.emplace_back(rate_of(*cell), (*cell)["arms"][to_string(kArms[i])]["latency_ms"][share]);
        chart->series.push_back(std::move(series));
      }
    }
    html += pair_html(chart_svg(half), chart_svg(late), name);
  }
  return "<h2>How long do requests take that come by the clock?</h2>\n" + html +
         "<p class='note'>Open loop: requests arrive at random times, whether those before have been answered or not. "
         "A latency counts from when its request was due to its last token.</p>\n";
}

std::string scatter_html(const std::vector<Json>& cells, const PredictionErrors& errors) {
  Chart chart{.title = "Speed-up over plain",
              .x_title = "predicted",
              .y_title = "measured",
              .logarithmic = true,
              .diagonal = true};
  for (const ExperimentArm arm : {ExperimentArm::kColocated, ExperimentArm::kRemote}) {
    Series series{.name = shown_name(arm), .index = static_cast<int>(arm), .line = false};
    const std::string name = std::string(to_string(arm)) + "/plain";
    for (const Json& cell : cells) {
      if (!predicted(cell) || is_void(cell) || cell["predicted"][std::string(to_string(arm)) + "_error"].is_null())
        continue;
      const Json& seen = cell["ratios"][name];
      series.points.emplace_back(cell["predicted"][name], seen["median"]);
      series.spans.emplace_back(seen["low"], seen["high"]);
    }
    chart.series.push_back(std::move(series));
  }
  return "<h2>Does the closed form hold?</h2>\n<figure>" + chart_svg(chart) + "</figure>\n" +
         fmt::format(
             "<p class='note'>Of cells that are not void: {}. {} cells are void. Bars: bootstrap intervals "
             "(95 %).</p>\n",
             to_text(errors), errors.void_cells);
}

std::string acceptance_html(const std::vector<Json>& cells) {
  Chart chart{.title = "Acceptance by position",
              .x_title = "position in the draft",
              .y_title = "share accepted",
              .whole_x = true};
  for (const auto& [name, group] :
       groups(cells, {"rtt_ms", "jitter_ms", "bandwidth_mbit", "loss", "drafter_added_ms", "drafter_cpu_share",
                      "clients", "verifiers", "drafters", "threads", "shards", "drafter_threads",
                      "drafter_isa"})) {
    // The first cell that has any; those of earlier programs have none of drafts made ahead.
    for (const auto& [key, kind] :
         {std::pair("acceptance_per_position", ""), {"acceptance_per_position_ahead", ", made ahead"}}) {
      Series series{.name = (name.empty() ? "remote" : name) + kind,
                    .index = static_cast<int>(chart.series.size() % 4)};
      for (const Json* cell : group) {
        const Json shares = (*cell)["arms"]["remote"].value(key, Json::array());
        for (std::size_t i = 0; i < shares.size(); ++i) series.points.emplace_back(i + 1, shares[i].get<double>());
        if (!series.points.empty()) break;
      }
      if (!series.points.empty()) chart.series.push_back(std::move(series));
    }
  }
  return "<h2>How many drafts are accepted?</h2>\n<figure>" + chart_svg(chart) +
         "</figure>\n<p class='note'>By position: of the rounds that had a draft there, the share that accepted it and "
         "so all drafts before it. Made ahead: drafted while the round before was still being verified.</p>\n";
}

std::string interval_cell(const Json& interval) {
  return fmt::format("<td>{:.2f} <small>{:.2f}&ndash;{:.2f}</small></td>", interval["median"].get<double>(),
                     interval["low"].get<double>(), interval["high"].get<double>());
}

std::string table_html(const std::vector<Json>& cells) {
  const std::vector<std::string> varied = varied_axes_of(cells);
  std::string html = "<h2>All cells</h2>\n<div class='scroll'><table><tr>";
  for (const std::string& name : varied) html += "<th>" + escaped(name) + "</th>";
  html +=
      "<th>plain tok/s</th><th>n-gram</th><th>co-located</th><th>remote</th><th>remote / co-located</th>"
      "<th>predicted</th><th>error</th><th>void</th></tr>\n";
  for (const Json& cell : cells) {
    html += "<tr>";
    for (const std::string& name : varied) html += "<td>" + escaped(short_text(cell["axes"][name])) + "</td>";
    html += fmt::format("<td>{:.1f}</td>", rate(cell, ExperimentArm::kPlain));
    for (const char* name : {"ngram/plain", "colocated/plain", "remote/plain", "remote/colocated"})
      html += cell["ratios"].contains(name) ? interval_cell(cell["ratios"][name]) : "<td></td>";
    if (predicted(cell)) {
      const Json& error = cell["predicted"]["remote_error"];
      html += fmt::format("<td>{:.2f}</td><td>{}</td>", cell["predicted"]["remote/plain"].get<double>(),
                          error.is_null() ? "" : fmt::format("{:+.0f} %", error.get<double>() * 100));
    } else {
      html += "<td></td><td></td>";
    }
    html += "<td>" + (is_void(cell) ? escaped(cell["void"].get<std::string>()) : "") + "</td></tr>\n";
  }
  return html + "</table></div>\n<p class='note'>Ratios over plain, with bootstrap intervals (95 %).</p>\n";
}

/// Formats a fact for a person: "24684096 kB" in GB, no threads as what they stand for, eight digits of a hash.
std::string fact_text(const std::string& key, const std::string& text) {
  if (key == "threads" && text == "0") return "the fastest number, by trial";
  if (key == "program") return text.substr(0, 8);
  return text.ends_with(" kB") ? fmt::format("{:.1f} GB", std::atof(text.c_str()) * 1024 / 1e9) : text;
}

std::string machine_html(const Json& lock) {
  std::string html = "<h2>Machine and program</h2>\n<table class='facts'>";
  for (const char* part : {"machine", "program"}) {
    const Json entries = lock.value(part, Json::object());
    for (const auto& [key, value] : entries.items())
      html += "<tr><th>" + escaped(key) + "</th><td>" + escaped(fact_text(key, plain_text(value))) + "</td></tr>\n";
  }
  return html + "</table>\n";
}

constexpr const char* kHead = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>Outrider experiment</title>)";
std::string style() { return fmt::format("<style>\n{}</style>", style_css()); }

/// Returns the cell predicted to tolerate the longest round trip, of those with one client and a fixed number of
/// drafts; nullptr if there is none.
const Json* most_tolerant(const std::vector<Json>& cells) {
  const Json* best = nullptr;
  const auto even = [](const Json& cell) {
    const Json& value = cell["predicted"]["break_even_rtt_ms"];
    return value.is_null() ? -1.0 : value.get<double>();
  };
  for (const Json& cell : cells) {
    if (!predicted(cell) || axis(cell, "clients") != 1 || cell["axes"]["draft_length"] == "0") continue;
    if (best == nullptr || even(cell) > even(*best)) best = &cell;
  }
  return best;
}

/// Formats the round trip for a person, and the bandwidth if limited: "1 ms", "1 ms (100 Mbit/s)".
std::string link_text(const Json& cell) {
  const double bandwidth = axis(cell, "bandwidth_mbit");
  return fmt::format("{:.4g} ms{}", axis(cell, "rtt_ms"),
                     bandwidth > 0 ? fmt::format(" ({:.4g} Mbit/s)", bandwidth) : "");
}

/// Returns the non-void cells that differ from most_tolerant() in round trip and bandwidth alone, by round trip.
Cells judged_cells(const std::vector<Json>& cells) {
  Cells judged;
  const Json* const best = most_tolerant(cells);
  if (best == nullptr) return judged;
  for (const Json& cell : cells) {
    Json axes = cell["axes"];
    for (const char* name : {"rtt_ms", "bandwidth_mbit"}) axes[name] = (*best)["axes"][name];
    if (axes == (*best)["axes"] && !is_void(cell)) judged.push_back(&cell);
  }
  std::ranges::sort(judged, {}, [](const Json* cell) { return axis(*cell, "rtt_ms"); });
  return judged;
}

/// "1.20 to 1.90"
std::string range_text(const std::vector<double>& ratios) {
  const auto [low, high] = std::ranges::minmax(ratios);
  return low == high ? fmt::format("{:.2f}", low) : fmt::format("{:.2f} to {:.2f}", low, high);
}

/// "No: on a cluster that ran already drafts paid in no cell (0.45 to 0.80 times plain decoding)."
std::string cluster_verdict(const std::vector<Json>& cells) {
  std::map<Pays, int> counts;
  std::vector<double> ratios;
  for (const Json& cell : cells) {
    if (is_void(cell)) continue;
    ++counts[pays(cell)];
    ratios.push_back(ratio(cell, "remote/plain"));
  }
  if (ratios.empty()) return "Undecided: all cells are void.";
  const Pays first = counts.begin()->first;
  const std::string words =
      counts.size() > 1 ? fmt::format("It depends: on a cluster that ran already drafts paid in {} of {} cells, {} are "
                                      "undecided",
                                      counts[Pays::kYes], ratios.size(), counts[Pays::kUndecided])
      : first == Pays::kYes ? "Yes: on a cluster that ran already drafts paid in every cell"
      : first == Pays::kNo  ? "No: on a cluster that ran already drafts paid in no cell"
                            : "Undecided: on a cluster that ran already the interval of every cell spans 1";
  return fmt::format("{} ({} times plain decoding).", words, range_text(ratios));
}

/// "No: a remote drafter did not pay at any round trip measured (0.45 to 0.80 times plain decoding, 0 to 50 ms)."
std::string measured_verdict(const Cells& judged) {
  if (judged.empty()) return "Undecided: all cells that could show whether a remote drafter pays are void.";
  struct Kind {
    std::vector<double> ratios = {};
    std::vector<std::string> round_trips = {};
  };
  std::map<Pays, Kind> kinds;
  for (const Json* cell : judged) {
    Kind& kind = kinds[pays(*cell)];
    kind.ratios.push_back(ratio(*cell, "remote/plain"));
    kind.round_trips.push_back(link_text(*cell));
  }
  if (kinds.size() == 1) {
    const auto& [pays, kind] = *kinds.begin();
    const char* const words = pays == Pays::kYes  ? "Yes: a remote drafter paid at every round trip measured"
                              : pays == Pays::kNo ? "No: a remote drafter did not pay at any round trip measured"
                                                  : "Undecided: at every round trip measured the interval spans 1";
    return fmt::format("{} ({} times plain decoding at {}).", words, range_text(kind.ratios),
                       fmt::join(kind.round_trips, ", "));
  }
  std::vector<std::string> parts;
  for (const auto& [pays, kind] : kinds) {
    const char* const words = pays == Pays::kYes ? "paid" : pays == Pays::kNo ? "did not pay" : "is undecided";
    parts.push_back(fmt::format("{} at {} ({} times plain decoding)", words, fmt::join(kind.round_trips, ", "),
                                range_text(kind.ratios)));
  }
  return fmt::format("It depends on the round trip: a remote drafter {}.", fmt::join(parts, "; it "));
}

/// Returns the closed form's break-even, and its reliability here.
std::string predicted_verdict(const Json& best, const PredictionErrors& errors) {
  constexpr double kReliable = 0.2;  // median error
  const std::string drafts = plain_text(best["axes"]["draft_length"]);
  const Json& even = best["predicted"]["break_even_rtt_ms"];
  std::string text =
      even.is_null()
          ? fmt::format("Predicted with {} drafts a round: even a link without delay is slower than plain decoding",
                        drafts)
          : fmt::format("Predicted with {} drafts a round: break-even at a round trip of {:.1f} ms", drafts,
                        even.get<double>());
  if (errors.count == 0) return text + ".";
  return text + fmt::format(" (predictions were off by {:.1f} % in the median{}).", errors.median * 100,
                            errors.median > kReliable ? ": they are unreliable here" : "");
}

/// Returns how much longer a backbone's passes would have to be for the drafter of this cell to pay.
std::string what_it_would_take(const Json& lost) {
  const Json& there = lost["predicted"];
  const auto ms = [&](const char* key) { return there[key].get<double>(); };
  const double spare = ms("tokens_per_round") * ms("plain_round_ms") - ms("verify_ms");
  if (spare <= 0) return "No link would make it pay: the verifying pass alone takes longer than its tokens do.";
  const double drafts = std::atof(plain_text(lost["axes"]["draft_length"]).c_str());
  const double longer = (drafts * remote_draft_ms(lost) + ms("wire_ms") + ms("exchange_ms")) / spare;
  if (longer < 1.05) return "";  // less than the prediction's error
  return fmt::format(
      "At {:.4g} ms it would pay if the backbone's forward passes took {:.1f} times as long, as a larger model's do.",
      axis(lost, "rtt_ms"), longer);
}

/// Returns the table of the cells behind the verdict.
std::string verdict_table_html(const Cells& judged) {
  if (judged.empty()) return "";
  std::string html =
      "<div class='scroll'><table><tr><th>round trip</th><th>over plain decoding</th><th>over a drafter beside the "
      "verifier</th><th>does it pay?</th></tr>\n";
  for (const Json* cell : judged) {
    const Pays kind = pays(*cell);
    html += fmt::format("<tr><td>{}</td>", link_text(*cell)) + interval_cell((*cell)["ratios"]["remote/plain"]) +
            interval_cell((*cell)["ratios"]["remote/colocated"]) +
            fmt::format("<td>{}</td></tr>\n", kind == Pays::kYes  ? "yes"
                                              : kind == Pays::kNo ? "no"
                                                                  : "undecided");
  }
  return html +
         "</table></div>\n<p class='note'>Times as fast, with bootstrap intervals (95 %). Undecided: the interval "
         "spans 1.</p>\n";
}

/// Returns the date and the subject of the measurement, and how to repeat it.
std::string origin_html(const Json& lock, const std::vector<Json>& cells) {
  std::vector<std::string> axes;
  for (const std::string& name : varied_axes_of(cells)) {
    std::set<Json> values;  // in numerical order
    for (const Json& cell : cells) values.insert(cell["axes"][name]);
    std::vector<std::string> words;
    std::ranges::transform(values, std::back_inserter(words), short_text);
    axes.push_back(fmt::format("{} {}", name, fmt::join(words, ", ")));
  }
  const std::string date = lock.value("date", "");
  return fmt::format(
      "<p class='note'>{}{} cells{}. Measure it again: <code>outrider experiment lock.json --out "
      "ANOTHER</code>. All figures: <a href='cells.csv'>cells.csv</a>.</p>\n",
      date.empty() ? "" : escaped(date) + ": ", cells.size(),
      axes.empty() ? "" : escaped(fmt::format(", of {}", fmt::join(axes, "; "))));
}

}  // namespace

std::vector<Json> chosen_cells(const std::vector<Json>& lines) {
  std::map<std::int64_t, Json> chosen;
  for (const Json& line : lines) {
    const auto [place, is_new] = chosen.try_emplace(line["cell"].get<std::int64_t>(), line);
    if (!is_new && is_void(place->second)) place->second = line;
  }
  std::vector<Json> cells;
  for (auto& [index, cell] : chosen) cells.push_back(std::move(cell));
  return cells;
}

PredictionErrors prediction_errors(const std::vector<Json>& cells) {
  PredictionErrors errors;
  std::vector<double> sizes;
  for (const Json& cell : cells) {
    errors.void_cells += is_void(cell) ? 1 : 0;
    if (is_void(cell) || !predicted(cell)) continue;
    for (const char* name : {"colocated_error", "remote_error"}) {
      if (const Json& error = cell["predicted"][name]; !error.is_null()) sizes.push_back(std::abs(error.get<double>()));
    }
  }
  errors.count = sizes.size();
  errors.median = quantile(sizes, 0.5);
  errors.p90 = quantile(sizes, 0.9);
  return errors;
}

std::string to_text(const PredictionErrors& errors) {
  if (errors.count == 0) return "no predictions to hold against what was measured";
  return fmt::format("{} predictions, off by {:.1f} % in the median and {:.1f} % at the 90th percentile", errors.count,
                     errors.median * 100, errors.p90 * 100);
}

std::string verdict(const std::vector<Json>& cells) {
  const auto void_cells = std::ranges::count_if(cells, is_void);
  const std::string hint =
      void_cells == 0 ? ""
                      : fmt::format(" Void cells: {} of {}. Repeat on a quiet machine, or loosen 'void' in the plan.",
                                    void_cells, cells.size());
  if (!cells.empty() && !has(cells.front(), ExperimentArm::kColocated)) return cluster_verdict(cells) + hint;
  const Json* best = most_tolerant(cells);
  if (best == nullptr)
    return "Undecided: no cell is a closed loop of one client with a fixed draft length, so nothing can be said of "
           "break-even.";
  const Cells judged = judged_cells(cells);
  const std::string text = measured_verdict(judged) + " " + predicted_verdict(*best, prediction_errors(cells)) + hint;
  const auto lost =
      std::ranges::find_if(judged.rbegin(), judged.rend(), [](const Json* cell) { return pays(*cell) == Pays::kNo; });
  return lost == judged.rend() ? text : text + " " + what_it_would_take(**lost);
}

std::string csv(const std::vector<Json>& cells) {
  std::string text;
  for (const Json& cell : cells) {
    std::vector<std::pair<std::string, Json>> columns = {{"cell", cell["cell"]}, {"attempt", cell["attempt"]}};
    for (const auto& [name, value] : cell["axes"].items()) columns.emplace_back(name, value);
    for (const auto& [arm, figures] : cell["arms"].items()) {
      for (const char* name : {"tok_per_sec", "mad"}) columns.emplace_back(arm + "_" + name, figures[name]);
      for (const char* name : {"latency_ms", "time_to_first_token_ms"}) {
        for (const char* part : {"p50", "p90", "p99"})
          columns.emplace_back(fmt::format("{}_{}_{}", arm, name, part), figures.value(name, Json::object())[part]);
      }
    }
    for (const auto& [pair, interval] : cell["ratios"].items()) {
      for (const auto& [name, value] : interval.items()) columns.emplace_back(pair + "_" + name, value);
    }
    for (const char* name : {"colocated/plain", "remote/plain", "colocated_error", "remote_error", "break_even_rtt_ms",
                             "capacity", "capacity_shared"})
      columns.emplace_back(std::string("predicted_") + name, predicted(cell) ? cell["predicted"][name] : Json());
    for (const char* name : {"void", "text"}) columns.emplace_back(name, cell[name]);
    const auto line = [&](auto of) {
      std::vector<std::string> quoted;
      for (const auto& column : columns) {
        std::string value = of(column);
        if (value.find_first_of(",\"\n") != std::string::npos) value = "\"" + replaced(value, "\"", "\"\"") + "\"";
        quoted.push_back(std::move(value));
      }
      return fmt::format("{}\n", fmt::join(quoted, ","));
    };
    if (text.empty()) text = line([](const auto& column) { return column.first; });
    text += line([](const auto& column) { return column.second.is_null() ? "" : plain_text(column.second); });
  }
  return text;
}

std::string report_html(const Json& lock, const std::vector<Json>& cells) {
  std::string html = kHead + style() + "</head><body>\n";
  html += "<h1>Outrider: when do two tiers pay?</h1>\n";
  if (cells.empty()) return html + "<p>No cell has been measured yet.</p></body></html>\n";
  const std::string words = verdict(cells);
  const std::size_t end = std::min(words.find(". "), words.size() - 1) + 1;  // of the first sentence
  html += "<p class='verdict'><strong>" + escaped(words.substr(0, end)) + "</strong>" + escaped(words.substr(end)) +
          "</p>\n";
  if (has(cells.front(), ExperimentArm::kColocated)) html += verdict_table_html(judged_cells(cells));
  html += origin_html(lock, cells);
  html += maps_html(cells) + clients_html(cells) + arrivals_html(cells) +
          scatter_html(cells, prediction_errors(cells)) + acceptance_html(cells) + table_html(cells) +
          machine_html(lock);
  return html + "</body></html>\n";
}

std::vector<std::string> figures(const std::string& report) {
  constexpr std::string_view kBegin = "<svg ", kEnd = "</svg>";
  std::vector<std::string> figures;
  for (std::size_t at = 0; (at = report.find(kBegin, at)) != std::string::npos;) {
    const std::size_t inside = report.find('>', at) + 1, end = report.find(kEnd, inside) + kEnd.size();
    const std::string attributes = report.substr(at + kBegin.size(), inside - at - kBegin.size());
    figures.push_back("<svg xmlns='http://www.w3.org/2000/svg' " + attributes + style() +
                      report.substr(inside, end - inside) + "\n");
    at = end;
  }
  return figures;
}

}  // namespace outrider
