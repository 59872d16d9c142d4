#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lab/json.h"
#include "launch/command_support.h"

namespace outrider {

/// One value of a report. With a heading it is a column of a table too; without a key, of the table alone.
struct Field {
  std::string key;
  Json value;
  const char* heading = nullptr;
  int digits = 0;   ///< of a number in the table, after the point
  double unit = 1;  ///< what the table counts: bytes are shown in MiB
};

/// It holds a command's findings, each value named once: a JSON object and a line of a table are both made of it.
struct Row : std::vector<Field> {
  using std::vector<Field>::vector;
  void add(const Row& more) { insert(end(), more.begin(), more.end()); }
};
void to_json(Json& object, const Row& row);

/// Null if there is none.
Json or_null(std::optional<double> value);

inline constexpr double kMiB = 1 << 20;

/// Rows of one kind in columns under their headings: numbers stand to the right, words to the left.
std::string table(const std::vector<Row>& rows);
/// A line "key value" for each value but lists of objects, which are for table().
std::string key_lines(const Json& object, int indent = 2);

/// @param wanted  0: every core
int thread_count(int wanted);
/// The numbers of a report depend on these.
Row machine_row(int threads);

/// Prints a command's report, as text or as JSON, and writes it to the file that was asked for.
void write_report(const ReportFlags& flags, const Row& report, const std::string& text);

}  // namespace outrider
