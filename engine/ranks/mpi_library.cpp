// libqeng_mpi.so: a Transport by MPI, for jobs that mpirun or srun start. Built where MPI's headers are (Debian's
// libopenmpi-dev).
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <numeric>

#include "engine/ranks/transport.h"
#include "kernels/error.h"

namespace qeng {
namespace {

// MPI's own handler of errors ends the job, and says of which rank: nothing is returned that would have to be checked.
class MpiTransport final : public Transport {
 public:
  MpiTransport() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
  }
  void barrier() override {
    await([](MPI_Request* request) { MPI_Ibarrier(MPI_COMM_WORLD, request); });
  }
  void broadcast(void* data, size_t bytes, int root) override {
    const int length = count(bytes);
    await([=](MPI_Request* request) { MPI_Ibcast(data, length, MPI_BYTE, root, MPI_COMM_WORLD, request); });
  }
  void exchange(const void* pieces, const std::vector<size_t>& send, void* received,
                const std::vector<size_t>& receive) override {
    const Layout from(send), to(receive);
    await([&](MPI_Request* request) {
      MPI_Ialltoallv(pieces, from.counts.data(), from.places.data(), MPI_BYTE, received, to.counts.data(),
                     to.places.data(), MPI_BYTE, MPI_COMM_WORLD, request);
    });
  }
  void gather(const void* piece, void* all, const std::vector<size_t>& bytes) override {
    if (std::accumulate(bytes.begin(), bytes.end(), size_t{0}) > INT_MAX) return gather_large(piece, all, bytes);
    const Layout to(bytes);
    await([&](MPI_Request* request) {
      MPI_Iallgatherv(piece, to.counts[static_cast<size_t>(rank)], MPI_BYTE, all, to.counts.data(), to.places.data(),
                      MPI_BYTE, MPI_COMM_WORLD, request);
    });
  }
  void finish() override { MPI_Finalize(); }

 private:
  // MPI's own waits take a core, which other ranks and this one's threads may need. What comes within some 100 us (a
  // thousand questions) is not slept over; 20 us are little beside a bucket's milliseconds.
  template <class Begin>
  static void await(Begin begin) {
    MPI_Request request;
    begin(&request);
    int done = 0;
    for (int64_t asked = 0; !done; ++asked) {
      MPI_Test(&request, &done, MPI_STATUS_IGNORE);
      if (!done && asked > 1000) ::usleep(20);
    }
  }
  // MPI counts in int.
  void gather_large(const void* piece, void* all, const std::vector<size_t>& bytes) {
    constexpr size_t kMost = size_t{1} << 30;
    char* to = static_cast<char*>(all);
    for (int r = 0; r < size; ++r) {
      const size_t whole = bytes[static_cast<size_t>(r)];
      if (r == rank) std::memcpy(to, piece, whole);
      for (size_t at = 0; at < whole; at += kMost) broadcast(to + at, std::min(kMost, whole - at), r);
      to += whole;
    }
  }
  static int count(size_t bytes) {
    if (bytes > INT_MAX) fail("value", "mpi: ", bytes, " bytes at once, at most ", INT_MAX);
    return static_cast<int>(bytes);
  }
  struct Layout {
    std::vector<int> counts, places;
    explicit Layout(const std::vector<size_t>& bytes) : places(bytes.size(), 0) {
      count(std::accumulate(bytes.begin(), bytes.end(), size_t{0}));
      for (size_t each : bytes) counts.push_back(static_cast<int>(each));
      for (size_t i = 1; i < bytes.size(); ++i) places[i] = places[i - 1] + counts[i - 1];
    }
  };
};

}  // namespace
}  // namespace qeng

extern "C" __attribute__((visibility("default"))) qeng::Transport* qeng_transport(std::string* why) {
  int given = 0;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &given) != MPI_SUCCESS ||
      given < MPI_THREAD_SERIALIZED) {
    *why = "MPI does not start, or only for programs of one thread";
    return nullptr;
  }
  return new qeng::MpiTransport;
}
