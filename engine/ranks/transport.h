// What carries bytes between the processes of a job: every rank calls the same functions in the same order, from one
// thread. libqeng_mpi.so has one by MPI (mpi_library.cpp), which ranks.cpp opens where mpirun or srun started the process;
// libqeng_nccl.so one between GPUs (nccl_library.cpp).
#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace qeng {

class Transport {
 public:
  virtual ~Transport() = default;
  int rank = 0, size = 1;  // of this process, from 0; of the job

  // Whether what it carries lies in a device's memory, and in the host's otherwise. Operations on it have to be over.
  virtual bool of_device() const { return false; }
  virtual void barrier() = 0;
  virtual void broadcast(void* data, size_t bytes, int root) = 0;
  // Sends pieces that lie one after another, the i-th of send[i] bytes to rank i; receives likewise.
  virtual void exchange(const void* pieces, const std::vector<size_t>& send, void* received,
                        const std::vector<size_t>& receive) = 0;
  // Gives every rank the pieces of all in their order, the i-th of bytes[i].
  virtual void gather(const void* piece, void* all, const std::vector<size_t>& bytes) = 0;
  // The last call: after it the process may exit while others go on.
  virtual void finish() = 0;
};

// What a library of transports shows: one function, found by name, which joins the job. It throws no exception:
// nullptr, with the reason.
using TransportEntry = Transport* (*)(std::string* why);
constexpr const char* kTransportEntry = "qeng_transport";
// And of a library of transports between devices: for the device of this number, among ranks that `host` joins.
using DeviceTransportEntry = Transport* (*)(Transport* host, int device, std::string* why);
constexpr const char* kDeviceTransportEntry = "qeng_device_transport";

}  // namespace qeng
