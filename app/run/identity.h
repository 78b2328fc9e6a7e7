// Fingerprints of files on disk, in the form of the wire messages.
#pragma once

#include <filesystem>

#include "evaluation/task.h"
#include "model/model_config.h"
#include "wire/messages_fwd.h"

namespace allot::app {

// Without the adapter's path, which the identity does not have.
wire::ModelIdentity to_wire(const model::ModelIdentity& identity);
// With the dataset's path made absolute.
wire::DatasetIdentity to_wire(const evaluation::Dataset& dataset);

std::filesystem::path absolute_path(const std::filesystem::path& path);

}  // namespace allot::app
