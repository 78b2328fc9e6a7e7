#include "model/gguf/import.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <optional>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "kernels/bfloat16.h"
#include "kernels/float16.h"
#include "model/gguf/gguf_tokenizer.h"
#include "model/model_config.h"
#include "model/safetensors_writer.h"
#include "model/tokenizer.h"

namespace allot::model {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr int64_t kPieceNumbers = int64_t{1} << 20;

int64_t count_of(const ImportedTensor& tensor) {
  const std::vector<int64_t>& shape = tensor.source->shape;
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies());
}

// config.json's word for a dtype of weights.
const char* config_dtype(TensorDType dtype) {
  switch (dtype) {
    case TensorDType::kF32:
      return "float32";
    case TensorDType::kBF16:
      return "bfloat16";
    case TensorDType::kF16:
      return "float16";
    default:
      throw InvalidArgument(std::string("weights cannot be written as ") + dtype_name(dtype) +
                            ", expected F32, BF16 or F16");
  }
}

ordered_json optional_id(const std::optional<int64_t>& id) {
  return id ? ordered_json(*id) : ordered_json();
}

// A number for one end token, a list for several, as in the models' own files.
ordered_json end_ids(const std::vector<int64_t>& ends) {
  return ends.size() == 1 ? ordered_json(ends.front()) : ordered_json(ends);
}

std::string document(const ordered_json& json) {
  return json.dump(2) + "\n";
}

std::vector<TensorHeader> headers(const ImportPlan& plan) {
  std::vector<TensorHeader> headers;
  for (const ImportedTensor& tensor : plan.tensors) {
    headers.push_back({.name = tensor.name, .dtype = plan.dtype, .shape = tensor.source->shape});
  }
  return headers;
}

// `numbers` as `dtype`, in `out`.
void convert(std::span<const float> numbers, TensorDType dtype, const std::string& tensor,
             std::vector<std::byte>* out) {
  out->resize(numbers.size() * dtype_bytes(dtype));
  if (dtype == TensorDType::kF32) {
    std::memcpy(out->data(), numbers.data(), out->size());
    return;
  }
  for (size_t i = 0; i < numbers.size(); ++i) {
    uint16_t bits = 0;
    if (dtype == TensorDType::kBF16) {
      bits = kernels::bfloat16_from_float(numbers[i]);
    } else {
      bits = kernels::float16_from_float(numbers[i]);
      if (std::isfinite(numbers[i]) && std::isinf(kernels::float_from_float16(bits))) {
        throw Unsupported("tensor " + tensor + " holds " + std::to_string(numbers[i]) +
                          ", which float16 cannot hold; write it as bfloat16 or float32");
      }
    }
    std::memcpy(out->data() + i * sizeof bits, &bits, sizeof bits);
  }
}

void write_weights(const ImportPlan& plan, const fs::path& path, const ImportProgress& progress) {
  SafetensorsWriter writer(path, headers(plan));
  std::vector<std::byte> bytes;
  uint64_t written = 0;
  const uint64_t wanted = plan.weight_bytes();
  for (const ImportedTensor& tensor : plan.tensors) {
    for_each_piece(tensor, [&](std::span<const float> numbers) {
      convert(numbers, plan.dtype, tensor.name, &bytes);
      writer.write(bytes);
      written += bytes.size();
      if (progress) progress(written, wanted);
    });
  }
  writer.finish();
}

// What would be noticed only by the command that runs the model.
void read_back(const fs::path& directory) {
  (void)read_model_config(directory);
  (void)read_generation_defaults(directory);
  (void)Checkpoint::open(directory);
  (void)Tokenizer::load(directory);
}

// The directory in which the files are made; removed unless it got its name.
class PartialDirectory {
 public:
  explicit PartialDirectory(const fs::path& directory)
      : path_(directory.string() + ".partial-" + std::to_string(::getpid())) {
    std::error_code error;
    fs::create_directories(path_, error);
    if (error) throw StorageError("cannot create " + path_.string() + ": " + error.message());
  }
  ~PartialDirectory() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  PartialDirectory(const PartialDirectory&) = delete;
  PartialDirectory& operator=(const PartialDirectory&) = delete;

  const fs::path& path() const { return path_; }
  // Takes the place of `directory`, which is empty or does not exist.
  void rename_to(const fs::path& directory) {
    std::error_code error;
    fs::rename(path_, directory, error);
    if (error) {
      throw StorageError("cannot rename " + path_.string() + " to " + directory.string() + ": " +
                         error.message());
    }
    path_.clear();
  }

