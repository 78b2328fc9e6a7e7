#include "model/cuda/nccl.h"

#include <dlfcn.h>
#include <nccl.h>
#include <spdlog/fmt/fmt.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "model/cuda/device_memory.h"
#include "model/cuda/peer_sums.h"
#include "model/cuda/torch_cuda.h"

namespace allot::model::cuda {
namespace {

// What is used of the library.
struct Library {
  decltype(&ncclCommInitAll) init_all;
  decltype(&ncclAllReduce) all_reduce;
  decltype(&ncclAllGather) all_gather;
  decltype(&ncclCommAbort) abort;
  decltype(&ncclCommDestroy) destroy;
  decltype(&ncclGetErrorString) error_string;
  decltype(&ncclGetLastError) last_error;
};

template <class Function>
void load(void* handle, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(::dlsym(handle, name));
  if (*function == nullptr)
    throw NotFound(fmt::format("libnccl.so.2 has no {}; NCCL 2.18 or newer is needed", name));
}

void* open_library() {
  constexpr const char* kName = "libnccl.so.2";
  // Connections are made when the communicators are. By default the first sum of a kind makes those that it
  // needs, which fails within the capture of a graph (NCCL 2.22 and newer; NVIDIA/nccl issue 1471).
  (void)::setenv("NCCL_RUNTIME_CONNECT", "0", /*overwrite=*/0);
  // Sums in a graph and others never run at once: those of a rank are all in one stream. Without this NCCL
  // orders them itself, which takes 2 microseconds a sum.
  (void)::setenv("NCCL_GRAPH_MIXING_SUPPORT", "0", /*overwrite=*/0);
  // First the library that LibTorch was built with, which it may need in this process anyway.
  std::string reason;
  try {
    load_torch_cuda();
  } catch (const NotFound& missing) {
    reason = std::string("; nor does LibTorch bring one: ") + missing.what();
  }
  // Never closed, as LibTorch's.
  void* const handle = ::dlopen(kName, RTLD_NOW | RTLD_LOCAL);
  if (handle != nullptr) return handle;
  throw NotFound(
      fmt::format("a model over several devices needs NCCL, but {} cannot be loaded: {}{}; it comes with the "
                  "whole torch wheel, or by itself (pip install nvidia-nccl-cu13, its lib folder in "
                  "LD_LIBRARY_PATH)",
                  kName, ::dlerror(), reason));
}

const Library& library() {
  static const Library loaded = [] {
    void* const handle = open_library();
    Library functions{};
    load(handle, "ncclCommInitAll", &functions.init_all);
    load(handle, "ncclAllReduce", &functions.all_reduce);
    load(handle, "ncclAllGather", &functions.all_gather);
    load(handle, "ncclCommAbort", &functions.abort);
    load(handle, "ncclCommDestroy", &functions.destroy);
    load(handle, "ncclGetErrorString", &functions.error_string);
    load(handle, "ncclGetLastError", &functions.last_error);
    return functions;
  }();
  return loaded;
}

void check_nccl(ncclResult_t status, const char* what) {
  if (status == ncclSuccess) return;
  const char* const last = library().last_error(nullptr);
  throw CudaError(fmt::format("{}: {}{}{}", what, library().error_string(status),
                              last != nullptr && *last != '\0' ? ": " : "", last != nullptr ? last : ""));
}

ncclDataType_t nccl_type(kernels::DType dtype) {
  switch (dtype) {
    case kernels::DType::kFloat32:
      return ncclFloat32;
    case kernels::DType::kBFloat16:
      return ncclBfloat16;
    case kernels::DType::kFloat16:
      break;
  }
  return ncclFloat16;
}

class RankCollective final : public Collective {
 public:
  // `peers` may be null.
  RankCollective(int32_t rank, ncclComm_t comm, PeerSums* peers, const std::atomic<bool>* aborted)
      : rank_(rank), comm_(comm), peers_(peers), aborted_(aborted) {}

  void sum(void* data, int64_t count, kernels::DType dtype, kernels::CudaStream stream) override {
    require_connected();
    if (peers_ != nullptr && peers_->sum(rank_, data, count, dtype, stream)) return;
    check_nccl(library().all_reduce(data, data, static_cast<size_t>(count), nccl_type(dtype), ncclSum, comm_,
                                    stream),
               "ncclAllReduce");
  }

  bool sum_and_normalise(const kernels::RmsNormParams& norm, kernels::CudaStream stream) override {
    require_connected();
    return peers_ != nullptr && peers_->sum_and_normalise(rank_, norm, stream);
  }

  void gather(const void* part, void* all, int64_t bytes, kernels::CudaStream stream) override {
    require_connected();
    check_nccl(library().all_gather(part, all, static_cast<size_t>(bytes), ncclUint8, comm_, stream),
               "ncclAllGather");
  }

 private:
  void require_connected() const {
    if (*aborted_)
      throw CudaError("the devices of this model are no longer connected: another of them failed");
  }

  int32_t rank_;
  ncclComm_t comm_;
  PeerSums* peers_;
  const std::atomic<bool>* aborted_;
};

}  // namespace

struct NcclGroup::Impl {
  std::vector<ncclComm_t> comms;
  std::unique_ptr<PeerSums> peers;
  std::atomic<bool> aborted = false;
  std::vector<RankCollective> ranks;
};

NcclGroup::NcclGroup(std::span<const int> devices) : impl_(std::make_unique<Impl>()) {
  impl_->comms.resize(devices.size());
  check_nccl(library().init_all(impl_->comms.data(), static_cast<int>(devices.size()), devices.data()),
             "ncclCommInitAll");
  impl_->peers = PeerSums::connect(devices);
  for (size_t r = 0; r < devices.size(); ++r)
    impl_->ranks.emplace_back(static_cast<int32_t>(r), impl_->comms[r], impl_->peers.get(), &impl_->aborted);
}

NcclGroup::~NcclGroup() {
  if (impl_->aborted) return;
  for (const ncclComm_t comm : impl_->comms) (void)library().destroy(comm);
}

Collective& NcclGroup::of_rank(int32_t rank) {
  return impl_->ranks[static_cast<size_t>(rank)];
}

void NcclGroup::abort() {
  if (impl_->aborted.exchange(true)) return;
  if (impl_->peers != nullptr) impl_->peers->stop();
  for (const ncclComm_t comm : impl_->comms) (void)library().abort(comm);
}

}  // namespace allot::model::cuda
