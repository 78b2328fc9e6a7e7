// Models and adapters in the cache of the Hugging Face hub, as `hf download`, Transformers and vLLM fill it:
// models--ORG--NAME/refs/REVISION holds a commit, and models--ORG--NAME/snapshots/COMMIT the files of that
// commit, mostly as links into models--ORG--NAME/blobs. The layout is that of huggingface_hub. Nothing here
// downloads, and nothing writes.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace allot::model {

// The value of an environment variable; nothing when it is not set.
using EnvironmentVariable = std::function<std::optional<std::string>(const char* name)>;

// Where the cache is: HF_HUB_CACHE (before: HUGGINGFACE_HUB_CACHE), else HF_HOME/hub, else huggingface/hub in
// XDG_CACHE_HOME or ~/.cache. An empty variable counts as none, and a leading "~/" as the home directory.
// Throws NotFound when no variable says it.
std::filesystem::path hub_cache(const EnvironmentVariable& variable);

// "org/name" or "org/name@revision", where a revision is a branch, a tag or a commit of 40 hexadecimal
// digits.
struct HubName {
  std::string repository;  // "org/name"
  std::string revision;    // empty: the branch main
  friend bool operator==(const HubName&, const HubName&) = default;
};

// Nothing for a text that can be no name on the hub: other than two parts, or characters that the hub does
// not allow. Many relative paths of two parts can be one.
std::optional<HubName> parse_hub_name(std::string_view text);

// The snapshot's directory in `cache`. Throws NotFound naming the cache, what is there of the repository and
// the command that downloads it, and CorruptFile when the revision's file does not hold a commit.
std::filesystem::path find_snapshot(const std::filesystem::path& cache, const HubName& name);

// The directory that a user means: `value` itself where it exists or can be no name on the hub, else the
// snapshot of that name. Throws NotFound as find_snapshot does, and as hub_cache does.
std::filesystem::path locate(const std::filesystem::path& value, const EnvironmentVariable& variable);

// Repository and commit of a directory that lies in a cache, .../models--ORG--NAME/snapshots/COMMIT; nothing
// for any other. Goes by the path alone: nothing needs to exist.
std::optional<HubName> snapshot_name(const std::filesystem::path& directory);

// What a message adds when `directory` lacks a file: "; 'hf download …' fetches it" for a snapshot, whose
// download was stopped or left files out, else "".
std::string download_hint(const std::filesystem::path& directory);

// What people call the model or adapter in `directory`: "org/name" for a snapshot, whose own name is only a
// commit, else the last part of the absolute path, so that "." and "model/" have a name, too.
std::string model_name(const std::filesystem::path& directory);

}  // namespace allot::model
