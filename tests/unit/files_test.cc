// Files as people's editors, file systems and other programs leave them: what is read, and what a replaced file keeps.
#include <sys/stat.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "common/base/complain.h"
#include "common/base/json_fields.h"
#include "common/base/json_nesting.h"
#include "common/base/text.h"
#include "common/os/durable_file.h"
#include "common/os/files.h"
#include "tests/support/temporary_dir.h"

namespace outrider {
namespace {
namespace fs = std::filesystem;

mode_t mode_of(const fs::path& path) {
  struct stat status {};
  EXPECT_EQ(lstat(path.c_str(), &status), 0) << path;
  return status.st_mode & 07777;
}

std::size_t files_in(const fs::path& folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

Result<void> replace_durably(const fs::path& path, std::string_view text) {
  return replace_file(path, [&](const AppendBytes& append) { return append(text); });
}

TEST(Lines, AreTheSameWhicheverEditorWroteThem) {
  const TemporaryDir dir;
  const std::vector<std::string> wanted = {"a b", "", "c"};
  for (const char* text : {"a b\n\nc\n", "a b\n\nc", "a b\r\n\r\nc\r\n",
                           "\xEF\xBB\xBF"
                           "a b\r\n\r\nc",
                           "a b\n\r\nc\r"})
    EXPECT_EQ(lines_of(read_text(dir.write("list", text)).value()), wanted) << text;
  EXPECT_EQ(read_text(dir.write("marked", "\xEF\xBB\xBF")).value(), "");
  EXPECT_EQ(read_text(dir.write("within", "a\xEF\xBB\xBF")).value(), "a\xEF\xBB\xBF");
}

TEST(JsonText, IsReadToALimitedDepth) {
  const auto nested = [](int levels) {
    return R"({"a":)" + std::string(static_cast<std::size_t>(levels - 1), '[') +
           std::string(static_cast<std::size_t>(levels - 1), ']') + "}";
  };
  EXPECT_TRUE(parse_json_object(nested(kJsonNestingMax), "f"));
  const auto deep = parse_json_object(nested(1 << 20), "f", /*bytes_max=*/4 << 20);  // a copy overflows the stack
  ASSERT_FALSE(deep);
  EXPECT_EQ(deep.error().message, "f: nests deeper than 512 levels");
  EXPECT_TRUE(parse_json(nested(kJsonNestingMax + 1)).is_discarded());
}

TEST(ReplacedFile, IsTheOneBehindALinkAndKeepsItsMode) {
  for (const auto replace : {replace_text, replace_durably}) {
    const TemporaryDir dir;
    const fs::path file = dir.write("real/list", "old"), link = dir / "link", far = dir / "far";
    fs::create_symlink("real/list", link);
    fs::create_symlink(link, far);
    ASSERT_EQ(chmod(file.c_str(), 0600), 0);
    ASSERT_TRUE(replace(far, "new"));
    EXPECT_TRUE(fs::is_symlink(link) && fs::is_symlink(far));
    EXPECT_EQ(read_text(file).value(), "new");
    EXPECT_EQ(mode_of(file), 0600u);
    ASSERT_EQ(chmod(file.c_str(), 0664), 0);
    ASSERT_TRUE(replace(file, "newer"));
    EXPECT_EQ(mode_of(file), 0664u) << "more than the umask lets a new file have";
    EXPECT_EQ(files_in(dir / "real"), 1u);
  }
}

TEST(ReplacedFile, OfALinkToNothingIsMadeWhereItLeads) {
  const TemporaryDir dir;
  fs::create_symlink("later", dir / "link");
  ASSERT_TRUE(replace_text(dir / "link", "text"));
  EXPECT_TRUE(fs::is_symlink(dir / "link"));
  EXPECT_EQ(read_text(dir / "later").value(), "text");
  fs::create_symlink("loop", dir / "loop");
  EXPECT_FALSE(replace_text(dir / "loop", "text"));
}

TEST(ReplacedFile, KeepsItsOwnerAndGroup) {
  if (geteuid() != 0) GTEST_SKIP() << "NOT tested: only root gives files away";
  const TemporaryDir dir;
  const fs::path file = dir.write("list", "old");
  ASSERT_EQ(chown(file.c_str(), 12345, 12346), 0);
  ASSERT_TRUE(replace_text(file, "new"));
  struct stat status {};
  ASSERT_EQ(stat(file.c_str(), &status), 0);
  EXPECT_EQ(std::pair(status.st_uid, status.st_gid), std::pair(uid_t{12345}, gid_t{12346}));
}

TEST(ReplacedFile, IsNoFolderAndNoDevice) {
  const TemporaryDir dir;
  EXPECT_EQ(replace_text(dir.path(), "x").error().message, dir.path().string() + ": is a folder, wanted a file");
  ASSERT_EQ(mkfifo((dir / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(replace_text(dir / "pipe", "x").error().message, (dir / "pipe").string() + ": not a regular file");
  EXPECT_EQ(files_in(dir.path()), 1u);
}

// As two processes would, each while the other writes: the name beside the file was one for all.
TEST(ReplacedFile, HasOneOfTwoTextsThatAreWrittenAtOnce) {
  const TemporaryDir dir;
  const fs::path file = dir / "list";
  const std::string inner(1000, 'i'), outer(2000, 'o');
  ASSERT_TRUE(replace_file(file, [&](const AppendBytes& append) -> Result<void> {
    RETURN_IF_ERROR(append(outer));
    RETURN_IF_ERROR(replace_text(file, inner));
    EXPECT_EQ(read_text(file).value(), inner);
    return {};
  }));
  EXPECT_EQ(read_text(file).value(), outer);
  EXPECT_EQ(files_in(dir.path()), 1u);
}

TEST(ReplacedFile, LeavesNothingOfAProgramThatWasKilled) {
  const TemporaryDir dir;
  for (const char* name :
       {"out.1a2b3c4d.tmp", "out.9a9b9c9d.tmp", "out.2.1a2b3c4d.tmp", "out.jsonl", "other.1a2b3c4d.tmp", "out"})
    dir.write(name, "x");
  std::filesystem::create_symlink("out", dir / "link");
  remove_halves_of(dir / "link");
  EXPECT_EQ(files_in(dir.path()), 5u);
  EXPECT_FALSE(fs::exists(dir / "out.1a2b3c4d.tmp") || fs::exists(dir / "out.9a9b9c9d.tmp"));
}

TEST(Complaint, IsOneLineThatATerminalCanShow) {
  testing::internal::CaptureStderr();
  complain("{}: {}", "list", "\x1b[31mred\nand\x07 \xff\xC2\x9B more Ä");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "outrider: list: ?[31mred?and? ?? more Ä\n");
}

}  // namespace
}  // namespace outrider
