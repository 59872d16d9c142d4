#include "common/model/tokenizer/chat.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "common/base/ascii.h"
#include "common/base/json_fields.h"

namespace outrider {
namespace {

using Json = nlohmann::json;
using Revision = ChatFormat::Revision;
using Role = ChatMessage::Role;

/// The template trims with Python's str.strip(): the characters with str.isspace().
constexpr auto kWhiteSpace = std::to_array<std::string_view>({
    "\t",           "\n",           "\v",           "\f",           "\r",
    "\x1C",         "\x1D",         "\x1E",         "\x1F",         " ",
    "\xC2\x85",     "\xC2\xA0",     "\xE1\x9A\x80", "\xE2\x80\x80", "\xE2\x80\x81",
    "\xE2\x80\x82", "\xE2\x80\x83", "\xE2\x80\x84", "\xE2\x80\x85", "\xE2\x80\x86",
    "\xE2\x80\x87", "\xE2\x80\x88", "\xE2\x80\x89", "\xE2\x80\x8A", "\xE2\x80\xA8",
    "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F", "\xE3\x80\x80",
});

std::string_view trim(std::string_view text) {
  for (std::size_t before = text.size() + 1; text.size() < before;) {
    before = text.size();
    for (const std::string_view space : kWhiteSpace) {
      if (text.starts_with(space)) text.remove_prefix(space.size());
      if (text.ends_with(space)) text.remove_suffix(space.size());
    }
  }
  return text;
}

/// Changes ASCII letters only. The template's upper() and lower() cover all of Unicode, which matters for no type name,
/// and otherwise only for the order of keys that differ in nothing else.
std::string upper(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), to_upper);
  return result;
}

/// Applies the template's strip_thinking() to a model's text that still has its thoughts.
std::string strip_thinking(std::string_view text) {
  constexpr std::string_view kOpen = "<|channel>", kClose = "<channel|>";
  std::string result;
  while (true) {
    const std::size_t close = text.find(kClose);
    const std::string_view part = text.substr(0, close);
    result += part.substr(0, part.find(kOpen));
    if (close == text.npos) break;
    text.remove_prefix(close + kClose.size());
  }
  return std::string(trim(result));
}

/// Returns a message's text as the prompt shows it.
std::string shown(const ChatMessage& message, std::string_view text) {
  return message.role == Role::kAssistant ? strip_thinking(text) : std::string(trim(text));
}

/// Truth value as in Python and Jinja.
bool is_true(const Json& value) {
  switch (value.type()) {
    case Json::value_t::boolean: return value.get<bool>();
    case Json::value_t::string: return !value.get_ref<const std::string&>().empty();
    case Json::value_t::object:
    case Json::value_t::array: return !value.empty();
    case Json::value_t::null: return false;
    default: return value != 0;
  }
}

/// Returns the members of an object in the order of Jinja's dictsort; none for other values.
std::vector<std::pair<std::string_view, const Json*>> dictsort(const Json& object) {
  std::vector<std::pair<std::string_view, const Json*>> members;
  if (const auto* const all = object.get_ptr<const Json::object_t*>())
    for (const auto& [key, value] : *all) members.emplace_back(key, &value);
  // Strings compare as unsigned bytes, which is the order of the characters.
  std::ranges::stable_sort(members, {}, [](const auto& entry) { return in_lower_case(entry.first); });
  return members;
}

/// Not recursive: JSON that is too deep could overflow the stack here as well.
bool deeper_than(const Json& value, int depth_max) {
  std::vector<std::pair<const Json*, int>> open = {{&value, 1}};
  while (!open.empty()) {
    const auto [next, depth] = open.back();
    open.pop_back();
    if (!next->is_structured()) continue;
    if (depth > depth_max) return true;
    for (const Json& child : *next) open.emplace_back(&child, depth + 1);
  }
  return false;
}

