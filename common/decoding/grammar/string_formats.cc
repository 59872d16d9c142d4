#include "common/decoding/grammar/string_formats.h"

#include <map>

namespace outrider {
namespace {

using Patterns = std::map<std::string, std::string, std::less<>>;

void add_times(Patterns& patterns) {
  const std::string days =
      R"(([1-9]\d{3}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8])))";
  const std::string leap_days = R"(|([1-9]\d(0[48]|[2468][048]|[13579][26])|([2468][048]|[13579][26])00)-02-29))";
  const std::string hour = R"(([01]\d|2[0-3]):[0-5]\d)";
  patterns["date"] = days + leap_days;
  patterns["time"] = hour + R"(:[0-5]\d(\.\d{1,9})?(Z|[+-])" + hour + ")";
  patterns["date-time"] = patterns["date"] + "T" + patterns["time"];
  const std::string time = R"(T(\d+H(\d+M(\d+S)?)?|\d+M(\d+S)?|\d+S))";
  patterns["duration"] = R"(P((\d+Y(\d+M(\d+D)?)?|\d+M(\d+D)?|\d+D)()" + time + ")?|" + time + R"(|\d+W))";
}

void add_hosts(Patterns& patterns) {
  const std::string word = R"([\w!#$%&'*+/=?^`{|}~-]+)", label = "[a-z0-9]([a-z0-9-]*[a-z0-9])?";
  const std::string any_label = "[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?";
  patterns["hostname"] = label + R"((\.)" + label + ")*";
  patterns["email"] = word + R"((\.)" + word + ")*@" + any_label + R"((\.)" + any_label + ")*";
  const std::string octet = R"((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d))";
  const std::string address = "(" + octet + R"(\.){3})" + octet, group = "[0-9a-fA-F]{1,4}";
  patterns["ipv4"] = address;
  std::string six = "(" + group + ":){7}" + group + "|(" + group + ":){1,7}:|:((:" + group +
                    "){1,7}|:)|::((ffff|FFFF)(:0{1,4})?:)?" + address + "|(" + group + ":){1,4}:" + address;
  for (int before = 1; before <= 6; ++before)
    six += "|(" + group + ":){" + std::to_string(before) + "}(:" + group + "){1," + std::to_string(7 - before) + "}";
  patterns["ipv6"] = six;
  patterns["uuid"] = "[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}";
}

void add_references(Patterns& patterns) {
  const std::string hex = "|%[0-9A-Fa-f][0-9A-Fa-f])", some = R"(([\w.~!$&'()*+,;=\-)";  // unreserved, sub-delims
  const std::string piece = some + ":@]" + hex, tail = some + ":@/?]" + hex;
  const std::string ends = R"((\?)" + tail + "*)?(#" + tail + "*)?", path = "(/" + piece + "*)*";
  const std::string authority = "//(" + some + ":]" + hex + "*@)?" + some + "]" + hex + R"(*(:\d*)?)" + path;
  const std::string rooted = "/(" + piece + "+" + path + ")?";
  patterns["uri"] = "[a-zA-Z][a-zA-Z0-9+.-]*:(" + authority + "|" + rooted + "|(" + piece + "+" + path + ")?)" + ends;
  patterns["uri-reference"] = "(" + authority + "|" + rooted + "|(" + some + "@]" + hex + "+" + path + ")?)" + ends;
  const std::string letter = R"((\w)" + hex, name = letter + R"((\.?)" + letter + ")*";
  const std::string variable = name + R"((:[1-9]\d?\d?\d?|\*)?)";
  patterns["uri-template"] = R"(([!#$&(-;=?-\[\]_a-z~])" + hex.substr(0, hex.size() - 1) + R"(|\{[+#./;?&=,!@|]?)" +
                             variable + "(," + variable + R"()*\})*)";
  const std::string pointer = "(/([^/~]|~[01])*)*";
  patterns["json-pointer"] = pointer;
  patterns["relative-json-pointer"] = R"((0|[1-9]\d*)(#|)" + pointer + ")";
}

}  // namespace

std::optional<std::string> format_pattern(std::string_view format) {
  static const Patterns patterns = [] {
    Patterns all;
    add_times(all);
    add_hosts(all);
    add_references(all);
    return all;
  }();
  const auto found = patterns.find(format);
  return found == patterns.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace outrider
