#include "launch/cluster/plan.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/json_fields.h"
#include "common/base/text.h"

namespace outrider {
namespace {
using nlohmann::json;

/// Returns the plan's key of an option such as --max-requests.
std::string key_of(const char* option) {
  std::string key = option + 2;
  std::ranges::replace(key, '-', '_');
  return key;
}

/// Options that the launcher sets itself.
bool is_ours(std::string_view option) { return option == "--name"; }

/// Writes the schema of one described struct.
class SchemaWriter {
 public:
  using Json = nlohmann::ordered_json;

  template <Described T>
  static Json schema_of() {
    SchemaWriter writer;
    T defaults;
    T::fields(writer, defaults);
    Json schema = {{"type", "object"}, {"additionalProperties", false}, {"properties", writer.properties_}};
    if (!writer.required_.empty()) schema["required"] = writer.required_;
    return schema;
  }

  void operator()(const char* key, const std::string&, KeyInfo info) { add(key, info, {{"type", "string"}}); }
  void operator()(const char* key, const std::string&, KeyInfo info, std::initializer_list<const char*> choices) {
    add(key, info, {{"enum", std::vector<std::string>(choices.begin(), choices.end())}, {"default", *choices.begin()}});
  }
  void operator()(const char* key, std::int64_t value, KeyInfo info, Range<std::int64_t> range) {
    add(key, info, {{"type", "integer"}, {"minimum", range.min}, {"maximum", range.max}, {"default", value}});
  }
  void operator()(const char* key, const std::vector<std::string>&, KeyInfo info) {
    add(key, info, {{"type", "array"}, {"items", {{"type", "string"}}}, {"minItems", info.required ? 1 : 0}});
  }
  void operator()(const char* key, const std::map<std::string, std::string>&, KeyInfo info) {
    add(key, info, {{"type", "object"}, {"additionalProperties", {{"type", "string"}}}});
  }
  void operator()(const char* key, const SlurmHeader&, KeyInfo info) {
    add(key, info, {{"type", "object"}, {"additionalProperties", {{"type", {"string", "null"}}}}});
  }
  void operator()(const char* key, const json&, KeyInfo info) { add(key, info, Json::object()); }
  template <Described T>
  void operator()(const char* key, const T&, KeyInfo info) {
    add(key, info, schema_of<T>());
  }
  template <Described T>
  void operator()(const char* key, const std::vector<T>&, KeyInfo info) {
    add(key, info, {{"type", "array"}, {"items", schema_of<T>()}, {"minItems", info.required ? 1 : 0}});
  }
  template <class Options>
  void options(const std::vector<std::string>&) {
    Options declared;
    const auto option = [&]<typename T>(const char* name, const T& value, const OptionInfo& info) {
      if (is_ours(name)) return;
      const auto [min, max] = info.range;
      Json schema = {{"type", "string"}};
      if constexpr (std::is_same_v<T, bool>) {
        schema = {{"type", "boolean"}};
      } else if constexpr (std::is_integral_v<T>) {
        schema = {{"type", "integer"},
                  {"minimum", static_cast<std::int64_t>(min)},
                  {"maximum", static_cast<std::int64_t>(max)},
                  {"default", value}};
        if (info.word_for_0 != nullptr)
          schema.update({{"type", {"integer", "string"}}, {"pattern", fmt::format("^{}$", info.word_for_0)}});
      } else if constexpr (std::is_same_v<T, double>) {
        schema = {{"type", "number"}, {"minimum", min}, {"maximum", max}, {"default", value}};
      } else if constexpr (std::is_same_v<T, std::vector<double>>) {
        schema = {{"type", "array"}, {"items", {{"type", "number"}, {"minimum", min}, {"maximum", max}}}};
      }
      add(key_of(name), {info.help}, std::move(schema));
    };
    declare_options(option, declared);
  }

