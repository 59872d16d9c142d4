// outrider batch: its lines, its journal, and what it sends when.
#include <fcntl.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <stdexcept>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "batch/dispatch.h"
#include "batch/hash.h"
#include "batch/input.h"
#include "batch/job.h"
#include "batch/journal.h"
#include "common/base/text.h"
#include "common/os/durable_file.h"
#include "common/os/files.h"
#include "tests/support/temporary_dir.h"

namespace outrider {
namespace {
using Json = nlohmann::json;

BatchRequest request_of(const std::string& line) {
  const auto parsed = parse_batch_line(line);
  EXPECT_TRUE(parsed.has_value()) << parsed.error().message;
  return parsed ? *parsed : BatchRequest();
}
std::string why_not(const std::string& line) {
  const auto parsed = parse_batch_line(line);
  return parsed ? "" : parsed.error().message;
}

// ---- lines ----

TEST(BatchLine, WhatIsWrongIsNamed) {
  EXPECT_EQ(why_not("{"), "is not JSON in UTF-8");
  EXPECT_EQ(why_not("[1]"), "is an array of 1, wanted an object");
  EXPECT_NE(why_not(R"({"method":"POST"})").find("custom_id"), std::string::npos);
  EXPECT_NE(why_not(R"({"custom_id":"a","method":"GET","url":"/v1/completions","body":{}})").find("method"),
            std::string::npos);
  EXPECT_NE(why_not(R"({"custom_id":"a","url":"/v1/embeddings","body":{}})").find("/v1/embeddings"), std::string::npos);
  EXPECT_NE(why_not(R"({"custom_id":"a","url":"/v1/completions","body":[]})").find("body"), std::string::npos);
  EXPECT_NE(why_not(std::string(100000, '[')).find("nests deeper"), std::string::npos);
  EXPECT_EQ(why_not(R"({"custom_id":"a","url":"/v1/completions","body":{}})"), "");
}

TEST(BatchLine, ASeedIsAFunctionOfTheNameAndOneThatIsThereIsKept) {
  const auto body = [](const std::string& id, const std::string& fields) {
    return Json::parse(body_to_send(
        request_of(R"({"custom_id":")" + id + R"(","url":"/v1/chat/completions","body":{)" + fields + "}}")));
  };
  EXPECT_EQ(body("a", "")["seed"], seed_of("a"));
  EXPECT_EQ(body("a", R"("seed":null)")["seed"], seed_of("a"));
  EXPECT_EQ(body("a", R"("seed":5)")["seed"], 5);
  EXPECT_NE(seed_of("a"), seed_of("b"));
  // Promised in docs/batch.md: XXH3's 128 bits.
  EXPECT_EQ(id_of("a"), "a96faf705af16834e6c632b61e964e1f");
  EXPECT_EQ(seed_of("a"), 0x66c632b61e964e1f);
  EXPECT_GE(seed_of("a"), 0);
  EXPECT_EQ(body("a", "")["max_tokens"], 8192);
  for (const char* name : {"n_predict", "max_tokens", "max_completion_tokens"}) {
    EXPECT_EQ(
        Json::parse(body_to_send(request_of(fmt::format(
            R"({{"custom_id":"a","url":"/v1/completions","body":{{"prompt":"x","{}":-1}}}})", name))))["max_tokens"],
        8192);
    EXPECT_EQ(body("a", fmt::format(R"("{}":-1)", name))["max_tokens"], 8192) << "not what a verifier's memory holds";
    Json limited = body("a", fmt::format(R"("{}":3)", name));
    limited.erase("seed");
    EXPECT_EQ(limited, (Json{{name, 3}}));
  }
}

TEST(BatchLine, AReplyIsAFunctionOfTheLineAndTheText) {
  const BatchRequest request = request_of(R"({"custom_id":"a","url":"/v1/chat/completions","body":{}})");
  const auto line_of = [&](const std::string& id, int cached, int drafted) {
    const Json body = {
        {"id", id},
        {"created", cached},
        {"choices",
         {{{"index", 0},
           {"message", {{"content", "x"}, {"tool_calls", {{{"id", "call_" + id}, {"type", "function"}}}}}}}}},
        {"usage",
         {{"prompt_tokens", 3},
          {"completion_tokens", 4},
          {"prompt_tokens_details", {{"cached_tokens", cached}}},
          {"completion_tokens_details", {{"reasoning_tokens", 2}}}}},
        {"speculative", {{"drafted_tokens", drafted}, {"accepted_tokens", 1}}}};
    const auto settled = settle_reply(request, body.dump());
    const BatchReply& reply = *settled;
    EXPECT_EQ(reply.tokens.completion, 4);
    EXPECT_EQ(reply.tokens.drafted, drafted);
    EXPECT_EQ(reply.tokens.cached, cached);
    EXPECT_EQ(reply.tokens.reasoning, 2);
    return reply.line;
  };
  EXPECT_EQ(line_of("one", 1, 2), line_of("two", 5, 6));
  const Json line = Json::parse(line_of("one", 1, 2));
  EXPECT_EQ(line["custom_id"], "a");
  EXPECT_EQ(line["response"]["status_code"], 200);
  EXPECT_EQ(line["response"]["body"]["choices"][0]["message"]["content"], "x");
  EXPECT_FALSE(settle_reply(request, "<html>"));
}

TEST(BatchLine, PromptsThatBeginAlikeAreNeighbours) {
  const auto key = [](const std::string& system, const std::string& user) {
    return prefix_key({.custom_id = "a",
                       .url = "/v1/chat/completions",
                       .body = {{"messages", {{{"role", "system"}, {"content", system}}, {{"content", user}}}}}});
  };
  const std::string one(300, 'x'), two(300, 'y'), most(2000, 'z');
  EXPECT_EQ(key(one, "a") >> 32, key(one, "b") >> 32);
  EXPECT_NE(key(one, "a"), key(one, "b"));
  EXPECT_NE(key(one, "a") >> 32, key(two, "a") >> 32);
  EXPECT_EQ(key(most, "a"), key(most, "b"));
}

// ---- the input ----

std::string line_named(const std::string& id, const std::string& prompt = "p") {
  return Json({{"custom_id", id}, {"url", "/v1/completions"}, {"body", {{"prompt", prompt}}}}).dump() + "\n";
}

TEST(BatchInput, EveryLineIsReadAsItIsWhateverItsLength) {
  const TemporaryDir dir;
  std::vector<std::string> lines;
  for (const std::size_t length : std::initializer_list<std::size_t>{1, (1u << 20) - 60, 1u << 20, 5000000})
    lines.push_back(line_named("of " + std::to_string(length), std::string(length, 'x')));
  std::string all = "\n" + lines[0] + lines[1] + lines[2] + " \r\n" + lines[3];
  all += std::string(LineReader::kLineBytesMax + 5, 'y') + "\n" + line_named("last");
  all.pop_back();  // no newline at the end
  Result<BatchInput> input = BatchInput::open(dir.write("in.jsonl", all), BatchInput::Order::kInput);
  ASSERT_TRUE(input) << input.error().message;
  EXPECT_EQ(input->lines(), 8u);
  EXPECT_EQ(input->to_send({}), (std::vector<std::uint32_t>{1, 2, 3, 5, 6, 7}));
  EXPECT_EQ(*input->read(1) + "\n", lines[0]);
  EXPECT_EQ(*input->read(3) + "\n", lines[2]);
  EXPECT_EQ(*input->read(5) + "\n", lines[3]);
  EXPECT_EQ(input->read(6).error().code, Errc::kOutOfRange);
  EXPECT_EQ(*input->read(7) + "\n", line_named("last"));
}

TEST(BatchInput, ShardsAreAPartitionAndGroupsStayTogether) {
  const TemporaryDir dir;
  std::string all;
  for (int i = 0; i < 101; ++i) all += line_named(std::to_string(i), i % 2 == 0 ? "the even ones" : "odd");
  const Result<BatchInput> input = BatchInput::open(dir.write("in.jsonl", all), BatchInput::Order::kPrefix);
  for (const std::uint32_t count : {1u, 2u, 3u, 7u, 200u}) {
    std::multiset<std::uint32_t> lines;
    for (std::uint32_t i = 1; i <= count; ++i) {
      const auto part = input->to_send({i, count});
      lines.insert(part.begin(), part.end());
      std::set<std::uint32_t> changes;
      for (std::size_t k = 1; k < part.size(); ++k) {
        if (part[k] % 2 != part[k - 1] % 2) changes.insert(part[k]);
      }
      EXPECT_LE(changes.size(), 1u);
    }
    EXPECT_EQ(lines.size(), 101u);
    EXPECT_EQ(std::set(lines.begin(), lines.end()).size(), 101u);
  }
  for (const char* wrong : {"", "1", "0/0", "3/2", "1/2x", "-1/2", "/"}) EXPECT_FALSE(Shard::parse(wrong)) << wrong;
  EXPECT_EQ(Shard::parse("0/3")->text(), "3/3") << "indices from 0 are all parts too";
}

// ---- the journal ----

class BatchJournal : public testing::Test {
 protected:
  /// Opens it with what is there, appends results of these lines, and closes it. @return what was there.
  std::map<std::uint32_t, bool> go_on(const std::vector<std::uint32_t>& lines) {
    std::map<std::uint32_t, bool> there;
    std::size_t committed = 0;
    {
      Result<std::unique_ptr<Journal>> journal = Journal::open(
          path_, manifest_, false, [&](const JournalEntry& entry) { there[entry.line] = entry.ok; },
          [&](const JournalEntry&) { ++committed; });
      EXPECT_TRUE(journal) << journal.error().message;
      if (!journal) return there;
      torn_ = (*journal)->torn_bytes();
      for (const std::uint32_t line : lines)
        EXPECT_TRUE((*journal)->append(line, line % 2 == 0, {1, 2, 3, 4, 5, 6}, result_of(line)));
    }
    EXPECT_EQ(committed, lines.size());
    return there;
  }
  static std::string result_of(std::uint32_t line) { return R"({"said":"}\n)" + std::string(line * 7, 'x') + R"("})"; }

