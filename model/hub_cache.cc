#include "model/hub_cache.h"

#include <algorithm>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/file.h"

namespace allot::model {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMain = "main";
constexpr std::string_view kFolder = "models--";
constexpr std::string_view kDigitsAndLetters =
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

bool is_commit(std::string_view text) {
  return text.size() == 40 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// One of the two parts of a name, by the rules of huggingface_hub (validate_repo_id). "--" is refused there,
// too, which is why a folder's name can be split again.
bool is_name_part(std::string_view part) {
  const auto is_edge = [](char c) { return c == '-' || c == '.'; };
  return !part.empty() && part.size() <= 96 && !is_edge(part.front()) && !is_edge(part.back()) &&
         part.find("--") == std::string_view::npos && part.find("..") == std::string_view::npos &&
         std::ranges::all_of(part, [](char c) {
           return kDigitsAndLetters.find(c) != std::string_view::npos || c == '-' || c == '_' || c == '.';
         });
}

// A revision is a path below refs ("refs/pr/1" is one on the hub), which must not lead out of it. A blank or
// a quote would break the command that a message offers.
bool is_revision(std::string_view text) {
  if (text.empty() || text.starts_with('-')) return false;
  for (const char c : text) {
    if (kDigitsAndLetters.find(c) == std::string_view::npos &&
        std::string_view("-_./+=").find(c) == std::string_view::npos)
      return false;
  }
  for (size_t start = 0; start <= text.size();) {
    const size_t end = std::min(text.find('/', start), text.size());
    const std::string_view part = text.substr(start, end - start);
    if (part.empty() || part == "." || part == "..") return false;
    start = end + 1;
  }
  return true;
}

fs::path with_home(const std::string& path, const std::optional<std::string>& home) {
  if (home && path == "~") return *home;
  if (home && path.starts_with("~/")) return fs::path(*home) / path.substr(2);
  return path;
}

std::string download_command(const HubName& name) {
  std::string command = "hf download " + name.repository;
  if (!name.revision.empty() && name.revision != kMain) command += " --revision " + name.revision;
  return command;
}

// Names of the files below `folder`, relative to it, sorted; empty when it is not there.
std::vector<std::string> files_below(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->is_regular_file(error)) names.push_back(it->path().lexically_relative(folder).string());
  }
  std::ranges::sort(names);
  return names;
}

std::vector<std::string> folders_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->is_directory(error)) names.push_back(it->path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

std::string listed(const std::vector<std::string>& names) {
  constexpr size_t kMost = 4;
  if (names.empty()) return "none";
  std::string text;
  for (size_t at = 0; at < std::min(kMost, names.size()); ++at) text += (at == 0 ? "" : ", ") + names[at];
  if (names.size() > kMost) text += " and " + std::to_string(names.size() - kMost) + " more";
  return text;
}

// What stands in refs/REVISION, without the line end that an editor may have added.
std::string read_commit(const fs::path& file, const HubName& name) {
  std::string commit = read_file(file);
  while (!commit.empty() && (commit.back() == '\n' || commit.back() == '\r')) commit.pop_back();
  if (is_commit(commit)) return commit;
  throw CorruptFile(file.string() + " holds " + std::to_string(commit.size()) +
                    " bytes that are no commit of 40 hexadecimal digits; '" + download_command(name) +
                    "' writes it again");
}

}  // namespace

fs::path hub_cache(const EnvironmentVariable& variable) {
  const auto value = [&](const char* name) {
    auto text = variable(name);
    if (text && text->empty()) text.reset();
    return text;
  };
  const auto home = value("HOME");
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const auto cache = value(name)) return with_home(*cache, home);
  }
  if (const auto of_tools = value("HF_HOME")) return with_home(*of_tools, home) / "hub";
  if (const auto caches = value("XDG_CACHE_HOME")) return with_home(*caches, home) / "huggingface" / "hub";
  if (home) return fs::path(*home) / ".cache" / "huggingface" / "hub";
  throw NotFound(
      "nothing says where the Hugging Face cache is: HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME and HOME are not "
      "set; set HF_HUB_CACHE to its folder, or give a model's directory");
}

