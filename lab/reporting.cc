#include "lab/reporting.h"

#include <algorithm>
#include <cstdio>
#include <fstream>

#include <fmt/format.h>

#include "common/compute/kernels/isa.h"
#include "common/compute/kernels/linear.h"
#include "common/compute/kernels/team.h"

namespace outrider {

void to_json(Json& object, const Row& row) {
  object = Json::object();
  for (const Field& field : row) {
    if (!field.key.empty()) object[field.key] = field.value;
  }
}

Json or_null(std::optional<double> value) { return value ? Json(*value) : Json(); }

namespace {
std::string text_of(const Json& value) {
  if (value.is_number_float()) return fmt::format("{:.5g}", value.get<double>());
  return value.is_string() ? value.get<std::string>() : value.is_null() ? "-" : value.dump();
}
std::string cell(const Field& field) {
  if (!field.value.is_number() || (field.digits == 0 && field.unit == 1)) return text_of(field.value);
  return fmt::format("{:.{}f}", field.value.get<double>() / field.unit, field.digits);
}
}  // namespace

std::string table(const std::vector<Row>& rows) {
  std::vector<std::string> lines(rows.size() + 1);
  for (std::size_t c = 0; !rows.empty() && c < rows[0].size(); ++c) {
    if (rows[0][c].heading == nullptr) continue;
    std::vector<std::string> cells = {rows[0][c].heading};
    bool numbers = true;
    for (const Row& row : rows) {
      cells.push_back(cell(row[c]));
      numbers = numbers && (row[c].value.is_number() || row[c].value.is_null());
    }
    const std::size_t width = std::ranges::max(cells, {}, &std::string::size).size();
    for (std::size_t i = 0; i < cells.size(); ++i)
      lines[i] += fmt::format(fmt::runtime(numbers ? "{:>{}}  " : "{:<{}}  "), cells[i], width);
  }
  std::string text;
  for (const std::string& line : lines) text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  return text;
}

std::string key_lines(const Json& object, int indent) {
  std::string text;
  for (const auto& [key, value] : object.items()) {
    if (value.is_object()) {
      text += fmt::format("{:{}}{}\n", "", indent, key) + key_lines(value, indent + 2);
    } else if (!value.is_array() || value.empty() || !value[0].is_object()) {
      text += fmt::format("{:{}}{:<30} {}\n", "", indent, key, text_of(value));
    }
  }
  return text;
}

int thread_count(int wanted) { return wanted > 0 ? wanted : team_size(); }

Row machine_row(int threads) {
  return {{"isa", to_string(active_isa())}, {"threads", threads}, {"onednn", onednn_version()}};
}

void write_report(const ReportFlags& flags, const Row& report, const std::string& text) {
  const std::string json = Json(report).dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  std::fputs((flags.json ? json : text).c_str(), stdout);
  if (flags.out.empty()) return;
  std::ofstream file(flags.out);
  file << json;
  if (!file.flush()) throw CommandError("{}: cannot be written", flags.out.string());
}

}  // namespace outrider