  TemporaryDir dir_;
  std::filesystem::path path_ = dir_ / "out.journal";
  Manifest manifest_ = {{"model", "nano"}, {"shard", "1/1"}};
  std::uint64_t torn_ = 0;
};

TEST_F(BatchJournal, ResultsAreWhereItSays) {
  go_on({4, 1, 9});
  const Result<DurableFile> file = DurableFile::open(path_, O_RDONLY);
  int seen = 0;
  const Result<Manifest> manifest = Journal::read(*file, [&](const JournalEntry& entry) {
    ++seen;
    EXPECT_EQ(*file->read_at(entry.offset, entry.length), result_of(entry.line));
    EXPECT_EQ(entry.tokens.accepted, 4);
    EXPECT_EQ(entry.tokens.reasoning, 6);
  });
  EXPECT_EQ(*manifest, manifest_);
  EXPECT_EQ(seen, 3);
}

TEST_F(BatchJournal, OneOfAnEarlierVersionGoesOn) {
  go_on({});
  const std::string entry = R"(","line":8,"ok":false,"tokens":[1,2,3,4],"result":)" + result_of(7) + "}";
  const std::string line = fmt::format("{{\"xxh3\":\"{:016x}{}\n", hash64(entry), entry);
  ASSERT_TRUE(replace_text(path_, *read_text(path_) + line));
  EXPECT_EQ(go_on({4}), (std::map<std::uint32_t, bool>{{7, false}}));
  const Result<DurableFile> file = DurableFile::open(path_, O_RDONLY);
  ASSERT_TRUE(Journal::read(*file, [&](const JournalEntry& entry_of) {
    EXPECT_EQ(*file->read_at(entry_of.offset, entry_of.length), result_of(entry_of.line));
    EXPECT_EQ(entry_of.tokens.accepted, 4);
    EXPECT_EQ(entry_of.tokens.cached, entry_of.line == 4 ? 5 : 0);
  }));
}

