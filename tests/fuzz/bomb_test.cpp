// Files that are made to cost more than they weigh: each is refused with bounded memory and time (promise R2).
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <functional>

#include "runtime/import/import_folder.h"
#include "runtime/model/cairn_file_reader.h"
#include "runtime/model/container_reader.h"
#include "tests/fuzz/sealed_file.h"
#include "tests/runtime/file_fixture.h"

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kCountsMemory = false;  // the sanitizer's own memory would be counted
#else
constexpr bool kCountsMemory = true;
#endif

namespace cairn::test {
namespace {

constexpr std::uint64_t kRoomBytes = 64 << 20;

struct Cost {
  int status = -1;
  std::uint64_t grown_bytes = 0;
  double seconds = 0;
};

std::uint64_t peak_bytes() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
}

/// Resident memory of this process, from /proc.
std::uint64_t resident_bytes() {
  unsigned long pages = 0, resident = 0;
  if (FILE* file = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(file, "%lu %lu", &pages, &resident) != 2) resident = 0;
    std::fclose(file);
  }
  return resident * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

/// Runs in a child process, so that its peak is its own.
Cost cost_of(const std::function<Status()>& open) {
  int ends[2];
  if (pipe(ends) != 0) return {};
  const pid_t child = fork();
  if (child == 0) {
    const std::uint64_t before = resident_bytes();
    const auto start = std::chrono::steady_clock::now();
    Cost cost;
    cost.status = open().code();
    cost.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const std::uint64_t peak = peak_bytes();
    cost.grown_bytes = peak > before ? peak - before : 0;
    const bool sent = write(ends[1], &cost, sizeof cost) == sizeof cost;
    _exit(sent ? 0 : 1);
  }
  close(ends[1]);
  Cost cost;
  if (read(ends[0], &cost, sizeof cost) != sizeof cost) cost.status = -2;
  close(ends[0]);
  waitpid(child, nullptr, 0);
  return cost;
}

void check_cost(const char* what, const std::string& path, std::uint64_t file_bytes, const std::function<Status()>& open,
                double seconds_limit) {
  CAPTURE(what);
  CAPTURE(path);
  const Cost cost = cost_of(open);
  CHECK(cost.status > CAIRN_STATUS_OK);
  CHECK(cost.status != CAIRN_STATUS_INTERNAL);
  if (kCountsMemory) {
    CHECK(cost.grown_bytes <= file_bytes + kRoomBytes);
    CHECK(cost.seconds <= seconds_limit);
  }
}

void make_sparse(const std::string& path, const Bytes& start, std::uint64_t size) {
  put_file(path, std::string(start.begin(), start.end()));
  std::filesystem::resize_file(path, size);
}

/// A bomb as both kinds of files, read in every way.
void check_container_bomb(const char* what, const std::string& path, std::uint64_t charged_bytes) {
  for (const bool no_mmap : {false, true}) {
    check_cost(what, path, charged_bytes, [&] { return read_cairn_file(path, {.no_mmap = no_mmap}).status(); }, 0.5);
  }
  check_cost(what, path, charged_bytes, [&] {
    auto source = file_source(path, FileAccess::kPositional);
    if (!source.ok()) return source.status();
    auto reader = ContainerReader::open(source.value(), ContainerKind::kSnapshot);
    return reader.ok() ? reader.value().verify_payload() : reader.status();
  }, 0.5);
}

}  // namespace

TEST_CASE("a sparse terabyte costs nothing to refuse") {
  const TemporaryFolder folder;
  const std::uint64_t terabyte = std::uint64_t{1} << 40;
  make_sparse(folder / "zeros", {}, terabyte);
  check_container_bomb("zeros", folder / "zeros", 0);
  Bytes claim = good_model_file();
  claim.resize(64);
  store_number(claim, 48, 8, terabyte);
  make_sparse(folder / "claim", claim, terabyte);
  check_container_bomb("a preamble", folder / "claim", 0);
}

