#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lab/json.h"
#include "launch/command_line.h"

namespace outrider {

/// One value of a report. With a heading it is a table column too; without a key, only that.
struct Field {
  std::string key;
  Json value;
  const char* heading = nullptr;
  int digits = 0;   ///< of a number in the table, after the point
  double unit = 1;  ///< of the table: bytes are shown in MiB
};

/// A command's findings, each value named once, from which a JSON object and a table row are made.
struct Row : std::vector<Field> {
  using std::vector<Field>::vector;
  void add(const Row& more) { insert(end(), more.begin(), more.end()); }
};
void to_json(Json& object, const Row& row);

/// Returns null if there is no value.
Json or_null(std::optional<double> value);

inline constexpr double kMiB = 1 << 20;

/// Formats rows of one kind in columns under their headings: numbers right-aligned, words left-aligned.
std::string table(const std::vector<Row>& rows);
/// A line "key value" for each value but lists of objects, which are for table().
std::string key_lines(const Json& object, int indent = 2);

/// @param wanted  0: every core
int thread_count(int wanted);
/// The numbers of a report depend on these. @param threads  0: a verifier's choice
Row machine_row(int threads);

/// Prints a command's report, as text or as JSON, and writes it to the file that was asked for.
void write_report(const ReportFlags& flags, const Row& report, const std::string& text);

}  // namespace outrider