TEST_F(BatchJournal, AResultMayBeLongerThanAnyLineOfAnInput) {
  const std::uint32_t longest = LineReader::kLineBytesMax / 7 + 1;
  go_on({longest, 1});
  EXPECT_EQ(go_on({}), (std::map<std::uint32_t, bool>{{longest, longest % 2 == 0}, {1, false}}));
  EXPECT_EQ(torn_, 0u);
}

TEST_F(BatchJournal, CutAnywhereItHasTheWholeLinesAndGoesOn) {
  go_on({0, 1});
  const std::string all = *read_text(path_);
  std::vector<std::size_t> ends;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i] == '\n') ends.push_back(i + 1);
  }
  // Every byte of the last line and of the newline before it, some of the others.
  const std::size_t dense = ends[ends.size() - 2] - 2;
  for (std::size_t cut = 0; cut <= all.size(); cut += cut < dense ? std::min<std::size_t>(7, dense - cut) : 1) {
    ASSERT_TRUE(replace_text(path_, all.substr(0, cut)));
    const auto whole =
        static_cast<std::size_t>(std::ranges::count_if(ends, [&](std::size_t end) { return end <= cut; }));
    const std::size_t results = whole == 0 ? 0 : whole - 1;
    EXPECT_EQ(go_on({7}).size(), results) << cut;
    EXPECT_EQ(torn_, cut - (whole == 0 ? 0 : ends[whole - 1])) << cut;
    EXPECT_EQ(go_on({}).size(), results + 1) << cut;
  }
}

