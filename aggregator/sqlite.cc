#include "aggregator/sqlite.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>

#include "aggregator/history_files.h"
#include "base/error.h"

namespace allot::aggregator {
namespace {

// How long a reader waits while the writer opens, recovers or closes the file; at other times nobody
// has to wait.
constexpr int kBusyTimeoutMs = 10'000;

// Only one thread at a time uses a connection, so SQLite's own locks would protect nothing; they took a fifth
// of the time of a restart.
sqlite3* open(const std::string& name, int flags, int* code) {
  sqlite3* handle = nullptr;
  *code = sqlite3_open_v2(name.c_str(), &handle, flags | SQLITE_OPEN_NOMUTEX, nullptr);
  return handle;
}

// The file as a "file:" address, with special characters escaped.
std::string immutable_address(const std::filesystem::path& file) {
  std::string address = "file:";
  for (const char c : file.string()) {
    if (c == '?' || c == '#' || c == '%') {
      address += fmt::format("%{:02x}", static_cast<unsigned char>(c));
    } else {
      address += c;
    }
  }
  return address + "?immutable=1";
}

}  // namespace

Database::Database(const std::filesystem::path& file, Mode mode) : file_(file) {
  int code = SQLITE_OK;
  if (mode == Mode::kReadWrite) {
    handle_.reset(open(file.string(), SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, &code));
    if (code != SQLITE_OK) fail(code, "opening");
    sqlite3_busy_timeout(handle_.get(), kBusyTimeoutMs);
    return;
  }
  handle_.reset(open(file.string(), SQLITE_OPEN_READONLY, &code));
  if (code == SQLITE_OK) {
    sqlite3_busy_timeout(handle_.get(), kBusyTimeoutMs);
    code = sqlite3_exec(handle_.get(), "SELECT 1 FROM sqlite_schema", nullptr, nullptr, nullptr);
  }
  const bool not_writable = code == SQLITE_CANTOPEN || code == SQLITE_READONLY;
  if (not_writable && !std::filesystem::exists(log_path(file))) {
    // A database in WAL mode needs its -shm file even for reading. Without a log there is nothing to share,
    // so it can be opened as immutable.
    handle_.reset(open(immutable_address(file), SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, &code));
  }
  if (code != SQLITE_OK) fail(code, "opening");
}

void Database::execute(const std::string& sql) {
  const int code = sqlite3_exec(handle_.get(), sql.c_str(), nullptr, nullptr, nullptr);
  if (code != SQLITE_OK) fail(code, sql.substr(0, sql.find('(')));
}

namespace {

// How many files the process may have open.
std::string open_file_limit() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? std::to_string(limit.rlim_cur) : "unknown";
}

}  // namespace

void Database::fail(int code, std::string_view doing) const {
  const char* reason = handle_ ? sqlite3_errmsg(handle_.get()) : sqlite3_errstr(code);
  const int kind = code & 0xFF;
  if (kind == SQLITE_CORRUPT || kind == SQLITE_NOTADB) {
    throw CorruptFile(fmt::format(
        "history {} is damaged or no SQLite database ({}, while {}); restore a copy or start a new run",
        file_.string(), reason, doing));
  }
  if (const int reason_of_system = handle_ ? sqlite3_system_errno(handle_.get()) : 0;
      (kind == SQLITE_CANTOPEN || kind == SQLITE_IOERR) &&
      (reason_of_system == EMFILE || reason_of_system == ENFILE)) {
    throw StorageError(fmt::format(
        "history {}: {} failed: {}: {} (this process may open {} files, and each connection is one); raise the limit "
        "(ulimit -n) or limit the connections, then start again: nothing that was acked is lost",
        file_.string(), doing, reason, std::strerror(reason_of_system), open_file_limit()));
  }
  throw StorageError(
      fmt::format("history {}: {} failed: {}; check that the disk is not full and the directory can be "
                  "written, then start again: nothing that was acked is lost",
                  file_.string(), doing, reason));
}

Statement::Statement(const Database& database, const std::string& sql) : database_(&database) {
  sqlite3_stmt* handle = nullptr;
  const int code =
      sqlite3_prepare_v2(database.handle(), sql.c_str(), static_cast<int>(sql.size()), &handle, nullptr);
  handle_.reset(handle);
  if (code != SQLITE_OK) database.fail(code, sql);
}

Statement& Statement::bind(int64_t value) {
  sqlite3_bind_int64(handle_.get(), ++bound_, value);
  return *this;
}

Statement& Statement::bind(double value) {
  sqlite3_bind_double(handle_.get(), ++bound_, value);
  return *this;
}

Statement& Statement::bind(const std::optional<std::string>& value) {
  if (value) return bind(std::string_view(*value));
  if (const int code = sqlite3_bind_null(handle_.get(), ++bound_); code != SQLITE_OK)
    database_->fail(code, "binding");
  return *this;
}

Statement& Statement::bind(std::string_view value) {
  sqlite3_bind_text(handle_.get(), ++bound_, value.data(), static_cast<int>(value.size()), SQLITE_TRANSIENT);
  return *this;
}

Statement& Statement::bind(std::span<const unsigned char> bytes) {
  sqlite3_bind_blob(handle_.get(), ++bound_, bytes.data(), static_cast<int>(bytes.size()), SQLITE_TRANSIENT);
  return *this;
}

bool Statement::step() {
  const int code = sqlite3_step(handle_.get());
  if (code == SQLITE_ROW) return true;
  if (code != SQLITE_DONE) {
    // The reason is read before the reset, which may clear it.
    try {
      database_->fail(code, sqlite3_sql(handle_.get()));
    } catch (...) {
      sqlite3_reset(handle_.get());
      bound_ = 0;
      throw;
    }
  }
  sqlite3_reset(handle_.get());
  bound_ = 0;
  return false;
}

int64_t Statement::value() {
  const int64_t found = step() ? integer(0) : 0;
  while (step()) {
  }
  return found;
}

std::string_view Statement::text(int column) const {
  const auto* data = reinterpret_cast<const char*>(sqlite3_column_text(handle_.get(), column));
  if (data == nullptr) return "";
  return {data, static_cast<size_t>(sqlite3_column_bytes(handle_.get(), column))};
}

}  // namespace allot::aggregator
