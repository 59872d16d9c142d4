// Files that clients upload and read again: how forms write their names, and what is left of one on a broken disk.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "batch/batch_api.h"
#include "batch/hash.h"
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

/// A server's files and batches, by its routes.
struct Files {
  explicit Files(BatchAnswer answer = {}) : answer_(std::move(answer)) {}
  HttpReply ask(const std::string& method, const std::string& path, const std::string& id, std::string body) const {
    const auto route =
        std::ranges::find_if(routes, [&](const HttpRoute& one) { return one.method == method && one.path == path; });
    return route->handler(
        {.method = method, .path = path, .id = id, .body = std::move(body), .client = "me", .key = nullptr});
  }
  /// @return the id of a file with this content.
  std::string upload(const std::string& content) const {
    const auto part = [](const char* name, const std::string& text) {
      return fmt::format("--x\r\nContent-Disposition: form-data; name=\"{}\"\r\n\r\n{}\r\n", name, text);
    };
    const std::string body = part("purpose", "batch") + part("file", content) + "--x--";
    return Json::parse(ask("POST", "/v1/files", "", body).body)["id"];
  }
  BatchAnswer answer_;
  TemporaryDir dir;
  std::unique_ptr<BatchApi> api =
      BatchApi::open({.dir = dir.path(), .made_by = {}, .model = "m", .answer = answer_}).value();
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

TEST(Batches, OneWhoseResultsCannotBeMovedToTheFilesHasFailedAndSaysSo) {
  std::atomic<bool> may_answer = false;
  const Files files([&](const HttpRequest&) {
    while (!may_answer) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return HttpReply{.status = 200, .body = R"({"choices":[]})"};
  });
  const std::string input = files.upload(R"({"custom_id":"a","url":"/v1/completions","body":{"prompt":"x"}})");
  const Json asked = {{"input_file_id", input}, {"endpoint", "/v1/completions"}, {"completion_window", "24h"}};
  const std::string id = Json::parse(files.ask("POST", "/v1/batches", "", asked.dump()).body)["id"];
  // A folder is where its output is to be.
  const std::string output = "file-" + hex(hash128(id + "_output.jsonl"));
  std::filesystem::create_directory(files.dir.path() / "files" / (output + ".jsonl"));
  may_answer = true;
  Json batch;
  for (int i = 0; i < 3000 && batch["status"] != "failed" && batch["status"] != "completed"; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    batch = Json::parse(files.ask("GET", "/v1/batches/{id}", id, "").body);
  }
  EXPECT_EQ(batch["status"], "failed") << batch;
  EXPECT_NE(batch["errors"].dump().find("cannot be moved"), std::string::npos) << batch;
  EXPECT_EQ(batch.dump().find(files.dir.path().string()), std::string::npos) << "where this server's files are";
}

}  // namespace
}  // namespace outrider