TEST_F(BatchJournal, ABitThatChangedIsSeen) {
  go_on({0, 1, 2});
  const std::string all = *read_text(path_);
  const std::size_t first = all.find('\n') + 1, second = all.find('\n', first) + 1;
  for (std::size_t at = second; at < all.size(); at += 11) {
    std::string changed = all;
    changed[at] = static_cast<char>(changed[at] ^ 4);
    ASSERT_TRUE(replace_text(path_, changed));
    EXPECT_LT(go_on({}).size(), 3u) << at;
  }
}

TEST_F(BatchJournal, AnotherJobIsRefusedByFieldAndBothValues) {
  go_on({0});
  manifest_["model"] = "e4b";
  const auto open = [&](bool restart) {
    return Journal::open(
        path_, manifest_, restart, [](const JournalEntry&) {}, [](const JournalEntry&) {});
  };
  const auto refused = open(false);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::kMismatch);
  EXPECT_NE(refused.error().message.find("model 'nano', now it is 'e4b'"), std::string::npos)
      << refused.error().message;
  EXPECT_TRUE(open(true));
  EXPECT_TRUE(go_on({}).empty());
}

TEST_F(BatchJournal, OneWriter) {
  const auto open = [&] {
    return Journal::open(
        path_, manifest_, false, [](const JournalEntry&) {}, [](const JournalEntry&) {});
  };
  const auto first = open();
  EXPECT_EQ(open().error().code, Errc::kUnavailable);
}

// ---- the job ----

/// A job of ten lines, one after the other, answered by their prompts. @param on_line  is called with each line's
/// number
class JobOfTen {
 public:
  explicit JobOfTen(std::function<void(int line)> on_line = [](int) {}) : on_line_(std::move(on_line)) {
    for (int i = 0; i < 10; ++i) lines_ += line_named(std::to_string(i), std::to_string(i));
    input_ = dir_.write("in.jsonl", lines_);
  }
  Result<bool> run() {
    BatchOptions options;
    options.input = input_;
    options.output = dir_ / "out.jsonl";
    options.order = BatchInput::Order::kInput;
    Result<std::unique_ptr<BatchJob>> job = BatchJob::open(options);
    if (!job) return job.error();
    BatchControl one_by_one;
    one_by_one.concurrency = 1;
    return (*job)->run(
        [&](const HttpRequest& request) {
          const Json prompt = Json::parse(request.body)["prompt"];
          on_line_(std::stoi(prompt.get<std::string>()));
          return HttpReply{.status = 200, .body = Json({{"choices", {{{"text", prompt}}}}}).dump()};
        },
        one_by_one);
  }
  /// The texts of the output.
  std::string texts() const {
    std::string texts;
    for (const std::string& line : lines_of(read_text(dir_ / "out.jsonl").value()))
      texts += Json::parse(line)["response"]["body"]["choices"][0]["text"].get<std::string>();
    return texts;
  }
  /// In place, as an editor or a program that has it mapped.
  void write(const std::string& text) const { std::ofstream(input_, std::ios::in | std::ios::trunc) << text; }
  const std::string& lines() const { return lines_; }
  bool has_errors() const { return std::filesystem::exists(dir_ / "out.errors.jsonl"); }

