#include "model/safetensors.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "model/hub_cache.h"
#include "model/json_view.h"

namespace allot::model {
namespace {

using nlohmann::json;

constexpr uint64_t kLengthBytes = 8;
// The limit that the format's reference reader sets; a longer one is a sign of another kind of file.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;

struct DTypeInfo {
  TensorDType dtype;
  const char* name;
  uint64_t bytes;
};
constexpr DTypeInfo kDTypes[] = {
    {TensorDType::kF32, "F32", 4}, {TensorDType::kF16, "F16", 2},        {TensorDType::kBF16, "BF16", 2},
    {TensorDType::kI64, "I64", 8}, {TensorDType::kI32, "I32", 4},        {TensorDType::kI8, "I8", 1},
    {TensorDType::kU8, "U8", 1},   {TensorDType::kBool, "BOOL", 1},      {TensorDType::kF64, "F64", 8},
    {TensorDType::kI16, "I16", 2}, {TensorDType::kF8E4M3, "F8_E4M3", 1}, {TensorDType::kF8E5M2, "F8_E5M2", 1},
};

const DTypeInfo& info_of(TensorDType dtype) {
  return *std::ranges::find(kDTypes, dtype, &DTypeInfo::dtype);
}

const DTypeInfo& parse_dtype(const JsonView& field) {
  std::string known;
  for (const DTypeInfo& info : kDTypes) {
    if (field.text() == info.name) return info;
    known += (known.empty() ? "" : ", ") + std::string(info.name);
  }
  field.fail("one of " + known);
}

uint64_t to_unsigned(const JsonView& field) {
  return static_cast<uint64_t>(field.integer(0, INT64_MAX));
}

// One entry of the header, before its offsets have been checked.
struct Entry {
  TensorView tensor;
  uint64_t begin = 0;
  uint64_t end = 0;
};

std::string range_text(const Entry& entry) {
  return std::string("[") + std::to_string(entry.begin) + ", " + std::to_string(entry.end) + ")";
}

Entry parse_entry(const std::string& name, const JsonView& field) {
  Entry entry;
  entry.tensor.name = name;
  const DTypeInfo& dtype = parse_dtype(field.at("dtype"));
  entry.tensor.dtype = dtype.dtype;
  const JsonView shape = field.at("shape");
  uint64_t bytes = dtype.bytes;
  for (const JsonView& size : shape.elements()) {
    entry.tensor.shape.push_back(static_cast<int64_t>(to_unsigned(size)));
    if (__builtin_mul_overflow(bytes, to_unsigned(size), &bytes))
      shape.fail("a shape whose bytes fit 64 bit");
  }
  const JsonView offsets = field.at("data_offsets");
  const std::vector<JsonView> pair = offsets.elements();
  if (pair.size() != 2) offsets.fail("two offsets, begin and end");
  entry.begin = to_unsigned(pair[0]);
  entry.end = to_unsigned(pair[1]);
  if (entry.end < entry.begin) offsets.fail("begin not after end");
  if (entry.end - entry.begin != bytes) {
    offsets.fail("a range of " + std::to_string(bytes) + " bytes, which shape " + shape.shown() + " of " +
                 dtype.name + " needs, not " + std::to_string(entry.end - entry.begin));
  }
  return entry;
}

json parse_header(std::string_view header, const std::string& file) {
  // A JSON object silently keeps only one of two equal keys; such a header would hide a tensor.
  std::set<std::string> names;
  std::string duplicate;
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth == 1 && event == json::parse_event_t::key && !names.insert(parsed.get<std::string>()).second) {
      duplicate = parsed.get<std::string>();
    }
    return true;
  };
  try {
    json parsed = json::parse(header, watch);
    if (!duplicate.empty()) {
      throw CorruptFile(file + ": the header lists tensor " + duplicate + " twice, expected each name once");
    }
    return parsed;
  } catch (const json::parse_error& error) {
    throw CorruptFile(file + ": the header is not JSON: parsing stops at byte " +
                      std::to_string(kLengthBytes + error.byte) + " of the file, the header ends at byte " +
                      std::to_string(kLengthBytes + header.size()) + "; download the file again");
  } catch (const json::out_of_range&) {
    throw CorruptFile(
        file + ": the header holds a number beyond the range of a 64-bit float; download the file again");
  }
}

