#include "server/server_metrics.h"

#include <ctime>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace outrider {
namespace {
using Json = nlohmann::json;

std::string file(const std::string& path) {
  std::ifstream stream(std::filesystem::path(OUTRIDER_SOURCE_DIR) / path);
  EXPECT_TRUE(stream) << path;
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

/// A coordinator with a worker of each kind.
Status busy() {
  return {.verifiers = 1,
          .drafters = 1,
          .sessions = 5,
          .waiting = 2,
          .workers = {{.role = Role::kVerifier,
                       .name = "big \"host\"",
                       .sessions = 3,
                       .rtt_ns = 250'000,
                       .kv_bytes = 100,
                       .kv_bytes_max = 400,
                       .shards = 2},
                      {.role = Role::kDrafter,
                       .name = "small",
                       .sessions = 1,
                       .draining = true,
                       .rtt_ns = 0,
                       .yield = 0.25,
                       .late_rounds = 3,
                       .paused = true}},
          .failovers = {.exact = 7, .failed = 1, .resume_ns = 2'500'000'000},
          .audits = {.same = 4, .different = 1, .tokens = 300},
          .drafts_made = 6,
          .drafts_missed = 2};
}

std::string text(const ServerMetrics& metrics) { return metrics.reply(busy()).body; }

/// The value of one line; its name with its labels, as it is written.
double value(const std::string& text, const std::string& series) {
  const std::size_t at = ("\n" + text).find("\noutrider:" + series + " ");
  EXPECT_NE(at, text.npos) << series << " is not in\n" << text;
  return at == text.npos ? -1 : std::stod(text.substr(at + series.size() + std::string("outrider: ").size()));
}

/// Names that a query may use: a histogram's are those of its parts.
std::set<std::string> exposed_names() {
  const std::string all = text(ServerMetrics());
  std::set<std::string> names;
  const std::regex line("# TYPE (\\S+) (\\S+)");
  for (std::sregex_iterator match(all.begin(), all.end(), line), end; match != end; ++match) {
    if ((*match)[2] != "histogram") names.insert((*match)[1]);
    for (const char* part : {"_bucket", "_sum", "_count"}) {
      if ((*match)[2] == "histogram") names.insert((*match)[1].str() + part);
    }
  }
  return names;
}

TEST(ServerMetrics, EveryNameOfTheBoardIsExposed) {
  const std::set<std::string> exposed = exposed_names();
  EXPECT_TRUE(exposed.contains("outrider:time_to_first_token_seconds_bucket"));
  const Json board = Json::parse(file("server/grafana/outrider.json"));
  std::string queries = board.at("templating").dump();
  for (const Json& panel : board.at("panels")) {
    for (const Json& target : panel.value("targets", Json::array()))
      queries += target.at("expr").get<std::string>() + "\n";
  }
  const std::regex name("outrider:[a-zA-Z0-9_:]+");
  std::size_t count = 0;
  for (std::sregex_iterator match(queries.begin(), queries.end(), name), end; match != end; ++match, ++count) {
    EXPECT_TRUE(exposed.contains(match->str())) << match->str();
  }
  EXPECT_GT(count, 30u);
}

TEST(ServerMetrics, EveryNameIsDocumented) {
  const std::string docs = file("docs/http.md");
  const std::string all = text(ServerMetrics());
  const std::regex line("# TYPE (?:outrider:)?(\\S+)");
  for (std::sregex_iterator match(all.begin(), all.end(), line), end; match != end; ++match) {
    std::string quoted = "`";
    quoted += (*match)[1];
    EXPECT_NE(docs.find(quoted), docs.npos) << quoted;
  }
}

TEST(ServerMetrics, AnAnswerMovesWhatItMeasured) {
  ServerMetrics metrics;
  FinishedRequest request;
  request.prompt_tokens = 7;
  request.generated_tokens = 11;
  request.broken_tool_calls = 2;
  request.time_to_first_token = std::chrono::milliseconds(30);
  request.inter_token_gaps = {std::chrono::milliseconds(3), std::chrono::milliseconds(300)};
  request.total = std::chrono::seconds(2);
  RequestMetrics m;
  m.rounds = 4;
  m.drafting_rounds = 3;
  m.ngram.rounds = 1;
  m.drafted_tokens = 9;
  m.accepted_tokens = 6;
  m.drafted_per_position = {3, 3, 3};
  m.accepted_per_position = {3, 2, 1};
  m.prefill_ns = 30'000'000;
  m.queue_ns = 10'000'000;
  m.decode_ns = 500'000'000;
  m.draft_ns = 30'000'000;
  m.verify_ns = 80'000'000;
  m.wire_bytes_to_verifier = 1000;
  m.cached_prompt_tokens = 5;
  request.choices = {{.finish_reason = "stop", .prompt_tokens = 7, .generated_tokens = 11, .metrics = m}};
  metrics.record(request);
  const std::string all = text(metrics);
  EXPECT_EQ(value(all, "time_to_first_token_seconds_bucket{le=\"0.02\"}"), 0);
  EXPECT_EQ(value(all, "time_to_first_token_seconds_bucket{le=\"0.04\"}"), 1);
  EXPECT_EQ(value(all, "inter_token_latency_seconds_count"), 2);
  EXPECT_DOUBLE_EQ(value(all, "inter_token_latency_seconds_sum"), 0.303);
  EXPECT_EQ(value(all, "e2e_request_latency_seconds_sum"), 2);
  EXPECT_EQ(value(all, "request_queue_time_seconds_sum"), 0.01);
  EXPECT_EQ(value(all, "request_prefill_time_seconds_sum"), 0.02);
  EXPECT_EQ(value(all, "request_decode_time_seconds_sum"), 0.5);
  EXPECT_EQ(value(all, "request_prompt_tokens_bucket{le=\"5\"}"), 0);
  EXPECT_EQ(value(all, "request_prompt_tokens_bucket{le=\"10\"}"), 1);
  EXPECT_EQ(value(all, "request_generation_tokens_sum"), 11);
  EXPECT_EQ(value(all, "prompt_tokens_total"), 7);
  EXPECT_EQ(value(all, "generation_tokens_total"), 11);
  EXPECT_EQ(value(all, "broken_tool_calls_total"), 2);
  EXPECT_EQ(value(all, "request_success_total{finished_reason=\"stop\"}"), 1);
  EXPECT_EQ(value(all, "request_success_total{finished_reason=\"length\"}"), 0);
  EXPECT_EQ(value(all, "prefix_cache_queries_total"), 7);
  EXPECT_EQ(value(all, "prefix_cache_hits_total"), 5);
  EXPECT_EQ(value(all, "spec_decode_num_drafts_total"), 3);
  EXPECT_EQ(value(all, "spec_decode_num_ngram_drafts_total"), 1);
  EXPECT_EQ(value(all, "spec_decode_num_accepted_tokens_per_pos_total{position=\"1\"}"), 2);
  EXPECT_EQ(value(all, "spec_decode_num_draft_tokens_per_pos_total{position=\"2\"}"), 3);
  EXPECT_EQ(value(all, "wire_bytes_total{to=\"verifier\"}"), 1000);
  EXPECT_EQ(value(all, "decode_tokens_total{mode=\"speculative\"}"), 10);
  EXPECT_EQ(value(all, "decode_tokens_total{mode=\"backbone_only\"}"), 0);
  EXPECT_EQ(value(all, "decode_seconds_total{mode=\"speculative\"}"), 0.5);
  EXPECT_EQ(value(all, "speculative_tok_per_sec"), 20);
  EXPECT_EQ(value(all, "draft_tokens_per_batch"), 3);
  EXPECT_EQ(value(all, "target_verify_ms"), 20);
  EXPECT_EQ(value(all, "assistant_draft_ms"), 15) << "of the rounds that it drafted for";
}

TEST(ServerMetrics, WhatGotNoAnswerCountsAsSuch) {
  ServerMetrics metrics;
  FinishedRequest refused;
  refused.status = 503;
  refused.prompt_tokens = 9;
  metrics.record(refused);
  FinishedRequest gone;
  gone.status = kClientGone;
  metrics.record(gone);
  metrics.record_response(503);
  const std::string all = text(metrics);
  EXPECT_EQ(value(all, "prompt_tokens_total"), 0);
  EXPECT_EQ(value(all, "e2e_request_latency_seconds_count"), 0);
  EXPECT_EQ(value(all, "request_success_total{finished_reason=\"abort\"}"), 1);
  EXPECT_EQ(value(all, "request_success_total{finished_reason=\"error\"}"), 1);
  EXPECT_EQ(value(all, "http_responses_total{code=\"503\"}"), 1);
}

TEST(ServerMetrics, WorkersAreThoseOfTheMoment) {
  const ServerMetrics metrics;
  const std::string all = metrics.reply(busy()).body;
  EXPECT_EQ(value(all, "num_requests_running"), 3);
  EXPECT_EQ(value(all, "num_requests_waiting"), 2);
  EXPECT_EQ(value(all, "coordinator_up"), 1);
  EXPECT_EQ(value(all, "failovers_total{result=\"exact\"}"), 7);
  EXPECT_EQ(value(all, "failovers_total{result=\"inexact\"}"), 0);
  EXPECT_EQ(value(all, "failovers_total{result=\"failed\"}"), 1);
  EXPECT_EQ(value(all, "failover_resume_seconds_total"), 2.5);
  EXPECT_EQ(value(all, "kv_cache_usage_perc"), 0.25);
  EXPECT_EQ(value(all, "workers{role=\"drafter\"}"), 1);
  EXPECT_EQ(value(all, R"(worker_rtt_seconds{role="verifier",worker="big \"host\""})"), 0.00025);
  EXPECT_EQ(value(all, R"(worker_shards{role="verifier",worker="big \"host\""})"), 2);
  EXPECT_EQ(value(all, R"(worker_draining{role="drafter",worker="small"})"), 1);
  EXPECT_EQ(value(all, R"(drafter_yield{role="drafter",worker="small"})"), 0.25);
  EXPECT_EQ(value(all, R"(drafter_late_rounds_total{role="drafter",worker="small"})"), 3);
  EXPECT_EQ(value(all, R"(drafter_paused{role="drafter",worker="small"})"), 1);
  EXPECT_EQ(value(all, "draft_rounds_total{result=\"made\"}"), 6);
  EXPECT_EQ(value(all, "draft_rounds_total{result=\"missed\"}"), 2);
  EXPECT_EQ(value(all, "audits_total{result=\"same\"}"), 4);
  EXPECT_EQ(value(all, "audits_total{result=\"different\"}"), 1);
  EXPECT_EQ(value(all, "audited_tokens_total"), 300);
  EXPECT_EQ(all.find(R"(worker_rtt_seconds{role="drafter")"), all.npos) << "not measured yet";
  const std::string alone = metrics.reply(Error{Errc::kPeerGone, "gone"}).body;
  EXPECT_EQ(value(alone, "coordinator_up"), 0);
  EXPECT_EQ(alone.find("outrider:worker"), alone.npos);
}

TEST(ServerMetrics, NamesMayBeVllmsAndSayTheModel) {
  const std::string all = ServerMetrics({.prefix = "vllm", .model = "nano", .version = "1"}).reply(busy()).body;
  EXPECT_EQ(all.find("outrider:"), all.npos);
  for (const char* line :
       {"vllm:spec_decode_num_drafts_total{model_name=\"nano\"} 0",
        "vllm:request_success_total{model_name=\"nano\",finished_reason=\"stop\"} 0",
        "vllm:num_requests_waiting{model_name=\"nano\"} 2", "vllm:build_info{model_name=\"nano\",version=\"1\"} 1"})
    EXPECT_NE(all.find(line), all.npos) << line << " is not in\n" << all;
}

TEST(ServerMetrics, TheProcessIsAsPrometheusClientsShowIt) {
  const std::string all = text(ServerMetrics());
  const auto of = [&](const std::string& name) {
    const std::size_t at = all.find("\n" + name + " ");
    EXPECT_NE(at, all.npos) << name;
    return at == all.npos ? 0 : std::stod(all.substr(at + 1 + name.size()));
  };
  const double now = static_cast<double>(std::time(nullptr));
  EXPECT_GT(of("process_start_time_seconds"), now - 3600);
  EXPECT_LE(of("process_start_time_seconds"), now + 1);
  EXPECT_GT(of("process_resident_memory_bytes"), 1e6);
  EXPECT_GE(of("process_virtual_memory_bytes"), of("process_resident_memory_bytes"));
  EXPECT_GE(of("process_open_fds"), 3);
  EXPECT_GE(of("process_max_fds"), of("process_open_fds"));
  EXPECT_GE(of("process_cpu_seconds_total"), 0);
}

}  // namespace
}  // namespace outrider