/// Collects a prompt. Text between two control tokens is encoded as one piece, since merges cross the ends of template
/// lines if the vocabulary has such tokens.
class PromptWriter {
 public:
  explicit PromptWriter(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  PromptWriter& text(std::string_view text) {
    text_ += text;
    return *this;
  }

  bool has(std::string_view token) const { return tokenizer_.find(token).has_value(); }
  PromptWriter& control(std::string_view token) {
    end_text();
    const auto id = tokenizer_.find(token);
    if (!id) {
      fail(
          {Errc::kNotFound, "{}: the vocabulary has no \"{}\", which the chat format needs", tokenizer_.name(), token});
    } else if (!tokenizer_.is_special(*id)) {
      fail({Errc::kMismatch,
            "{}: token \"{}\" ({}) is not special, want a special token, which user text can not forge",
            tokenizer_.name(), token, *id});
    } else {
      ids_.push_back(*id);
    }
    return *this;
  }

  PromptWriter& quoted(std::string_view value) { return control("<|\"|>").text(value).control("<|\"|>"); }

  void fail(Error error) {
    if (!error_) error_ = std::move(error);
  }

  /// Returns the prompt, or the first failure.
  Result<std::vector<TokenId>> finish() {
    end_text();
    if (error_) return *error_;
    return std::move(ids_);
  }

 private:
  void end_text() {
    const std::vector<TokenId> ids = tokenizer_.encode(text_, /*parse_special=*/false);
    ids_.insert(ids_.end(), ids.begin(), ids.end());
    text_.clear();
  }

  const Tokenizer& tokenizer_;
  std::vector<TokenId> ids_;
  std::string text_;
  std::optional<Error> error_;
};

/// Writes commas between the elements of a list. @param first  none before the next element
class Separator {
 public:
  explicit Separator(PromptWriter& out, bool first = true) : out_(out), first_(first) {}
  /// @return the writer for the next element
  PromptWriter& next() { return std::exchange(first_, false) ? out_ : out_.text(","); }

 private:
  PromptWriter& out_;
  bool first_;
};

/// Renders one conversation in Gemma 4's format. Names are those of the template's macros.
class ChatRenderer {
 public:
  ChatRenderer(const Tokenizer& tokenizer, const ChatFormat& format, const Conversation& conversation)
      : out_(tokenizer),
        format_(format),
        conversation_(conversation),
        messages_(conversation.messages),
        after_last_user_(static_cast<std::size_t>(
            messages_.rend() - std::find_if(messages_.rbegin(), messages_.rend(),
                                            [](const ChatMessage& m) { return m.role == Role::kUser; }))) {}

  Result<std::vector<TokenId>> render() {
    RETURN_IF_ERROR(check());
    out_.control("<bos>");
    if (has_system_message() || conversation_.thinking || !conversation_.tools.empty()) system_turn();
    for (std::size_t i = has_system_message() ? 1 : 0; i < messages_.size(); ++i) {
      if (messages_[i].role != Role::kTool) message(i);
    }
    if (conversation_.end == Conversation::End::kModelTurn) generation_prompt();
    return out_.finish();
  }

 private:
  // The template's prev_message_type. Text after a response does not change it.
  enum class Last { kMessage, kToolCall, kToolResponse };

  Result<void> check() const {
    const auto fail = [](std::size_t index, std::string_view what) {
      return Error(Errc::kInvalidArgument, "message {}: {}", index, what);
    };
    const std::string too_deep = fmt::format("JSON nests deeper than {}", kChatJsonDepthMax);
    for (const ToolDeclaration& tool : conversation_.tools) {
      if (deeper_than(tool.parameters, kChatJsonDepthMax) || deeper_than(tool.response, kChatJsonDepthMax)) {
        return Error(Errc::kInvalidArgument, "tool \"{}\": {}", tool.name, too_deep);
      }
    }
    const bool text_last =
        !messages_.empty() && messages_.back().role == Role::kAssistant && messages_.back().tool_calls.empty();
    if (conversation_.end == Conversation::End::kWithinLastMessage && !text_last)
      return fail(std::max<std::size_t>(messages_.size(), 1) - 1, "cannot be gone on with, want an assistant's text");
    bool answers_calls = false;
    for (std::size_t i = 0; i < messages_.size(); ++i) {
      const ChatMessage& message = messages_[i];
      if (message.role == Role::kTool) {
        if (!answers_calls) return fail(i, "a tool's response, want an assistant's tool call before it");
        if (deeper_than(message.response, kChatJsonDepthMax)) return fail(i, too_deep);
        continue;
      }
      answers_calls = message.role == Role::kAssistant && !message.tool_calls.empty();
      if (message.role != Role::kAssistant) continue;
      for (const ToolCall& call : message.tool_calls) {
        if (!call.arguments.is_object() && !call.arguments.is_null() && !call.arguments.is_string()) {
          return fail(i, fmt::format("the arguments of the call of \"{}\" are a JSON {}, want an object", call.name,
                                     call.arguments.type_name()));
        }
        if (deeper_than(call.arguments, kChatJsonDepthMax)) return fail(i, too_deep);
      }
    }
    return {};
  }