 private:
  void add(const std::string& key, KeyInfo info, Json schema) {
    schema["description"] = info.help;
    if (info.required) required_.push_back(key);
    properties_[key] = std::move(schema);
  }

  Json properties_ = Json::object();
  std::vector<std::string> required_;
};

/// Reads the keys of one described struct and refuses all others.
class Reader {
 public:
  explicit Reader(const JsonFields& keys) : keys_(keys) {}

  template <Described T>
  static void read(const JsonFields& keys, T& into) {
    std::vector<std::string> known;
    const SchemaWriter::Json schema = SchemaWriter::schema_of<T>();
    for (const auto& [key, property] : schema["properties"].items()) known.push_back(key);
    keys.refuse_others(known);
    Reader reader(keys);
    T::fields(reader, into);
  }

  void operator()(const char* key, std::string& value, KeyInfo info) {
    value = keys_.text(key, info.required ? std::nullopt : std::optional(value));
  }
  void operator()(const char* key, std::string& value, KeyInfo, std::initializer_list<const char*> choices) {
    value = keys_.choice(key, *choices.begin(), choices);
  }
  void operator()(const char* key, std::int64_t& value, KeyInfo, Range<std::int64_t> range) {
    value = keys_.integer(key, value, range.min, range.max);
  }
  void operator()(const char* key, std::vector<std::string>& value, KeyInfo info) {
    if (keys_.find(key) == nullptr && !info.required) return;
    for (const json& word : keys_.array(key)) {
      if (!word.is_string()) return keys_.wrong(key, "an array of strings");
      value.push_back(word.get<std::string>());
    }
    if (info.required && value.empty()) keys_.wrong(key, "an array of one string or more");
  }
  void operator()(const char* key, std::map<std::string, std::string>& value, KeyInfo) {
    const JsonFields entries = keys_.object(key);
    for (const auto& [name, entry] : entries.raw().items()) value[name] = entries.text(name.c_str());
  }
  void operator()(const char* key, SlurmHeader& value, KeyInfo) {
    const JsonFields entries = keys_.object(key);
    for (const auto& [name, entry] : entries.raw().items()) {
      if (!entry.is_null() && !entry.is_string()) entries.wrong(name.c_str(), "a string or null");
      value[name] = entry.is_string() ? std::optional(entry.get<std::string>()) : std::nullopt;
    }
  }
  void operator()(const char* key, json& value, KeyInfo) { value = member(keys_.raw(), key); }
  template <Described T>
  void operator()(const char* key, T& value, KeyInfo) {
    read(keys_.object(key), value);
  }
  template <Described T>
  void operator()(const char* key, std::vector<T>& value, KeyInfo info) {
    keys_.each(key, "an array of objects", [&](const JsonFields& entry) { read(entry, value.emplace_back()); });
    if (info.required && value.empty()) keys_.wrong(key, "an array of one object or more");
  }
  /// Reads a node's declared options into command line arguments.
  template <class Options>
  void options(std::vector<std::string>& arguments) {
    Options declared;
    const auto option = [&]<typename T>(const char* name, const T&, const OptionInfo& info) {
      const std::string key = key_of(name);
      const json* const given = keys_.find(key.c_str());
      if (is_ours(name) || given == nullptr) return;
      const auto [min, max] = info.range;
      std::string text;
      if constexpr (std::is_same_v<T, bool>) {
        if (keys_.boolean(key.c_str())) arguments.emplace_back(name);
        return;
      } else if constexpr (std::is_integral_v<T>) {
        const bool is_word = info.word_for_0 != nullptr && *given == info.word_for_0;
        text = is_word ? info.word_for_0
                       : std::to_string(keys_.integer(key.c_str(), {}, static_cast<std::int64_t>(min),
                                                      static_cast<std::int64_t>(max)));
      } else if constexpr (std::is_same_v<T, double>) {
        text = fmt::format("{}", keys_.number(key.c_str(), {}, min, max));
      } else if constexpr (std::is_same_v<T, std::vector<double>>) {
        for (const json& entry : keys_.array(key.c_str())) {
          const double number = entry.is_number() ? entry.get<double>() : min - 1;
          if (number < min || number > max)
            return keys_.wrong(key.c_str(), fmt::format("an array of numbers from {} to {}", min, max));
          text += fmt::format("{}{}", text.empty() ? "" : ",", number);
        }
      } else {
        text = keys_.text(key.c_str());
      }
      arguments.insert(arguments.end(), {name, text});
    };
    declare_options(option, declared);
  }