TEST_CASE("a header of 64 MiB of garbage, of ones or of tiny sections is bounded") {
  const TemporaryFolder folder;
  for (const std::uint8_t fill : {0, 1, 255}) {
    const Bytes header(64 << 20, fill);
    for (const ContainerKind kind : {ContainerKind::kModel, ContainerKind::kSnapshot}) {
      const Bytes file = seal_file(kind, header, {}, Bytes(1));
      put_file(folder / "garbage", std::string(file.begin(), file.end()));
      check_container_bomb("garbage", folder / "garbage", file.size());
    }
  }
  std::vector<RawSection> sections(262144);
  for (std::size_t i = 0; i < sections.size(); ++i) sections[i] = {std::to_string(1000000 + i), 6, {0}, 0, 0};
  sections.back().shape = {1};
  const Bytes file = seal_file(ContainerKind::kSnapshot, raw_snapshot_header(sections), sections, Bytes(1));
  put_file(folder / "tiny", std::string(file.begin(), file.end()));
  check_container_bomb("tiny sections", folder / "tiny", file.size());
}

TEST_CASE("polyglots and trailing data are refused") {
  const TemporaryFolder folder;
  Bytes file = good_snapshot_file();
  const std::string zip = "PK\x05\x06";
  file.insert(file.end(), zip.begin(), zip.end());
  file.resize(file.size() + 1000000);
  put_file(folder / "polyglot", std::string(file.begin(), file.end()));
  check_container_bomb("polyglot", folder / "polyglot", file.size());
}

TEST_CASE("hostile folders are bounded: headers of 60 MB, deep or wide configs, giant indexes") {
  const TemporaryFolder folder;
  const std::string good_config = R"({"format": "cairn-native/1"})";
  const auto refuse = [&](const char* what, const std::string& config, const std::string& header, const std::string& index) {
    put_file(folder / "config.json", config);
    const Bytes weights = safetensors_file(header, 0);
    put_file(folder / "model.safetensors", std::string(weights.begin(), weights.end()));
    std::filesystem::remove(folder / "model.safetensors.index.json");
    if (!index.empty()) put_file(folder / "model.safetensors.index.json", index);
    const std::uint64_t bytes = config.size() + weights.size() + index.size();
    check_cost(what, folder.path(), bytes, [&] { return import_folder(folder.path()).status(); }, 2.0);
  };
  std::string names = "{", long_name = "{\"" + std::string(60000000, 'n') + "\":{}}", index = "{\"weight_map\":{";
  for (int i = 0; i < 1000000; ++i) {
    names += (i ? ",\"" : "\"") + std::to_string(i) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
    index += (i ? ",\"" : "\"") + std::to_string(i) + "\":\"a.safetensors\"";
  }
  refuse("a million names", good_config, names + "}", "");
  refuse("a name of 60 MB", good_config, long_name, "");
  refuse("60 MB of blanks", good_config, "{" + std::string(60000000, ' ') + "}", "");
  refuse("60 MB of digits", good_config, "{\"a\":" + std::string(60000000, '1') + "}", "");
  refuse("a million listed names", good_config, "{}", index + "}}");
  refuse("an index of brackets", good_config, "{}", std::string(8000000, '['));
  refuse("a header of braces", good_config, std::string(8000000, '{'), "");
  refuse("a deep config", std::string(1000000, '['), "{}", "");
  refuse("a wide config", "{\"format\": \"cairn-native/1\", \"x\": [0" + std::string(1000000, ' ') + "]}", "{}", "");
  std::string zeros = "{\"format\": \"cairn-native/1\", \"x\": [0";
  for (int i = 0; i < 500000; ++i) zeros += ",0";
  refuse("a config of zeros", zeros + "]}", "{}", "");
  refuse("a config of 1 MiB and one byte", std::string((1 << 20) + 1, ' '), "{}", "");
}

}  // namespace cairn::test