std::optional<HubName> parse_hub_name(std::string_view text) {
  const size_t at = text.find('@');
  const std::string_view repository = text.substr(0, at);
  const size_t slash = repository.find('/');
  if (slash == std::string_view::npos || !is_name_part(repository.substr(0, slash)) ||
      !is_name_part(repository.substr(slash + 1)))
    return std::nullopt;
  HubName name{.repository = std::string(repository), .revision = {}};
  if (at != std::string_view::npos) {
    name.revision = text.substr(at + 1);
    if (!is_revision(name.revision)) return std::nullopt;
  }
  return name;
}

fs::path find_snapshot(const fs::path& cache, const HubName& name) {
  const size_t slash = name.repository.find('/');
  std::string folder_name(kFolder);
  folder_name += name.repository.substr(0, slash);
  if (slash != std::string::npos) folder_name += "--" + name.repository.substr(slash + 1);
  const fs::path folder = cache / folder_name;
  const std::string fetch = "'" + download_command(name) + "' fetches it";
  if (!fs::is_directory(folder)) {
    throw NotFound("the Hugging Face cache " + cache.string() + " does not hold " + name.repository + "; " +
                   fetch);
  }
  const std::string revision = name.revision.empty() ? std::string(kMain) : name.revision;
  std::string commit = revision;
  if (!is_commit(revision)) {
    const fs::path ref = folder / "refs" / revision;
    if (!fs::is_regular_file(ref)) {
      throw NotFound(folder.string() + " has no revision " + revision +
                     " (revisions: " + listed(files_below(folder / "refs")) +
                     "; commits: " + listed(folders_in(folder / "snapshots")) + "); name one of these as " +
                     name.repository + "@REVISION, or " + fetch);
    }
    commit = read_commit(ref, name);
  }
  fs::path snapshot = folder / "snapshots" / commit;
  if (fs::is_directory(snapshot)) return snapshot;
  throw NotFound(folder.string() + " has no files of commit " + commit +
                 (commit == revision ? "" : ", which its revision " + revision + " stands for") +
                 " (commits: " + listed(folders_in(folder / "snapshots")) + "); " + fetch);
}

fs::path locate(const fs::path& value, const EnvironmentVariable& variable) {
  std::error_code error;
  if (fs::exists(value, error)) return value;
  const auto name = parse_hub_name(value.string());
  if (!name) return value;
  try {
    return find_snapshot(hub_cache(variable), *name);
  } catch (const NotFound& not_found) {
    throw NotFound(value.string() +
                   " is no file or directory here, and as a name on the hub: " + not_found.what());
  }
}

std::optional<HubName> snapshot_name(const fs::path& directory) {
  fs::path path = fs::absolute(directory).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  std::string commit = path.filename().string();
  const fs::path snapshots = path.parent_path();
  std::string folder = snapshots.parent_path().filename().string();
  if (!is_commit(commit) || snapshots.filename() != "snapshots" || !folder.starts_with(kFolder))
    return std::nullopt;
  folder.erase(0, kFolder.size());
  // Some of the oldest models have no organisation: models--gpt2.
  const size_t dashes = folder.find("--");
  const bool valid = dashes == std::string::npos
                         ? is_name_part(folder)
                         : is_name_part(folder.substr(0, dashes)) && is_name_part(folder.substr(dashes + 2));
  if (!valid) return std::nullopt;
  if (dashes != std::string::npos) folder.replace(dashes, 2, "/");
  return HubName{.repository = std::move(folder), .revision = std::move(commit)};
}

std::string download_hint(const fs::path& directory) {
  const auto name = snapshot_name(directory);
  return name ? "; '" + download_command(*name) + "' fetches what is missing" : "";
}

std::string model_name(const fs::path& directory) {
  if (auto name = snapshot_name(directory)) return std::move(name->repository);
  const fs::path absolute = fs::absolute(directory).lexically_normal();
  return (absolute.has_filename() ? absolute : absolute.parent_path()).filename().string();
}

}  // namespace allot::model