  bool has_system_message() const {
    return !messages_.empty() && (messages_[0].role == Role::kSystem || messages_[0].role == Role::kDeveloper);
  }

  void system_turn() {
    out_.control("<|turn>").text("system\n");
    if (conversation_.thinking) {
      out_.control("<|think|>");
      if (format_.revision != Revision::kFirst) out_.text("\n");
    }
    if (has_system_message()) {
      out_.text(trim(messages_[0].content));
      for (const ContentPart& part : messages_[0].parts) out_.text(trim(part.text)).text(" ");
    }
    for (const ToolDeclaration& tool : conversation_.tools) {
      out_.control("<|tool>");
      format_function_declaration(tool);
      out_.control("<tool|>");
    }
    end_turn();
  }

  void end_turn() { out_.control("<turn|>").text("\n"); }

  void message(std::size_t index) {
    const ChatMessage& message = messages_[index];
    const bool from_model = message.role == Role::kAssistant;
    if (!continues_turn(index)) out_.control("<|turn>").text(role_name(message)).text("\n");
    last_ = Last::kMessage;
    if (from_model && replays_thought(index)) {
      out_.control("<|channel>").text("thought\n").text(message.reasoning);
      if (format_.revision != Revision::kInterleaved) out_.text("\n");
      out_.control("<channel|>");
    }
    bool answered = false;
    if (from_model) {
      for (const ToolCall& call : message.tool_calls) {
        tool_call(call);
        last_ = Last::kToolCall;
      }
      for (std::size_t i = index + 1; i < messages_.size() && messages_[i].role == Role::kTool; ++i) {
        tool_response(messages_[i], message.tool_calls);
        last_ = Last::kToolResponse;
        answered = true;
      }
    }
    const bool has_content = content(message);
    const bool called = from_model && !message.tool_calls.empty();
    if (called && !answered && !format_.is_early()) {
      out_.control("<|tool_response>");
    } else if (ends_turn(index, answered, has_content) && !goes_on(index)) {
      end_turn();
    }
  }

  static std::string_view role_name(const ChatMessage& message) {
    switch (message.role) {
      case Role::kSystem: return "system";
      case Role::kDeveloper: return "developer";
      case Role::kUser: return "user";
      case Role::kAssistant: return "model";
      case Role::kTool: return "tool";
      case Role::kOther: break;
    }
    return message.other_role;
  }

  /// Returns the next message in this direction, 1 or -1, that is neither a tool's nor the system's; null: none.
  const ChatMessage* beside(std::size_t index, std::ptrdiff_t step) const {
    const std::ptrdiff_t first = has_system_message() ? 1 : 0;
    for (auto i = static_cast<std::ptrdiff_t>(index) + step; first <= i && i < std::ssize(messages_); i += step) {
      const ChatMessage& message = messages_[static_cast<std::size_t>(i)];
      if (message.role != Role::kTool) return &message;
    }
    return nullptr;
  }

  /// Returns true when one turn of the model continues over a round trip to a tool.
  bool continues_turn(std::size_t index) const {
    if (messages_[index].role != Role::kAssistant) return false;
    const ChatMessage* const before = beside(index, -1);
    if (before == nullptr || before->role != Role::kAssistant) return false;
    if (!format_.is_early()) return true;
    if (last_ != Last::kToolResponse) return false;
    if (!messages_[index].tool_calls.empty()) return format_.revision == Revision::kInterleaved;
    // The text beside the calls and their responses: one message in these templates.
    return before->content.empty() && before->parts.empty();
  }

