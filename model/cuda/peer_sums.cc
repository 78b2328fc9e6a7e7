#include "model/cuda/peer_sums.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstring>

namespace allot::model::cuda {
namespace {

// Makes another device current until its end.
class OnDevice {
 public:
  OnDevice() { check(cudaGetDevice(&before_), "cudaGetDevice"); }
  ~OnDevice() { (void)cudaSetDevice(before_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  void choose(int device) const { check(cudaSetDevice(device), "cudaSetDevice"); }

 private:
  int before_ = 0;
};

// Calls use(device, other) for every device and every other one.
template <class Use>
void for_each_pair(std::span<const int> devices, const Use& use) {
  for (const int device : devices) {
    for (const int other : devices) {
      if (device != other) use(device, other);
    }
  }
}

}  // namespace

std::unique_ptr<PeerSums> PeerSums::connect(std::span<const int> devices) {
  if (!kernels::peer_sum_takes(static_cast<int32_t>(devices.size()), 4, kernels::DType::kBFloat16))
    return nullptr;
  bool all = true;
  for_each_pair(devices, [&](int device, int other) {
    int can = 0;
    check(cudaDeviceCanAccessPeer(&can, device, other), "cudaDeviceCanAccessPeer");
    all &= can != 0;
  });
  if (!all) return nullptr;
  return std::unique_ptr<PeerSums>(new PeerSums(devices));
}

PeerSums::PeerSums(std::span<const int> devices) : stop_(sizeof(uint32_t)) {
  std::memset(stop_.data(), 0, sizeof(uint32_t));
  const OnDevice current;
  for_each_pair(devices, [&](int device, int other) {
    current.choose(device);
    const cudaError_t status = cudaDeviceEnablePeerAccess(other, 0);
    if (status != cudaErrorPeerAccessAlreadyEnabled) return check(status, "cudaDeviceEnablePeerAccess");
    (void)cudaGetLastError();
  });
  for (const int device : devices) {
    current.choose(device);
    limits_.push_back(kernels::device_limits(device));
    mailboxes_.emplace_back(kernels::kPeerMailboxBytes);
    const Stream stream;
    check(cudaMemsetAsync(mailboxes_.back().data(), 0, kernels::kPeerMailboxBytes, stream.get()),
          "cudaMemsetAsync");
    stream.synchronize();
  }
}

kernels::PeerSumParams PeerSums::of_rank(int32_t rank) const {
  kernels::PeerSumParams params = {.rank = rank, .ranks = ranks(), .stop = stop_.as<uint32_t>()};
  for (size_t i = 0; i < mailboxes_.size(); ++i) params.mailboxes[i] = mailboxes_[i].data();
  return params;
}

bool PeerSums::sum(int32_t rank, void* data, int64_t count, kernels::DType dtype,
                   kernels::CudaStream stream) {
  if (!kernels::peer_sum_takes(ranks(), count, dtype)) return false;
  kernels::PeerSumParams params = of_rank(rank);
  params.count = count;
  params.dtype = dtype;
  params.data = data;
  kernels::peer_sum_cuda(params, limits_[static_cast<size_t>(rank)], stream);
  return true;
}

bool PeerSums::sum_and_normalise(int32_t rank, const kernels::RmsNormParams& norm,
                                 kernels::CudaStream stream) {
  const kernels::DeviceLimits& limits = limits_[static_cast<size_t>(rank)];
  if (!kernels::peer_sum_norm_takes(ranks(), norm, limits)) return false;
  kernels::peer_sum_norm_cuda(of_rank(rank), norm, limits, stream);
  return true;
}

void PeerSums::stop() {
  std::atomic_ref(*stop_.as<uint32_t>()).store(1);
}

}  // namespace allot::model::cuda
