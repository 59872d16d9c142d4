// outrider serve, as clients see it: through raw sockets, so that nothing is too broken to be sent.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <deque>
#include <future>
#include <map>
#include <mutex>
#include <numeric>
#include <regex>
#include <sstream>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "server/api_key.h"
#include "server/api_server.h"
#include "server/dialect.h"
#include "server/http_server.h"
#include "tests/support/cluster_fixtures.h"
#include "tests/support/free_port.h"
#include "tests/support/http_client.h"
#include "tests/support/model_at.h"

namespace outrider {
namespace {
/// What a choice's deltas join to: content (or text) and finish_reason.
std::pair<std::string, std::string> joined(const std::vector<Json>& events, std::size_t index = 0) {
  std::pair<std::string, std::string> answer;
  for (const Json& event : events) {
    for (const Json& choice : event.at("choices")) {
      if (choice.at("index") != index) continue;
      answer.first +=
          choice.contains("text") ? choice["text"].get<std::string>() : choice["delta"].value("content", "");
      if (!choice["finish_reason"].is_null()) answer.second = choice["finish_reason"];
    }
  }
  return answer;
}

Json ask(const std::string& question, std::int64_t max_tokens) {
  return {{"messages", {{{"role", "user"}, {"content", question}}}}, {"temperature", 0}, {"max_tokens", max_tokens}};
}

/// A request whose answer takes far longer than any test.
Json endless() {
  return {{"prompt", endless_story().prompt_ids}, {"temperature", 0}, {"max_tokens", 7000}, {"ignore_eos", true}};
}

const std::vector<std::string> kQuestions = {"Write a short story about a fox.", "Write a short story about a cake.",
                                             "Count from one to ten."};

TEST(Serve, EveryEndpointAnswers) {
  Serve serve;
  EXPECT_EQ(get(serve.port, "/health").status, 200);
  EXPECT_EQ(json_of(get(serve.port, "/ready"))["status"], "ready");
  EXPECT_TRUE(json_of(get(serve.port, "/version"))["version"].is_string());
  EXPECT_EQ(json_of(get(serve.port, "/v1/models"))["data"][0]["id"], "nano");
  EXPECT_EQ(json_of(get(serve.port, "/v1/models/nano?x=1"))["max_model_len"], 8192);
  const Json tokens = json_of(post(serve.port, "/tokenize", R"({"prompt": "Once upon a time"})"));
  EXPECT_EQ(tokens["count"], tokens["tokens"].size());
  EXPECT_EQ(tokens["tokens"][0], 2) << "<bos>";
  const Json text = json_of(post(serve.port, "/detokenize", Json({{"tokens", tokens["tokens"]}}).dump()));
  EXPECT_EQ(text["prompt"], "<bos>Once upon a time");
  EXPECT_EQ(text["content"], text["prompt"]) << "llama.cpp's name for it";
  const Json of_vllm = {{"model", "nano"}, {"tokens", tokens["tokens"]}};
  EXPECT_EQ(json_of(post(serve.port, "/detokenize", of_vllm.dump())), Json({{"prompt", text["prompt"]}}));
  const Json completion =
      json_of(post(serve.port, "/v1/completions", R"({"prompt": "Once upon a", "temperature": 0, "max_tokens": 3})"));
  EXPECT_EQ(completion["object"], "text_completion");
  EXPECT_EQ(completion["usage"]["completion_tokens"], 3);
  EXPECT_EQ(completion["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(get(serve.port, "/ping").status, 200);
  EXPECT_EQ(json_of(get(serve.port, "/load"))["server_load"], 0);
  EXPECT_EQ(json_of(get(serve.port, "/tokenizer_info"))["bos_token"], "<bos>");
  EXPECT_EQ(json_of(post(serve.port, "/invocations", ask("Hi", 2).dump()))["object"], "chat.completion");
  EXPECT_EQ(json_of(post(serve.port, "/invocations", R"({"prompt": "Hi"})"))["object"], "text_completion");
  EXPECT_EQ(post(serve.port, "/invocations", std::string(100'000, '[')).status, 400);
  serve.program.send(SIGTERM);
  EXPECT_EQ(describe(serve.program.wait()), "exit 0");
  EXPECT_EQ(serve.program.err(), "");
}

// Of a length that nobody chooses by the clock, the drafts are the same ones too.
TEST(Serve, StreamedOrNotTheAnswerIsThatOfRun) {
  Serve serve({"--draft-length", "4@0"});
  for (const std::string& question : kQuestions) {
    Program run({"run", question, "--dtype", "f32", "--max-tokens", "60", "--json", "--draft-length", "4@0"});
    EXPECT_EQ(describe(run.wait()), "exit 0");
    const Json expected = Json::parse(run.out());
    Json request = ask(question, 60);
    const Json whole = serve.chat(request);
    EXPECT_EQ(whole["choices"][0]["message"]["content"], expected["text"]) << question;
    EXPECT_EQ(whole["choices"][0]["finish_reason"], expected["finish_reason"]);
    EXPECT_EQ(whole["usage"]["completion_tokens"], expected["token_ids"].size());
    EXPECT_EQ(whole["usage"]["prompt_tokens"], expected["prompt_ids"].size());
    EXPECT_EQ(whole["speculative"]["drafted_tokens"], expected["metrics"]["drafted_tokens"]);
    request["stream_options"] = {{"include_usage", true}};
    const std::vector<Json> events = serve.stream(request);
    EXPECT_EQ(joined(events),
              std::pair(expected["text"].get<std::string>(), expected["finish_reason"].get<std::string>()));
    EXPECT_EQ(events.front()["choices"][0]["delta"]["role"], "assistant");
    EXPECT_EQ(events.back()["usage"], whole["usage"]);
    EXPECT_EQ(events.back()["speculative"]["rounds"], whole["speculative"]["rounds"]);
    Json plain = ask(question, 60);
    plain["speculative"] = {{"enabled", false}};
    const Json undrafted = serve.chat(plain);
    EXPECT_EQ(undrafted["choices"][0]["message"]["content"], expected["text"]);
    EXPECT_EQ(undrafted["speculative"]["drafted_tokens"], 0);
  }
}

/// What /metrics says: values by name with labels, without the prefix and the model's name.
std::map<std::string, double> metrics_of(int port) {
  const Response response = get(port, "/metrics");
  EXPECT_EQ(response.status, 200);
  EXPECT_NE(response.head.find("Content-Type: text/plain; version=0.0.4"), response.head.npos) << response.head;
  std::map<std::string, double> values;
  std::istringstream lines(response.body);
  for (std::string line; std::getline(lines, line);) {
    const std::string prefix = "outrider:";
    for (const char* model : {"{model_name=\"nano\"}", "model_name=\"nano\","}) {
      if (const std::size_t at = line.find(model); at != line.npos) line.erase(at, std::strlen(model));
    }
    const std::size_t space = line.rfind(' ');
    if (line.starts_with(prefix))
      values[line.substr(prefix.size(), space - prefix.size())] = std::stod(line.substr(space));
  }
  return values;
}

TEST(Serve, MetricsMoveByWhatOneRequestDid) {
  Serve serve;
  for (const bool streamed : {false, true}) {
    std::map<std::string, double> before;
    Json request = ask(kQuestions[0], 30), reply;
    request["stream_options"] = streamed ? Json{{"include_usage", true}} : Json();
    EXPECT_TRUE(eventually([&] {  // on a busy machine all drafts of an answer may be late
      before = metrics_of(serve.port);
      reply = streamed ? serve.stream(request).back() : serve.chat(request);
      return reply["speculative"]["accepted_tokens"] > 0;
    }));
    const Json &usage = reply["usage"], &speculative = reply["speculative"];
    std::map<std::string, double> after;
    // A reply is counted once it is out, when its client may have asked already: so are those to /metrics.
    EXPECT_TRUE(eventually([&] {
      return (after = metrics_of(serve.port))["http_responses_total{code=\"200\"}"] >=
             before["http_responses_total{code=\"200\"}"] + 2;
    }));
    const auto moved = [&](const std::string& name) {
      EXPECT_TRUE(after.contains(name)) << name;
      return after[name] - before[name];
    };
    EXPECT_EQ(moved("prompt_tokens_total"), usage["prompt_tokens"]);
    EXPECT_EQ(moved("generation_tokens_total"), 30);
    EXPECT_EQ(moved("request_success_total{finished_reason=\"length\"}"), 1);
    EXPECT_EQ(moved("request_success_total{finished_reason=\"stop\"}"), 0);
    EXPECT_EQ(moved("time_to_first_token_seconds_count"), 1);
    EXPECT_EQ(moved("inter_token_latency_seconds_count"), speculative["rounds"]);
    EXPECT_EQ(moved("e2e_request_latency_seconds_count"), 1);
    EXPECT_EQ(moved("rounds_total"), speculative["rounds"]);
    EXPECT_EQ(moved("spec_decode_num_draft_tokens_total"), speculative["drafted_tokens"]);
    EXPECT_EQ(moved("spec_decode_num_accepted_tokens_total"), speculative["accepted_tokens"]);
    const Json& acceptance = reply["metrics"]["speculative_decoding"];
    EXPECT_EQ(moved("spec_decode_num_drafts_total"), acceptance["num_spec_steps"]);
    const std::vector<std::int64_t> histogram = acceptance["acceptance_histogram"];
    EXPECT_EQ(std::accumulate(histogram.begin(), histogram.end(), std::int64_t{0}), acceptance["num_spec_steps"]);
    EXPECT_EQ(acceptance["num_accepted_draft_tokens"], speculative["accepted_tokens"]);
    EXPECT_GT(reply["metrics"]["tokens_per_second"], 0);
    for (std::size_t i = 0; i < speculative["accepted_per_position"].size(); ++i) {
      EXPECT_EQ(moved(fmt::format("spec_decode_num_accepted_tokens_per_pos_total{{position=\"{}\"}}", i)),
                speculative["accepted_per_position"][i]);
    }
    EXPECT_NEAR(moved("target_verify_seconds_total"), speculative["verify_ms"].get<double>() / 1e3, 1e-9);
    EXPECT_EQ(moved("prefix_cache_queries_total"), usage["prompt_tokens"]);
    EXPECT_EQ(moved("decode_tokens_total{mode=\"speculative\"}"), 29);
    EXPECT_EQ(moved("decode_tokens_total{mode=\"backbone_only\"}"), 0);
    EXPECT_GT(after["speculative_tok_per_sec"], 0);
    EXPECT_EQ(after["workers{role=\"verifier\"}"], 1);
    EXPECT_EQ(after["coordinator_up"], 1);
    EXPECT_GT(after["worker_kv_bytes_max{role=\"verifier\",worker=\"" +
                    json_of(get(serve.port, "/v1/outrider/status"))["workers"][1]["name"].get<std::string>() + "\"}"],
              0);
  }
  std::string long_question;
  for (int i = 0; i < 40; ++i) long_question += kQuestions[0];
  for (const bool again : {false, true}) {
    auto before = metrics_of(serve.port);
    serve.chat(ask(long_question, 2));
    auto after = metrics_of(serve.port);
    EXPECT_EQ(after["prefix_cache_hits_total"] > before["prefix_cache_hits_total"], again);
    EXPECT_LT(after["prefix_cache_hits_total"], after["prefix_cache_queries_total"]);
  }
  auto before = metrics_of(serve.port);
  EXPECT_EQ(post(serve.port, "/v1/chat/completions", "{}").status, 400);
  EXPECT_EQ(get(serve.port, "/nothing").status, 404);
  EXPECT_TRUE(eventually([&] {
    auto after = metrics_of(serve.port);
    return after["http_responses_total{code=\"400\"}"] == 1 && after["http_responses_total{code=\"404\"}"] == 1;
  }));
  EXPECT_EQ(metrics_of(serve.port)["prompt_tokens_total"], before["prompt_tokens_total"]);
}

TEST(Serve, AStreamTellsOfItsRoundsIfAsked) {
  Serve serve;
  Json request = ask(kQuestions[0], 30);
  for (const Json& event : serve.stream(request)) EXPECT_FALSE(event.contains("outrider_round"));
  request.update(
      {{"n", 2}, {"temperature", 1}, {"seed", 3}, {"speculative", {{"draft_length", 3}, {"report_rounds", true}}}});
  const std::vector<Json> events = serve.stream(request);
  std::int64_t rounds = 0, drafted = 0, accepted = 0;
  for (std::size_t choice = 0; choice < 2; ++choice) {
    std::string said;
    for (const Json& event : events) {
      if (!event.contains("outrider_round") || event["choices"][0]["index"] != choice) continue;
      const Json& round = event["outrider_round"];
      EXPECT_EQ(event["choices"][0]["delta"], Json::object());
      for (const Json& token : round["tokens"]) said += token;
      if (round["source"].is_null()) {
        EXPECT_EQ(round["tokens"].size(), 1u) << "the token after the prompt";
        continue;
      }
      EXPECT_EQ(round["source"], "assistant");
      EXPECT_LE(round["drafts"].size(), 3u);
      EXPECT_GT(round["verify_ms"], 0);
      EXPECT_GE(round["round_ms"], round["verify_ms"]);
      for (std::size_t i = 0; i < std::min(round["accepted"].get<std::size_t>(), round["tokens"].size()); ++i)
        EXPECT_EQ(round["drafts"][i], round["tokens"][i]);
      ++rounds;
      drafted += static_cast<std::int64_t>(round["drafts"].size());
      accepted += round["accepted"].get<std::int64_t>();
    }
    EXPECT_EQ(said, joined(events, choice).first);
  }
  EXPECT_EQ(rounds, events.back()["speculative"]["rounds"]);
  EXPECT_EQ(drafted, events.back()["speculative"]["drafted_tokens"]);
  EXPECT_EQ(accepted, events.back()["speculative"]["accepted_tokens"]);
}

TEST(Serve, TheStatusListsTheWorkers) {
  Serve serve;
  const Json status = json_of(get(serve.port, "/v1/outrider/status"));
  EXPECT_EQ(status["model"], "nano");
  EXPECT_EQ(status["sessions"], 0);
  EXPECT_EQ(status["waiting"], 0);
  ASSERT_EQ(status["workers"].size(), 2u);
  EXPECT_EQ(status["workers"][0]["role"], "drafter");
  char host[256] = {};
  gethostname(host, sizeof host);
  EXPECT_EQ(status["workers"][0]["name"], fmt::format("drafter-{}-{}", host, serve.program.pid()));
  EXPECT_FALSE(status["workers"][0].contains("kv_bytes"));
  EXPECT_EQ(status["workers"][1]["role"], "verifier");
  EXPECT_EQ(status["workers"][1]["draining"], false);
  EXPECT_FALSE(status["workers"][1].contains("shards")) << "it is whole";
  EXPECT_GT(status["workers"][1]["kv_bytes_max"], 0);
  EXPECT_TRUE(
      eventually([&] { return json_of(get(serve.port, "/v1/outrider/status"))["workers"][1]["rtt_ms"].is_number(); }));
}

TEST(Serve, TheStatusSaysHowManyShardsAVerifierHas) {
  Coordinator coordinator;
  Program verifier({"verifier", "--join", coordinator.address, "--threads", "2", "--shards", "2"});
  Serve serve({"--connect", coordinator.address}, /*wait_until_ready=*/false);
  ASSERT_TRUE(eventually([&] { return serve.workers() == 1; })) << verifier.err();
  const Json worker = json_of(get(serve.port, "/v1/outrider/status"))["workers"][0];
  EXPECT_EQ(worker["shards"], 2) << worker;
  EXPECT_EQ(worker["shards_over"], "memory");
}

/// The processes of a `serve --processes` by their role, from the names that they gave themselves.
pid_t pid_of(Serve& serve, const std::string& role) {
  const Json status = json_of(get(serve.port, "/v1/outrider/status"));
  for (const Json& worker : status["workers"]) {
    const std::string name = worker["name"];
    if (worker["role"] == role) return std::stoi(name.substr(name.rfind('-') + 1));
  }
  ADD_FAILURE() << "no " << role;
  return 0;
}

TEST(Serve, ADeadDrafterCostsSpeedOnlyAndADeadVerifierEndsIt) {
  Serve serve({"--processes"});
  const Json request = {
      {"prompt", endless_story().prompt_ids}, {"temperature", 0}, {"max_tokens", 300}, {"ignore_eos", true}};
  const auto text = [&] {
    return json_of(post(serve.port, "/v1/completions", request.dump()))["choices"][0]["text"].get<std::string>();
  };
  const std::string undisturbed = text();
  const pid_t drafter = pid_of(serve, "drafter"), verifier = pid_of(serve, "verifier");
  ASSERT_TRUE(drafter > 0 && verifier > 0);

  Connection reader(serve.port);
  Json streamed = request;
  streamed["stream"] = true;
  reader.send("POST", "/v1/completions", streamed.dump());
  ASSERT_TRUE(reader.wait_for("\"text\""));
  kill(drafter, SIGKILL);
  EXPECT_EQ(joined(events_of(reader.response())).first, undisturbed);
  ASSERT_TRUE(eventually([&] {
    return !lines_with(serve.program.err(), {"outrider: continuing without a drafter", "killed by signal 9"}).empty() ||
           !serve.program.running();
  }));
  ASSERT_TRUE(eventually([&] { return serve.workers() == 1 || !serve.program.running(); }));
  EXPECT_EQ(text(), undisturbed);
  EXPECT_EQ(lines_with(serve.program.err(), {"outrider: "}).size(), 1u) << serve.program.err();

  kill(verifier, SIGKILL);
  EXPECT_EQ(describe(serve.program.wait()), "exit 1");
  EXPECT_EQ(lines_with(serve.program.err(), {"outrider: the verifier process was killed by signal 9"}).size(), 1u)
      << serve.program.err();
}

TEST(Serve, IsReadyWithoutADrafterThatNobodyAskedForAndThatCannotStart) {
  Program serve({"serve", "--port", "0", "--dtype", "bf16", "--draft-length", "0", "--assistant",
                 source_dir() / "models/nano/backbone"});
  ASSERT_TRUE(eventually([&] { return serve.out().find("\nready in ") != std::string::npos || !serve.running(); }));
  EXPECT_EQ(lines_with(serve.err(), {"outrider: continuing without a drafter"}).size(), 1u) << serve.err();
}

TEST(Serve, ARequestMayWantDraftsWhereTheServerDoesNot) {
  Serve serve({"--draft-length", "0"});
  Json request = ask("Write a short story about a fox.", 60);
  const Json plain = serve.chat(request);
  EXPECT_EQ(plain["speculative"]["drafted_tokens"], 0);
  request["speculative"] = {{"draft_length", 4}};
  const Json drafted = serve.chat(request);
  EXPECT_GT(drafted["speculative"]["drafted_tokens"], 0);
  EXPECT_EQ(drafted["choices"][0]["message"], plain["choices"][0]["message"]);
}

TEST(Serve, ListensAtAnIPv6AddressWithBracketsAndWithout) {
  for (const char* host : {"::1", "[::1]"}) {
    Program serve({"serve", "--host", host, "--port", "0", "--draft-length", "0"});
    ASSERT_TRUE(eventually([&] { return !serve.out().empty() || !serve.running(); }));
    if (serve.err().find("Cannot assign requested address") != std::string::npos) GTEST_SKIP() << "no IPv6 here";
    EXPECT_TRUE(serve.out().starts_with("listening at http://[::1]:")) << host << ": " << serve.out() << serve.err();
  }
}

TEST(Serve, SaysWhoAnswersWhereThePageIsAndWhetherAKeyIsWanted) {
  for (const bool keyed : {false, true}) {
    std::vector<std::string> arguments = {"serve", "--port", "0", "--draft-length", "4"};
    if (keyed) arguments.insert(arguments.end(), {"--api-key", "secret"});
    Program serve(arguments);
    ASSERT_TRUE(eventually([&] { return serve.out().find("\nkey: ") != std::string::npos || !serve.running(); }));
    for (const char* part : {"\nmodel: nano (a demo model), ", ", drafts: 4\n", "\npage: http://127.0.0.1:"})
      EXPECT_NE(serve.out().find(part), std::string::npos) << part << " is not in " << serve.out();
    EXPECT_NE(serve.out().find(keyed ? "key: wanted\n" : "key: none\n"), std::string::npos) << serve.out();
  }
}

TEST(Serve, BeyondThisMachineStartsWithAKeyOrInsecure) {
  TemporaryDir dir;
  const std::string keys = dir.write("keys", "alice sha256:" + std::string(64, 'a') + "\n");
  const auto start = [](const std::vector<std::string>& options) {
    std::vector<std::string> arguments = {"serve", "--port", "0", "--draft-length", "0"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    return std::make_unique<Program>(arguments);
  };
  for (const char* host : {"0.0.0.0", "::", "[::]", "0", "server.example"}) {
    const auto serve = start({"--host", host});
    EXPECT_EQ(describe(serve->wait()), "exit 1") << host;
    EXPECT_EQ(serve->out(), "");
    EXPECT_EQ(std::ranges::count(serve->err(), '\n'), 1) << serve->err();
    for (const char* way : {"--api-key KEY", "--api-keys FILE", "--insecure"})
      EXPECT_NE(serve->err().find(way), std::string::npos) << serve->err();
  }
  using Options = std::vector<std::string>;
  for (const auto& [options, open] : {std::pair(Options{"--host", "0.0.0.0", "--insecure"}, true),
                                      {{"--host", "0.0.0.0", "--api-key", "secret"}, false},
                                      {{"--host", "0.0.0.0", "--api-keys", keys}, false},
                                      {{"--host", "localhost"}, false}}) {
    const auto serve = start(options);
    ASSERT_TRUE(eventually([&] { return serve->out().find("listening") != std::string::npos || !serve->running(); }));
    EXPECT_TRUE(serve->running()) << serve->err();
    EXPECT_EQ(serve->err().find("event=insecure address=0.0.0.0:0 ") != std::string::npos, open) << serve->err();
  }
}

TEST(Serve, AnOptionThatNothingMatchesOrThatIsEmptyIsRefused) {
  for (const auto& [option, value] : {std::pair("--allowed-origin", "https://chat.example/"),
                                      {"--allowed-origin", "https://a.example,https://b.example:443"},
                                      {"--allowed-host", "llm.example:8000"},
                                      {"--api-key", ""}}) {
    Program serve({"serve", "--port", "0", option, value});
    EXPECT_EQ(describe(serve.wait()), "exit 2") << option;
    EXPECT_EQ(serve.out(), "");
    EXPECT_NE(serve.err().find(option), std::string::npos) << serve.err();
  }
}

TEST(Serve, PlainDecodingNeedsNoAssistant) {
  const auto starts = [](const std::vector<std::string>& options) {
    Serve serve(options, /*wait_until_ready=*/false);
    EXPECT_TRUE(eventually([&] { return serve.workers() == 1 || !serve.program.running(); }));
    EXPECT_EQ(serve.chat(ask("Hi", 3))["usage"]["completion_tokens"], 3);
    EXPECT_EQ(serve.program.err(), "");
  };
  starts({"--backbone", nano_pair().backbone, "--draft-length", "0"});  // nano's assistant is not this backbone's
  starts({"--assistant", "/nowhere", "--draft-length", "0"});
}

TEST(Serve, ADrafterThatCannotStartEndsIt) {
  PairCopy pair(source_dir() / "models/nano");
  pair.write("assistant/config.json", "{}");
  for (const bool processes : {false, true}) {
    std::vector<std::string> arguments = {"serve", "--port", "0", "--model", pair.dir()};
    if (processes) arguments.push_back("--processes");
    Program serve(arguments);
    EXPECT_EQ(describe(serve.wait()), "exit 1");
    EXPECT_FALSE(lines_with(serve.err(), {"outrider: ", processes ? "the drafter process ended with status 1"
                                                                  : "assistant/config.json"})
                     .empty())
        << serve.err();
  }
}

TEST(Serve, ThePageRunsOnlyItsOwnScript) {
  Serve serve({"--api-key", "secret"});
  EXPECT_EQ(get(serve.port, "/metrics").status, 401);
  EXPECT_EQ(get(serve.port, "/v1/outrider/status").status, 401);
  const Response asks = get(serve.port, "/");
  EXPECT_EQ(asks.status, 401);
  EXPECT_NE(asks.head.find("WWW-Authenticate: Basic "), asks.head.npos) << "a browser asks its user";
  std::string last_nonce;
  for (int i = 0; i < 2; ++i) {
    const Response page = get(serve.port, "/", "Authorization: Basic bWU6c2VjcmV0\r\n");  // me:secret
    EXPECT_EQ(page.status, 200);
    EXPECT_NE(page.head.find("Content-Type: text/html; charset=utf-8"), page.head.npos);
    const std::string before = "default-src 'none'; script-src 'nonce-";
    const std::size_t at = page.head.find(before);
    ASSERT_NE(at, page.head.npos) << page.head;
    const std::string nonce = page.head.substr(at + before.size(), 32);
    EXPECT_NE(nonce, last_nonce);
    last_nonce = nonce;
    EXPECT_NE(page.body.find("<script nonce=\"" + nonce + "\">"), page.body.npos);
    EXPECT_NE(page.body.find("<style nonce=\"" + nonce + "\">"), page.body.npos);
    for (const char* never : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", " src="})
      EXPECT_EQ(page.body.find(never), page.body.npos) << never;
  }
}

TEST(Serve, SeedsStopsAndChoicesDoWhatTheySay) {
  Serve serve;
  Json request = ask(kQuestions[0], 40);
  request.update({{"temperature", 1}, {"seed", 5}, {"n", 2}});
  const Json first = serve.chat(request);
  ASSERT_EQ(first["choices"].size(), 2u);
  EXPECT_NE(first["choices"][0]["message"], first["choices"][1]["message"]);
  EXPECT_EQ(serve.chat(request)["choices"], first["choices"]) << "one seed is one text";
  const std::vector<Json> events = serve.stream(request);
  for (std::size_t i = 0; i < 2; ++i)
    EXPECT_EQ(joined(events, i).first, first["choices"][i]["message"]["content"].get<std::string>());
  EXPECT_GT(events.back()["speculative"]["rounds"], 0) << "on the last chunk";
  for (std::size_t i = 0; i < 2; ++i) {
    Json alone = request;
    alone.update({{"seed", 5 + i}, {"n", 1}});
    EXPECT_EQ(serve.chat(alone)["choices"][0]["message"], first["choices"][i]["message"])
        << "each choice is what its seed says alone";
  }

  const std::string text = serve.chat(ask(kQuestions[0], 40))["choices"][0]["message"]["content"];
  const std::string stop = text.substr(text.size() / 2, 5);
  Json stopped = ask(kQuestions[0], 40);
  stopped["stop"] = {"never said", stop};
  const Json whole = serve.chat(stopped);
  EXPECT_EQ(whole["choices"][0]["message"]["content"], text.substr(0, text.find(stop)));
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "stop");
  EXPECT_LT(whole["usage"]["completion_tokens"], 40);
  EXPECT_EQ(joined(serve.stream(stopped)).first, whole["choices"][0]["message"]["content"].get<std::string>());
  EXPECT_TRUE(eventually([&] { return serve.sessions() == 0; }));

  const auto usage_of = [&](const std::string& question) {
    Json many = ask(question, 2);
    many.update({{"n", 4}, {"temperature", 1}});
    return serve.chat(many)["usage"];
  };
  std::string question;
  for (int i = 0; i < 40; ++i) question += kQuestions[1];
  EXPECT_EQ(usage_of(question)["prompt_tokens_details"]["cached_tokens"], 0)
      << "that the choices share a prompt saves its client nothing";
  const Json usage = usage_of(question);
  EXPECT_GT(usage["prompt_tokens_details"]["cached_tokens"], 0);
  EXPECT_LT(usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]);

  Json scored = ask(kQuestions[0], 6);
  scored.update({{"logprobs", true}, {"top_logprobs", 2}});
  const Json scores = serve.chat(scored)["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(scores.size(), 6u);
  std::string spelled;
  for (const Json& score : scores) {
    spelled += score["token"];
    ASSERT_EQ(score["top_logprobs"].size(), 2u);
    EXPECT_EQ(score["token"], score["top_logprobs"][0]["token"]) << "greedy";
    EXPECT_LE(score["logprob"], 0);
  }
  EXPECT_TRUE(text.starts_with(spelled)) << spelled;
  Json streamed_scores = Json::array();
  for (const Json& event : serve.stream(scored)) {
    const Json& logprobs = event["choices"][0]["logprobs"];
    if (!logprobs.is_null())
      streamed_scores.insert(streamed_scores.end(), logprobs["content"].begin(), logprobs["content"].end());
  }
  EXPECT_EQ(streamed_scores, scores);
  const Json completion = json_of(post(
      serve.port, "/v1/completions", R"({"prompt": "Once upon a", "temperature": 0, "max_tokens": 3, "logprobs": 1})"));
  EXPECT_EQ(completion["choices"][0]["logprobs"]["tokens"].size(), 3u);
  EXPECT_EQ(completion["choices"][0]["logprobs"]["text_offset"][0], 0);
}

TEST(Serve, ChoicesRunSideBySideAndEndTogetherWithTheirClient) {
  Serve serve;
  {
    Connection client(serve.port);
    Json request = endless();
    request.update({{"n", 3}, {"stream", true}});
    client.send("POST", "/v1/completions", request.dump());
    for (int choice = 0; choice < 3; ++choice)
      EXPECT_TRUE(client.wait_for(fmt::format("\"index\":{},", choice))) << "none of them ever ends";
    EXPECT_EQ(serve.sessions(), 3);
  }
  EXPECT_TRUE(eventually([&] { return serve.sessions() == 0; }));

  Json request = {{"prompt", {"Once upon a time", "The cat", "A boy"}},
                  {"n", 2},
                  {"temperature", 1},
                  {"seed", 11},
                  {"max_tokens", 25},
                  {"logprobs", 1}};
  const Json whole = json_of(post(serve.port, "/v1/completions", request.dump()))["choices"];
  ASSERT_EQ(whole.size(), 6u);
  request["stream"] = true;
  const std::vector<Json> events = events_of(post(serve.port, "/v1/completions", request.dump()));
  for (std::size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(whole[i]["index"], i);
    EXPECT_EQ(joined(events, i),
              std::pair(whole[i]["text"].get<std::string>(), whole[i]["finish_reason"].get<std::string>()));
    Json alone = request;
    alone.update({{"prompt", request["prompt"][i / 2]}, {"n", 1}, {"seed", 11 + i % 2}, {"stream", false}});
    const Json single = json_of(post(serve.port, "/v1/completions", alone.dump()))["choices"][0];
    EXPECT_EQ(single["text"], whole[i]["text"]);
    EXPECT_EQ(single["logprobs"], whole[i]["logprobs"]);
  }
}

TEST(Serve, AChoiceThatIsRefusedEndsItsRequest) {
  Serve serve;
  Json request = endless();
  request["prompt"] = {request["prompt"], std::vector<int>(9000, 5)};
  const Response response = post(serve.port, "/v1/completions", request.dump());
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(json_of(response)["error"]["code"], "context_length_exceeded");
  EXPECT_TRUE(eventually([&] { return serve.sessions() == 0; })) << "the other is cancelled";
}

TEST(Serve, EightClientsAtOnceGetWhatOneGets) {
  Serve serve;
  std::vector<std::string> expected;
  for (const std::string& question : kQuestions)
    expected.push_back(serve.chat(ask(question, 40))["choices"][0]["message"]["content"]);
  std::vector<std::future<std::vector<std::string>>> clients;
  for (std::size_t c = 0; c < 8; ++c) {
    clients.push_back(std::async(std::launch::async, [&serve, c] {
      std::vector<std::string> texts;
      for (std::size_t i = 0; i < kQuestions.size(); ++i) {
        const Json request = ask(kQuestions[(i + c) % kQuestions.size()], 40);
        texts.push_back(c % 2 == 0 ? joined(serve.stream(request)).first
                                   : serve.chat(request)["choices"][0]["message"]["content"].get<std::string>());
      }
      return texts;
    }));
  }
  for (std::size_t c = 0; c < clients.size(); ++c) {
    const std::vector<std::string> texts = clients[c].get();
    for (std::size_t i = 0; i < texts.size(); ++i)
      EXPECT_EQ(texts[i], expected[(i + c) % kQuestions.size()]) << "client " << c;
  }
}

TEST(Serve, AClientThatGoesAwayFreesItsSession) {
  Serve serve;
  for (const bool streamed : {true, false}) {
    {
      Connection client(serve.port);
      Json request = endless();
      request["stream"] = streamed;
      client.send("POST", "/v1/completions", request.dump());
      if (streamed) {
        EXPECT_TRUE(client.wait_for("data: "));
      }
      EXPECT_TRUE(eventually([&] { return serve.sessions() == 1; }));
    }
    EXPECT_TRUE(eventually([&] { return serve.sessions() == 0; })) << (streamed ? "streamed" : "whole");
  }
}

// Its text is that of a response that is waited for; it needs nobody, and goes when it is told to.
TEST(Serve, AResponseInTheBackgroundOutlivesItsRequest) {
  Serve serve;
  const auto ask_for = [&](Json more) {
    Json body = {{"input", kQuestions[0]}, {"temperature", 0}, {"max_output_tokens", 40}};
    body.update(more);
    return post(serve.port, "/v1/responses", body.dump());
  };
  const auto now_is = [&](const Json& response) {
    return json_of(get(serve.port, "/v1/responses/" + response["id"].get<std::string>()));
  };
  const Json waited = json_of(ask_for(Json::object()));
  const Json queued = json_of(ask_for({{"background", true}}));
  EXPECT_EQ(queued["status"], "queued") << queued;
  Json made;
  EXPECT_TRUE(eventually([&] { return (made = now_is(queued))["status"] != "in_progress"; }));
  EXPECT_EQ(made["status"], waited["status"]);
  EXPECT_EQ(made["output"][0]["content"], waited["output"][0]["content"]);
  EXPECT_EQ(ask_for({{"background", true}, {"temperature", 9}}).status, 400) << "at once";
  const Json endless = json_of(ask_for({{"background", true}, {"ignore_eos", true}, {"max_output_tokens", 7000}}));
  EXPECT_TRUE(eventually([&] { return serve.sessions() == 1; }));
  const std::string path = "/v1/responses/" + endless["id"].get<std::string>() + "/cancel";
  EXPECT_EQ(json_of(post(serve.port, path, ""))["status"], "cancelled");
  EXPECT_TRUE(eventually([&] { return serve.sessions() == 0; }));
  EXPECT_EQ(now_is(endless)["status"], "cancelled");
  ask_for({{"background", true}, {"ignore_eos", true}, {"max_output_tokens", 7000}});
  EXPECT_TRUE(eventually([&] { return serve.sessions() == 1; }));
  serve.program.send(SIGTERM);
  EXPECT_EQ(describe(serve.program.wait()), "exit 0") << "it waits for none";
}

TEST(Serve, WhatComesBeyondItsLimitWaits) {
  Serve serve({"--max-requests", "1", "--drain-wait", "1"});
  auto busy = std::make_unique<Connection>(serve.port);
  Json request = endless();
  request["stream"] = true;
  busy->send("POST", "/v1/completions", request.dump());
  ASSERT_TRUE(busy->wait_for("data: "));
  std::deque<Connection> waiting;
  for (int i = 0; i < 100; ++i)
    waiting.emplace_back(serve.port).send("POST", "/v1/chat/completions", ask("Hi", 1).dump());
  EXPECT_TRUE(eventually([&] { return serve.status("waiting") == 100; }));
  busy.reset();
  for (Connection& one : waiting) EXPECT_EQ(one.response().status, 200);
  // It ends in spite of an open request, which is told so.
  Connection open(serve.port);
  open.send("POST", "/v1/completions", request.dump());
  ASSERT_TRUE(open.wait_for("data: "));
  serve.program.send(SIGINT);
  EXPECT_EQ(describe(serve.program.wait()), "exit 0");
}

TEST(Serve, ASecondSignalEndsItWhileItDrains) {
  Serve serve({"--drain-wait", "600"});
  Connection open(serve.port);
  Json request = endless();
  request["stream"] = true;
  open.send("POST", "/v1/completions", request.dump());
  ASSERT_TRUE(open.wait_for("data: "));
  EXPECT_TRUE(eventually([&] {
    serve.program.send(SIGTERM);
    return !serve.program.running();
  }));
  EXPECT_EQ(describe(serve.program.wait()), "signal 15");
}

TEST(Serve, AnswersBeginAndEndWhereTheRequestSays) {
  Serve serve;
  const Json plain = {{"prompt", "Once upon a"}, {"temperature", 0}, {"max_tokens", 12}};
  const auto complete = [&](Json fields) {
    Json body = plain;
    body.update(fields);
    return json_of(post(serve.port, "/v1/completions", body.dump()))["choices"][0];
  };
  const Json undisturbed = complete({{"return_token_ids", true}});
  const std::string text = undisturbed["text"];
  EXPECT_EQ(complete({{"echo", true}})["text"], "Once upon a" + text);
  const Json echo = complete({{"echo", true}, {"max_tokens", 0}});
  EXPECT_EQ(echo["text"], "Once upon a");
  EXPECT_EQ(echo["finish_reason"], "length");
  EXPECT_EQ(undisturbed["token_ids"].size(), 12u);
  EXPECT_EQ(undisturbed["prompt_token_ids"], json_of(post(serve.port, "/tokenize", plain.dump()))["tokens"]);
  const std::string stop = text.substr(text.size() / 2, 3), before = text.substr(0, text.find(stop));
  EXPECT_EQ(complete({{"stop", stop}})["text"], before);
  EXPECT_EQ(complete({{"stop", stop}, {"include_stop_str_in_output", true}})["text"], before + stop);
  EXPECT_EQ(
      complete({{"truncate_prompt_tokens", 2}, {"return_token_ids", true}})["prompt_token_ids"],
      Json(std::vector<TokenId>(undisturbed["prompt_token_ids"].end() - 2, undisturbed["prompt_token_ids"].end())));
  EXPECT_EQ(
      complete({{"truncate_prompt_tokens", 2},
                {"truncation_side", "right"},
                {"return_token_ids", true}})["prompt_token_ids"],
      Json(std::vector<TokenId>(undisturbed["prompt_token_ids"].begin(), undisturbed["prompt_token_ids"].begin() + 2)));

  Json request = ask(kQuestions[0], 20);
  const std::string answer = serve.chat(request)["choices"][0]["message"]["content"];
  const std::string half = answer.substr(0, answer.find(' ', answer.size() / 2));
  request["messages"].push_back({{"role", "assistant"}, {"content", half}});
  request["continue_final_message"] = true;
  const std::string rest = serve.chat(request)["choices"][0]["message"]["content"];
  EXPECT_TRUE((half + rest).starts_with(answer)) << half << "|" << rest << " begins otherwise than " << answer;
  request["echo"] = true;
  EXPECT_EQ(serve.chat(request)["choices"][0]["message"]["content"], half + rest);

  Json counted = ask(kQuestions[0], 5);
  counted["stream_options"] = {{"include_usage", true}, {"continuous_usage_stats", true}};
  std::int64_t tokens = 0;
  for (const Json& event : serve.stream(counted)) {
    EXPECT_GE(event["usage"]["completion_tokens"], tokens);
    tokens = event["usage"]["completion_tokens"];
  }
  EXPECT_EQ(tokens, 5);
  Json timed = ask(kQuestions[0], 5);
  timed["timings_per_token"] = true;
  const std::vector<Json> events = serve.stream(timed);
  EXPECT_FALSE(events.front().contains("timings")) << "nothing has been generated";
  for (std::size_t i = 1; i < events.size(); ++i) EXPECT_GT(events[i]["timings"]["predicted_n"], 0);
}

/// A chat that nano answers with these: `Token(ID)` and texts in quotes.
Json writing(const std::string& answer) {
  Json request = ask("Hi", 60);
  request["grammar"] = "root ::= " + answer;
  return request;
}
constexpr const char* kWhole =
    R"( Token(48) "call:f{refs:[\"a\"],b:" Token(52) "c " Token(52) "d" Token(52) "}" Token(49))";
constexpr const char* kBroken = R"( Token(48) "call:f(x" Token(49))";

TEST(Serve, WhatBeginsAsACallAndIsNoneIsTheAnswersText) {
  setenv("OUTRIDER_LOG", "info", 1);
  Serve serve;
  unsetenv("OUTRIDER_LOG");
  const std::string text = "<|tool_call>call:f(x<tool_call|>";
  const Json whole = serve.chat(writing(kBroken))["choices"][0];
  EXPECT_EQ(whole["message"]["content"], text);
  EXPECT_EQ(whole["finish_reason"], "stop");
  EXPECT_EQ(joined(serve.stream(writing(kBroken))), std::pair(text, std::string("stop")));

  // Beside a good one, which is the same whole and streamed.
  const Json both = writing(std::string(kWhole) + kBroken), answer = serve.chat(both)["choices"][0];
  EXPECT_EQ(answer["message"]["content"], text);
  EXPECT_EQ(answer["finish_reason"], "tool_calls");
  const Json call = answer["message"]["tool_calls"].at(0)["function"];
  EXPECT_EQ(call, Json({{"name", "f"}, {"arguments", R"({"b":"c \"d","refs":["a"]})"}}));
  std::string content;
  for (const Json& event : serve.stream(both)) {
    const Json& delta = event["choices"][0]["delta"];
    content += delta.value("content", "");
    if (delta.contains("tool_calls")) {
      EXPECT_EQ(delta["tool_calls"][0]["function"], call);
    }
  }
  EXPECT_EQ(content, text);

  Json cut = both;
  cut["max_tokens"] = serve.chat(both)["usage"]["completion_tokens"].get<int>() - 3;
  const Json short_answer = serve.chat(cut)["choices"][0];
  EXPECT_EQ(short_answer["finish_reason"], "length");
  EXPECT_TRUE(short_answer["message"]["content"].get<std::string>().starts_with("<|tool_call>call:f"));
  EXPECT_EQ(short_answer["message"]["tool_calls"].size(), 1u);

  const Json respond = {{"input", "Hi"}, {"grammar", both["grammar"]}, {"max_output_tokens", 60}};
  const std::string response = json_of(post(serve.port, "/v1/responses", respond.dump()))["output"].dump();
  const Json message = json_of(post(serve.port, "/v1/messages", both.dump()));
  EXPECT_EQ(message["content"].at(0), Json({{"type", "text"}, {"text", text}}));
  EXPECT_EQ(message["content"].at(1)["type"], "tool_use");
  EXPECT_NE(response.find(R"("text":")" + text + '"'), std::string::npos) << response;
  EXPECT_NE(response.find(R"("type":"function_call")"), std::string::npos) << response;
  EXPECT_EQ(metrics_of(serve.port)["broken_tool_calls_total"], 8);

  // The log names the request as its client does, one that is refused too.
  post(serve.port, "/v1/chat/completions", "{}", "X-Request-Id: mine-8\r\n");
  post(serve.port, "/v1/chat/completions", writing(kBroken).dump(), "X-Request-Id: mine-7\r\n");
  EXPECT_TRUE(eventually([&] { return serve.program.err().find("request_id=mine-7 client") != std::string::npos; }));
  const std::string log = serve.program.err();
  EXPECT_NE(log.find("request_id=mine-8 client=\"127.0.0.1\" status=400"), std::string::npos) << log;
  EXPECT_TRUE(std::regex_search(log, std::regex("event=broken_tool_calls id=chatcmpl-\\w+ request_id=mine-7 calls=1 ")))
      << log;
  EXPECT_TRUE(std::regex_search(log, std::regex("event=request id=chatcmpl-\\w+ request_id=mine-7 client="))) << log;
  EXPECT_TRUE(std::regex_search(log, std::regex("event=request id=chatcmpl-\\w+ request_id=req_\\w+ client="))) << log;
}

TEST(Serve, FieldsThatNobodyKnowsAreSaidOrRefused) {
  const std::string warning = R"("temperatur" is no known field; the nearest is temperature)";
  const Json chat = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}, {"max_tokens", 2}, {"temperatur", 1}};
  const Json others = {
      {"prompt", "Hi"}, {"input", "Hi"}, {"max_output_tokens", 2}, {"temperatur", 1}, {"n_predict", 2}};
  const auto asked = [&](const std::string& path) {
    Json body = path.ends_with("chat/completions") || path == "/v1/messages" ? chat : others;
    if (path != "/v1/responses")
      body.erase("max_output_tokens"), body.erase("input");
    else
      body.erase("prompt");
    return body;
  };
  const std::vector<std::string> paths = {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages",
                                          "/completion"};
  {
    Serve serve;
    for (const std::string& path : paths) {
      Json body = asked(path);
      const Response whole = post(serve.port, path, body.dump());
      EXPECT_EQ(json_of(whole)["warnings"], Json({warning})) << whole.body;
      EXPECT_NE(whole.head.find("X-Outrider-Warning: " + warning + "\r\n"), std::string::npos) << whole.head;
      body["stream"] = true;
      const Response stream = post(serve.port, path, body.dump());
      EXPECT_NE(stream.head.find("X-Outrider-Warning: " + warning + "\r\n"), std::string::npos) << stream.head;
      EXPECT_NE(stream.body.find("\"warnings\":[" + Json(warning).dump() + "]"), std::string::npos) << stream.body;
    }
    EXPECT_FALSE(serve.chat(ask("Hi", 2)).contains("warnings"));
  }
  Serve strict({"--strict-fields"});
  for (const std::string& path : paths) {
    Json body = asked(path);
    EXPECT_NE(post(strict.port, path, body.dump()).body.find("temperatur is no known field"), std::string::npos);
    body.erase("temperatur");
    EXPECT_EQ(post(strict.port, path, body.dump()).status, 200) << path;
  }
}

TEST(Serve, AnEchoWithScoresIsThePromptAsItIs) {
  Serve serve;
  const auto complete = [&](Json fields) {
    fields.update({{"echo", true}, {"temperature", 0}, {"max_tokens", 1}});
    return json_of(post(serve.port, "/v1/completions", fields.dump()))["choices"][0];
  };
  for (const char* prompt : {"Price: 5 €🍌", "日本", "Hello"}) {
    const Json scored = complete({{"prompt", prompt}, {"logprobs", 1}});
    EXPECT_EQ(scored["text"], complete({{"prompt", prompt}})["text"]);
    EXPECT_TRUE(scored["text"].get<std::string>().starts_with(prompt)) << scored["text"];
  }
  const Json logprobs = complete({{"prompt", "Hello"}, {"logprobs", 0}})["logprobs"];
  EXPECT_EQ(logprobs["tokens"][0], "<bos>");
  EXPECT_EQ(logprobs["text_offset"][0], 0);
  EXPECT_EQ(logprobs["text_offset"][1], 0) << "the text has no <bos>";
  EXPECT_EQ(logprobs["text_offset"].back(), 5);

  Json chat = ask("Go on", 3);
  chat["messages"].push_back({{"role", "assistant"}, {"content", "The fox "}});
  chat.update({{"continue_final_message", true}, {"echo", true}});
  const std::string answer = serve.chat(chat)["choices"][0]["message"]["content"];
  EXPECT_TRUE(answer.starts_with("The fox")) << answer;
  EXPECT_EQ(answer.find("  "), std::string::npos) << "what the model read has no space at its end: " << answer;
}

TEST(Serve, MasksAndScoresOfThePromptAreAsAskedFor) {
  Serve serve;
  const auto complete = [&](Json fields) {
    Json body = {{"prompt", "Once upon a"}, {"temperature", 0}, {"max_tokens", 6}, {"return_token_ids", true}};
    body.update(fields);
    return json_of(post(serve.port, "/v1/completions", body.dump()))["choices"][0];
  };
  const Json plain = complete({{"logprobs", 2}});
  const Json echo = complete({{"logprobs", 2}, {"echo", true}, {"prompt_logprobs", 1}});
  const std::size_t prompt = plain["prompt_token_ids"].size();
  EXPECT_EQ(echo["text"], "Once upon a" + plain["text"].get<std::string>());
  EXPECT_EQ(echo["logprobs"]["tokens"].size(), prompt + 6);
  EXPECT_TRUE(echo["logprobs"]["token_logprobs"][0].is_null());
  EXPECT_LT(echo["logprobs"]["token_logprobs"][1], 0);
  EXPECT_EQ(echo["logprobs"]["token_logprobs"][prompt], plain["logprobs"]["token_logprobs"][0]);
  EXPECT_EQ(echo["prompt_logprobs"].size(), prompt);
  for (std::size_t i = 1; i < prompt; ++i)
    EXPECT_TRUE(echo["prompt_logprobs"][i].contains(std::to_string(plain["prompt_token_ids"][i].get<int>())));
  Json streamed = {{"prompt", "Once upon a"}, {"temperature", 0}, {"max_tokens", 6},
                   {"logprobs", 2},           {"echo", true},     {"stream", true}};
  std::size_t scores = 0;
  std::string text;
  for (const Json& event : events_of(post(serve.port, "/v1/completions", streamed.dump()))) {
    for (const Json& choice : event["choices"]) {
      text += choice["text"].get<std::string>();
      if (choice["logprobs"].is_object()) scores += choice["logprobs"]["tokens"].size();
    }
  }
  EXPECT_EQ(echo["text"], text);
  EXPECT_EQ(scores, prompt + 6);

  const Json token = plain["token_ids"][2];
  EXPECT_EQ(complete({{"allowed_token_ids", {token}}})["token_ids"], Json(std::vector<Json>(6, token)));
  const std::string word = plain["text"].get<std::string>().substr(0, plain["text"].get<std::string>().find(' ', 2));
  EXPECT_EQ(complete({{"bad_words", {word}}})["text"].get<std::string>().find(word), std::string::npos) << word;
  EXPECT_EQ(complete({{"stop_token_ids", {token}}})["stop_reason"], token);
  EXPECT_EQ(complete({{"stop", word}})["stop_reason"], word);
  EXPECT_TRUE(plain["stop_reason"].is_null());
}

TEST(Serve, IdsInAStreamDoNotWaitForAText) {
  Serve serve;
  Json request = {{"prompt", "Once upon a"},
                  {"temperature", 0},
                  {"max_tokens", 6},
                  {"return_token_ids", true},
                  {"speculative", {{"draft_length", 0}}}};
  const Json whole = json_of(post(serve.port, "/v1/completions", request.dump()))["choices"][0];
  // All of the text may be the beginning of this, and so is kept back until the answer's end.
  request.update({{"stream", true}, {"stop", whole["text"].get<std::string>() + "!!"}});
  std::vector<Json> without_text;
  std::string text;
  for (const Json& event : events_of(post(serve.port, "/v1/completions", request.dump()))) {
    for (const Json& choice : event["choices"]) {
      if (text.empty() && choice["text"] == "" && !choice["token_ids"].empty())
        without_text.push_back(choice["token_ids"]);
      text += choice["text"].get<std::string>();
    }
  }
  EXPECT_EQ(whole["text"], text);
  ASSERT_EQ(without_text.size(), 6u) << "one for each round";
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(without_text[i], Json::array({whole["token_ids"][i]}));
  Json scored = request;
  scored.update({{"return_token_ids", false}, {"logprobs", 1}});
  std::size_t scores_without_text = 0;
  for (const Json& event : events_of(post(serve.port, "/v1/completions", scored.dump())))
    for (const Json& choice : event["choices"])
      if (choice["text"] == "" && !choice["logprobs"].is_null()) ++scores_without_text;
  EXPECT_EQ(scores_without_text, 6u) << "nor do scores";
  request["n_predict"] = 6;
  Response reply = post(serve.port, "/completion", request.dump());
  reply.body += "data: [DONE]\n\n";
  Json tokens = Json::array();
  for (const Json& event : events_of(reply))
    tokens.insert(tokens.end(), event["tokens"].begin(), event["tokens"].end());
  EXPECT_EQ(tokens, whole["token_ids"]) << "llama.cpp's way";
}

TEST(Serve, LlamaCppsCompletionIsThatOfOpenAIsInItsWords) {
  Serve serve;
  const Json asked = {{"prompt", "Once upon a"}, {"temperature", 0}, {"n_predict", 8}};
  const Json openai = json_of(post(serve.port, "/v1/completions", asked.dump()))["choices"][0];
  const auto complete = [&](Json fields) {
    Json body = asked;
    body.update(fields);
    return json_of(post(serve.port, "/completion", body.dump()));
  };
  const Json whole = complete({{"n_probs", 3}, {"return_tokens", true}});
  EXPECT_EQ(whole["content"], openai["text"]);
  EXPECT_EQ(whole["stop_type"], "limit");
  EXPECT_EQ(whole["tokens"].size(), 8u);
  EXPECT_EQ(whole["prompt"], "<bos>Once upon a");
  EXPECT_EQ(whole["timings"]["predicted_n"], 8);
  ASSERT_EQ(whole["completion_probabilities"].size(), 8u);
  EXPECT_EQ(whole["completion_probabilities"][0]["id"], whole["tokens"][0]);
  EXPECT_EQ(whole["completion_probabilities"][0]["top_logprobs"].size(), 3u);
  Json streamed = asked;
  streamed["stream"] = true;
  Response reply = post(serve.port, "/completion", streamed.dump());
  reply.body += "data: [DONE]\n\n";  // which llama.cpp leaves out
  std::string text;
  Json last;
  for (const Json& event : events_of(reply)) {
    text += event["content"].get<std::string>();
    last = event;
  }
  EXPECT_EQ(openai["text"], text);
  EXPECT_EQ(last["stop"], true);
  EXPECT_EQ(last["timings"]["predicted_n"], 8);
  EXPECT_EQ(complete({{"prompt", {"Once upon a", {{"prompt_string", "Once upon a"}}}}})[1]["content"], openai["text"]);
  const Json ids = json_of(post(serve.port, "/tokenize", R"({"content": " upon a"})"))["tokens"];
  Json mixed = {"Once"};
  mixed.insert(mixed.end(), ids.begin(), ids.end());
  EXPECT_EQ(complete({{"prompt", mixed}})["prompt"], "<bos>Once upon a");
  EXPECT_EQ(complete({{"response_fields", {"content", "generation_settings/n_predict"}}}),
            (Json{{"content", openai["text"]}, {"generation_settings/n_predict", 8}}));
  const Json no_token = complete({{"n_predict", 0}});
  EXPECT_EQ(no_token["content"], "") << no_token;
  EXPECT_EQ(no_token["tokens_evaluated"], whole["tokens_evaluated"]);
  Json other_name = {{"prompt", "Once upon a"}, {"max_tokens", 0}, {"stream", true}};
  EXPECT_EQ(post(serve.port, "/completion", other_name.dump()).status, 200);
  const Json large = Json(100'000, Json::array());
  const Json choices = complete({{"n_cmpl", 64}, {"n_predict", 1}, {"preserved_tokens", large}, {"x", large}});
  EXPECT_EQ(choices.size(), 64u) << choices;
  EXPECT_LT(choices.dump().size(), std::size_t{1} << 20) << "settings are repeated for each choice";
  EXPECT_EQ(choices[63]["generation_settings"]["n_predict"], 1);
  EXPECT_EQ(complete({{"response_fields", {"prompt/a", "prompt/b"}}}), Json::object());
  EXPECT_EQ(complete({{"mirostat", 2}})["error"]["param"], "mirostat");
  const Json both = complete({{"n_cmpl", 2}});
  ASSERT_EQ(both.size(), 2u) << both;
  EXPECT_EQ(both[1]["content"], openai["text"]);
  Json bare = asked;
  bare.update({{"add_special_tokens", false}, {"return_token_ids", true}});
  EXPECT_NE(json_of(post(serve.port, "/v1/completions", bare.dump()))["choices"][0]["prompt_token_ids"][0], 2);
  bare["prompt"] = "";
  EXPECT_EQ(json_of(post(serve.port, "/v1/completions", bare.dump()))["error"]["param"], "prompt");
  EXPECT_EQ(json_of(post(serve.port, "/tokenize", R"({"prompt": "x", "documents": ["d"]})"))["error"]["param"],
            "documents");
  EXPECT_EQ(complete({{"stop", openai["text"].get<std::string>().substr(3, 4)}})["stop_type"], "word");
  const Json pieces =
      json_of(post(serve.port, "/tokenize", R"({"content": "a fox", "with_pieces": true, "add_special": true})"));
  EXPECT_EQ(pieces["tokens"][0]["id"], 2);
  std::string many;
  for (int i = 0; i < 250'000; ++i) many += "\U00012000";  // four tokens each, of a byte
  EXPECT_EQ(post(serve.port, "/tokenize", Json{{"content", many}}.dump()).status, 200);
  EXPECT_EQ(post(serve.port, "/tokenize", Json{{"content", many}, {"with_pieces", true}}.dump()).status, 413);
  const std::string chat = ask("Hi", 1).dump();
  const std::string prompt = json_of(post(serve.port, "/apply-template", chat))["prompt"];
  EXPECT_TRUE(prompt.starts_with("<bos>")) << prompt;
  EXPECT_NE(prompt.find("Hi"), std::string::npos);
  EXPECT_GT(json_of(post(serve.port, "/chat/completions/input_tokens", chat))["input_tokens"], 3);
  const Json props = json_of(get(serve.port, "/props"));
  EXPECT_EQ(props["default_generation_settings"]["n_ctx"], 8192);
  EXPECT_EQ(props["model_path"], props["model_alias"]) << "clients do not see where";
  EXPECT_EQ(get(serve.port, "/slots").status, 501);
  EXPECT_EQ(complete({{"ignore_eos", true}})["generation_settings"]["logit_bias"][0]["bias"], nullptr);
}

TEST(Serve, PathsAndNamesOfRequestsAreTakenAsClientsWriteThem) {
  Serve serve;
  const std::string body = ask("Hi", 1).dump();
  for (const char* path : {"/v1/chat/completions", "/chat/completions", "/v1/v1/chat/completions",
                           "/v1/chat/completions/", "//v1/chat/completions", "///chat/completions"})
    EXPECT_EQ(post(serve.port, path, body).status, 200) << path;
  EXPECT_EQ(get(serve.port, "/models").status, 200);
  for (const char* model : {"gpt-5", "openai/gpt-5", "openai%2Fgpt-5"}) {
    const Response unknown = get(serve.port, std::string("/v1/models/") + model);
    EXPECT_EQ(unknown.status, 404) << model;
    EXPECT_EQ(json_of(unknown)["error"]["code"], "model_not_found") << model;
  }
  EXPECT_NE(get(serve.port, "/health", "X-Request-Id: mine-7\r\n").head.find("X-Request-Id: mine-7\r\n"),
            std::string::npos);
  EXPECT_NE(get(serve.port, "/health").head.find("X-Request-Id: req_"), std::string::npos);
  const Json long_prompt = {{"prompt", std::vector<int>(9000, 5)}};
  const Json error = json_of(post(serve.port, "/v1/completions", long_prompt.dump()))["error"];
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_TRUE(error["message"].get<std::string>().starts_with("This model's maximum context length is 8192")) << error;
}

TEST(Serve, AProxyMayLeaveItsPathThere) {
  Serve serve({"--root-path", "/llm"});
  for (const char* path :
       {"/llm/v1/models", "/llm/models", "/v1/models", "/llm/health", "/llm//v1/models", "//v1/models"})
    EXPECT_EQ(get(serve.port, path).status, 200) << path;
  for (const char* path : {"/llms/v1/models", "/llm/llm/v1/models", "/llmv1/models"})
    EXPECT_EQ(get(serve.port, path).status, 404) << path;
}

TEST(Serve, WhoAsksOnceDoesNotWaitForAllOfSomebodyElse) {
  Serve serve({"--max-requests", "2"});
  Json request = endless();
  request["stream"] = true;
  std::vector<std::unique_ptr<Connection>> greedy;
  for (int i = 0; i < 4; ++i) {
    greedy.push_back(std::make_unique<Connection>(serve.port));
    greedy.back()->send("POST", "/v1/completions", request.dump());
    EXPECT_TRUE(
        eventually([&] { return serve.status("sessions") == i + 1 && serve.status("waiting") == std::max(i - 1, 0); }));
  }
  Connection modest(serve.port, /*from=*/2);
  modest.send("POST", "/v1/chat/completions", ask("Hi", 3).dump());
  EXPECT_TRUE(eventually([&] { return serve.status("waiting") == 3; }));
  greedy.erase(greedy.begin());  // the one place that there will be
  EXPECT_EQ(modest.response().status, 200);
}

TEST(Serve, BadRequestsGetErrorsAndTheServerLivesOn) {
  Serve serve;
  const auto error_of = [&](const std::string& path, const std::string& body) {
    const Response response = post(serve.port, path, body);
    return std::tuple(response.status, json_of(response)["error"].value("param", Json()));
  };
  const std::string chat = "/v1/chat/completions", completions = "/v1/completions";
  const auto changed = [](const Json& fields) {
    Json body = ask("Hi", 3);
    body.merge_patch(fields);
    return body.dump();
  };
  EXPECT_EQ(error_of(chat, "{\"messages\": ["), std::tuple(400, Json()));
  EXPECT_EQ(error_of(chat, "{\"model\": \"\xc3\"}"), std::tuple(400, Json()));
  EXPECT_EQ(error_of(chat, std::string(1'000'000, '[')), std::tuple(400, Json()));
  EXPECT_EQ(error_of(chat, changed({{"model", "gpt-5"}})), std::tuple(404, "model"));
  EXPECT_EQ(error_of(chat, changed({{"temperature", "warm"}})), std::tuple(400, "temperature"));
  EXPECT_EQ(error_of(chat, changed({{"max_tokens", -2}})), std::tuple(400, "max_tokens"));
  EXPECT_EQ(error_of(chat, changed({{"messages", {{{"role", "my wizard"}, {"content", "x"}}}}})),
            std::tuple(400, "messages[0].role"));
  EXPECT_EQ(error_of(chat, changed({{"messages", {{{"role", "tool"}, {"tool_call_id", "c"}, {"content", "x"}}}}})),
            std::tuple(400, "messages"));
  EXPECT_EQ(error_of(chat, changed({{"tools", {{{"type", "function"}, {"function", 3}}}}})),
            std::tuple(400, "tools[0].function"));
  EXPECT_EQ(error_of(completions, R"({"prompt": [999999999]})"), std::tuple(400, "prompt"));
  EXPECT_EQ(error_of("/tokenize", "{}"), std::tuple(400, "prompt"));
  EXPECT_EQ(error_of("/detokenize", R"({"tokens": [-1]})"), std::tuple(400, "tokens"));
  // More than the context: refused before and after the head of a stream would go out.
  const std::string too_long = Json(std::vector<int>(9000, 5)).dump();
  for (const char* stream : {"true", "false"}) {
    const Response response =
        post(serve.port, completions, fmt::format(R"({{"prompt": {}, "stream": {}}})", too_long, stream));
    EXPECT_EQ(response.status, 400) << response.body;
    EXPECT_EQ(json_of(response)["error"]["code"], "context_length_exceeded");
  }
  EXPECT_EQ(get(serve.port, "/v1/nothing").status, 404);
  const Response embeddings = post(serve.port, "/v1/embeddings", R"({"input": "x"})");
  EXPECT_EQ(embeddings.status, 400);
  EXPECT_NE(embeddings.body.find("embeddings are not supported"), std::string::npos) << embeddings.body;
  EXPECT_EQ(get(serve.port, chat).status, 405);
  EXPECT_EQ(post(serve.port, "/health", "{}").status, 405);
  {
    Connection large(serve.port);
    large.send(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
        "100000000\r\n\r\n");
    const std::string piece(1 << 20, ' ');
    for (int i = 0; i < 24 && large.send(piece); ++i) {
    }
    EXPECT_EQ(large.response().status, 413);
  }
  EXPECT_EQ(serve.chat(ask("Hi", 3))["usage"]["completion_tokens"], 3);
  EXPECT_TRUE(serve.program.running());
  EXPECT_EQ(serve.program.err(), "");
}

TEST(Serve, WithoutAVerifierItIsAliveButNotReady) {
  Coordinator coordinator;
  Serve serve({"--connect", coordinator.address}, /*wait_until_ready=*/false);
  EXPECT_EQ(get(serve.port, "/health").status, 200);
  const Response ready = get(serve.port, "/ready");
  EXPECT_EQ(ready.status, 503);
  EXPECT_EQ(json_of(ready)["error"]["message"], "no verifier has joined");
}

TEST(Serve, ErrorsSayNotWhereTheCoordinatorIs) {
  const std::string port = std::to_string(free_port());
  Serve serve({"--connect", "tcp://127.0.0.1:" + port}, /*wait_until_ready=*/false);
  std::vector<std::future<Response>> replies;
  for (const char* path : {"/ready", "/v1/outrider/status"})
    replies.push_back(std::async([&serve, path] { return get(serve.port, path); }));
  Json stream = ask("Hi", 3);
  stream["stream"] = true;
  const Json completion = {{"prompt", "Once"}, {"max_tokens", 2}}, response = {{"input", "Hi"}};
  const std::vector<std::pair<const char*, Json>> asked = {{"/v1/chat/completions", ask("Hi", 3)},
                                                           {"/v1/chat/completions", stream},
                                                           {"/v1/completions", completion},
                                                           {"/v1/responses", response}};
  for (const auto& [path, body] : asked)
    replies.push_back(std::async([&serve, path, text = body.dump()] { return post(serve.port, path, text); }));
  for (auto& reply : replies) {
    const Response got = reply.get();
    EXPECT_EQ(got.body.find(port), std::string::npos) << got.body;
    EXPECT_EQ(got.body.find("tcp:"), std::string::npos) << got.body;
    EXPECT_NE(got.body.find("coordinator"), std::string::npos) << got.body;
  }
  EXPECT_NE(serve.program.err().find(port), std::string::npos) << "the log does";
}

TEST(Serve, AnAnswerThatFailsInMidStreamIsCounted) {
  Trio trio(true, {"--failover-wait", "1"});
  Serve serve({"--connect", trio.coordinator->address});
  Connection client(serve.port);
  Json request = endless();
  request["stream"] = true;
  client.send("POST", "/v1/completions", request.dump());
  ASSERT_TRUE(client.wait_for("data: "));
  trio.verifier->send(SIGKILL);
  const std::vector<Json> events = events_of(client.response());
  EXPECT_EQ(events.back()["error"]["type"], "server_error") << events.back();
  const std::string why = events.back()["error"]["message"];
  EXPECT_EQ(why.find("verifier-"), std::string::npos) << "a worker's name, with host and process: " << why;
  std::map<std::string, double> metrics = metrics_of(serve.port);
  EXPECT_EQ(metrics["request_success_total{finished_reason=\"error\"}"], 1);
  EXPECT_EQ(metrics["request_success_total{finished_reason=\"abort\"}"], 0);
  EXPECT_GE(metrics["generation_tokens_total"], events.size() - 1) << "each event of text is a token at least";
  EXPECT_EQ(metrics["prompt_tokens_total"], request["prompt"].size());
}

TEST(Serve, AChatThatDoesNotSayHowLongFitsIntoASmallVerifier) {
  Coordinator coordinator;
  Program verifier({"verifier", "--memory", "2", "--dtype", "f32", "--join", coordinator.address});
  Serve serve({"--connect", coordinator.address}, /*wait_until_ready=*/false);
  EXPECT_TRUE(eventually([&] { return serve.workers() == 1 || !verifier.running(); }));
  Json request = ask("Hi", 8000);
  const Response refused = post(serve.port, "/v1/chat/completions", request.dump());
  EXPECT_EQ(refused.status, 400) << "more than it has memory for";
  EXPECT_EQ(json_of(refused)["error"]["code"], "unsupported_value") << "not the context's: " << refused.body;
  request.erase("max_tokens");
  const Response answer = post(serve.port, "/v1/chat/completions", request.dump());
  EXPECT_EQ(answer.status, 200) << answer.body;
}

TEST(Serve, AKeyIsAskedOfAllButHealth) {
  Serve serve({"--api-key", "secret"});
  const std::string body = ask("Hi", 2).dump();
  EXPECT_EQ(get(serve.port, "/health").status, 200);
  const Response refused = post(serve.port, "/v1/chat/completions", body);
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(json_of(refused)["error"]["code"], "invalid_api_key");
  const Response anthropic = post(serve.port, "/v1/messages", body);
  EXPECT_EQ(anthropic.status, 401);
  EXPECT_EQ(json_of(anthropic)["type"], "error") << "in the form of its API";
  EXPECT_NE(anthropic.head.find("\r\nrequest-id: req_"), std::string::npos) << anthropic.head;
  EXPECT_EQ(json_of(anthropic)["error"]["type"], "authentication_error");
  for (const char* path : {"/", "/metrics", "/ready", "/version", "/v1/models", "/v1/outrider/status"}) {
    EXPECT_EQ(get(serve.port, path).status, 401) << path;
    EXPECT_EQ(get(serve.port, path, serve.headers).status, 200) << path;
  }
  for (const std::string wrong : {"Bearer secre", "Bearer secrets", "secret", "Basic secret", "Bearer "}) {
    EXPECT_EQ(get(serve.port, "/v1/models", "Authorization: " + wrong + "\r\n").status, 401) << wrong;
  }
  EXPECT_EQ(post(serve.port, "/v1/chat/completions", body, serve.headers).status, 200);
}

TEST(Serve, APortInUseIsOneLine) {
  Serve serve({}, /*wait_until_ready=*/false);
  Program second({"serve", "--port", std::to_string(serve.port)});
  EXPECT_EQ(describe(second.wait()), "exit 1");
  EXPECT_NE(second.err().find(fmt::format("cannot listen at 127.0.0.1:{}", serve.port)), std::string::npos)
      << second.err();
  EXPECT_EQ(std::ranges::count(second.err(), '\n'), 1) << second.err();
}

// ---- the server by itself ----

HttpReply echo(const HttpRequest& request) {
  return {.status = 200, .body = request.body, .content_type = "text/plain"};
}

std::unique_ptr<HttpServer> started(HttpOptions options, std::vector<HttpRoute> routes) {
  return HttpServer::start(std::move(options), std::move(routes)).value();
}

TEST(HttpServer, ARequestThatDoesNotArriveInTimeIs408) {
  const auto server =
      started({.host = "127.0.0.1", .request_timeout = std::chrono::seconds(2)}, {{"POST", "/echo", echo}});
  const std::vector<std::pair<std::string, int>> table = {
      {"POST /ec", 0},  // not even one line: closed without a word
      {"POST /echo HTTP/1.1\r\nHost: localhost\r\nX: y\r\n", 408},
      {"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n",
       408},
  };
  for (const auto& [beginning, status] : table) {
    Connection slow(server->port());
    slow.send(beginning);
    // A server that waited for the end of the line or of the body would wait as long as this goes on.
    std::jthread drip([&](std::stop_token stop) {
      while (!stop.stop_requested() && slow.send("1")) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    });
    EXPECT_EQ(slow.response().status, status) << beginning;
  }
}

TEST(HttpServer, WhatIsNotHttpIsRefused) {
  const auto server = started({.host = "127.0.0.1", .request_bytes_max = 1000, .file_bytes_max = 0},
                              {{"POST", "/echo", echo}, {"GET", "/get", echo}});
  const std::string post_head = "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
  const std::vector<std::pair<std::string, int>> table = {
      {"\r\n\r\n", 400},
      {"GET\r\n\r\n", 400},
      {"GET /get HTTP/1.1\r\nHost: localhost\r\n" + std::string(10'000, 'x') + "\r\n\r\n", 400},
      {"GET /get HTTP/1.1\r\nHost: localhost\r\n" + std::string(100'000, 'x') + "\r\n\r\n", 431},
      {"GET /" + std::string(10'000, 'x') + " HTTP/1.1\r\nHost: localhost\r\n\r\n", 414},
      {"BREW /get HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
      {"GET  /get HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
      {"GET /get HTTP/1.1\r\nHost: localhost\r\nno colon\r\n\r\n", 400},
      {"GET /get HTTP/1.1\r\nHost: localhost\r\nX: a bare\nline feed\r\n\r\n", 400},
      {"GET /get HTTP/1.1\r\nHost: localhost\r\nX: a bare\rcarriage return\r\n\r\n", 400},
      {"GET /get HTTP/1.1\r\nHost: localhost\r\nX: a zero" + std::string(1, '\0') + "\r\n\r\n", 400},
      {post_head + "\r\n", 411},
      {post_head + "Content-Length: -1\r\n\r\n", 400},
      {post_head + "Content-Length: 99999999999999999999999\r\n\r\n", 413},
      {post_head + "Content-Length: 1001\r\n\r\n", 413},
      {post_head + "Content-Length: 1001\r\nExpect: 100-continue\r\n\r\n", 413},
      {post_head + "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", 415},
      {post_head + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
      {post_head + "Transfer-Encoding: chunked\r\n\r\n0x2\r\n{}\r\n0\r\n\r\n", 400},
      {post_head + "Transfer-Encoding: chunked\r\n\r\n2 x\r\n{}\r\n0\r\n\r\n", 400},
      {post_head + "Transfer-Encoding: chunked\r\n\r\n1\r\n{}\r\n0\r\n\r\n", 400},
      {post_head + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\n0\r\n\r\n", 400},
      {"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\nContent-Length: "
       "2\r\n\r\n{}",
       415},
      {post_head + "Content-Length: 2\r\n\r\n{}", 200},
      {post_head + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 200},
      {"HEAD /get HTTP/1.1\r\nHost: localhost\r\n\r\n", 200},
  };
  for (const auto& [request, status] : table) {
    Connection connection(server->port());
    connection.send(request);
    EXPECT_EQ(connection.response().status, status) << request.substr(0, 120);
  }
  std::string headers = "GET /get HTTP/1.1\r\nHost: localhost\r\n";
  for (int i = 0; i < 10'000; ++i) headers += fmt::format("X-{}: {}\r\n", i, i);
  Connection many(server->port());
  many.send(headers + "\r\n");
  EXPECT_EQ(many.response().status, 431);
  std::string chunks = post_head + "Transfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 5000; ++i) chunks += "20\r\n" + std::string(32, 'x') + "\r\n";
  Connection large(server->port());
  large.send(chunks);
  EXPECT_EQ(large.response().status, 413);
}

TEST(HttpServer, NoRequestHidesInAnother) {
  const auto reply = [](const HttpRequest&) { return HttpReply{.status = 200, .body = "{}"}; };
  const auto server = started({.host = "127.0.0.1"}, {{"POST", "/echo", reply}, {"GET", "/get", reply}});
  const std::string hidden = "GET /get HTTP/1.1\r\nHost: localhost\r\n\r\n",
                    post_head = "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
  const std::string length = fmt::format("Content-Length: {}\r\n", hidden.size()),
                    chunked = "Transfer-Encoding: chunked\r\n";
  const std::vector<std::pair<std::string, int>> table = {
      {"GET /get HTTP/1.1\r\nHost: localhost\r\n" + length, 200},
      {"GET /get HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive\r\n" + length, 200},
      {"GET /nothing HTTP/1.1\r\nHost: localhost\r\n" + length, 404},
      {"HEAD /get HTTP/1.1\r\nHost: localhost\r\n" + length, 200},
      {"GET /get HTTP/1.1\r\nHost: localhost\r\n" + chunked, 200},
      {"GET /get HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n" + length, 400},
      {"DELETE /get HTTP/1.1\r\nHost: localhost\r\n" + length, 405},
      {post_head + "Content-Length: 0\r\n" + length, 400},
      {post_head + length + length, 400},
      {post_head + "Content-Length: 0\r\n" + chunked, 400},
      {post_head + chunked + chunked, 400},
      {post_head + "Content-Length: 0\r\nTransfer-Encoding: gzip, chunked\r\n", 400},
      {post_head + "Transfer-Encoding: gzip, chunked\r\n", 400},
      {post_head + "Transfer-Encoding: identity\r\n", 400},
      {post_head + "Transfer-Encoding: \r\n", 400},
      {post_head + "Content-Length: 2, 2\r\n", 400},
      {post_head + "Content-Length: 0\r\nTransfer-Encoding : chunked\r\n", 400},
  };
  for (const auto& [head, status] : table) {
    Connection connection(server->port());
    connection.send(head + "\r\n" + hidden);
    const std::string replies = connection.all();
    EXPECT_TRUE(replies.starts_with(fmt::format("HTTP/1.1 {} ", status))) << head << replies;
    EXPECT_EQ(replies.find("HTTP/1.1", 1), replies.npos) << head << replies;
    EXPECT_NE(replies.find("Connection: close\r\n"), replies.npos) << head << replies;
  }
  Connection innocent(server->port());
  for (int i = 0; i < 2; ++i) {
    innocent.send("GET /get HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
    EXPECT_EQ(innocent.response().status, 200) << "nothing is left unread";
  }
}

TEST(HttpServer, RepliesAreWholeAndPlainWhateverAClientAccepts) {
  const std::string body = Json({{"text", std::string(100'000, 'x')}}).dump();
  const auto server = started(
      {.host = "127.0.0.1"},
      {{"POST", "/echo", [](const HttpRequest& request) { return HttpReply{.status = 200, .body = request.body}; }},
       {"GET", "/get", [&](const HttpRequest&) { return HttpReply{.status = 200, .body = body}; }}});
  for (const std::string wish : {"Accept-Encoding: gzip, deflate, br, zstd\r\n", "Range: bytes=0-20\r\n",
                                 "Range: bytes=5-6,8-9\r\n", "Range: bytes=900000-\r\n"}) {
    for (const Response& response : {get(server->port(), "/get", wish), post(server->port(), "/echo", body, wish)}) {
      EXPECT_EQ(response.status, 200) << wish;
      EXPECT_TRUE(response.body == body) << wish << response.head;
      EXPECT_EQ(response.head.find("Content-Encoding"), response.head.npos) << response.head;
    }
  }
}

TEST(HttpServer, AStreamToAnOldClientEndsWithItsConnection) {
  const auto server =
      started({.host = "127.0.0.1"}, {{"GET", "/stream", [](const HttpRequest&) {
                                         return HttpReply{.status = 200, .body = "", .next = [left = 2]() mutable {
                                                            return left-- > 0 ? std::optional<std::string>("piece\n")
                                                                              : std::nullopt;
                                                          }};
                                       }}});
  for (const char* header : {"", "Connection: Keep-Alive\r\n"}) {
    Connection connection(server->port());
    connection.send(fmt::format("GET /stream HTTP/1.0\r\n{}\r\n", header));
    const std::string reply = connection.all();
    EXPECT_TRUE(reply.ends_with("\r\n\r\npiece\npiece\n")) << reply;
    EXPECT_EQ(reply.find("Transfer-Encoding"), reply.npos) << reply;
    EXPECT_NE(reply.find("Connection: close\r\n"), reply.npos) << reply;
  }
}

// A reply whose pieces end before their time is none that is whole.
TEST(HttpServer, AStreamThatFailsOnItsWayIsBrokenOff) {
  const auto stream = [](std::optional<std::uint64_t> length, bool throws) {
    return [=](const HttpRequest&) {
      HttpReply reply{.status = 200, .body = "", .content_type = "text/plain"};
      reply.length = length;
      reply.next = [throws, left = 2]() mutable -> std::optional<std::string> {
        if (left-- > 0) return "piece";
        if (throws) throw std::runtime_error("the disk is gone");
        return std::nullopt;
      };
      return reply;
    };
  };
  const auto server = started({.host = "127.0.0.1"}, {{"GET", "/whole", stream(10, false)},
                                                      {"GET", "/short", stream(11, false)},
                                                      {"GET", "/throws", stream({}, true)}});
  const auto said = [&](const std::string& path, const char* version, const char* method = "GET") {
    Connection connection(server->port());
    connection.send(
        fmt::format("{} {} HTTP/{}\r\nHost: localhost\r\nConnection: close\r\n\r\n", method, path, version));
    return connection.all();
  };
  for (const char* version : {"1.0", "1.1"}) {
    const std::string whole = said("/whole", version), cut = said("/short", version);
    EXPECT_NE(whole.find("Content-Length: 10\r\n"), whole.npos) << whole;
    EXPECT_NE(cut.find("Content-Length: 11\r\n"), cut.npos) << cut;
    for (const std::string& reply : {whole, cut}) {
      EXPECT_EQ(reply.find("Transfer-Encoding"), reply.npos) << reply;
      EXPECT_TRUE(reply.ends_with("\r\n\r\npiecepiece")) << reply;
    }
  }
  EXPECT_NE(said("/whole", "1.1", "HEAD").find("Content-Length: 10\r\n"), std::string::npos);
  EXPECT_TRUE(said("/throws", "1.1").ends_with("5\r\npiece\r\n5\r\npiece\r\n")) << "its last chunk never comes";
  Connection kept(server->port());
  kept.send("GET", "/whole", "");
  EXPECT_EQ(kept.response().body, "piecepiece");
  kept.send("GET", "/short", "");
  EXPECT_EQ(kept.response().body, "piecepiece") << "what is missing is not awaited";
}

TEST(HttpServer, AConnectionServesManyRequests) {
  const auto server = started({.host = "127.0.0.1"}, {{"POST", "/echo", echo}});
  Connection connection(server->port());
  for (const std::string body : {"[1]", "[2]", "[3]"}) {
    connection.send("POST", "/echo", body);
    EXPECT_EQ(connection.response().body, body);
  }
}

TEST(HttpServer, BeyondItsConnectionsItSays503) {
  std::promise<void> entered, refused;
  const auto server = started({.host = "127.0.0.1", .connections_max = 1},
                              {{"GET", "/wait", [&](const HttpRequest&) {
                                  entered.set_value();  // from here on it is not idle, or it would have to go
                                  refused.get_future().wait();
                                  return HttpReply{.status = 200, .body = "{}"};
                                }}});
  Connection first(server->port());
  first.send("GET", "/wait", "");
  entered.get_future().wait();
  Connection second(server->port());
  EXPECT_EQ(second.response().status, 503);
  refused.set_value();
  EXPECT_EQ(first.response().status, 200);
}

TEST(HttpServer, AClientIsAnAddressAndAProxyHereSpeaksForOthers) {
  const auto who = [](const HttpRequest& request) {
    return HttpReply{.status = 200, .body = request.client, .content_type = "text/plain"};
  };
  const auto server = started({.host = "127.0.0.1"}, {{"GET", "/who", who}});
  const auto asked = [&](std::uint32_t from, const std::string& header) {
    Connection connection(server->port(), from);
    connection.send("GET", "/who", "", header);
    return connection.response().body;
  };
  EXPECT_EQ(asked(1, ""), "127.0.0.1");
  EXPECT_EQ(asked(2, ""), "127.0.0.2");
  EXPECT_EQ(asked(1, "X-Forwarded-For: 192.0.2.7, 198.51.100.3\r\n"), "198.51.100.3")
      << "what the client claims comes first";
  EXPECT_EQ(asked(1, "X-Forwarded-For: 2001:db8:1:2:3::1\r\n"), "2001:db8:1:2::/64")
      << "who has one address has them all";
  EXPECT_EQ(asked(1, "X-Forwarded-For: 192.0.2.7\r\nX-Forwarded-For: 198.51.100.3\r\n"), "198.51.100.3")
      << "some proxies add a header of their own";
  for (const std::string& nonsense :
       {std::string(), std::string("me"), std::string(1000, '1'), std::string("198.51.100.3,")}) {
    EXPECT_EQ(asked(1, "X-Forwarded-For: " + nonsense + "\r\n"), "127.0.0.1") << nonsense;
  }
  EXPECT_EQ(asked(2, "X-Forwarded-For: 192.0.2.7\r\n"), "127.0.0.2") << "anybody can say so";
}

TEST(HttpServer, WhatAHandlerThrowsIs500) {
  const auto server =
      started({.host = "127.0.0.1"},
              {{"GET", "/throw", [](const HttpRequest&) -> HttpReply { throw std::runtime_error("secret"); }}});
  const Response response = get(server->port(), "/throw");
  EXPECT_EQ(response.status, 500);
  EXPECT_EQ(json_of(response)["error"]["type"], "server_error");
  EXPECT_EQ(response.body.find("secret"), response.body.npos);
}

TEST(HttpServer, OpenRequestsMayEndBeforeItDoesAndAreToldAfterwards) {
  for (const bool ends_by_itself : {true, false}) {
    std::promise<void> entered;
    std::atomic<bool> go = false;
    const auto server = started({.host = "127.0.0.1"}, {{"GET", "/wait", [&](const HttpRequest& request) {
                                                           entered.set_value();
                                                           eventually([&] { return go || request.gone(); });
                                                           return HttpReply{.status = go ? 200 : 503, .body = "{}"};
                                                         }}});
    Connection connection(server->port());
    connection.send("GET", "/wait", "");
    entered.get_future().wait();
    std::jthread stopper([&] { server->stop(ends_by_itself ? kHang : Duration::zero()); });
    go = ends_by_itself;
    EXPECT_EQ(connection.response().status, ends_by_itself ? 200 : 503);
  }
}

TEST(HttpServer, AStreamMayBeginAfterItWasToldToEnd) {
  std::promise<void> entered, leave;
  const auto server =
      started({.host = "127.0.0.1"},
              {{"GET", "/stream", [&](const HttpRequest&) {
                  entered.set_value();
                  leave.get_future().wait();
                  auto pieces = std::make_shared<std::vector<std::string>>(std::vector<std::string>{"two", "one"});
                  return HttpReply{.status = 200, .body = "", .next = [pieces]() -> std::optional<std::string> {
                                     if (pieces->empty()) return std::nullopt;
                                     const std::string piece = pieces->back();
                                     pieces->pop_back();
                                     return piece;
                                   }};
                }}});
  Connection idle(server->port()), connection(server->port());
  idle.send("GET", "/nothing", "");
  EXPECT_EQ(idle.response().status, 404);
  connection.send("GET", "/stream", "");
  entered.get_future().wait();
  std::jthread stopper([&] { server->stop(kHang); });
  idle.all();  // until the server is ending
  leave.set_value();
  EXPECT_EQ(connection.response().body, "onetwo");
}

TEST(ApiServer, SamplesAsTheCheckpointAdvises) {
  PairCopy pair(source_dir() / "models/nano");
  const auto sampling = [&](const char* generation_config) {
    pair.write("backbone/generation_config.json", generation_config);
    const Result<TextSide> text = TextSide::load(model_at(pair.dir() / "backbone"));
    if (!text) {
      ADD_FAILURE() << text.error().message;
      return SamplingParams();
    }
    return text->advised();
  };
  EXPECT_EQ(sampling(R"({"temperature": 0.7, "top_k": 64, "top_p": 0.95, "suppress_tokens": [5]})"),
            (SamplingParams{.temperature = 0.7f, .top_k = 64, .top_p = 0.95f, .suppress_tokens = {5}}));
  EXPECT_EQ(sampling("{}"), SamplingParams{.temperature = 1}) << "vLLM's, where it is silent";
  pair.write("backbone/generation_config.json", R"({"top_p": 2})");
  EXPECT_FALSE(TextSide::load(model_at(pair.dir() / "backbone")));
}

/// The endpoints over a cluster in this process, and what they report.
struct ReportingServer {
  ReportingServer() { connect_when_joined(context, *cluster); }
  /// The last report, which is number `count`.
  FinishedRequest last(std::size_t count) {
    EXPECT_TRUE(eventually([&] {
      const std::lock_guard lock(mutex);
      return finished.size() == count;
    }));
    const std::lock_guard lock(mutex);
    return finished.back();
  }

  /// Open at the coordinator.
  int sessions() const { return api.status().value().sessions; }

  TransportContext context;
  const std::unique_ptr<Cluster> cluster =
      start_threads(context, {.pair = nano_pair(), .weight_type = WeightType::kF32}).value();
  std::mutex mutex;
  std::vector<FinishedRequest> finished;
  ApiServer api{context,
                TextSide::load(model_at(nano_pair().backbone)).value(),
                {.coordinator = cluster->address(),
                 .version = "test",
                 .model = "nano",
                 .draft_length = {DraftPolicy::kFixed, 4},
                 .on_finished = [this](const FinishedRequest& facts) {
                   const std::lock_guard lock(mutex);
                   finished.push_back(facts);
                 }}};
  const std::unique_ptr<HttpServer> http = started({.host = "127.0.0.1"}, api.routes());
};

TEST(ApiServer, SaysThatTheModelIsBeingLoadedUntilAVerifierIsThere) {
  Coordinator coordinator;
  TransportContext context;
  ApiServer api(context, TextSide::load(model_at(nano_pair().backbone)).value(),
                {.coordinator = coordinator.address, .version = "test", .model = "nano", .own = true});
  const std::unique_ptr<HttpServer> http = started({.host = "127.0.0.1"}, api.routes());
  const Response loading = get(http->port(), "/ready");
  EXPECT_EQ(loading.status, 503);
  const std::string why = json_of(loading)["error"]["message"];
  EXPECT_TRUE(
      std::regex_match(why, std::regex("no verifier has joined: the model is being loaded, for [0-9]+ s so far")))
      << why;
  auto answered =
      std::async([&] { return post(http->port(), "/v1/completions", R"({"prompt": "Once", "max_tokens": 2})"); });
  Program verifier({"verifier", "--join", coordinator.address});
  EXPECT_TRUE(eventually([&] { return get(http->port(), "/ready").status == 200; }));
  EXPECT_EQ(answered.get().status, 200);
}

TEST(ApiServer, EveryRequestIsReportedOnce) {
  ReportingServer server;
  Json request = ask(kQuestions[0], 20);
  const Json whole = json_of(post(server.http->port(), "/v1/chat/completions", request.dump()));
  FinishedRequest facts = server.last(1);
  EXPECT_EQ(facts.status, 200);
  EXPECT_EQ(facts.prompt_tokens, whole["usage"]["prompt_tokens"]);
  EXPECT_EQ(facts.generated_tokens, 20);
  EXPECT_EQ(facts.metrics.rounds, whole["speculative"]["rounds"]);
  ASSERT_EQ(facts.choices.size(), 1u);
  EXPECT_EQ(facts.choices[0].finish_reason, "length");
  EXPECT_EQ(facts.choices[0].generated_tokens, 20);
  EXPECT_EQ(facts.inter_token_gaps.size(), static_cast<std::size_t>(facts.metrics.rounds))
      << "an arrival for each round after the first token";
  ASSERT_TRUE(facts.time_to_first_token);
  EXPECT_LE(*facts.time_to_first_token, facts.total);
  request["stream"] = true;
  events_of(post(server.http->port(), "/v1/chat/completions", request.dump()));
  EXPECT_EQ(server.last(2).generated_tokens, 20);
  post(server.http->port(), "/v1/chat/completions", "{}");
  EXPECT_EQ(server.last(3).status, 400);
  {
    Connection client(server.http->port());
    Json long_request = endless();
    long_request["stream"] = true;
    client.send("POST", "/v1/completions", long_request.dump());
    client.wait_for("data: ");
  }
  EXPECT_EQ(server.last(4).status, 499);
  EXPECT_TRUE(eventually([&] { return server.sessions() == 0; }));
}

TEST(ApiServer, AResponseReservesTheMemoryOfItsScores) {
  ReportingServer server;
  for (const auto& [streamed, scored] : {std::pair(true, false), {true, true}, {false, true}}) {
    Json body = {{"input", "Hi"}, {"max_output_tokens", 1000}, {"stream", streamed}};
    if (scored) body["top_logprobs"] = 20;
    HttpRequest http;
    http.body = body.dump();
    std::int64_t most = 0;
    http.reserve = [&](std::int64_t bytes) {
      most = std::max(most, bytes);
      return bytes < 100'000 ? std::nullopt : std::optional(ApiError{503, "no room"});
    };
    EXPECT_EQ(responses_routes(server.api.backend()).front().handler(http).status, scored ? 503 : 200);
    EXPECT_EQ(most / (1000 * 21 * 250), scored ? (streamed ? 4 : 3) : 0) << most;
  }
}

TEST(ApiServer, WhoseStreamBreaksHearsNothingOfTheServersInside) {
  struct Broken final : ReplyWriter {
    std::string event(const ReplyHead&, const ChoiceEvent&) override {
      throw std::runtime_error("/srv/secret cannot be read");
    }
    std::string usage(const ReplyHead&, const Usage&) override { return ""; }
    std::string end(const ApiError*) override { return ""; }
    std::string whole(const ReplyHead&, const std::vector<Choice>&, const Usage&) override { return ""; }
  };
  ReportingServer server;
  HttpRequest request;
  request.body = R"({"prompt": "Once", "max_tokens": 2, "stream": true, "return_token_ids": true})";
  const HttpReply reply =
      server.api.complete(request, /*chat=*/false, parse_completion(request.body, server.api.defaults()),
                          std::make_shared<Broken>());
  EXPECT_EQ(reply.status, 500);
  EXPECT_EQ(Json::parse(reply.body)["error"]["message"], "internal error");
  EXPECT_EQ(server.last(1).status, 500) << "and counted";
}

TEST(ApiServer, APieceOfAnyLengthReachesAReaderOneShortPieceBehind) {
  struct Long final : ReplyWriter {
    std::string event(const ReplyHead&, const ChoiceEvent& event) override {
      if (std::holds_alternative<ChoiceEnds>(event.what)) return std::string(9u << 20, 'x');
      return std::holds_alternative<ChoiceBegins>(event.what) ? "x" : "";
    }
    std::string usage(const ReplyHead&, const Usage&) override { return "usage"; }
    std::string end(const ApiError* error) override {
      ended = true;
      return error != nullptr ? "cut" : "end";
    }
    std::string whole(const ReplyHead&, const std::vector<Choice>&, const Usage&) override { return ""; }
    std::atomic<bool> ended = false;
  };
  for (const bool one_more : {false, true}) {
    ReportingServer server;
    HttpRequest request;
    request.body =
        Json{{"prompt", "Once"}, {"max_tokens", 2}, {"stream", true}, {"stream_options", {{"include_usage", one_more}}}}
            .dump();
    const auto writer = std::make_shared<Long>();
    const HttpReply reply =
        server.api.complete(request, /*chat=*/false, parse_completion(request.body, server.api.defaults()), writer);
    EXPECT_TRUE(eventually([&] { return writer->ended.load(); }));
    std::string all;
    while (const auto piece = reply.next()) all += *piece;
    EXPECT_EQ(all.size(), 1 + (9u << 20) + 3);
    EXPECT_TRUE(all.ends_with(one_more ? "cut" : "end")) << "a reply with a hole has no proper end";
    EXPECT_EQ(server.last(1).status, 200);
  }
}

TEST(ApiServer, TokenizingWithoutRoomForTheReplyCostsNothing) {
  ReportingServer server;
  const std::vector<HttpRoute> routes = server.api.routes();
  const auto route = std::ranges::find(routes, "/tokenize", &HttpRoute::path);
  const auto key = std::make_shared<ApiKey>("ann", ApiKey::Limits{.tokens_per_minute = 1});
  for (const bool room : {false, true}) {
    HttpRequest http;
    http.body = R"({"prompt": "Once upon a time", "return_token_strs": true})";
    http.key = key;
    int reservations = 0;
    http.reserve = [&](std::int64_t) {
      return ++reservations == 1 || room ? std::nullopt : std::optional(ApiError{503, "no room"});
    };
    EXPECT_EQ(route->handler(http).status, room ? 200 : 503);
    EXPECT_EQ(reservations, 2);
    EXPECT_EQ(key->begin(now()).has_value(), !room);
  }
}

TEST(ApiServer, WhoIsCutOffByItsEndIsToldSo) {
  ReportingServer server;
  Connection whole(server.http->port()), streamed(server.http->port());
  Json request = endless();
  whole.send("POST", "/v1/completions", request.dump());
  request["stream"] = true;
  streamed.send("POST", "/v1/completions", request.dump());
  EXPECT_TRUE(streamed.wait_for("data: "));
  EXPECT_TRUE(eventually([&] { return server.sessions() == 2; }));
  server.http->stop(Duration::zero());
  const Response refused = whole.response();
  EXPECT_EQ(refused.status, 503);
  EXPECT_NE(refused.head.find("Retry-After: 1"), refused.head.npos) << refused.head;
  EXPECT_EQ(json_of(refused)["error"]["type"], "server_error");
  const Json last_event = events_of(streamed.response()).back();
  ASSERT_TRUE(last_event.contains("error")) << last_event;
  EXPECT_EQ(last_event["error"], json_of(refused)["error"]);
  EXPECT_EQ(server.last(2).status, 503);
  EXPECT_EQ(server.finished.front().status, 503);
}

}  // namespace
}  // namespace outrider
