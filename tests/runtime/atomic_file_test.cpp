#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

#include "runtime/support/atomic_file.h"
#include "runtime/support/file.h"
#include "tests/runtime/file_fixture.h"

namespace cairn::test {
namespace {

Status save(const std::string& path, const std::string& bytes, AtomicFile::Verify verify = AtomicFile::Verify::kAlways) {
  CAIRN_TRY_ASSIGN(AtomicFile file, AtomicFile::create(path));
  CAIRN_TRY(file.write(bytes.data(), bytes.size()));
  return file.commit({verify});
}

unsigned mode_of(const std::string& path) {
  struct stat status = {};
  stat(path.c_str(), &status);
  return status.st_mode & 0777;
}

}  // namespace

TEST_CASE("atomic_file makes a file of mode 0600 and leaves nothing else behind") {
  const TemporaryFolder folder;

  CHECK(save(folder / "state", "one").ok());

  CHECK(file_bytes(folder / "state") == "one");
  CHECK(mode_of(folder / "state") == 0600);
  CHECK(folder.entry_count() == 1);
}

TEST_CASE("atomic_file keeps the mode of the file it replaces") {
  const TemporaryFolder folder;
  put_file(folder / "state", "old");
  chmod((folder / "state").c_str(), 0640);

  CHECK(save(folder / "state", "new").ok());

  CHECK(file_bytes(folder / "state") == "new");
  CHECK(mode_of(folder / "state") == 0640);
}

TEST_CASE("atomic_file that is not committed leaves the old file and no temporary") {
  const TemporaryFolder folder;
  put_file(folder / "state", "old");
  {
    Result<AtomicFile> file = AtomicFile::create(folder / "state");
    REQUIRE(file.ok());
    CHECK(file.value().write("new", 3).ok());
    CHECK(folder.entry_count() == 2);
  }
  CHECK(file_bytes(folder / "state") == "old");
  CHECK(folder.entry_count() == 1);
}

TEST_CASE("atomic_file turns zero blocks into holes that read as zeros") {
  const TemporaryFolder folder;
  std::string bytes(5 << 20, '\0');
  bytes[0] = 'a';
  Result<AtomicFile> file = AtomicFile::create(folder / "state");
  REQUIRE(file.ok());
  CHECK(file.value().write(bytes.data(), 1 << 20).ok());
  CHECK(file.value().write(bytes.data() + (1 << 20), 4 << 20).ok());

  CHECK(file.value().commit({AtomicFile::Verify::kAlways}).ok());

  CHECK(file_bytes(folder / "state") == bytes);
  struct stat status = {};
  stat((folder / "state").c_str(), &status);
  CHECK(status.st_blocks * 512 < 3 << 20);
}

TEST_CASE("a fault in any call of a save leaves the old file whole, and says which status") {
  for (const int error : {EIO, ENOSPC, EDQUOT, EACCES, EROFS, EMFILE, ENOMEM}) {
    for (const bool forever : {false, true}) {
      for (int fail_at = 0; fail_at < 100; ++fail_at) {
        CAPTURE(error);
        CAPTURE(fail_at);
        const TemporaryFolder folder;
        put_file(folder / "state", "old");
        Status status;
        std::string failed;
        {
          FaultyIo io;
          io.fail_at = fail_at;
          io.error_number = error;
          io.forever = forever;
          status = save(folder / "state", std::string(3000, 'n'));
          failed = io.failed_call;
        }
        if (failed.empty()) {
          CHECK(status.ok());
          break;
        }
        CAPTURE(failed);
        const std::string now = file_bytes(folder / "state");
        if (status.ok() || status.code() == CAIRN_STATUS_DURABILITY) {  // the new file; what failed was only the last close
          CHECK(now == std::string(3000, 'n'));
        } else {
          CHECK(now == "old");
          const bool is_full = error == ENOSPC || error == EDQUOT;
          if (is_full) CHECK(status.code() == CAIRN_STATUS_NO_SPACE);
          if (!is_full && error != ENOMEM) CHECK(status.code() == CAIRN_STATUS_IO);
          CHECK(status.message().find("state") != std::string::npos);
          if (!forever) CHECK(folder.entry_count() == 1);
        }
        REQUIRE(fail_at < 99);
      }
    }
  }
}

TEST_CASE("short and interrupted reads and writes are carried on") {
  for (const bool makes_short : {false, true}) {
    for (int fail_at = 0; fail_at < 100; ++fail_at) {
      CAPTURE(fail_at);
      const TemporaryFolder folder;
      FaultyIo io;
      io.fail_at = fail_at;
      io.error_number = EINTR;
      io.makes_short = makes_short;
      const Status status = save(folder / "state", std::string(3000, 'n'));
      if (io.failed_call.empty()) break;
      if (io.failed_call != "close" && io.failed_call != "fsync") CHECK_MESSAGE(status.ok(), status.message());
    }
  }
}

TEST_CASE("a folder that cannot be synced is reported as DURABILITY, with the new file in place") {
  const TemporaryFolder folder;
  put_file(folder / "state", "old");
  int syncs = 0;
  Status status;
  for (int fail_at = 0; fail_at < 50 && syncs < 2; ++fail_at) {
    FaultyIo io;
    io.fail_at = fail_at;
    status = save(folder / "state", "new");
    if (io.failed_call == "fsync") ++syncs;
  }
  CHECK(status.code() == CAIRN_STATUS_DURABILITY);
  CHECK(file_bytes(folder / "state") == "new");
}

TEST_CASE("atomic_file sweeps its own stale temporaries and nobody else's") {
  const TemporaryFolder folder;
  for (const char* name : {".state.cairn-tmp-1-00", ".other.cairn-tmp-1-00", ".state.cairn-tmp-2-00"}) put_file(folder / name, "x");
  const struct timespec old[2] = {{1000, 0}, {1000, 0}};
  utimensat(AT_FDCWD, (folder / ".state.cairn-tmp-1-00").c_str(), old, 0);
  utimensat(AT_FDCWD, (folder / ".other.cairn-tmp-1-00").c_str(), old, 0);

  CHECK(save(folder / "state", "new").ok());

  CHECK_FALSE(std::filesystem::exists(folder / ".state.cairn-tmp-1-00"));
  CHECK(std::filesystem::exists(folder / ".other.cairn-tmp-1-00"));
  CHECK(std::filesystem::exists(folder / ".state.cairn-tmp-2-00"));
}

TEST_CASE("paths that name no file are refused with a reason") {
  const TemporaryFolder folder;
  CHECK(save("", "x").code() == CAIRN_STATUS_INVALID_ARGUMENT);
  CHECK(save(folder.path() + "/", "x").code() == CAIRN_STATUS_INVALID_ARGUMENT);
  CHECK(save(folder / "..", "x").code() == CAIRN_STATUS_INVALID_ARGUMENT);
  CHECK(save(folder / std::string(5000, 'a'), "x").code() == CAIRN_STATUS_INVALID_ARGUMENT);
  CHECK(save(folder / (std::string("a\0b", 3)), "x").code() == CAIRN_STATUS_INVALID_ARGUMENT);
  CHECK(save(folder / "missing/state", "x").code() == CAIRN_STATUS_NOT_FOUND);
  CHECK(folder.entry_count() == 0);
}

TEST_CASE("a save replaces files only: what else is there stays") {
  const TemporaryFolder folder;
  mkfifo((folder / "fifo").c_str(), 0600);
  std::filesystem::create_directory(folder / "folder");
  std::filesystem::create_symlink("fifo", folder / "link");

  for (const char* name : {"fifo", "folder", "link"}) {
    const Status status = save(folder / name, "x");
    CHECK(status.code() == CAIRN_STATUS_IO);
    CHECK(status.message().find("not a regular file") != std::string::npos);
  }

  CHECK(std::filesystem::is_fifo(folder / "fifo"));
  CHECK(std::filesystem::is_directory(folder / "folder"));
  CHECK(folder.entry_count() == 3);
}

TEST_CASE("a save to a link replaces the file that it names, and the link stays") {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "store");
  put_file(folder / "store/old", "old");
  chmod((folder / "store/old").c_str(), 0640);
  std::filesystem::create_symlink("store/old", folder / "relative");
  std::filesystem::create_symlink(folder / "relative", folder / "absolute");
  std::filesystem::create_symlink("store/new", folder / "dangling");
  std::filesystem::create_symlink("loop", folder / "loop");

