#include "engine/ranks/ranks.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>

#include "kernels/error.h"
#include "kernels/shared_library.h"

namespace qeng {
namespace {

// How many processes a launcher says that it has started; 0: there is none. Slurm's count means so where srun started MPI
// (PMIX_RANK): without it, its tasks may be unrelated programs.
int launched() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"})
    if (const char* text = std::getenv(name)) return std::max(1, std::atoi(text));
  if (const char* tasks = std::getenv("SLURM_NTASKS"); tasks && std::getenv("PMIX_RANK"))
    return std::max(1, std::atoi(tasks));
  return 0;
}

std::unique_ptr<Transport> open_transport(std::string* why) {
  const std::string path = own_library("libqeng_mpi.so");
  if (path.empty()) {
    *why = "libqeng_mpi.so is not beside it: build where MPI's headers are, Debian's libopenmpi-dev";
    return nullptr;
  }
  void* handle =
      dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);  // global: Open MPI opens parts of its own that look for it
  if (!handle) {
    *why = dlerror();
    return nullptr;
  }
  const auto entry = reinterpret_cast<TransportEntry>(dlsym(handle, kTransportEntry));
  if (!entry) {
    *why = path + " is none of qeng's";
    return nullptr;
  }
  return std::unique_ptr<Transport>(entry(why));
}

std::unique_ptr<Ranks> job;

}  // namespace

Ranks* Ranks::of_job() {
  if (job) return job.get();
  const int count = launched();
  if (count == 0) return nullptr;
  std::string why;
  std::unique_ptr<Transport> transport = open_transport(&why);
  if (!transport && count == 1) return nullptr;
  if (!transport) fail("unsupported", "this is one of ", count, " processes of a job, and this qeng has no MPI: ", why);
  if (transport->size != count)
    fail("unsupported", "the launcher says ", count, " processes, and MPI ", transport->size,
         ": they are of different kinds of MPI; start it with the mpirun of the one that qeng was built with");
  job = std::make_unique<Ranks>(std::move(transport));
  return job.get();
}

void Ranks::leave() {
  static bool left = false;
  if (job && !left) job->transport_->finish();
  left = true;
}

Ranks::Ranks(std::unique_ptr<Transport> transport) : transport_(std::move(transport)) {}

std::string Ranks::tell(const std::string& text) {
  size_t bytes = text.size();
  transport_->broadcast(&bytes, sizeof bytes, 0);
  std::string told = text;
  told.resize(bytes);
  transport_->broadcast(told.data(), bytes, 0);
  return told;
}

std::vector<double> Ranks::sum(const std::vector<double>& numbers) {
  const size_t count = numbers.size(), ranks = static_cast<size_t>(size());
  std::vector<double> all(count * ranks), sums(count);
  transport_->gather(numbers.data(), all.data(), std::vector<size_t>(ranks, count * sizeof(double)));
  for (size_t r = 0; r < ranks; ++r)
    for (size_t i = 0; i < count; ++i) sums[i] += all[r * count + i];
  return sums;
}

}  // namespace qeng