// The format requires the tensors to fill the data section without a gap, in any order.
void check_layout(const std::vector<Entry>& entries, uint64_t data_bytes, const std::string& file) {
  const Entry* previous = nullptr;
  uint64_t expected = 0;
  for (const Entry& entry : entries) {
    const std::string tensor =
        file + ": tensor " + entry.tensor.name + " has data_offsets " + range_text(entry);
    if (entry.begin < expected) {
      throw CorruptFile(tensor + ", which overlap those of tensor " + previous->tensor.name + ", " +
                        range_text(*previous) + "; write the file again");
    }
    if (entry.begin > expected) {
      throw CorruptFile(tensor + ", which leave a gap: the tensors before it end at " +
                        std::to_string(expected) + "; write the file again");
    }
    if (entry.end > data_bytes) {
      throw CorruptFile(tensor + ", but the file holds only " + std::to_string(data_bytes) +
                        " bytes of data; it is truncated, download it again");
    }
    expected = entry.end;
    previous = &entry;
  }
  if (expected != data_bytes) {
    throw CorruptFile(file + ": the file holds " + std::to_string(data_bytes) +
                      " bytes of data, but its tensors end at " + std::to_string(expected) +
                      "; write the file again");
  }
}

}  // namespace

const char* dtype_name(TensorDType dtype) {
  return info_of(dtype).name;
}

uint64_t dtype_bytes(TensorDType dtype) {
  return info_of(dtype).bytes;
}

struct SafetensorsFile::Content {
  Content(const std::filesystem::path& path, MappingAccess access) : file(path, access) {}

  MappedFile file;
  std::vector<TensorView> tensors;
};

namespace {

// The header, after its length has been checked.
std::string_view find_header(std::string_view content, const std::string& file) {
  if (content.starts_with("version https://git-lfs")) {
    throw CorruptFile(file +
                      " is a Git LFS pointer, not the weights; run git lfs pull in the model directory");
  }
  if (content.size() < kLengthBytes) {
    throw CorruptFile(file + " has " + std::to_string(content.size()) +
                      " bytes, a safetensors file starts with 8 bytes of header length; download it again");
  }
  uint64_t length = 0;  // little endian
  for (uint64_t i = kLengthBytes; i-- > 0;) length = length << 8 | static_cast<uint8_t>(content[i]);
  const uint64_t rest = content.size() - kLengthBytes;
  if (length > kMaxHeaderBytes) {
    throw CorruptFile(file + " gives a header length of " + std::to_string(length) + ", expected at most " +
                      std::to_string(kMaxHeaderBytes) + "; it is not a safetensors file");
  }
  if (length > rest) {
    throw CorruptFile(file + " gives a header length of " + std::to_string(length) + ", but only " +
                      std::to_string(rest) + " bytes follow; it is truncated, download it again");
  }
  return content.substr(kLengthBytes, length);
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path, MappingAccess access)
    : content_(std::make_unique<Content>(path, access)) {
  const std::string file = path.string();
  const std::string_view content = content_->file.content();
  const std::string_view header_text = find_header(content, file);
  const std::string_view data = content.substr(kLengthBytes + header_text.size());
  const json header = parse_header(header_text, file);
  if (!header.is_object()) JsonView(header, file).fail("a header that is a JSON object");
  std::vector<Entry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name != "__metadata__") entries.push_back(parse_entry(name, JsonView(value, file, name)));
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.begin, a.end, a.tensor.name) < std::tie(b.begin, b.end, b.tensor.name);
  });
  check_layout(entries, data.size(), file);
  for (Entry& entry : entries) {
    entry.tensor.bytes = std::as_bytes(std::span(data.substr(entry.begin, entry.end - entry.begin)));
    content_->tensors.push_back(std::move(entry.tensor));
  }
}

SafetensorsFile::~SafetensorsFile() = default;
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;

const std::vector<TensorView>& SafetensorsFile::tensors() const {
  return content_->tensors;
}

