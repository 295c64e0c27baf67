// libqeng_nccl.so: a Transport by NCCL of what lies in the memory of NVIDIA GPUs, one for each rank. Built where the CUDA
// toolkit has NCCL; opened beside MPI's, which brings the ranks together (ranks.cpp).
#include <cuda_runtime.h>
#include <nccl.h>

#include <algorithm>

#include "engine/ranks/transport.h"
#include "kernels/error.h"

namespace qeng {
namespace {

void check(ncclResult_t result, const char* doing) {
  if (result != ncclSuccess) fail("device", "nccl: ", doing, ": ", ncclGetErrorString(result));
}
void check(cudaError_t result, const char* doing) {
  if (result != cudaSuccess) fail("device", "nccl: ", doing, ": ", cudaGetErrorString(result));
}

// Each call returns when its bytes have come. Whoever calls it has waited for the operations that compute them.
class NcclTransport final : public Transport {
 public:
  NcclTransport(Transport& host, ncclComm_t comm) : host_(host), comm_(comm) {
    rank = host.rank, size = host.size;
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream");
  }
  ~NcclTransport() override {
    ncclCommDestroy(comm_);
    cudaStreamDestroy(stream_);
  }
  bool of_device() const override { return true; }
  void barrier() override { host_.barrier(); }
  void broadcast(void* data, size_t bytes, int root) override {
    check(ncclBroadcast(data, data, bytes, ncclUint8, root, comm_, stream_), "a broadcast");
    wait();
  }
  void exchange(const void* pieces, const std::vector<size_t>& send, void* received,
                const std::vector<size_t>& receive) override {
    const char* from = static_cast<const char*>(pieces);
    char* to = static_cast<char*>(received);
    check(ncclGroupStart(), "beginning an exchange");
    for (int r = 0; r < size; ++r) {
      const size_t sent = send[static_cast<size_t>(r)], expected = receive[static_cast<size_t>(r)];
      if (r == rank && sent)
        check(cudaMemcpyAsync(to, from, sent, cudaMemcpyDeviceToDevice, stream_), "copying this rank's own");
      if (r != rank && sent) check(ncclSend(from, sent, ncclUint8, r, comm_, stream_), "sending");
      if (r != rank && expected) check(ncclRecv(to, expected, ncclUint8, r, comm_, stream_), "receiving");
      from += sent, to += expected;
    }
    check(ncclGroupEnd(), "an exchange");
    wait();
  }
  void gather(const void* piece, void* all, const std::vector<size_t>& bytes) override {
    char* to = static_cast<char*>(all);
    check(ncclGroupStart(), "beginning to gather");
    for (int r = 0; r < size; ++r) {
      const size_t count = bytes[static_cast<size_t>(r)];
      if (count) check(ncclBroadcast(r == rank ? piece : to, to, count, ncclUint8, r, comm_, stream_), "gathering");
      to += count;
    }
    check(ncclGroupEnd(), "gathering");
    wait();
  }
  void finish() override {}

 private:
  void wait() { check(cudaStreamSynchronize(stream_), "waiting for other ranks"); }
  Transport& host_;
  ncclComm_t comm_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace
}  // namespace qeng

// All ranks call it, each with the number of its GPU; on all of them it succeeds, or on none.
extern "C" __attribute__((visibility("default"))) qeng::Transport* qeng_device_transport(qeng::Transport* host,
                                                                                         int device, std::string* why) {
  ncclUniqueId id = {};
  ncclComm_t comm = nullptr;
  ncclResult_t result = ncclSuccess;
  if (cudaSetDevice(device) != cudaSuccess) result = ncclUnhandledCudaError;
  if (host->rank == 0 && ncclGetUniqueId(&id) != ncclSuccess) id = {};
  host->broadcast(&id, sizeof id, 0);
  if (result == ncclSuccess) result = ncclCommInitRank(&comm, host->size, id, host->rank);
  const auto ranks = static_cast<size_t>(host->size);
  std::vector<char> each(ranks);
  const char fine = result == ncclSuccess;
  host->gather(&fine, each.data(), std::vector<size_t>(ranks, 1));
  if (std::all_of(each.begin(), each.end(), [](char one) { return one != 0; }))
    return new qeng::NcclTransport(*host, comm);
  if (comm) ncclCommDestroy(comm);
  *why =
      fine ? "NCCL does not start on another rank" : std::string("NCCL does not start: ") + ncclGetErrorString(result);
  return nullptr;
}
