#include "engine/ranks/ranks.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "engine/tensor/device.h"
#include "kernels/error.h"
#include "kernels/shared_library.h"

namespace qeng {
namespace {

// How many processes a launcher says that it has started; 0: there is none. Slurm's count means so where srun started MPI
// (PMIX_RANK): without it, its tasks are programs of their own.
int launched() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"})
    if (const char* text = std::getenv(name)) return std::max(1, std::atoi(text));
  if (const char* tasks = std::getenv("SLURM_NTASKS"); tasks && std::getenv("PMIX_RANK"))
    return std::max(1, std::atoi(tasks));
  return 0;
}

// A library's entry; null: there is none, and why. needs: what it is built from.
template <class Entry>
Entry open_library(const char* name, const char* needs, int flags, const char* symbol, std::string* why) {
  const std::string path = own_library(name);
  if (path.empty()) {
    *why = std::string(name) + " is not beside it: build where " + needs;
    return nullptr;
  }
  void* handle = dlopen(path.c_str(), RTLD_NOW | flags);
  if (!handle) {
    *why = dlerror();
    return nullptr;
  }
  const auto entry = reinterpret_cast<Entry>(dlsym(handle, symbol));
  if (!entry) *why = path + " is none of qeng's";
  return entry;
}

std::unique_ptr<Transport> open_transport(std::string* why) {
  // global: Open MPI opens parts of its own that look for it
  const auto entry = open_library<TransportEntry>("libqeng_mpi.so", "MPI's headers are, Debian's libopenmpi-dev",
                                                  RTLD_GLOBAL, kTransportEntry, why);
  return std::unique_ptr<Transport>(entry ? entry(why) : nullptr);
}

// Between GPUs, of which this rank has the one of this name, "cuda:1".
std::unique_ptr<Transport> open_device(Transport& host, const std::string& name) {
  std::string why;
  const auto entry = open_library<DeviceTransportEntry>("libqeng_nccl.so", "the CUDA toolkit has NCCL", 0,
                                                        kDeviceTransportEntry, &why);
  const int number = std::atoi(name.c_str() + name.find(':') + 1);
  std::unique_ptr<Transport> transport(entry ? entry(&host, number, &why) : nullptr);
  if (!transport) fail("unsupported", "ranks: ", why, "; without QENG_NCCL gradients go through the host's memory");
  return transport;
}

class Imagined final : public Transport {
 public:
  explicit Imagined(int ranks) { size = ranks; }
  void barrier() override {}
  void broadcast(void*, size_t, int) override {}
  void exchange(const void*, const std::vector<size_t>&, void*, const std::vector<size_t>&) override {}
  void gather(const void*, void*, const std::vector<size_t>&) override {}
  void finish() override {}
};

// The one rank of a job of one. MPI would refuse a second program of the task that Slurm started.
class Single final : public Transport {
 public:
  void barrier() override {}
  void broadcast(void*, size_t, int) override {}
  void exchange(const void* pieces, const std::vector<size_t>& send, void* received,
                const std::vector<size_t>&) override {
    if (send[0]) std::memmove(received, pieces, send[0]);
  }
  void gather(const void* piece, void* all, const std::vector<size_t>& bytes) override {
    if (bytes[0]) std::memmove(all, piece, bytes[0]);
  }
  void finish() override {}
};

std::unique_ptr<Ranks> job;

}  // namespace

// A transport whose bytes are counted.
class Ranks::Counted final : public Transport {
 public:
  explicit Counted(std::unique_ptr<Transport> of) : of_(std::move(of)) { rank = of_->rank, size = of_->size; }
  bool of_device() const override { return of_->of_device(); }
  void barrier() override { of_->barrier(); }
  void broadcast(void* data, size_t bytes, int root) override {
    if (rank == root) count(bytes * (static_cast<size_t>(size) - 1));
    of_->broadcast(data, bytes, root);
  }
  void exchange(const void* pieces, const std::vector<size_t>& send, void* received,
                const std::vector<size_t>& receive) override {
    count(std::accumulate(send.begin(), send.end(), size_t{0}) - send[static_cast<size_t>(rank)]);
    of_->exchange(pieces, send, received, receive);
  }
  void gather(const void* piece, void* all, const std::vector<size_t>& bytes) override {
    count(bytes[static_cast<size_t>(rank)] * (static_cast<size_t>(size) - 1));
    of_->gather(piece, all, bytes);
  }
  void finish() override { of_->finish(); }
  double sent() { return static_cast<double>(sent_.exchange(0)); }

