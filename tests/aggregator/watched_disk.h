// A layer under SQLite that knows what a disk would hold after a power cut: of each file what it was when
// SQLite last asked for its sync. While an object lives it is under every database that is opened.
#pragma once

#include <sqlite3.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "base/file.h"
#include "base/temporary_directory.h"

namespace allot::aggregator {

class WatchedDisk {
 public:
  WatchedDisk() {
    if (current_ != nullptr) throw std::logic_error("there is a watched disk already");
    current_ = this;
    below_ = sqlite3_vfs_find(nullptr);
    layer_ = *below_;
    layer_.zName = "watched";
    layer_.szOsFile = static_cast<int>(sizeof(File)) + below_->szOsFile;
    layer_.xOpen = open;
    sqlite3_vfs_register(&layer_, 1);
  }
  ~WatchedDisk() {
    sqlite3_vfs_unregister(&layer_);
    sqlite3_vfs_register(below_, 1);
    current_ = nullptr;
  }
  WatchedDisk(const WatchedDisk&) = delete;
  WatchedDisk& operator=(const WatchedDisk&) = delete;

  int syncs() const { return syncs_; }
  // Copies what would be left of the files of `database` to `directory`.
  void cut_power(const std::filesystem::path& database, const std::filesystem::path& directory) const {
    for (const char* part : {"", "-wal"}) {
      const std::string name = database.filename().string() + part;
      std::filesystem::remove(directory / name);
      if (std::filesystem::exists(synced_.path() / name)) {
        std::filesystem::copy_file(synced_.path() / name, directory / name);
      }
    }
  }

 private:
  // The file below lies behind it.
  struct File {
    sqlite3_file base;
    std::filesystem::path* path;
  };
  static sqlite3_file* below(sqlite3_file* file) {
    return reinterpret_cast<sqlite3_file*>(reinterpret_cast<char*>(file) + sizeof(File));
  }

  static int open(sqlite3_vfs*, const char* name, sqlite3_file* file, int flags, int* out_flags) {
    auto* mine = reinterpret_cast<File*>(file);
    const int code = current_->below_->xOpen(current_->below_, name, below(file), flags, out_flags);
    mine->path = nullptr;
    // SQLite closes what has methods, also after a failure.
    mine->base.pMethods = below(file)->pMethods == nullptr ? nullptr : &kMethods;
    if (code == SQLITE_OK && name != nullptr) mine->path = new std::filesystem::path(name);
    return code;
  }
  static int close(sqlite3_file* file) {
    delete reinterpret_cast<File*>(file)->path;
    return below(file)->pMethods->xClose(below(file));
  }
  static int sync(sqlite3_file* file, int flags) {
    const int code = below(file)->pMethods->xSync(below(file), flags);
    const std::filesystem::path* path = reinterpret_cast<File*>(file)->path;
    if (code == SQLITE_OK && path != nullptr) {
      ++current_->syncs_;
      std::filesystem::copy_file(*path, current_->synced_.path() / path->filename(),
                                 std::filesystem::copy_options::overwrite_existing);
    }
    return code;
  }

  static inline WatchedDisk* current_ = nullptr;
  static inline const sqlite3_io_methods kMethods{
      .iVersion = 2,
      .xClose = close,
      .xRead = [](sqlite3_file* f, void* to, int n,
                  sqlite3_int64 at) { return below(f)->pMethods->xRead(below(f), to, n, at); },
      .xWrite = [](sqlite3_file* f, const void* from, int n,
                   sqlite3_int64 at) { return below(f)->pMethods->xWrite(below(f), from, n, at); },
      .xTruncate = [](sqlite3_file* f,
                      sqlite3_int64 size) { return below(f)->pMethods->xTruncate(below(f), size); },
      .xSync = sync,
      .xFileSize = [](sqlite3_file* f,
                      sqlite3_int64* size) { return below(f)->pMethods->xFileSize(below(f), size); },
      .xLock = [](sqlite3_file* f, int lock) { return below(f)->pMethods->xLock(below(f), lock); },
      .xUnlock = [](sqlite3_file* f, int lock) { return below(f)->pMethods->xUnlock(below(f), lock); },
      .xCheckReservedLock = [](sqlite3_file* f,
                               int* out) { return below(f)->pMethods->xCheckReservedLock(below(f), out); },
      .xFileControl = [](sqlite3_file* f, int op,
                         void* arg) { return below(f)->pMethods->xFileControl(below(f), op, arg); },
      .xSectorSize = [](sqlite3_file* f) { return below(f)->pMethods->xSectorSize(below(f)); },
      .xDeviceCharacteristics =
          [](sqlite3_file* f) { return below(f)->pMethods->xDeviceCharacteristics(below(f)); },
      .xShmMap =
          [](sqlite3_file* f, int page, int size, int extend, void volatile** out) {
            return below(f)->pMethods->xShmMap(below(f), page, size, extend, out);
          },
      .xShmLock = [](sqlite3_file* f, int offset, int n,
                     int flags) { return below(f)->pMethods->xShmLock(below(f), offset, n, flags); },
      .xShmBarrier = [](sqlite3_file* f) { below(f)->pMethods->xShmBarrier(below(f)); },
      .xShmUnmap = [](sqlite3_file* f,
                      int remove) { return below(f)->pMethods->xShmUnmap(below(f), remove); },
      .xFetch = nullptr,
      .xUnfetch = nullptr,
  };

  sqlite3_vfs* below_ = nullptr;
  sqlite3_vfs layer_{};
  TemporaryDirectory synced_;  // each file as it was at its last sync
  int syncs_ = 0;
};

}  // namespace allot::aggregator