  CHECK(save(folder / "absolute", "one").ok());
  CHECK(save(folder / "dangling", "two").ok());
  const Status loop = save(folder / "loop", "three");

  CHECK(loop.code() == CAIRN_STATUS_IO);
  CHECK(loop.message().find("loop: its link cannot be followed") != std::string::npos);
  for (const char* link : {"relative", "absolute", "dangling", "loop"}) {
    CHECK(std::filesystem::is_symlink(folder / link));
  }
  CHECK(file_bytes(folder / "store/old") == "one");
  CHECK(mode_of(folder / "store/old") == 0640);
  CHECK(file_bytes(folder / "store/new") == "two");
  CHECK(folder.entry_count() == 5);
}

TEST_CASE("file refuses what is no regular file, at once") {
  const TemporaryFolder folder;
  mkfifo((folder / "fifo").c_str(), 0600);
  std::filesystem::create_symlink("loop", folder / "loop");

  CHECK(File::open(folder / "fifo").status().message().find("not a regular file") != std::string::npos);
  CHECK(File::open(folder.path()).status().message().find("not a regular file") != std::string::npos);
  CHECK(File::open("/dev/null").status().code() == CAIRN_STATUS_IO);
  CHECK(File::open(folder / "loop").status().code() == CAIRN_STATUS_IO);
  CHECK(File::open(folder / "absent").status().code() == CAIRN_STATUS_NOT_FOUND);
  CHECK(File::open(folder / std::string(300, 'n')).status().code() == CAIRN_STATUS_IO);
}

}  // namespace cairn::test
