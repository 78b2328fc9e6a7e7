// A file's bytes in memory, mapped and read-only. Torch-free.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string_view>

namespace allot::model {

// How the bytes will be read: whole tensors, where reading ahead helps, or a few bytes here and there.
enum class MappingAccess { kWhole, kScattered };

// The content of a regular file, which must not be cut short while this object lives.
class MappedFile {
 public:
  // Throws NotFound naming the path when it cannot be read or is not a regular file.
  MappedFile(const std::filesystem::path& path, MappingAccess access);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::string_view content() const { return {static_cast<const char*>(address_), size_}; }

 private:
  void* address_ = nullptr;  // null for an empty file, which has nothing to map
  size_t size_ = 0;
};

}  // namespace allot::model
