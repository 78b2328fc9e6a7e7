#include "model/safetensors_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace allot::model {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const char* step) {
  throw StorageError("cannot write " + path.string() + ": " + step + ": " + std::strerror(errno));
}

// Length and text of the header, padded so that the data begin at a multiple of eight bytes.
std::string header_bytes(const std::vector<TensorHeader>& tensors) {
  nlohmann::ordered_json header = {{"__metadata__", {{"format", "pt"}}}};
  uint64_t end = 0;
  for (const TensorHeader& tensor : tensors) {
    const uint64_t begin = end;
    end += tensor.bytes();
    header[tensor.name] = {
        {"dtype", dtype_name(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {begin, end}}};
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(text.size() >> (8 * i) & 0xFF);
  return bytes + text;
}

}  // namespace

uint64_t TensorHeader::bytes() const {
  uint64_t bytes = dtype_bytes(dtype);
  for (const int64_t size : shape) bytes *= static_cast<uint64_t>(size);
  return bytes;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     const std::vector<TensorHeader>& tensors)
    : path_(path) {
  for (const TensorHeader& tensor : tensors) missing_ += tensor.bytes();
  const std::string header = header_bytes(tensors);
  file_.descriptor = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file_.descriptor < 0) fail(path_, "open");
  write_all(header.data(), header.size());
}

SafetensorsWriter::OpenFile::~OpenFile() {
  if (descriptor >= 0) ::close(descriptor);
}

void SafetensorsWriter::write_all(const char* data, size_t size) {
  while (size > 0) {
    const ssize_t count = ::write(file_.descriptor, data, size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(path_, "write");
    data += count;
    size -= static_cast<size_t>(count);
  }
}

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  if (bytes.size() > missing_) {
    throw InvalidArgument(path_.string() + ": " + std::to_string(bytes.size()) +
                          " bytes of data are written where the header leaves room for " +
                          std::to_string(missing_));
  }
  write_all(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  missing_ -= bytes.size();
}

void SafetensorsWriter::finish() {
  if (missing_ > 0) {
    throw InvalidArgument(path_.string() + ": " + std::to_string(missing_) +
                          " bytes of data are missing that the header announces");
  }
  if (::fsync(file_.descriptor) != 0) fail(path_, "sync");
  if (::close(std::exchange(file_.descriptor, -1)) != 0) fail(path_, "close");
}

}  // namespace allot::model