 private:
  void count(size_t bytes) { sent_ += bytes; }
  std::unique_ptr<Transport> of_;
  std::atomic<size_t> sent_ = 0;  // a courier's thread sends, too
};

Ranks::~Ranks() = default;
int Ranks::rank() const { return transport_->rank; }
int Ranks::size() const { return transport_->size; }
Transport& Ranks::transport() { return *transport_; }
double Ranks::sent() { return transport_->sent() + (device_ ? device_->sent() : 0); }

Transport& Ranks::transport(Device& device) {
  const std::string name = device.backend().name();
  if (!device_ && name.rfind("cuda:", 0) == 0 && device.backend().computes() && std::getenv("QENG_NCCL"))
    device_ = std::make_unique<Counted>(open_device(*transport_, name));
  return device_ ? *device_ : *transport_;
}

Ranks* Ranks::of_job() {
  if (job) return job.get();
  const int count = launched();
  if (count == 0) return nullptr;
  std::string why;
  std::unique_ptr<Transport> transport = count == 1 ? std::make_unique<Single>() : open_transport(&why);
  if (!transport) fail("unsupported", "this is one of ", count, " processes of a job, and this qeng has no MPI: ", why);
  if (transport->size != count)
    fail("unsupported", "the launcher says ", count, " processes, and MPI ", transport->size,
         ": they are of different kinds of MPI; start it with the mpirun of the one that qeng was built with");
  job = std::make_unique<Ranks>(std::move(transport));
  return job.get();
}

int Ranks::of_machine() {
  if (launched() < 2) return 0;
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"})
    if (const char* text = std::getenv(name)) return std::max(0, std::atoi(text));
  return 0;
}

void Ranks::leave() {
  static bool left = false;
  if (job && !left) job->transport_->finish();
  left = true;
}

std::unique_ptr<Ranks> Ranks::imagined(int size) {
  if (size < 1) fail("value", "ranks: ", size, " of them cannot be imagined");
  return std::make_unique<Ranks>(std::make_unique<Imagined>(size));
}

Ranks::Ranks(std::unique_ptr<Transport> transport, std::unique_ptr<Transport> device)
    : transport_(std::make_unique<Counted>(std::move(transport))),
      device_(device ? std::make_unique<Counted>(std::move(device)) : nullptr) {}

std::string Ranks::tell(const std::string& text) {
  size_t bytes = text.size();
  transport_->broadcast(&bytes, sizeof bytes, 0);
  std::string told = text;
  told.resize(bytes);
  transport_->broadcast(told.data(), bytes, 0);
  return told;
}

std::vector<std::string> Ranks::texts(const std::string& own) {
  const auto ranks = static_cast<size_t>(size()), me = static_cast<size_t>(rank());
  std::vector<size_t> bytes(ranks);
  const size_t length = bytes[me] = own.size();
  transport_->gather(&length, bytes.data(), std::vector<size_t>(ranks, sizeof length));
  std::string all(std::accumulate(bytes.begin(), bytes.end(), size_t{0}), '\0');
  all.replace(std::accumulate(bytes.begin(), bytes.begin() + rank(), size_t{0}), own.size(), own);
  transport_->gather(own.data(), all.data(), bytes);
  std::vector<std::string> each(ranks);
  size_t at = 0;
  for (size_t r = 0; r < ranks; at += bytes[r++]) each[r] = all.substr(at, bytes[r]);
  return each;
}

std::vector<double> Ranks::sum(const std::vector<double>& numbers) {
  const size_t count = numbers.size(), ranks = static_cast<size_t>(size());
  std::vector<double> all(count * ranks), sums(count);
  std::copy(numbers.begin(), numbers.end(), all.begin() + static_cast<ptrdiff_t>(count) * rank());
  transport_->gather(numbers.data(), all.data(), std::vector<size_t>(ranks, count * sizeof(double)));
  for (size_t r = 0; r < ranks; ++r)
    for (size_t i = 0; i < count; ++i) sums[i] += all[r * count + i];
  return sums;
}

}  // namespace qeng