  bool ends_turn(std::size_t index, bool answered, bool has_content) const {
    const bool open_for_answer = answered && !has_content;
    if (format_.revision != Revision::kRefreshed) return !open_for_answer;
    const ChatMessage& message = messages_[index];
    const ChatMessage* const after = beside(index, 1);
    const bool continued = message.role == Role::kAssistant && after != nullptr && after->role == Role::kAssistant;
    return !continued && !(open_for_answer && after == nullptr);
  }

  /// Returns true if the prompt ends within this message.
  bool goes_on(std::size_t index) const {
    return conversation_.end == Conversation::End::kWithinLastMessage && index + 1 == messages_.size();
  }

  /// Returns true if a thought is shown again; older ones only on request.
  bool replays_thought(std::size_t index) const {
    const ChatMessage& message = messages_[index];
    const bool refreshed = format_.revision == Revision::kRefreshed;
    const bool recent = index >= after_last_user_ || (refreshed && conversation_.preserve_thinking);
    if (format_.revision == Revision::kFirst) return false;
    return !message.reasoning.empty() && (refreshed || !message.tool_calls.empty()) && recent;
  }

  void tool_call(const ToolCall& call) {
    out_.control("<|tool_call>").text(fmt::format("call:{}{{", call.name));
    if (const auto* pasted = call.arguments.get_ptr<const std::string*>()) out_.text(*pasted);
    if (call.arguments.is_object()) format_members(call.arguments, /*quote_keys=*/false);
    out_.text("}").control("<tool_call|>");
  }

  void tool_response(const ChatMessage& tool, const std::vector<ToolCall>& calls) {
    std::string_view name = "unknown";
    if (!tool.name.empty()) name = tool.name;
    const bool by_id = !tool.tool_call_id.empty() || tool.name.empty();
    for (const ToolCall& call : calls) {
      if (by_id && call.id == tool.tool_call_id) name = call.name;  // the last one, as in the template
    }
    out_.control("<|tool_response>").text(fmt::format("response:{}{{", name));
    if (tool.response.is_object()) {
      format_members(tool.response, /*quote_keys=*/false);
    } else {
      out_.text("value:");
      format_argument(tool.response, /*quote_keys=*/false);
    }
    out_.text("}").control("<tool_response|>");
  }

  /// @return true if there was content, before thoughts and white space are removed (refreshed template: after)
  bool content(const ChatMessage& message) {
    bool any = false;
    if (message.parts.empty()) {
      const std::string text = shown(message, message.content);
      out_.text(text);
      any = !text.empty();
    }
    for (const ContentPart& part : message.parts) {
      if (part.kind == ContentPart::Kind::kText) {
        const std::string text = shown(message, part.text);
        out_.text(text);
        any = any || !text.empty();
      } else {
        soft_tokens(part);
        any = true;
        if (format_.revision != Revision::kRefreshed) last_ = Last::kMessage;
      }
    }
    if (format_.revision == Revision::kRefreshed) return any;
    return !message.content.empty() || !message.parts.empty();
  }

  void soft_tokens(const ContentPart& part) {
    const bool apart = part.kind != ContentPart::Kind::kAudio && format_.sets_media_apart;
    if (apart) out_.text("\n\n");
    if (part.kind == ContentPart::Kind::kVideo)
      frames(part.frame_seconds);
    else
      out_.control(part.kind == ContentPart::Kind::kImage ? "<|image|>" : "<|audio|>");
    if (apart) out_.text("\n\n");
  }

  /// Writes what Hugging Face's processor makes of the template's <|video|>, but with one token per frame (gemma4.md
  /// 8.5). A vocabulary may be older than videos; the model does not see which token it is.
  void frames(std::span<const std::int64_t> frame_seconds) {
    const char* const token = out_.has("<|video|>") ? "<|video|>" : "<|image|>";
    for (std::size_t i = 0; i < frame_seconds.size(); ++i) {
      out_.text(fmt::format("{}{:02}:{:02} ", i == 0 ? "" : " ", frame_seconds[i] / 60, frame_seconds[i] % 60))
          .control(token);
    }
  }

  void generation_prompt() {
    const bool early = format_.is_early();
    const bool in_turn = last_ == Last::kToolResponse || (last_ == Last::kToolCall && !early);
    if (!in_turn) out_.control("<|turn>").text("model\n");
    if (!conversation_.thinking && format_.primes_empty_thought && (!in_turn || early))
      out_.control("<|channel>").text("thought\n").control("<channel|>");
    if (conversation_.thinking && format_.revision == Revision::kRefreshed && last_ == Last::kToolResponse)
      out_.control("<|channel>").text("thought\n");
  }