 private:
  const JsonFields& keys_;
};

/// The hosts and options in a host file.
struct HostFile {
  json hosts = json::array();
  std::map<std::string, std::string> placed;  ///< hosts by role
};

constexpr std::array<std::string_view, 4> kRoles = {"coordinator", "verifier", "drafter", "encoder"};

Result<HostFile> read_host_file(std::string_view text, std::string_view file) {
  HostFile result;
  int number = 0;
  for (const std::string& line : lines_of(text)) {
    ++number;
    std::istringstream words(line.substr(0, line.find('#')));
    std::string name, role = "drafter";
    int slots = 1;
    if (!(words >> name)) continue;
    json host = {{"name", name}};
    for (std::string word; words >> word;) {
      const std::size_t equals = word.find('=');
      const std::string key = word.substr(0, equals), value = equals == word.npos ? "" : word.substr(equals + 1);
      if (key == "role" && std::ranges::find(kRoles, value) != kRoles.end()) {
        role = value;
      } else if (key == "address" && !value.empty()) {
        host["address"] = value;
      } else if (key == "max_slots" || key == "max-slots") {
        // Open MPI's upper limit, ignored: slots has the wanted number.
      } else if (key != "slots" || (slots = to_number<int>(value).value_or(0)) < 1 || slots > 4096) {
        return Error(Errc::kInvalidArgument, "{}:{}: '{}', wanted role={}, slots=1 or more, or address=", file, number,
                     word, fmt::join(kRoles, "|"));
      }
    }
    for (int slot = 0; slot < slots; ++slot) result.placed[role] += (result.placed[role].empty() ? "" : ",") + name;
    const bool known = std::ranges::any_of(result.hosts, [&](const json& other) { return other["name"] == name; });
    if (!known) result.hosts.push_back(std::move(host));
  }
  return result;
}

}  // namespace

Result<Plan> read_plan(const json& object, std::string_view file) {
  FirstError first_error{.file = std::string(file)};
  Plan plan;
  Reader::read(JsonFields(object, "", first_error), plan);
  if (first_error.error) return *first_error.error;
  return plan;
}

Result<void> place_on_hosts(json& plan, std::string_view text, std::string_view file) {
  ASSIGN_OR_RETURN(HostFile found, read_host_file(text, file));
  plan["hosts"] = std::move(found.hosts);
  for (const auto& [role, hosts] : found.placed) {
    const bool single = role == "coordinator";
    const std::string key = single ? role : role + "s";
    json& value = plan[key];
    if (value.is_null()) value = single ? json::object() : json::array({json::object()});
    json* const one = single ? &value : value.is_array() && value.size() == 1 ? &value[0] : nullptr;
    // The host file places this role, so that the plan must not place it too.
    if (one == nullptr || !one->is_object() || one->contains("hosts") || one->contains("count")) {
      return Error(Errc::kInvalidArgument, "{} is {}: with a host file, wanted {} without hosts and count", key,
                   show(value), single ? "an object" : "one group");
    }
    (*one)["hosts"] = hosts;
  }
  return {};
}

nlohmann::ordered_json plan_schema() {
  SchemaWriter::Json schema = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                               {"title", "A plan of outrider launch"}};
  schema.update(SchemaWriter::schema_of<Plan>());
  return schema;
}

}  // namespace outrider
