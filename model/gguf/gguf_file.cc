#include "model/gguf/gguf_file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <utility>

#include "base/error.h"
#include "model/mapped_file.h"

namespace allot::model {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr uint32_t kOldestVersion = 2;
constexpr uint32_t kNewestVersion = 3;
constexpr uint32_t kMaxDimensions = 4;
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMaxAlignment = 1 << 20;
// The least that an entry takes: a key's length, a type and one byte; a name's length, the number of
// dimensions, one of them, a type and an offset.
constexpr uint64_t kLeastFieldBytes = 8 + 4 + 1;
constexpr uint64_t kLeastTensorBytes = 8 + 4 + 8 + 4 + 8;

// Reads from the front of the file and never beyond its end.
class Cursor {
 public:
  Cursor(std::string_view content, const std::string& file) : content_(content), file_(file) {}

  uint64_t offset() const { return offset_; }
  uint64_t left() const { return content_.size() - offset_; }

  std::string_view take(uint64_t bytes, const std::string& what) {
    if (bytes > left()) {
      throw CorruptFile(file_ + ": " + what + " at byte " + std::to_string(offset_) + " takes " +
                        std::to_string(bytes) + " bytes, but the file ends at byte " +
                        std::to_string(content_.size()) + "; it is truncated, download it again");
    }
    const std::string_view taken = content_.substr(offset_, bytes);
    offset_ += bytes;
    return taken;
  }

  template <class T>
  T number(const std::string& what) {
    T value;
    std::memcpy(&value, take(sizeof(T), what).data(), sizeof(T));
    return value;
  }

  std::string_view text(const std::string& what) {
    const auto length = number<uint64_t>("the length of " + what);
    return take(length, what);
  }

  // A number of entries of at least `least_bytes` each, all of which must follow.
  uint64_t count(uint64_t least_bytes, const std::string& what) {
    const uint64_t at = offset_;
    const auto count = number<uint64_t>("the number of " + what);
    check_count(count, least_bytes, what, at);
    return count;
  }

  void check_count(uint64_t count, uint64_t least_bytes, const std::string& what, uint64_t at) const {
    if (count <= left() / least_bytes) return;
    throw CorruptFile(file_ + ": byte " + std::to_string(at) + " announces " + std::to_string(count) + " " +
                      what + " of at least " + std::to_string(least_bytes) + " bytes each, but only " +
                      std::to_string(left()) +
                      " bytes follow; it is damaged or truncated, download it again");
  }

