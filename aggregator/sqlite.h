// SQLite handles that close themselves, and statements that name what failed. Only what the history needs.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace allot::aggregator {

// A database and its statements are used by one thread at a time.
class Database {
 public:
  enum class Mode : uint8_t { kReadWrite, kReadOnly };

  // Creates the file in kReadWrite. A history in a directory that cannot be written can be opened for reading
  // once no writer is left. Throws StorageError.
  Database(const std::filesystem::path& file, Mode mode);

  // Runs one or several statements that give no rows.
  void execute(const std::string& sql);
  sqlite3* handle() const { return handle_.get(); }
  const std::filesystem::path& file() const { return file_; }

  // Throws CorruptFile when `code` says that the file is damaged or no database, else StorageError; names the
  // file, `doing` and SQLite's reason.
  [[noreturn]] void fail(int code, std::string_view doing) const;

 private:
  struct Close {
    void operator()(sqlite3* handle) const { sqlite3_close(handle); }
  };
  std::filesystem::path file_;
  std::unique_ptr<sqlite3, Close> handle_;
};

// Rolls back when it goes out of scope without commit(), so that an exception leaves nothing half-written.
class Transaction {
 public:
  // `begin`: "BEGIN IMMEDIATE" takes the write lock at once, "BEGIN" gives readers one snapshot.
  Transaction(Database* database, const std::string& begin) : database_(database) {
    database->execute(begin);
  }
  ~Transaction() {
    if (database_ != nullptr) sqlite3_exec(database_->handle(), "ROLLBACK", nullptr, nullptr, nullptr);
  }
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  void commit() {
    database_->execute("COMMIT");
    database_ = nullptr;
  }

 private:
  Database* database_;
};

class Statement {
 public:
  // `database` outlives the statement.
  Statement(const Database& database, const std::string& sql);

  // Parameters in order; a full set is bound before each run.
  Statement& bind(int64_t value);
  Statement& bind(double value);
  Statement& bind(std::string_view value);
  Statement& bind(const std::optional<std::string>& value);  // nothing: NULL
  Statement& bind(std::span<const unsigned char> bytes);

  // Steps to the next row; false at the end, after which the statement may be bound and run again.
  bool step();
  // Binds all of `values` and runs a statement that gives no rows.
  template <class... Values>
  void run(const Values&... values) {
    (bind(values), ...);
    step();
  }

  // The one integer that a query without parameters gives.
  int64_t value();

  // Columns of the current row, in the order of the SELECT.
  int64_t integer(int column) const { return sqlite3_column_int64(handle_.get(), column); }
  double real(int column) const { return sqlite3_column_double(handle_.get(), column); }
  // Text or the bytes of a BLOB; valid until the next step.
  std::string_view text(int column) const;
  int type(int column) const { return sqlite3_column_type(handle_.get(), column); }  // SQLITE_INTEGER, …
  // Also known before the first row.
  int columns() const { return sqlite3_column_count(handle_.get()); }
  const char* name(int column) const { return sqlite3_column_name(handle_.get(), column); }
  const Database& database() const { return *database_; }

 private:
  struct Finalize {
    void operator()(sqlite3_stmt* handle) const { sqlite3_finalize(handle); }
  };
  const Database* database_;
  std::unique_ptr<sqlite3_stmt, Finalize> handle_;
  int bound_ = 0;
};

}  // namespace allot::aggregator
