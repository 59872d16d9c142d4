// Bodies of HTTP requests: the first byte says of which API.
#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include <nlohmann/json.hpp>

#include "batch/batch_line.h"
#include "common/base/check.h"
#include "common/http/url.h"
#include "server/content_parts.h"
#include "server/dialect.h"
#include "server/form.h"
#include "server/http_server.h"
#include "server/openai.h"
#include "tests/fuzz/driver.h"

namespace {
using namespace outrider;

const ApiDefaults& defaults() {
  static const ApiDefaults defaults{.model = "m", .vocab_size = 512, .sampling = {}, .controls = {}};
  return defaults;
}

/// A reader says what it wants, or gives what the next one can use.
template <typename T>
void check_error(const ApiResult<T>& result) {
  if (result) return;
  const ApiError& error = result.error();
  CHECK(error.status >= 400 && error.status < 600, "{}", error.status);
  (void)error_body(error);
}

void check_request(const ApiResult<CompletionRequest>& good) {
  check_error(good);
  if (good) {
    CHECK(good->n >= 1 && good->n <= kChoicesMax, "n is {}", good->n);
    CHECK(check_sampling(good->sampling, defaults().vocab_size), "sampling that nobody can follow");
    std::size_t places = 0;
    for (const ChatMessage& message : good->conversation.messages)
      places += static_cast<std::size_t>(std::ranges::count_if(
          message.parts, [](const ContentPart& part) { return part.kind != ContentPart::Kind::kText; }));
    CHECK(places == good->media.size() && places <= kMediaMax, "{} places for {} pictures and sounds", places,
          good->media.size());
  }
}

void chat(std::string_view body) { check_request(parse_chat_completion(body, defaults())); }

/// A URL, which is a file of three bytes for each four characters, or where one is; and how much of a body is files.
void data_url(std::string_view url) {
  if (const auto bytes = bytes_of_data_url(url))
    CHECK(bytes->size() <= url.size() / 4 * 3, "{} bytes of {} characters", bytes->size(), url.size());
  CHECK(file_characters(url) <= url.size(), "of {} characters", url.size());
  // What is said of one that is fetched is the same one.
  if (const auto read = parse_http_url(url)) {
    const auto again = parse_http_url((read->tls ? "https://" : "http://") + read->server() + read->target);
    CHECK(again && again->host == read->host && again->port == read->port && again->target == read->target, "{}",
          read->server());
  }
}

void responses(std::string_view body) {
  if (json_nesting(body) > kJsonDepthMax) return;
  const nlohmann::json json = nlohmann::json::parse(body, nullptr, false);
  if (json.is_discarded() || !json.is_object()) return;
  check_request(parse_responses({.json = json, .text = body, .before = {}}, defaults()));
}

void batch(std::string_view line) {
  if (const auto request = parse_batch_line(line)) {
    (void)id_of(request->custom_id);
    (void)prefix_key(*request);
    chat(body_to_send(*request));
    (void)settle_reply(*request, std::string(line));
    (void)error_line(error_of(*request, {.status = 400, .body = std::string(line)}), 1);
  } else {
    (void)error_line(request.error(), 1);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0]) {
    case 'c': chat(body); break;
    case 't': check_error(parse_completion(body, defaults())); break;
    case 'r': responses(body); break;
    case 'm': check_request(parse_messages(body, defaults())); break;
    case 'b': batch(body); break;
    case 'u': data_url(body); break;
    case 'k': check_error(parse_tokenize(body, defaults())); break;
    case 'd': check_error(parse_detokenize(body, defaults())); break;
    default: (void)parse_form(body);
  }
  return 0;
}