 private:
  TemporaryDir dir_;
  std::function<void(int line)> on_line_;
  std::string lines_;
  std::filesystem::path input_;
};

TEST(BatchJob, StopsWhereItsInputIsChangedAndGoesOnWithTheOldOne) {
  const auto spoilt = [](const std::function<std::string(std::string)>& change) {
    JobOfTen* self = nullptr;
    bool once = true;
    JobOfTen job([&](int line) {
      if (line == 3 && std::exchange(once, false)) self->write(change(self->lines()));
    });
    self = &job;
    const Result<bool> done = job.run();
    EXPECT_FALSE(done);
    if (done) return std::string("it went on");
    EXPECT_EQ(done.error().code, Errc::kMismatch);
    EXPECT_FALSE(job.has_errors()) << "nothing is wrong with the lines";
    job.write(job.lines());
    EXPECT_TRUE(job.run().value());
    EXPECT_EQ(job.texts(), "0123456789");
    const std::string& why = done.error().message;
    return why.substr(why.find("in.jsonl"));
  };
  const auto with = [](const char* from, const char* to) {
    return [=](const std::string& lines) { return replaced(lines, from, to); };
  };
  const auto named = [](int line) {
    return fmt::format("in.jsonl: line {} is another than when the job began, wanted the file as it was", line);
  };
  EXPECT_EQ(spoilt(with(R"("prompt":"7")", R"("prompt":"8")")), named(8)) << "of the same length";
  EXPECT_EQ(spoilt(with(R"("custom_id":"9")", R"("custom_id":"x")")), named(10));
  EXPECT_EQ(spoilt(with(R"("prompt":"0")", R"("prompt":"00")")), named(5)) << "all that follows has moved";
  EXPECT_EQ(spoilt([](const std::string& lines) { return lines.substr(0, lines.size() / 2); }), named(6));
  EXPECT_EQ(spoilt([](const std::string&) { return ""; }), named(5));
}

TEST(BatchJob, GoesOnWhereLinesAreAddedBehindOrTheFileIsTouched) {
  JobOfTen* self = nullptr;
  JobOfTen job([&](int line) {
    if (line == 3) self->write(self->lines() + line_named("more"));
  });
  self = &job;
  EXPECT_TRUE(job.run().value());
  EXPECT_EQ(job.texts(), "0123456789");
}

TEST(BatchJob, ALineWhoseAnswerBreaksIsAskedAgainAndEndsNothing) {
  bool once = true;
  JobOfTen job([&](int line) {
    if (line == 3 && std::exchange(once, false)) throw std::runtime_error("a descriptor is missing");
  });
  EXPECT_TRUE(job.run().value());
  EXPECT_EQ(job.texts(), "0123456789");
  EXPECT_FALSE(job.has_errors());
}

TEST(BatchJob, AnExceptionCutsOffTheLinesInProgress) {
  const TemporaryDir dir;
  BatchOptions options;
  options.input = dir.write("in.jsonl", line_named("a") + line_named("b"));
  options.output = dir / "out.jsonl";
  std::atomic<int> under_way = 0;
  const auto waits_for_ever = [&](const HttpRequest& request) {
    ++under_way;
    while (!request.gone()) std::this_thread::yield();
    return HttpReply{.status = 503, .body = {}};
  };
  BatchControl control;
  control.concurrency = 2;
  control.on_tick = [&](const BatchCounts&) {
    if (under_way == 2) throw std::runtime_error("the verifier has failed");
  };
  EXPECT_THROW((void)BatchJob::open(options).value()->run(waits_for_ever, control), std::runtime_error);
}

// ---- what is sent when ----

TimePoint at(double seconds) { return TimePoint() + from_seconds(seconds); }