 private:
  fs::path path_;
};

}  // namespace

void require_new_or_empty(const fs::path& directory) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(directory, error);
  if (status.type() == fs::file_type::not_found) return;
  if (status.type() != fs::file_type::directory) {
    throw InvalidArgument(directory.string() + " exists and is not a directory; choose another name");
  }
  if (!fs::is_empty(directory, error) || error) {
    throw InvalidArgument(directory.string() +
                          " exists and is not empty; choose another name, or remove it first");
  }
}

int64_t ImportPlan::parameters() const {
  return std::accumulate(tensors.begin(), tensors.end(), int64_t{0},
                         [](int64_t sum, const ImportedTensor& tensor) { return sum + count_of(tensor); });
}

uint64_t ImportPlan::weight_bytes() const {
  return static_cast<uint64_t>(parameters()) * dtype_bytes(dtype);
}

ImportPlan plan_import(const GgufFile& file, TensorDType dtype) {
  const std::string dtype_text = config_dtype(dtype);
  GgufDecoder decoder = read_gguf_decoder(file);
  const GgufTokenizer tokenizer =
      read_gguf_tokenizer(file, std::string(file.at("general.architecture").text()));
  decoder.config["bos_token_id"] = optional_id(tokenizer.bos);
  decoder.config["eos_token_id"] = tokenizer.ends.front();
  decoder.config["pad_token_id"] = optional_id(tokenizer.pad);
  decoder.config["dtype"] = dtype_text;
  const ordered_json generation = {{"bos_token_id", optional_id(tokenizer.bos)},
                                   {"eos_token_id", end_ids(tokenizer.ends)},
                                   {"pad_token_id", optional_id(tokenizer.pad)}};
  ImportPlan plan{.architecture = std::move(decoder.architecture),
                  .dtype = dtype,
                  .tensors = std::move(decoder.tensors),
                  .documents = {{"config.json", document(decoder.config)},
                                {"generation_config.json", document(generation)},
                                {"tokenizer.json", document(tokenizer.tokenizer)},
                                {"tokenizer_config.json", document(tokenizer.tokenizer_config)}},
                  .notes = std::move(decoder.notes)};
  plan.notes.insert(plan.notes.end(), tokenizer.notes.begin(), tokenizer.notes.end());
  return plan;
}

void for_each_piece(const ImportedTensor& tensor, const std::function<void(std::span<const float>)>& use) {
  const GgufTensor& source = *tensor.source;
  const int64_t width = source.shape.back();
  const int64_t rows = count_of(tensor) / width;
  const uint64_t row_bytes = static_cast<uint64_t>(width) / source.layout->elements * source.layout->bytes;
  const auto row_at = [&](int64_t row) {
    return source.bytes.subspan(static_cast<uint64_t>(row) * row_bytes, row_bytes);
  };
  const bool is_vector = source.shape.size() == 1;
  std::vector<float> piece;
  const auto rows_in_piece = std::clamp<int64_t>(kPieceNumbers / width, 1, rows);
  for (int64_t first = 0; first < rows; first += rows_in_piece) {
    const int64_t count = std::min(rows_in_piece, rows - first);
    piece.resize(static_cast<size_t>(count * width));
    for (int64_t i = 0; i < count; ++i) {
      const bool moved = tensor.interleaved_heads > 0 && !is_vector;
      const int64_t row = moved ? interleaved_row(first + i, tensor.interleaved_heads, rows) : first + i;
      dequantize(*source.layout, row_at(row),
                 std::span(piece).subspan(static_cast<size_t>(i * width), static_cast<size_t>(width)));
    }
    if (is_vector && tensor.interleaved_heads > 0) {
      // A bias: its numbers are the rows.
      std::vector<float> ordered(piece.size());
      for (int64_t i = 0; i < width; ++i) {
        ordered[static_cast<size_t>(i)] =
            piece[static_cast<size_t>(interleaved_row(i, tensor.interleaved_heads, width))];
      }
      piece.swap(ordered);
    }
    use(piece);
  }
}

void write_import(const ImportPlan& plan, const fs::path& directory, const ImportProgress& progress) {
  // Without a slash at its end, so that the directory beside it has a name.
  fs::path target = fs::absolute(directory).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();
  require_new_or_empty(target);
  PartialDirectory partial(target);
  write_weights(plan, partial.path() / "model.safetensors", progress);
  for (const auto& [name, content] : plan.documents) write_file_atomically(partial.path() / name, content);
  read_back(partial.path());
  partial.rename_to(target);
}

}  // namespace allot::model