 private:
  std::string_view content_;
  const std::string& file_;
  uint64_t offset_ = 0;
};

uint32_t read_version(Cursor* cursor, std::string_view content, const std::string& file) {
  if (content.starts_with("version https://git-lfs")) {
    throw CorruptFile(file + " is a Git LFS pointer, not the model; run git lfs pull where it lies");
  }
  const std::string_view magic = content.substr(0, kMagic.size());
  if (magic != kMagic.substr(0, magic.size()) || magic.empty()) {
    throw CorruptFile(file + " is not a GGUF file: it starts with " + shown_text(magic) +
                      ", expected \"GGUF\"");
  }
  cursor->take(kMagic.size(), "the word GGUF");
  const auto version = cursor->number<uint32_t>("the version");
  if (version >= kOldestVersion && version <= kNewestVersion) return version;
  const uint32_t swapped = __builtin_bswap32(version);
  if (swapped >= kOldestVersion && swapped <= kNewestVersion) {
    throw Unsupported(file + " is a big-endian GGUF file, supported are little-endian ones");
  }
  throw Unsupported(file + " is GGUF version " + std::to_string(version) + ", supported are versions " +
                    std::to_string(kOldestVersion) + " and " + std::to_string(kNewestVersion) +
                    "; convert the model again with a present llama.cpp");
}

// `count` elements of `type`, from which the caller knows that they are no arrays.
std::string_view take_elements(Cursor* cursor, GgufType type, uint64_t count, std::string_view content,
                               const std::string& what) {
  const uint64_t begin = cursor->offset();
  if (type == GgufType::kString) {
    for (uint64_t i = 0; i < count; ++i) cursor->text(what);
  } else {
    cursor->take(count * gguf_type_bytes(type), what);
  }
  return content.substr(begin, cursor->offset() - begin);
}

GgufValue read_value(Cursor* cursor, std::string_view content, const std::string& file,
                     const std::string& what) {
  const auto read_type = [&] {
    const uint64_t at = cursor->offset();
    const auto type = static_cast<GgufType>(cursor->number<uint32_t>("the type of " + what));
    const bool known = type == GgufType::kString || type == GgufType::kArray || gguf_type_bytes(type) > 0;
    if (known) return type;
    throw CorruptFile(file + ": " + what + " has at byte " + std::to_string(at) + " the type " +
                      std::to_string(static_cast<uint32_t>(type)) +
                      ", expected 0 to 12; the file is damaged, download it again");
  };
  GgufValue value;
  value.type = read_type();
  if (value.type == GgufType::kArray) {
    value.array = true;
    value.type = read_type();
    if (value.type == GgufType::kArray) {
      throw Unsupported(file + ": " + what +
                        " is an array of arrays, supported are arrays of numbers, "
                        "bools and strings");
    }
    const uint64_t least = value.type == GgufType::kString ? sizeof(uint64_t) : gguf_type_bytes(value.type);
    value.count = cursor->count(least, "elements of " + what);
  }
  value.bytes = take_elements(cursor, value.type, value.count, content, what);
  return value;
}

std::map<std::string, GgufValue, std::less<>> read_fields(Cursor* cursor, uint64_t count,
                                                          std::string_view content, const std::string& file) {
  std::map<std::string, GgufValue, std::less<>> fields;
  for (uint64_t i = 0; i < count; ++i) {
    const std::string key(cursor->text("metadata key " + std::to_string(i)));
    const GgufValue value = read_value(cursor, content, file, "the value of metadata key " + shown_text(key));
    if (!fields.emplace(key, value).second) {
      throw CorruptFile(file + ": metadata key " + shown_text(key) +
                        " is there twice, expected each key once");
    }
  }
  return fields;
}

// A tensor before its bytes have been looked for.
struct Entry {
  GgufTensor tensor;
  uint64_t offset = 0;  // in the tensors' data
  uint64_t bytes = 0;
};

std::string where(const std::string& file, const std::string& tensor) {
  return file + ": tensor " + tensor;
}

// The bytes of a tensor, whose shape the file gives innermost first.
uint64_t tensor_bytes(const std::string& file, const Entry& entry) {
  const GgufTensor& tensor = entry.tensor;
  const BlockLayout& layout = *tensor.layout;
  const auto width = static_cast<uint64_t>(tensor.shape.back());
  if (width % layout.elements != 0) {
    throw CorruptFile(where(file, tensor.name) + " has rows of " + std::to_string(width) +
                      " numbers, expected a multiple of " + std::to_string(layout.elements) +
                      ", the block of " + layout.name);
  }
  uint64_t bytes = layout.bytes;
  bool fits = !__builtin_mul_overflow(bytes, width / layout.elements, &bytes);
  for (size_t i = 0; i + 1 < tensor.shape.size(); ++i) {
    fits = fits && !__builtin_mul_overflow(bytes, static_cast<uint64_t>(tensor.shape[i]), &bytes);
  }
  if (!fits) {
    throw CorruptFile(where(file, tensor.name) +
                      " has a shape whose bytes do not fit 64 bit; the file is "
                      "damaged, download it again");
  }
  return bytes;
}

Entry read_entry(Cursor* cursor, uint64_t index, const std::string& file) {
  Entry entry;
  const std::string number = "tensor " + std::to_string(index);
  // In quotes only where it is not the plain name that every tensor should have.
  const std::string_view name = cursor->text("the name of " + number);
  const bool plain = !name.empty() && std::ranges::all_of(name, [](char c) { return c > ' ' && c < '\x7F'; });
  if (!plain) {
    throw CorruptFile(file + ": " + number + " has the name " + shown_text(name) +
                      ", expected printable ASCII without spaces");
  }
  entry.tensor.name = name;
  const std::string what = "tensor " + entry.tensor.name;
  const auto dimensions = cursor->number<uint32_t>("the number of dimensions of " + what);
  if (dimensions < 1 || dimensions > kMaxDimensions) {
    throw CorruptFile(where(file, entry.tensor.name) + " has " + std::to_string(dimensions) +
                      " dimensions, expected 1 to " + std::to_string(kMaxDimensions));
  }
  for (uint32_t i = 0; i < dimensions; ++i) {
    const auto size = cursor->number<uint64_t>("a dimension of " + what);
    if (size < 1 || size > uint64_t{INT64_MAX}) {
      throw CorruptFile(where(file, entry.tensor.name) + " has a dimension of " + std::to_string(size) +
                        ", expected at least 1 and at most " + std::to_string(INT64_MAX));
    }
    entry.tensor.shape.insert(entry.tensor.shape.begin(), static_cast<int64_t>(size));
  }
  const auto type = cursor->number<uint32_t>("the type of " + what);
  entry.tensor.layout = find_block_layout(type);
  if (entry.tensor.layout == nullptr) {
    const std::string type_name = block_type_name(type);
    throw Unsupported(where(file, entry.tensor.name) + " has type " +
                      (type_name.empty() ? std::to_string(type) : type_name) + ", supported are " +
                      readable_block_types());
  }
  entry.offset = cursor->number<uint64_t>("the offset of " + what);
  entry.bytes = tensor_bytes(file, entry);
  return entry;
}

// Puts the bytes into entries whose offsets and sizes lie in `data` and do not overlap.
void place(std::vector<Entry>* entries, std::string_view data, uint64_t alignment, const std::string& file) {
  std::vector<Entry*> by_offset;
  for (Entry& entry : *entries) by_offset.push_back(&entry);
  std::ranges::stable_sort(by_offset, {}, &Entry::offset);
  const Entry* previous = nullptr;
  for (Entry* entry : by_offset) {
    const std::string tensor = where(file, entry->tensor.name) + " of " + std::to_string(entry->bytes) +
                               " bytes begins at byte " + std::to_string(entry->offset) + " of the data";
    if (entry->offset % alignment != 0) {
      throw CorruptFile(tensor + ", expected a multiple of general.alignment, which is " +
                        std::to_string(alignment));
    }
    if (entry->offset > data.size() || entry->bytes > data.size() - entry->offset) {
      throw CorruptFile(tensor + ", of which the file has only " + std::to_string(data.size()) +
                        "; it is truncated, download it again");
    }
    if (previous != nullptr && entry->offset < previous->offset + previous->bytes) {
      throw CorruptFile(tensor + " and overlaps tensor " + previous->tensor.name + ", which ends at byte " +
                        std::to_string(previous->offset + previous->bytes));
    }
    entry->tensor.bytes = std::as_bytes(std::span(data.substr(entry->offset, entry->bytes)));
    previous = entry;
  }
}

}  // namespace

