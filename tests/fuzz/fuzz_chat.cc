// Random answers through the streaming parser, and random JSON through the renderer and back.
//
// The first byte chooses; the rest are ids (two bytes each), text with control tokens, or JSON.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/check.h"
#include "common/model/tokenizer/chat.h"
#include "common/model/tokenizer/chat_parser.h"
#include "tests/fuzz/driver.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

constexpr const char* kControls[] = {
    "<bos>",   "<eos>",   "<|turn>",      "<turn|>",      "<|channel>",       "<channel|>",       "<|think|>",
    "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", "<|\"|>"};

/// Bytes and control tokens, and a few merges: small, so that random ids often mean something.
Tokenizer make_tokenizer() {
  Json vocab = Json::object(), added = Json::array();
  const auto add = [&](const std::string& token) { vocab.emplace(token, vocab.size()); };
  for (const char* control : kControls) {
    added.push_back({{"id", vocab.size()}, {"content", control}, {"special", true}});
    add(control);
  }
  for (unsigned byte = 0; byte < 256; ++byte) add(fmt::format("<0x{:02X}>", byte));
  for (char c = '!'; c <= '~'; ++c) add(std::string(1, c));
  for (const char* token : {"\n", "ca", "ll", "call", "call:", "tho", "ught", "thought", "thought\n"}) add(token);
  const Json merges = Json::array({{"c", "a"}, {"l", "l"}, {"ca", "ll"}, {"call", ":"}, {"thought", "\n"}});
  const Json root = {
      {"added_tokens", added},
      {"decoder", {{"type", "Sequence"}, {"decoders", {{{"type", "ByteFallback"}}, {{"type", "Fuse"}}}}}},
      {"model", {{"type", "BPE"}, {"byte_fallback", true}, {"vocab", vocab}, {"merges", merges}}}};
  return Tokenizer::parse(root.dump(), "fuzz.json").value();
}

const Tokenizer& tokenizer() {
  static const Tokenizer instance = make_tokenizer();
  return instance;
}

/// Whatever the ids are, arguments are a JSON object.
ChatMessage parse(std::span<const TokenId> ids, std::span<const TokenId> prompt) {
  ChatParser parser(tokenizer(), prompt);
  ChatMessage message;
  const auto take = [&](const std::vector<ChatEvent>& events) {
    for (const ChatEvent& event : events) {
      append(event, message);
      if (event.kind == ChatEvent::Kind::kToolCall)
        CHECK(message.tool_calls.back().arguments.is_object(), "'{}'", event.text);
    }
  };
  for (const TokenId id : ids) take(parser.push(id));
  std::vector<ChatEvent> rest;
  const ChatFinish finish = parser.finish(false, rest);
  take(rest);
  CHECK((finish == ChatFinish::kToolCalls) == !message.tool_calls.empty());
  CHECK(parser.broken_calls() == 0 || !message.content.empty());
  return message;
}

/// Bare keys lose white space and quotes at their ends, and what ends a key.
bool keys_survive(const Json& value) {
  if (!value.is_structured()) return true;
  for (const auto& [key, child] : value.items()) {
    if (value.is_object() && (key.empty() || key.find_first_of(" \t\r\n:=,{}[]\"'") != key.npos)) return false;
    if (!keys_survive(child)) return false;
  }
  return true;
}

/// Numbers print as Python prints them, which may be another type of number.
void render(const Json& json, ChatFormat::Revision revision) {
  const ChatFormat format{.revision = revision, .primes_empty_thought = true, .warning = {}};
  Conversation conversation;
  conversation.tools = {{"f", "d", json, json}};
  conversation.messages.emplace_back().content = "u";
  ChatMessage& call = conversation.messages.emplace_back();
  call.role = ChatMessage::Role::kAssistant;
  call.tool_calls = {{"1", "f", json}};
  ChatMessage& response = conversation.messages.emplace_back();
  response.role = ChatMessage::Role::kTool;
  response.tool_call_id = "1";
  response.response = json;
  (void)render_chat(tokenizer(), format, conversation);

  conversation.tools.clear();
  conversation.messages.pop_back();
  const Result<std::vector<TokenId>> ids = render_chat(tokenizer(), format, conversation);
  if (!ids || !json.is_object() || !keys_survive(json)) return;
  const ChatMessage parsed = parse(*ids, {});
  CHECK(parsed.tool_calls.size() == 1, "{} calls", parsed.tool_calls.size());
  CHECK(parsed.tool_calls[0].arguments == json, "{} and {}", parsed.tool_calls[0].arguments.dump(), json.dump());
}

}  // namespace
}  // namespace outrider

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace outrider;
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0: {
      std::vector<TokenId> ids;
      for (std::size_t i = 0; i + 1 < rest.size(); i += 2) {
        ids.push_back((static_cast<unsigned char>(rest[i]) << 8 | static_cast<unsigned char>(rest[i + 1])) % 400);
      }
      parse(ids, std::span(ids).first(ids.size() / 4));
      break;
    }
    case 1: {
      const std::vector<TokenId> ids = tokenizer().encode(rest);
      parse(ids, {});
      break;
    }
    default: {
      const Json json = Json::parse(rest, nullptr, /*allow_exceptions=*/false);
      if (!json.is_discarded()) render(json, static_cast<ChatFormat::Revision>(data[0] / 4 % 4));
    }
  }
  return 0;
}
