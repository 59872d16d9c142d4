// Files that clients upload and read again: how forms write their names, and what is left of one on a broken disk.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "batch/batch_api.h"
#include "batch/hash.h"
#include "common/base/text.h"
#include "common/base/time.h"
#include "common/os/files.h"
#include "server/api_keys.h"
#include "server/form.h"
#include "tests/support/temporary_dir.h"

namespace outrider {
namespace {
using Json = nlohmann::json;

/// A form of one part, whose content is "content".
std::string form(const std::string& head) { return "--x\r\n" + head + "\r\n\r\ncontent\r\n--x--\r\n"; }

std::pair<std::string, std::string> names(const std::string& head) {
  const std::string body = form(head);
  const auto parts = parse_form(body);
  if (!parts || parts->size() != 1) return {"no form", ""};
  EXPECT_EQ((*parts)[0].content, "content");
  return {(*parts)[0].name, (*parts)[0].filename};
}

TEST(Form, NamesAreAsTheirClientHasThem) {
  const std::string form_data = "Content-Disposition: form-data; ";
  for (const auto& [written, filename] : {
           std::pair(R"("a.jsonl")", "a.jsonl"),
           {R"("a\"b.jsonl")", R"(a"b.jsonl)"},   // curl before 7.81
           {R"("a%22b.jsonl")", R"(a"b.jsonl)"},  // browsers, curl, httpx
           {R"("a\\b.jsonl")", R"(a\b.jsonl)"},
           {R"("C:\docs\a.jsonl")", R"(C:\docs\a.jsonl)"},  // Windows' browsers of old
           {R"("a; name=\"b\".jsonl")", R"(a; name="b".jsonl)"},
           {R"("; name=")", "; name="},
           {R"("日本.jsonl")", "日本.jsonl"},
           {"a.jsonl", "a.jsonl"},
           {R"("")", ""},
       }) {
    const std::pair<std::string, std::string> wanted = {"file", filename};
    EXPECT_EQ(names(form_data + "name=\"file\"; filename=" + written), wanted) << written;
    EXPECT_EQ(names(form_data + "filename=" + written + "; name=\"file\""), wanted) << written;
    EXPECT_EQ(names("Content-Type: text/plain; name=\"no\"\r\ncontent-disposition: form-data;NAME=file;Filename=" +
                    std::string(written)),
              wanted)
        << written;
  }
  EXPECT_EQ(names(form_data + "x; name=\"purpose\"").first, "purpose");
  EXPECT_EQ(names(form_data + "name=\"file\"; filename=\"a.jsonl").second, "a.jsonl") << "without its end";
  EXPECT_EQ(names(form_data).first, "");
  EXPECT_EQ(names("X: y").first, "");
}

TEST(Form, PartsAndTheirHeadsAreBounded) {
  const std::string named = "Content-Disposition: form-data; name=\"file\"";
  EXPECT_EQ(names("X: " + std::string(8000, 'y') + "\r\n" + named).first, "file");
  const std::string large = form("X: " + std::string(9000, 'y') + "\r\n" + named);
  EXPECT_FALSE(parse_form(large));
  std::string many;
  const std::string part = "--x\r\n" + named + "\r\n\r\n\r\n";
  for (int i = 0; i < 64; ++i) many += part;
  EXPECT_TRUE(parse_form(many + "--x--"));
  EXPECT_FALSE(parse_form(many + part + "--x--"));
}

/// A server's files and batches, by its routes.
struct Files {
  explicit Files(BatchAnswer answer = {}, std::shared_ptr<ApiKeys> keys = {})
      : answer_(std::move(answer)), keys_(std::move(keys)) {}
  HttpReply ask(const std::string& method, const std::string& path, const std::string& id, std::string body) const {
    const auto route =
        std::ranges::find_if(routes, [&](const HttpRoute& one) { return one.method == method && one.path == path; });
    return route->handler(
        {.method = method, .path = path, .id = id, .body = std::move(body), .client = "key ann", .key = key_});
  }
  /// Uploads a file with this content.
  HttpReply add(const std::string& content, const std::string& filename = "in.jsonl") const {
    const auto part = [](const std::string& head, const std::string& text) {
      return fmt::format("--x\r\nContent-Disposition: form-data; name={}\r\n\r\n{}\r\n", head, text);
    };
    const std::string body = part("purpose", "batch") + part("file; filename=" + filename, content) + "--x--";
    return ask("POST", "/v1/files", "", body);
  }
  /// @return the id of a file with this content.
  std::string upload(const std::string& content) const { return Json::parse(add(content).body)["id"]; }
  /// @return the id of a batch of completions of these lines
  std::string begin(const std::string& lines) const {
    const Json asked = {
        {"input_file_id", upload(lines)}, {"endpoint", "/v1/completions"}, {"completion_window", "24h"}};
    return Json::parse(ask("POST", "/v1/batches", "", asked.dump()).body)["id"];
  }
  /// @return the batch once it is over
  Json ended(const std::string& id) const {
    Json batch;
    for (int i = 0; i < 3000 && batch["status"] != "failed" && batch["status"] != "completed" &&
                    batch["status"] != "cancelled";
         ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      batch = Json::parse(ask("GET", "/v1/batches/{id}", id, "").body);
    }
    return batch;
  }
  /// Ends this server, and starts the next one.
  void restart(const Manifest& made_by) {
    routes.clear();
    api.reset();
    api = opened(made_by);
    routes = api->routes();
  }
  std::unique_ptr<BatchApi> opened(const Manifest& made_by) const {
    return BatchApi::open({.dir = dir.path(),
                           .made_by = made_by,
                           .model = "m",
                           .concurrency = 1,
                           .answer = answer_,
                           .keys = keys_,
                           .memory = memory_of(HttpOptions())})
        .value();
  }
  BatchAnswer answer_;
  std::shared_ptr<ApiKeys> keys_;
  std::shared_ptr<const ApiKey> key_ = keys_ ? keys_->named("ann") : nullptr;
  TemporaryDir dir;
  std::unique_ptr<BatchApi> api = opened({});
  std::vector<HttpRoute> routes = api->routes();
};

TEST(Upload, OfWhichAPartIsLostIsNeverReadAsIfItWereWhole) {
  const Files files;
  const std::string upload = "--x\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n" +
                             form("Content-Disposition: form-data; name=\"file\"; filename=\"a\\\"b\"");
  const Json file = Json::parse(files.ask("POST", "/v1/files", "", upload).body);
  ASSERT_EQ(file["filename"], "a\"b") << file;
  const std::string id = file["id"];
  const std::filesystem::path path = files.dir.path() / "files" / (id + ".jsonl");
  const auto content = [&] {
    const HttpReply reply = files.ask("GET", "/v1/files/{id}/content", id, "");
    EXPECT_EQ(reply.length, 7u) << "what the client is told";
    std::string all;
    while (const auto piece = reply.next()) all += *piece;
    return all;
  };
  EXPECT_EQ(content(), "content");
  std::ofstream(path, std::ios::app) << "and more";
  EXPECT_EQ(content(), "content");
  std::filesystem::resize_file(path, 4);
  EXPECT_EQ(content(), "cont");
  std::filesystem::remove(path);
  const HttpReply lost = files.ask("GET", "/v1/files/{id}/content", id, "");
  EXPECT_EQ(lost.status, 500);
  EXPECT_EQ(lost.body.find(files.dir.path().string()), std::string::npos) << lost.body;
}

TEST(Upload, IsReadableByTheServersUserAlone) {
  const Files files;
  for (const char* kind : {"files", "batches"})
    EXPECT_EQ(std::filesystem::status(files.dir.path() / kind).permissions(), std::filesystem::perms::owner_all);
}

TEST(Upload, NamesLinesAndMetadataAreBounded) {
  const Files files;
  EXPECT_EQ(files.add("x", std::string(255, 'n')).status, 200);
  EXPECT_EQ(files.add("x", std::string(256, 'n')).status, 400);
  EXPECT_EQ(files.add(std::string(50'000, '\n')).status, 200);
  EXPECT_EQ(files.add(std::string(50'001, '\n')).status, 400);
  const auto begin = [&](const Json& metadata) {
    const Json asked = {{"input_file_id", files.upload("x")},
                        {"endpoint", "/v1/completions"},
                        {"completion_window", "24h"},
                        {"metadata", metadata}};
    return files.ask("POST", "/v1/batches", "", asked.dump()).status;
  };
  EXPECT_EQ(begin({{std::string(64, 'k'), std::string(512, 'v')}}), 200);
  EXPECT_EQ(begin({{std::string(65, 'k'), "v"}}), 400);
  EXPECT_EQ(begin({{"k", std::string(513, 'v')}}), 400);
  EXPECT_EQ(begin({{"k", Json::array()}}), 400);
  Json many;
  for (int i = 0; i < 17; ++i) many[std::to_string(i)] = "v";
  EXPECT_EQ(begin(many), 400);
}

constexpr const char* kLine = R"({"custom_id":"a","url":"/v1/completions","body":{"prompt":"x"}})";
const HttpReply kAnswered{.status = 200, .body = R"({"choices":[]})"};

TEST(Batches, ALineHasTheMemoryAndTheKeyOfARequest) {
  const TemporaryDir dir;
  const auto keys = ApiKeys::load(dir.write("keys", "ann sha256:" + std::string(64, '0') + " tokens_per_minute=5"));
  std::atomic<int> answered = 0;
  const Files files(
      [&](const HttpRequest& request) {
        ++answered;
        EXPECT_FALSE(request.reserve(1 << 20));
        if (request.key != nullptr) request.key->spend(1'000'000, now());
        return kAnswered;
      },
      keys.value());
  const std::string large = fmt::format(R"({{"custom_id":"b","url":"/v1/completions","body":{{"prompt":"{}"}}}})",
                                        std::string(6 << 20, ' '));
  const Json batch = files.ended(files.begin(std::string(kLine) + "\n"));
  EXPECT_EQ(batch["status"], "completed") << batch;
  const auto refused = keys.value()->named("ann")->begin(now());
  ASSERT_FALSE(refused) << "its minute's tokens are spent";
  EXPECT_EQ(refused.error().status, 429);
  keys.value()->named("ann")->spend(-1'000'000, now());
  const Json too_large = files.ended(files.begin(large));
  EXPECT_EQ(too_large["request_counts"]["failed"], 1) << too_large;
  const std::string file = too_large["error_file_id"].get<std::string>() + ".jsonl";
  const std::string errors = read_text(files.dir.path() / "files" / file).value();
  EXPECT_NE(errors.find("\"status_code\":413"), errors.npos) << errors;
  EXPECT_EQ(answered, 1);
}

TEST(Batches, TheLinesOfARemovedKeyAreRefused) {
  const TemporaryDir dir;
  const auto keys_of = [&](const std::string& name) {
    return dir.write("keys", name + " sha256:" + std::string(64, '0'));
  };
  const auto keys = ApiKeys::load(keys_of("ann"));
  std::atomic<int> answered = 0;
  const Files files(
      [&](const HttpRequest&) {
        ++answered;
        keys_of("another");
        return kAnswered;
      },
      keys.value());
  const std::string second = R"({"custom_id":"second","url":"/v1/completions","body":{"prompt":"Hi"}})";
  const Json batch = files.ended(files.begin(std::string(kLine) + "\n" + second + "\n"));
  EXPECT_EQ(batch["request_counts"]["completed"], 1) << batch;
  EXPECT_EQ(batch["request_counts"]["failed"], 1) << batch;
  EXPECT_EQ(answered, 1);
}

TEST(Batches, OneWhoseResultsCannotBeMovedToTheFilesHasFailedAndSaysSo) {
  std::atomic<bool> may_answer = false;
  const Files files([&](const HttpRequest&) {
    while (!may_answer) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return kAnswered;
  });
  const std::string id = files.begin(kLine);
  // A folder is where its output is to be.
  const std::string output = "file-" + hex(hash128(id + "_output.jsonl"));
  std::filesystem::create_directory(files.dir.path() / "files" / (output + ".jsonl"));
  may_answer = true;
  const Json batch = files.ended(id);
  EXPECT_EQ(batch["status"], "failed") << batch;
  EXPECT_NE(batch["errors"].dump().find("cannot be moved"), std::string::npos) << batch;
  EXPECT_EQ(batch.dump().find(files.dir.path().string()), std::string::npos) << "where this server's files are";
  EXPECT_TRUE(std::filesystem::exists(files.dir.path() / "batches" / (id + ".d") / "output.jsonl"));
}

TEST(Batches, OneThatWasBegunByAnotherVersionHasWhatWasDone) {
  std::atomic<int> asked = 0;
  Files files([&](const HttpRequest& request) {
    if (++asked == 1) return kAnswered;
    while (!request.gone()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return HttpReply{.status = 503, .body = "{}"};
  });
  const std::string id = files.begin(fmt::format("{}\n{}", kLine, replaced(kLine, "\"a\"", "\"b\"")));
  while (asked < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  files.restart({{"program", "2"}});
  const Json batch = files.ended(id);
  EXPECT_EQ(batch["status"], "failed") << batch;
  EXPECT_EQ(batch["errors"].dump().find("journal"), std::string::npos) << "an inner file";
  EXPECT_EQ(batch["request_counts"], (Json{{"total", 2}, {"completed", 1}, {"failed", 0}}));
  ASSERT_TRUE(batch["output_file_id"].is_string()) << batch;
  const std::string output = batch["output_file_id"].get<std::string>() + ".jsonl";
  EXPECT_EQ(lines_of(read_text(files.dir.path() / "files" / output).value()).size(), 1u);
}

TEST(Batches, OneThatIsCancelledIsNoFailureOfAnotherVersion) {
  std::atomic<bool> asked = false;
  Files files([&](const HttpRequest& request) {
    asked = true;
    while (!request.gone()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return HttpReply{.status = 503, .body = "{}"};
  });
  const std::string id = files.begin(kLine);
  while (!asked) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  // As if the server had ended right after the cancelling.
  const std::filesystem::path file = files.dir.path() / "batches" / (id + ".json");
  Json kept = Json::parse(read_text(file).value());
  kept["status"] = "cancelling";
  ASSERT_TRUE(replace_text(file, kept.dump()));
  files.restart({{"program", "2"}});
  const Json batch = files.ended(id);
  EXPECT_EQ(batch["status"], "cancelled") << batch;
  EXPECT_EQ(batch["errors"], nullptr) << batch;
}

TEST(Batches, AQueuedOneThatIsCancelledDoesNotWaitForThoseBeforeIt) {
  std::atomic<bool> may_answer = false;
  const Files files([&](const HttpRequest&) {
    while (!may_answer) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return kAnswered;
  });
  const std::string first = files.begin(kLine);
  const auto status = [&](const std::string& id) {
    return Json::parse(files.ask("GET", "/v1/batches/{id}", id, "").body)["status"];
  };
  while (status(first) != "in_progress") std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const std::string second = files.begin(kLine);
  EXPECT_EQ(files.ask("POST", "/v1/batches/{id}/cancel", second, "").status, 200);
  EXPECT_EQ(files.ended(second)["status"], "cancelled");
  EXPECT_EQ(status(first), "in_progress");
  may_answer = true;
  EXPECT_EQ(files.ended(first)["status"], "completed");
}

TEST(Batches, OneWithoutResultsLeavesNoFile) {
  const Files files([](const HttpRequest&) { return HttpReply{.status = 400, .body = "{}"}; });
  const Json batch = files.ended(files.begin(kLine));
  EXPECT_EQ(batch["status"], "completed") << batch;
  EXPECT_EQ(batch["output_file_id"], nullptr);
  for (const auto& entry : std::filesystem::directory_iterator(files.dir.path() / "files"))
    EXPECT_GT(entry.file_size(), 0u) << entry.path();
}

TEST(Batches, ADamagedOneIsNamedAtTheStart) {
  const auto opened = [](Json batch, const char* without) {
    const TemporaryDir dir;
    batch.erase(without);
    std::filesystem::create_directories(dir / "batches");
    EXPECT_TRUE(replace_text(dir / "batches" / "batch_a.json", batch.dump()));
    const auto api = BatchApi::open(
        {.dir = dir.path(), .made_by = {}, .model = "m", .answer = {}, .keys = {}, .memory = memory_of(HttpOptions())});
    return api ? "" : api.error().message;
  };
  const Json batch = {{"id", "batch_a"},     {"status", "failed"},
                      {"created_at", 1},     {"expires_at", 2},
                      {"input_file_id", ""}, {"endpoint", "/v1/completions"}};
  EXPECT_EQ(opened(batch, ""), "");
  for (const auto& [key, value] : batch.items())
    EXPECT_NE(opened(batch, key.c_str()).find("batch_a.json: not made by outrider serve"), std::string::npos) << key;
}

TEST(Batches, OneThatFailsHasWhatWasDone) {
  const Files* self = nullptr;
  const Files files([&](const HttpRequest&) {
    const std::filesystem::path folder = self->dir.path() / "files";
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      if (entry.path().extension() == ".jsonl") std::filesystem::resize_file(entry.path(), std::strlen(kLine) + 1);
    return kAnswered;
  });
  self = &files;
  const Json batch = files.ended(files.begin(fmt::format("{}\n{}", kLine, replaced(kLine, "\"a\"", "\"b\""))));
  EXPECT_EQ(batch["status"], "failed") << batch;
  EXPECT_NE(batch["errors"].dump().find("line 2 is another"), std::string::npos) << batch;
  ASSERT_TRUE(batch["output_file_id"].is_string()) << batch;
  const std::string output = batch["output_file_id"].get<std::string>() + ".jsonl";
  EXPECT_EQ(Json::parse(read_text(files.dir.path() / "files" / output).value())["custom_id"], "a");
}

}  // namespace
}  // namespace outrider