  // ---- values and tool declarations ----

  /// `k:v,...` of an object, without its braces.
  void format_members(const Json& object, bool quote_keys) {
    Separator comma(out_);
    for (const auto& [key, value] : dictsort(object)) {
      comma.next();
      (quote_keys ? out_.quoted(key) : out_.text(key)).text(":");
      format_argument(*value, quote_keys);
    }
  }

  void format_argument(const Json& value, bool quote_keys) {
    switch (value.type()) {
      case Json::value_t::string: out_.quoted(value.get_ref<const std::string&>()); break;
      case Json::value_t::boolean: out_.text(value.get<bool>() ? "true" : "false"); break;
      case Json::value_t::null: out_.text(format_.revision == Revision::kRefreshed ? "null" : "None"); break;
      case Json::value_t::number_integer: out_.text(fmt::format("{}", value.get<std::int64_t>())); break;
      case Json::value_t::number_unsigned: out_.text(fmt::format("{}", value.get<std::uint64_t>())); break;
      case Json::value_t::number_float: out_.text(python_repr(value.get<double>())); break;
      case Json::value_t::object:
        out_.text("{");
        format_members(value, quote_keys);
        out_.text("}");
        break;
      case Json::value_t::array:
        format_list(value, [&](const Json& item) { format_argument(item, quote_keys); });
        break;
      case Json::value_t::binary: out_.text(digits_of(value)); break;
      case Json::value_t::discarded: break;  // cannot result from JSON text
    }
  }

  /// `[a,...]`
  template <typename Write>
  void format_list(const Json& items, Write write) {
    out_.text("[");
    Separator comma(out_);
    for (const Json& item : items) {
      comma.next();
      write(item);
    }
    out_.text("]");
  }

  /// fmt prints the shortest digits as Python does, but omits an integral number's ".0".
  static std::string python_repr(double value) {
    std::string text = fmt::format("{}", value);
    if (text.find_first_not_of("-0123456789") == text.npos) text += ".0";
    return text;
  }

  /// Names and descriptions in a schema must be strings; other values are written as readable JSON.
  static std::string string_of(const Json& value) {
    if (const auto* text = value.get_ptr<const std::string*>()) return *text;
    return value.is_null() ? "" : to_text(value);
  }

  /// Returns the first of several types in a schema.
  static std::string type_of(const Json& schema) {
    const Json& type = member(schema, "type");
    return upper(string_of(type.is_array() && !type.empty() ? type[0] : type));
  }

  void format_function_declaration(const ToolDeclaration& tool) {
    out_.text(fmt::format("declaration:{}{{description:", tool.name)).quoted(tool.description);
    if (is_true(tool.parameters)) {
      out_.text(",parameters:{");
      Separator comma(out_);
      if (const Json& properties = member(tool.parameters, "properties"); is_true(properties)) {
        comma.next();
        format_properties(properties, /*skip_schema_keys=*/false);
      }
      required_field(tool.parameters, comma);
      const std::string type = type_of(tool.parameters);
      comma.next().text("type:").quoted(type.empty() ? "OBJECT" : type).text("}");
    }
    if (!tool.response.is_null()) {
      out_.text(",response:{");
      if (const Json& description = member(tool.response, "description"); is_true(description))
        out_.text("description:").quoted(string_of(description)).text(",");
      if (type_of(tool.response) == "OBJECT") out_.text("type:").quoted("OBJECT");
      out_.text("}");
    }
    out_.text("}");
  }

  void format_properties(const Json& properties, bool skip_schema_keys) {
    out_.text("properties:{");
    Separator comma(out_);
    for (const auto& [key, schema] : dictsort(properties)) {
      if ((skip_schema_keys || format_.is_early()) && is_schema_key(key)) continue;
      comma.next().text(key).text(":{");
      property(*schema);
      out_.text("}");
    }
    out_.text("}");
  }