TEST(BatchDispatch, EveryLineIsSentUntilItHasItsResult) {
  std::mt19937 random(1);
  Dispatch dispatch({3, 1, 2, 5, 9, 7}, 2, at(0));
  std::vector<std::uint32_t> under_way;
  std::multiset<std::uint32_t> done;
  double time = 0;
  while (done.size() < 6) {
    ASSERT_LT(time, 1e5);
    while (const auto line = dispatch.next(at(time))) under_way.push_back(*line);
    ASSERT_LE(under_way.size(), 2u);
    time += 1;
    if (under_way.empty()) continue;
    const std::uint32_t line = under_way.back();
    under_way.pop_back();
    if (random() % 2 == 0)
      EXPECT_TRUE(dispatch.failed(line, Failure::kTooMuch, 0.5, at(time)));
    else
      dispatch.done(line, at(time)), done.insert(line);
  }
  EXPECT_EQ(done, (std::multiset<std::uint32_t>{1, 2, 3, 5, 7, 9}));
}

TEST(BatchDispatch, AnOutageIsNoLinesFaultAndAPoisonousLineIs) {
  Dispatch outage({1, 2}, 1, at(0));
  double time = 0;
  for (int i = 0; i < 100; ++i) {
    std::optional<std::uint32_t> line;
    while (!(line = outage.next(at(time)))) time += 1;
    EXPECT_TRUE(outage.failed(*line, Failure::kNobody, 0.5, at(time)));
  }
  EXPECT_TRUE(outage.outage());

  std::vector<std::uint32_t> lines(1000);
  for (std::uint32_t i = 0; i < 1000; ++i) lines[i] = i;
  Dispatch poison(lines, 1, at(0));
  time = 0;
  int tries = 0;
  while (time < 1e5) {
    const auto line = poison.next(at(time));
    time += 0.5;
    if (!line) continue;
    if (*line != 0) {
      poison.done(*line, at(time));
    } else {
      ++tries;
      if (!poison.failed(0, Failure::kOfLine, 0.5, at(time))) break;
    }
  }
  EXPECT_GE(tries, Dispatch::kTriesMax);
  EXPECT_LT(time, 1e5);
}

TEST(BatchDispatch, LastLinesThatAreAnsweredWithFailuresAloneAreGivenUpAfterAWhile) {
  const auto end_of = [](Failure failure) {
    Dispatch dispatch({1, 2, 3}, 8, at(0));
    double time = 0;
    int given_up = 0, tries = 0;
    while (!dispatch.outage() && given_up < 2) {
      EXPECT_LT(time, 1e5);
      time += 1;
      const auto line = dispatch.next(at(time));
      if (!line) continue;
      if (*line == 3) {
        dispatch.done(3, at(time));
      } else {
        ++tries;
        if (!dispatch.failed(*line, failure, 0.5, at(time))) ++given_up;
      }
    }
    EXPECT_GE(time, to_seconds(Dispatch::kSilenceMax));
    EXPECT_GE(tries, 2 * Dispatch::kTriesMax);
    return given_up;
  };
  EXPECT_EQ(end_of(Failure::kOfLine), 2);
  EXPECT_EQ(end_of(Failure::kNobody), 0) << "an outage is no line's fault";
}

TEST(BatchDispatch, LongAnswersAreNoOutageAlsoAfterAFailure) {
  Dispatch dispatch({1, 2, 3}, 2, at(0));
  EXPECT_EQ(dispatch.next(at(0)), 1u);
  EXPECT_FALSE(dispatch.outage());
  EXPECT_TRUE(dispatch.failed(1, Failure::kNobody, 0.5, at(4000)));
  EXPECT_FALSE(dispatch.outage()) << "one failure";
  EXPECT_EQ(dispatch.next(at(4001)), 1u);
  EXPECT_TRUE(dispatch.failed(1, Failure::kNobody, 0.5, at(4601)));
  EXPECT_TRUE(dispatch.outage()) << "nothing but failures for ten minutes";
  EXPECT_EQ(dispatch.next(at(5000)), 1u);
  dispatch.done(1, at(6000));
  EXPECT_EQ(dispatch.next(at(6000)), 2u);
  EXPECT_TRUE(dispatch.failed(2, Failure::kNobody, 0.5, at(6001)));
  EXPECT_EQ(dispatch.next(at(6002)), 2u);
  EXPECT_FALSE(dispatch.outage());
}

