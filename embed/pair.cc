#include "embed/pair.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/compute/kernels/isa.h"
#include "common/decoding/drafting/policies.h"
#include "common/os/logging.h"
#include "server/openai.h"

namespace outrider {
namespace {

Result<TextSide> load_text(const std::filesystem::path& backbone) {
  ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::open(backbone));
  ASSIGN_OR_RETURN(TextSide text, TextSide::load(files));
  if (text.context_max == 0) return Error(Errc::kNotFound, "{}: has no config.json", backbone.string());
  if (!text.chat_format.warning.empty()) {
    log_warn("event=chat_format_guessed note=\"{}\"", text.chat_format.warning);
  }
  return text;
}

/// @param otherwise  if neither the status nor the code tells more
Error error_of(const ApiError& error, Errc otherwise) {
  return {error.code == "context_length_exceeded"      ? Errc::kOutOfRange
          : error.status == 429 || error.status == 503 ? Errc::kUnavailable
          : error.status >= 400 && error.status < 500  ? Errc::kInvalidArgument
                                                       : otherwise,
          error.message};
}

}  // namespace

void Pair::serve(TextSide text, const std::string& address, Duration failover_wait) {
  address_ = address;
  api_.emplace(context_, std::move(text),
               ApiOptions{.coordinator = address,
                          .version = OUTRIDER_VERSION,
                          .model = "outrider",
                          .draft_length = parse_draft_length("auto").value(),
                          .failover_wait = failover_wait,
                          .own = cluster_ != nullptr});
  routes_ = api_->routes();
}

Result<std::shared_ptr<Pair>> Pair::open_local(ClusterOptions options) {
  active_isa();  // reports a bad OUTRIDER_ISA or OUTRIDER_GEMM here, not on another thread
  active_gemm();
  ASSIGN_OR_RETURN(TextSide text, load_text(options.pair.backbone));
  const std::shared_ptr<Pair> pair(new Pair);
  options.drafters = options.pair.assistant.empty() && options.drafter.draft_model.empty() ? 0 : 1;
  ASSIGN_OR_RETURN(ClusterClient started, connect_or_start(pair->context_, /*connect=*/"", options));
  pair->cluster_ = std::move(started.cluster);
  pair->serve(std::move(text), pair->cluster_->address(), Duration::zero());
  return pair;
}

Result<std::shared_ptr<Pair>> Pair::open_remote(const std::string& address, const std::filesystem::path& backbone) {
  ASSIGN_OR_RETURN(TextSide text, load_text(backbone));
  const std::shared_ptr<Pair> pair(new Pair);
  pair->serve(std::move(text), address, ClientConfig().failover_wait);
  ASSIGN_OR_RETURN(Client client, pair->connect());
  RETURN_IF_ERROR(client.wait_for_workers(0, 0, [] { return Result<void>(); }));
  return pair;
}

Result<void> Pair::post(const std::string& path, std::string body,
                        const std::function<bool(std::string_view json)>& on_reply, std::atomic<bool>& stopped) {
  const auto route = std::ranges::find_if(
      routes_, [&](const HttpRoute& known) { return known.method == "POST" && known.path == path; });
  if (route == routes_.end())
    return Error(Errc::kNotFound, "no endpoint '{}', wanted one like /v1/chat/completions", path);
  const HttpReply reply = route->handler(
      {.method = "POST", .path = path, .body = std::move(body), .client = "", .key = nullptr, .gone = [&stopped] {
         return stopped.load();
       }});
  if (reply.error) return stopped ? Result<void>() : error_of(*reply.error, Errc::kIo);
  if (!reply.next) {
    on_reply(reply.body);
    return {};
  }
  Result<void> result;
  while (const std::optional<std::string> events = reply.next()) {
    each_event(*events, [&](std::string_view json) {
      if (stopped || json == "[DONE]") return;
      if (!json.starts_with(R"({"error":)")) {
        if (!on_reply(json)) stopped = true;  // never false again: another thread may have set it meanwhile
        return;
      }
      const nlohmann::json error = nlohmann::json::parse(json).at("error"), code = error.at("code");
      result = error_of({.status = 0,
                         .message = error.at("message"),
                         .code = code.is_string() ? code.get<std::string>() : ""},
                        Errc::kPeerGone);
    });
  }
  return result;
}

Result<ApiServer::RenderedPrompt> Pair::prompt_of(std::string_view body) const {
  ApiResult<ApiServer::RenderedPrompt> prompt = api_->prompt_of(HttpRequest(), parse_tokenize(body, api_->defaults()));
  if (!prompt) return error_of(prompt.error(), Errc::kIo);
  return *std::move(prompt);
}

Result<Client> Pair::connect() { return Client::connect(context_, address_, {.own = cluster_ != nullptr}); }

}  // namespace outrider