namespace {

// What a hash says of a tensor before its bytes.
std::string heading(const TensorView& tensor) {
  std::string text = tensor.name + '\n' + dtype_name(tensor.dtype);
  for (const int64_t size : tensor.shape) text.append(" ").append(std::to_string(size));
  return text + '\n';
}

std::string_view bytes_of(const TensorView& tensor) {
  return {reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()};
}

}  // namespace

void update_with_all(const TensorView& tensor, Sha256* hash) {
  hash->update(heading(tensor));
  hash->update(bytes_of(tensor));
}

void append_sample(const TensorView& tensor, std::string* text) {
  constexpr size_t kBlocks = 4;
  constexpr size_t kBlockBytes = 1024;
  *text += heading(tensor);
  const std::string_view bytes = bytes_of(tensor);
  if (bytes.size() <= kBlocks * kBlockBytes) {
    *text += bytes;
    return;
  }
  const size_t stride = (bytes.size() - kBlockBytes) / (kBlocks - 1);
  for (size_t block = 0; block < kBlocks; ++block) *text += bytes.substr(block * stride, kBlockBytes);
}

namespace {

// Shard file -> the tensors that the index places in it.
std::map<std::string, std::set<std::string>> read_index(const std::filesystem::path& path) {
  const json document = parse_json_file(path);
  const JsonView weight_map = JsonView(document, path.string()).at("weight_map");
  if (!weight_map.value().is_object()) weight_map.fail("an object from tensor names to files");
  std::map<std::string, std::set<std::string>> shards;
  for (const auto& [tensor, value] : weight_map.value().items()) {
    const JsonView shard(value, path.string(), "weight_map." + tensor);
    // A shard is in the directory of its index; a path that leaves that directory is refused.
    if (std::filesystem::path(shard.text()).filename() != shard.text() || shard.text().starts_with('.')) {
      shard.fail("the name of a file in the same directory");
    }
    shards[shard.text()].insert(tensor);
  }
  if (shards.empty()) weight_map.fail("at least one tensor");
  return shards;
}

}  // namespace

Checkpoint Checkpoint::open(const std::filesystem::path& directory, MappingAccess access) {
  Checkpoint checkpoint;
  checkpoint.directory_ = directory;
  const std::filesystem::path single = directory / "model.safetensors";
  if (std::filesystem::exists(single)) {
    const SafetensorsFile& file = checkpoint.files_.emplace_back(single, access);
    for (const TensorView& tensor : file.tensors()) checkpoint.tensors_.emplace(tensor.name, tensor);
    return checkpoint;
  }
  const std::filesystem::path index = directory / "model.safetensors.index.json";
  if (!std::filesystem::exists(index)) {
    throw NotFound(
        directory.string() +
        " has neither model.safetensors nor model.safetensors.index.json; give a Hugging Face model "
        "directory whose weights are stored as safetensors, or let weights be made at random where the "
        "command has --random-weights" +
        download_hint(directory));
  }
  const auto shards = read_index(index);
  for (const auto& [name, tensors] : shards) {
    const std::filesystem::path shard = directory / name;
    if (!std::filesystem::exists(shard)) {
      throw NotFound(shard.string() + " is missing: " + index.string() + " places " +
                     std::to_string(tensors.size()) + " tensors in it, among them " + *tensors.begin() +
                     "; download the whole directory" + download_hint(directory));
    }
    const SafetensorsFile& file = checkpoint.files_.emplace_back(shard, access);
    for (const TensorView& tensor : file.tensors()) {
      if (tensors.contains(tensor.name)) checkpoint.tensors_.emplace(tensor.name, tensor);
    }
    for (const std::string& tensor : tensors) {
      if (!checkpoint.contains(tensor)) {
        throw CorruptFile(shard.string() + " lacks tensor " + tensor + ", which " + index.string() +
                          " places in it; download both files again");
      }
    }
  }
  return checkpoint;
}

const TensorView& Checkpoint::at(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    throw CorruptFile("the checkpoint in " + directory_.string() + " has " + std::to_string(tensors_.size()) +
                      " tensors but not " + name + ", which its config.json calls for");
  }
  return found->second;
}

bool Checkpoint::contains(const std::string& name) const {
  return tensors_.contains(name);
}

}  // namespace allot::model
