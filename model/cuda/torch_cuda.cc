#include "model/cuda/torch_cuda.h"

#include <dlfcn.h>
#include <link.h>
#include <torch/version.h>

#include <filesystem>
#include <string>

#include "base/error.h"

namespace allot::model::cuda {
namespace {

// Directory of the libtorch_cpu.so that this process runs with.
std::filesystem::path torch_directory() {
  void* handle = ::dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  link_map* map = nullptr;
  if (handle == nullptr || ::dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0) {
    throw NotFound(
        "cannot find the libtorch_cpu.so of this process; the program must link it as a shared library");
  }
  std::filesystem::path directory = std::filesystem::path(map->l_name).parent_path();
  ::dlclose(handle);
  return directory;
}

}  // namespace

void load_torch_cuda() {
  const std::string path = (torch_directory() / "libtorch_cuda.so").string();
  // Never closed: its static objects cannot be torn down.
  if (::dlopen(path.c_str(), RTLD_LAZY | RTLD_GLOBAL) == nullptr) {
    throw NotFound("cannot load " + path + ": " + ::dlerror() +
                   "; it needs the whole torch wheel with its nvidia packages "
                   "(pip install torch==" TORCH_VERSION ")");
  }
}

}  // namespace allot::model::cuda
