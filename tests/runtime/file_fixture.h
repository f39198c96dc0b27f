// A folder of its own for each test, an I/O table that fails on demand, and whole files as bytes.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "cairn/log.h"
#include "runtime/support/io_hooks.h"

namespace cairn::test {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "cairn-test-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }
  std::size_t entry_count() const {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(path_)) ++count;
    return count;
  }

 private:
  std::string path_;
};

inline std::string file_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void put_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

/// The default table, but call number `fail_at` fails with `error_number` (and, when `forever`, every later one). A
/// `short_by` above 0 makes that read or write short instead.
class FaultyIo {
 public:
  FaultyIo() {
    set_io(nullptr).ok();
    real_ = current_io();
    table_ = {sizeof(cairn_io), this, open, openat, pread, pwrite, fsync, close, renameat, unlinkat, file_size};
    set_io(&table_).ok();
  }
  ~FaultyIo() { set_io(nullptr).ok(); }

  int fail_at = -1, error_number = 5;
  bool forever = false, makes_short = false;
  int calls = 0;
  std::string failed_call;

 private:
  cairn_io real_{}, table_{};

  static FaultyIo& self(void* user) { return *static_cast<FaultyIo*>(user); }
  bool strikes(const char* name) {
    const int number = calls++;
    const bool hit = fail_at >= 0 && (number == fail_at || (forever && number > fail_at));
    if (hit && failed_call.empty()) failed_call = name;
    return hit;
  }
  template <class Call>
  static auto run(void* user, const char* name, int* error, Call call) -> decltype(call(self(user).real_)) {
    FaultyIo& io = self(user);
    if (io.strikes(name) && !io.makes_short) {
      *error = io.error_number;
      return -1;
    }
    return call(io.real_);
  }
  static int open(void* u, const char* path, int flags, unsigned mode, int* e) {
    return run(u, "open", e, [&](cairn_io& io) { return io.open(nullptr, path, flags, mode, e); });
  }
  static int openat(void* u, int d, const char* name, int flags, unsigned mode, int* e) {
    return run(u, "openat", e, [&](cairn_io& io) { return io.openat(nullptr, d, name, flags, mode, e); });
  }
  static std::int64_t pread(void* u, int f, void* data, std::size_t n, std::int64_t offset, int* e) {
    const bool is_short = self(u).makes_short && self(u).calls == self(u).fail_at;
    return run(u, "pread", e, [&](cairn_io& io) { return io.pread(nullptr, f, data, is_short ? n / 2 : n, offset, e); });
  }
  static std::int64_t pwrite(void* u, int f, const void* data, std::size_t n, std::int64_t offset, int* e) {
    const bool is_short = self(u).makes_short && self(u).calls == self(u).fail_at && n > 1;
    return run(u, "pwrite", e, [&](cairn_io& io) { return io.pwrite(nullptr, f, data, is_short ? n / 2 : n, offset, e); });
  }
  static int fsync(void* u, int f, int* e) {
    return run(u, "fsync", e, [&](cairn_io& io) { return io.fsync(nullptr, f, e); });
  }
  static int close(void* u, int f, int* e) {
    FaultyIo& io = self(u);
    if (io.strikes("close")) {
      io.real_.close(nullptr, f, e);  // the descriptor is gone either way, as in POSIX
      *e = io.error_number;
      return -1;
    }
    return io.real_.close(nullptr, f, e);
  }
  static int renameat(void* u, int d, const char* from, const char* to, int* e) {
    return run(u, "renameat", e, [&](cairn_io& io) { return io.renameat(nullptr, d, from, to, e); });
  }
  static int unlinkat(void* u, int d, const char* name, int* e) {
    return run(u, "unlinkat", e, [&](cairn_io& io) { return io.unlinkat(nullptr, d, name, e); });
  }
  static std::int64_t file_size(void* u, int f, int* e) {
    return run(u, "file_size", e, [&](cairn_io& io) { return io.file_size(nullptr, f, e); });
  }
};

}  // namespace cairn::test