struct GgufFile::Content {
  Content(const std::filesystem::path& where, MappingAccess access)
      : path(where.string()), file(where, access) {}
  Content(const Content&) = delete;
  Content& operator=(const Content&) = delete;

  std::string path;
  MappedFile file;
  uint32_t version = 0;
  std::map<std::string, GgufValue, std::less<>> fields;
  std::vector<GgufTensor> tensors;
  std::map<std::string, size_t, std::less<>> index;  // of tensors, by name
};

GgufFile::GgufFile(const std::filesystem::path& path)
    : content_(std::make_unique<Content>(path, MappingAccess::kWhole)) {
  const std::string_view bytes = content_->file.content();
  const std::string& file = content_->path;
  Cursor cursor(bytes, file);
  content_->version = read_version(&cursor, bytes, file);
  const uint64_t counts_at = cursor.offset();
  const auto tensors = cursor.number<uint64_t>("the number of tensors");
  const uint64_t fields = cursor.count(kLeastFieldBytes, "metadata values");
  cursor.check_count(tensors, kLeastTensorBytes, "tensors", counts_at);
  content_->fields = read_fields(&cursor, fields, bytes, file);

  std::vector<Entry> entries;
  entries.reserve(std::min(tensors, cursor.left() / kLeastTensorBytes));
  for (uint64_t i = 0; i < tensors; ++i) {
    entries.push_back(read_entry(&cursor, i, file));
    const std::string& name = entries.back().tensor.name;
    if (!content_->index.emplace(name, i).second) {
      throw CorruptFile(where(file, name) + " is there twice, expected each name once");
    }
  }
  uint64_t alignment = kDefaultAlignment;
  if (const auto field = find("general.alignment")) {
    alignment = static_cast<uint64_t>(field->integer(1, kMaxAlignment));
    if (!std::has_single_bit(alignment)) field->fail("a power of two");
  }
  // Without tensors the file may end before the padding does.
  const uint64_t data_begin =
      std::min((cursor.offset() + alignment - 1) / alignment * alignment, bytes.size());
  place(&entries, bytes.substr(data_begin), alignment, file);
  for (Entry& entry : entries) content_->tensors.push_back(std::move(entry.tensor));
}

GgufFile::~GgufFile() = default;
GgufFile::GgufFile(GgufFile&&) noexcept = default;
GgufFile& GgufFile::operator=(GgufFile&&) noexcept = default;

const std::string& GgufFile::path() const {
  return content_->path;
}

uint32_t GgufFile::version() const {
  return content_->version;
}

std::optional<GgufField> GgufFile::find(std::string_view key) const {
  const auto found = content_->fields.find(key);
  if (found == content_->fields.end()) return std::nullopt;
  return GgufField(content_->path, found->first, found->second);
}

GgufField GgufFile::at(std::string_view key) const {
  if (const auto field = find(key)) return *field;
  throw CorruptFile(content_->path + ": metadata key " + std::string(key) +
                    " is missing, which a model of this kind must have");
}

const std::vector<GgufTensor>& GgufFile::tensors() const {
  return content_->tensors;
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  const auto found = content_->index.find(name);
  return found == content_->index.end() ? nullptr : &content_->tensors[found->second];
}

}  // namespace allot::model