TEST(BatchDispatch, ALongLastAnswerIsNoOutageAfterAFailureOfItsOwn) {
  Dispatch dispatch({1}, 1, at(0));
  EXPECT_EQ(dispatch.next(at(0)), 1u);
  EXPECT_TRUE(dispatch.failed(1, Failure::kOfLine, 0.5, at(700)));
  EXPECT_EQ(dispatch.next(at(701)), 1u);
  EXPECT_FALSE(dispatch.outage());
  EXPECT_TRUE(dispatch.failed(1, Failure::kNobody, 0.5, at(1301)));
  EXPECT_TRUE(dispatch.outage());
}

TEST(BatchDispatch, AnOutageInTheMiddleEndsTheJobAndNoLine) {
  std::vector<std::uint32_t> lines(1000);
  for (std::uint32_t i = 0; i < 1000; ++i) lines[i] = i;
  Dispatch dispatch(lines, 4, at(0));
  double time = 0;
  while (!dispatch.outage()) {
    ASSERT_LT(time, 1e5);
    time += 1;
    if (const auto line = dispatch.next(at(time))) {
      EXPECT_TRUE(dispatch.failed(*line, Failure::kOfLine, 0.5, at(time))) << "a server that always says 500";
    }
  }
}

TEST(BatchDispatch, LinesThatFailTogetherAreOneFailure) {
  std::vector<std::uint32_t> lines(100);
  std::iota(lines.begin(), lines.end(), 0u);
  Dispatch dispatch(lines, 100, at(0));
  const auto send_all = [&](double time) {
    int sent = 0;
    while (dispatch.next(at(time))) ++sent;
    return sent;
  };
  EXPECT_EQ(send_all(0), 100);
  for (const std::uint32_t line : lines) EXPECT_TRUE(dispatch.failed(line, Failure::kNobody, 0.5, at(3)));
  EXPECT_EQ(send_all(3.1), 0);
  EXPECT_EQ(send_all(3.2), 100);
  for (const std::uint32_t line : lines) EXPECT_TRUE(dispatch.failed(line, Failure::kNobody, 0.5, at(6)));
  EXPECT_EQ(send_all(6.2), 0) << "the second failure waits longer";
  EXPECT_EQ(send_all(6.4), 100);
  dispatch.done(0, at(7));
  EXPECT_TRUE(dispatch.failed(1, Failure::kNobody, 0.5, at(7))) << "the first one since a reply";
  EXPECT_EQ(send_all(7.2), 1);
}

TEST(BatchDispatch, TakesFewerLinesWhereItIsRefusedAndSlowlyMoreAgain) {
  std::vector<std::uint32_t> lines(100000);
  std::iota(lines.begin(), lines.end(), 0u);
  const auto refuse = [](Dispatch& dispatch, double time) {
    const std::optional<std::uint32_t> line = dispatch.next(at(time));
    ASSERT_TRUE(line);
    EXPECT_TRUE(dispatch.failed(*line, Failure::kTooMuch, 0.5, at(time)));
  };
  Dispatch dispatch(lines, 0, at(0));
  EXPECT_EQ(dispatch.concurrency(), 256);
  refuse(dispatch, 10);
  EXPECT_EQ(dispatch.concurrency(), 192);
  refuse(dispatch, 12);
  EXPECT_EQ(dispatch.concurrency(), 192) << "many lines are refused together";
  refuse(dispatch, 20);
  EXPECT_EQ(dispatch.concurrency(), 144);
  const auto answer = [&](int replies) {
    for (; replies > 0; --replies) dispatch.done(dispatch.next(at(100)).value(), at(100));
  };
  answer(144);
  EXPECT_EQ(dispatch.concurrency(), 153);
  answer(10000);
  EXPECT_EQ(dispatch.concurrency(), 256);
  for (int i = 1; i < 100; ++i) refuse(dispatch, 100 + 40 * i);
  EXPECT_EQ(dispatch.concurrency(), 1);
  Dispatch fixed(lines, 12, at(0));
  refuse(fixed, 10);
  EXPECT_EQ(fixed.concurrency(), 12);
}

}  // namespace
}  // namespace outrider