  static bool is_schema_key(std::string_view key) {
    constexpr auto kKeys =
        std::to_array<std::string_view>({"description", "type", "properties", "required", "nullable"});
    return std::ranges::find(kKeys, key) != kKeys.end();
  }

  // The fields of a property, each only if the schema has it.
  void description_field(const Json& schema, Separator& comma) {
    if (const Json& description = member(schema, "description"); is_true(description))
      comma.next().text("description:").quoted(string_of(description));
  }
  void enum_field(const Json& schema, std::string_view type, Separator& comma) {
    if (const Json& values = member(schema, "enum"); type == "STRING" && is_true(values)) {
      comma.next().text("enum:");
      format_argument(values, /*quote_keys=*/true);
    }
  }
  void nullable_field(const Json& schema, Separator& comma) {
    if (is_true(member(schema, "nullable"))) comma.next().text("nullable:true");
  }

  void required_field(const Json& schema, Separator& comma) {
    if (const Json& required = member(schema, "required"); is_true(required)) {
      comma.next().text("required:");
      format_names(required);
    }
  }
  void format_names(const Json& required) {
    format_list(required, [&](const Json& name) { out_.quoted(string_of(name)); });
  }

  /// In the older templates' order, properties with only objects or lists before the type get too many commas in front
  /// and too few behind; the model was trained that way.
  void property(const Json& schema) {
    const bool early = format_.is_early();
    Separator comma(out_), always(out_, /*first=*/false);
    Separator& nested = early ? always : comma;
    const std::string type = type_of(schema);
    description_field(schema, comma);
    if (early) nullable_field(schema, comma);
    enum_field(schema, type, comma);
    if (const Json& items = member(schema, "items"); type == "ARRAY" && items.is_object() && !items.empty()) {
      nested.next();
      format_items(items);
    }
    if (!early) nullable_field(schema, comma);
    if (type == "OBJECT") {
      // Like the template, treats a schema without `properties` as the properties themselves.
      const Json& properties = member(schema, "properties");
      nested.next();
      format_properties(properties.is_object() ? properties : schema, /*skip_schema_keys=*/!properties.is_object());
      required_field(schema, nested);
    }
    comma.next().text("type:").quoted(type);
  }

  void format_items(const Json& items) {
    out_.text("items:{");
    Separator comma(out_);
    for (const auto& [key, value] : dictsort(items)) {
      if (value->is_null()) continue;
      comma.next();
      if (key == "properties") {
        format_properties(*value, /*skip_schema_keys=*/false);
        continue;
      }
      out_.text(key).text(":");
      const auto type = [&](const Json& one) { out_.quoted(upper(string_of(one))); };
      if (key == "required")
        format_names(*value);
      else if (key == "type")
        value->is_array() ? format_list(*value, type) : type(*value);
      else
        format_argument(*value, /*quote_keys=*/true);
    }
    out_.text("}");
  }

  PromptWriter out_;
  const ChatFormat& format_;
  const Conversation& conversation_;
  const std::vector<ChatMessage>& messages_;
  const std::size_t after_last_user_;  ///< its index + 1; 0: none
  Last last_ = Last::kMessage;
};

}  // namespace

Result<std::vector<TokenId>> render_chat(const Tokenizer& tokenizer, const ChatFormat& format,
                                         const Conversation& conversation) {
  return ChatRenderer(tokenizer, format, conversation).render();
}

std::string ChatMessage::shown_text() const {
  std::string text = shown(*this, content);
  for (const ContentPart& part : parts) text += shown(*this, part.text);
  return text;
}

std::vector<TokenId> encode_with_bos(const Tokenizer& tokenizer, std::string_view text) {
  return with_bos(tokenizer, tokenizer.encode(text));
}

std::vector<TokenId> with_bos(const Tokenizer& tokenizer, std::vector<TokenId> ids) {
  const std::optional<TokenId> bos = tokenizer.find("<bos>");
  if (bos && (ids.empty() || ids.front() != *bos)) ids.insert(ids.begin(), *bos);
  return ids;
}

Result<std::vector<TokenId>> render_user_turn(const Tokenizer& tokenizer, std::string_view user_text,
                                              const ChatFormat& format) {
  Conversation conversation;
  conversation.messages.emplace_back().content = user_text;
  return render_chat(tokenizer, format, conversation);
}

}  // namespace outrider
