#include "tests/emulator/block.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <boost/context/fiber.hpp>
#include <boost/context/preallocated.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <sstream>
#include <stdexcept>

#include "tests/emulator/banks.h"

// Present where the program is linked with the address sanitizer.
extern "C" {
__attribute__((weak)) void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom, size_t size);
__attribute__((weak)) void __sanitizer_finish_switch_fiber(void* fake_stack, const void** bottom, size_t* size);
}

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace emulator {
namespace {

constexpr int kMaxThreads = 1024, kMaxWarps = kMaxThreads / 32, kMaxGroups = kMaxThreads / 128, kBarriers = 16;

// What unwinds the fibers of a launch that failed.
struct Abort {};

// A fiber: a stack on which threads run, one after another, as long as none of them waits. So a kernel without
// collectives needs one fiber in all.
struct Thread;
struct Worker {
  boost::context::fiber context;
  Thread* thread = nullptr;
  void* fake_stack = nullptr;  // the address sanitizer's
  const void* bottom = nullptr;
  size_t size = 0;
};

struct alignas(64) Thread {
  Worker* worker = nullptr;              // while it is under way
  bool exited = false, waiting = false;  // waiting until it runs again, or is ready to
  const char* what = nullptr;            // what it waits at
  Site site{};
  bool (*done)(const void*) = nullptr;  // of wait_until
  const void* state = nullptr;
};

template <int lanes>
struct Meeting {
  const char* what = nullptr;
  Site site{};
  uint32_t mask = 0;     // of a warp's meeting
  uint32_t arrived = 0;  // lanes of a warp
  int count = 0;
  std::array<void*, lanes> slots{};
};

struct Warp {
  uint32_t exists = 0, exited = 0, ready = 0;
  std::vector<Meeting<32>> meetings;  // under way; several where masks differ
};

struct Barrier {
  const char* what = nullptr;
  int count = 0, arrived = 0, nonzero = 0, result = 0;
  std::array<uint32_t, kMaxWarps> lanes{}, waiting{};
  std::array<Site, kMaxWarps> sites{};
  Order order, passed;  // for the race check: what arrived so far; what those who passed it know
};

struct Block {
  const char* name = "";
  const std::function<void()>* body = nullptr;
  int threads = 0, alive = 0, exited = 0;
  std::array<Thread, kMaxThreads> thread;
  std::array<uint3, kMaxThreads> index;  // threadIdx of each
  std::array<Warp, kMaxWarps> warp;
  std::array<Meeting<128>, kMaxGroups> group;
  std::array<Barrier, kBarriers> barrier;
  std::vector<Thread*> polling;
  uint32_t ready_warps = 0;
  int last_warp = 0;
  bool aborting = false;
  char* shared = nullptr;
  size_t shared_size = 0;
  std::vector<void*> slots;
  // Drawn per block: of 256, how often the schedule stays with the warp that ran, looks at polling threads though
  // others could run, and lets an asynchronous copy land at once.
  uint32_t stay = 0, poll = 0, early = 0;
};

Block block;
Thread* current = nullptr;
Worker host;  // the program's own stack
Worker* running = &host;
Worker* previous = nullptr;
std::vector<Worker*>* idle = new std::vector<Worker*>;  // never freed: suspended stacks cannot be unwound at exit
std::vector<Destroy>* destroys = new std::vector<Destroy>;
std::string* report = new std::string;
Counts total;

uint64_t seed_value = [] {
  const char* text = std::getenv("QENG_EMULATOR_SEED");
  return text ? std::strtoull(text, nullptr, 10) : 1;
}();
uint64_t stream = 0;  // of random numbers
void restart_random() { stream = (seed_value + 1) * 0x9e3779b97f4a7c15ull; }

int number(const Thread* t) { return static_cast<int>(t - block.thread.data()); }

std::string coordinates(int linear) {
  const uint3 index = block.index[static_cast<size_t>(linear)];
  std::ostringstream text;
  text << "(" << index.x << "," << index.y << "," << index.z << ")";
  return text.str();
}
std::string place(const Site& site) {
  const char* file = site.file_name();
  const char* slash = std::strrchr(file, '/');
  return std::string(slash ? slash + 1 : file) + ":" + std::to_string(site.line());
}
bool same(const Site& a, const Site& b) {
  if (std::memcmp(&a, &b, sizeof a) == 0) return true;  // the compiler's one description of the place
  return a.line() == b.line() && a.column() == b.column() &&
         (a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0);
}
// In words: what is known of thread t.
std::string whereabouts(int t) {
  if (t >= block.threads) return "thread " + std::to_string(t) + " does not exist";
  const Thread& other = block.thread[static_cast<size_t>(t)];
  const std::string who = "thread " + coordinates(t);
  if (other.exited) return who + " has exited";
  const bool ready = block.warp[static_cast<size_t>(t / 32)].ready >> (t % 32) & 1;
  if (other.waiting && !ready) return who + " waits at " + other.what + " (" + place(other.site) + ")";
  return who + " is elsewhere";
}

// The first report of a launch stays.
void set_failure(const std::string& message) {
  if (block.aborting) return;
  block.aborting = true;
  std::ostringstream text;
  text << "kernel " << block.name << ", block (" << blockIdx.x << "," << blockIdx.y << "," << blockIdx.z << "), seed "
       << seed_value << ": " << message;
  *report = text.str();
  std::fprintf(stderr, "emulator: %s\n", report->c_str());
}
std::string at_place(const char* what, const Site& site) { return std::string(what) + " (" + place(site) + ")"; }

void make_ready(size_t warp, uint32_t lanes) {
  block.warp[warp].ready |= lanes;
  block.ready_warps |= uint32_t{lanes != 0} << warp;
}
void make_ready(int t) { make_ready(static_cast<size_t>(t / 32), 1u << (t % 32)); }

int pick_bit(uint32_t bits) {
  const int turn = static_cast<int>(random_bits() & 31);
  return (std::countr_zero(std::rotr(bits, turn)) + turn) & 31;
}

void poll() {
  size_t kept = 0;
  for (Thread* t : block.polling) {
    bool done = false;
    try {
      done = t->done(t->state);
    } catch (const Abort&) {
      return;  // what was waited for failed: the launch ends
    }
    if (done)
      make_ready(number(t));
    else
      block.polling[kept++] = t;
  }
  block.polling.resize(kept);
}

// Everybody waits: who, and where.
std::string deadlock() {
  std::ostringstream text;
  text << "nobody can go on:";
  for (int t = 0; t < block.threads;) {
    const Thread& first = block.thread[static_cast<size_t>(t)];
    int end = t + 1;
    for (; end < block.threads; ++end) {
      const Thread& other = block.thread[static_cast<size_t>(end)];
      if (other.exited != first.exited ||
          (!first.exited && (other.what != first.what || !same(other.site, first.site))))
        break;
    }
    text << (t ? "; " : " ") << "thread" << (end - t > 1 ? "s " + std::to_string(t) + " to " : " ") << end - 1
         << (first.exited ? std::string(" exited") : " wait at " + at_place(first.what, first.site));
    t = end;
  }
  return text.str();
}

// The thread to run next; null where all have exited. A deadlock sets the failure, which makes everybody runnable.
Thread* pick() {
  if (!block.aborting) {
    if (!block.polling.empty() && (block.ready_warps == 0 || (random_bits() & 255) < block.poll)) poll();
    if (block.ready_warps == 0) {
      if (block.alive == 0) return nullptr;
      set_failure(deadlock());
    }
  }
  if (block.aborting) {  // only fibers under way have something to unwind
    for (int t = 0; t < block.threads; ++t)
      if (block.thread[static_cast<size_t>(t)].worker) return &block.thread[static_cast<size_t>(t)];
    return nullptr;
  }
  if (!(block.ready_warps >> block.last_warp & 1) || (random_bits() & 255) >= block.stay)
    block.last_warp = pick_bit(block.ready_warps);
  Warp& warp = block.warp[static_cast<size_t>(block.last_warp)];
  const int lane = pick_bit(warp.ready);
  warp.ready &= ~(1u << lane);
  if (warp.ready == 0) block.ready_warps &= ~(1u << block.last_warp);
  return &block.thread[static_cast<size_t>(block.last_warp * 32 + lane)];
}

void arrived_from_switch(void* fake_stack) {
  const void* bottom = nullptr;
  size_t size = 0;
  if (__sanitizer_finish_switch_fiber) __sanitizer_finish_switch_fiber(fake_stack, &bottom, &size);
  if (previous == &host) host.bottom = bottom, host.size = size;
}
void enter(Worker& next) {
  Worker& self = *running;
  previous = &self;
  running = &next;
  ++total.switches;
  if (__sanitizer_start_switch_fiber) __sanitizer_start_switch_fiber(&self.fake_stack, next.bottom, next.size);
  boost::context::fiber from = std::move(next.context).resume();
  arrived_from_switch(self.fake_stack);
  previous->context = std::move(from);
}

void set_current(Thread* thread_to_run) {
  current = thread_to_run;
  threadIdx = block.index[static_cast<size_t>(number(thread_to_run))];
}

void thread_exits(Thread& self) {
  const int t = number(&self);
  Warp& my_warp = block.warp[static_cast<size_t>(t / 32)];
  const uint32_t bit = 1u << (t % 32);
  self.exited = true, self.worker = nullptr;
  my_warp.exited |= bit;
  --block.alive, ++block.exited;
  if (block.aborting) return;
  const auto who = [t] { return "thread " + coordinates(t) + " exited, "; };
  for (const auto& meeting : my_warp.meetings)
    if (meeting.mask & bit) {
      const int other = t / 32 * 32 + std::countr_zero(meeting.arrived);
      return set_failure(who() + "though " + at_place(meeting.what, meeting.site) + " of thread " + coordinates(other) +
                         " names its lane");
    }
  if (const auto& group = block.group[static_cast<size_t>(t / 128)]; group.count)
    return set_failure(who() + "while its warpgroup waits for it at " + at_place(group.what, group.site));
  if (const auto& all = block.barrier[0]; all.arrived) {
    size_t w = 0;
    while (!all.lanes[w]) ++w;
    const int other = static_cast<int>(w) * 32 + std::countr_zero(all.lanes[w]);
    set_failure(who() + "while thread " + coordinates(other) + " waits at " + at_place(all.what, all.sites[w]));
  }
}

void run_thread(Thread& self) {
  try {
    (*block.body)();
  } catch (const Abort&) {
  } catch (const std::exception& error) {
    set_failure("thread " + coordinates(number(&self)) + " threw: " + error.what());
  } catch (...) {
    set_failure("thread " + coordinates(number(&self)) + " threw");
  }
  thread_exits(self);
}

void work(Worker& self) {
  for (;;) {
    run_thread(*self.thread);
    Thread* next = pick();
    if (next && !next->worker) {
      next->worker = &self, self.thread = next;
      set_current(next);
      continue;
    }
    idle->push_back(&self);
    if (next) set_current(next);
    enter(next ? *next->worker : host);
  }
}

// Deep enough for kernels with their register arrays on the stack, unoptimized and with the sanitizer's gaps; only
// pages that are touched take memory. The tops are staggered: at the same offset in each stack they would share cache
// sets.
constexpr size_t kStack = 512 << 10, kGuard = 4096, kStagger = 1088, kStaggers = 61;

struct NoDeallocation {
  boost::context::stack_context allocate() { return {}; }
  void deallocate(boost::context::stack_context&) {}
};

Worker* new_worker() {
  static size_t made = 0;
  void* memory =
      mmap(nullptr, kGuard + kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  mprotect(memory, kGuard, PROT_NONE);
  char* bottom = static_cast<char*>(memory) + kGuard;
  Worker* worker = new Worker;
  worker->bottom = bottom, worker->size = kStack - made++ % kStaggers * kStagger;
  boost::context::stack_context stack;
  stack.sp = bottom + worker->size, stack.size = worker->size;
  worker->context = boost::context::fiber(std::allocator_arg, boost::context::preallocated(stack.sp, stack.size, stack),
                                          NoDeallocation(), [worker](boost::context::fiber&& from) {
                                            arrived_from_switch(nullptr);
                                            previous->context = std::move(from);
                                            work(*worker);
                                            return boost::context::fiber();
                                          });
  return worker;
}

// Gives the thread a fiber where it has none, and goes there.
void go_to(Thread* next) {
  if (!next->worker) {
    if (idle->empty()) idle->push_back(new_worker());
    next->worker = idle->back();
    idle->pop_back();
    next->worker->thread = next;
  }
  set_current(next);
  enter(*next->worker);
}

void suspend(const char* what, const Site& site) {
  if (block.aborting) throw Abort{};
  Thread* self = current;
  self->what = what, self->site = site;
  Thread* next = pick();
  if (next != self) go_to(next);
  self->waiting = false;
  if (block.aborting) throw Abort{};
}
void wait(const char* what, const Site& site) {
  current->waiting = true;
  suspend(what, site);
}

// Fails for a lane or thread that will not come to what this one has come to.
void absent(const char* what, const Site& site, int other) { fail(what, whereabouts(other), site); }

void destroy_slots() {
  for (size_t i = 0; i < block.slots.size(); ++i)
    if (block.slots[i]) (*destroys)[i](std::exchange(block.slots[i], nullptr));
}

void run_block(bool first_of_grid) {
  begin_block(first_of_grid);
  block.alive = block.threads, block.exited = 0;
  block.ready_warps = 0, block.polling.clear();
  for (int w = 0; w * 32 < block.threads; ++w) {
    Warp& my_warp = block.warp[static_cast<size_t>(w)];
    const int lanes = std::min(32, block.threads - w * 32);
    my_warp.exists = my_warp.ready = lanes == 32 ? ~0u : (1u << lanes) - 1;
    my_warp.exited = 0, my_warp.meetings.clear();
    block.ready_warps |= 1u << w;
    for (int i = 0; i < lanes; ++i) block.thread[static_cast<size_t>(w * 32 + i)] = Thread{};
  }
  for (auto& group : block.group) group.count = 0;
  for (auto& barrier_state : block.barrier)
    if (barrier_state.arrived) barrier_state = Barrier{};
  constexpr uint32_t stays[] = {256, 256, 224, 0}, polls[] = {0, 8, 64, 128}, earlies[] = {256, 0, 128};
  block.stay = stays[random_bits() % 4], block.poll = polls[random_bits() % 4];
  // Odd seeds mostly draw the latest moment, even ones the earliest: two runs see both.
  block.early = earlies[(random_bits() % 4 == 0 ? 2 : seed_value % 2)];
  std::memset(block.shared, 0xff, block.shared_size);
  Thread* first = pick();
  go_to(first);
  bank_block_met();
  destroy_slots();
}

}  // namespace

int thread() { return number(current); }
std::string thread_name(int thread_number) { return coordinates(thread_number); }
bool in_kernel() { return running != &host; }
bool on_stack(const void* pointer) {
  return static_cast<size_t>(static_cast<const char*>(pointer) - static_cast<const char*>(running->bottom)) <
         running->size;
}
void report_failure(const std::string& message) { set_failure(message); }
int threads() { return block.threads; }
char* shared_memory() { return block.shared; }
size_t shared_size() { return block.shared_size; }
Counts counts() { return total; }
uint64_t seed() { return seed_value; }
const std::string& last_report() { return *report; }
void set_report(std::string text) { *report = std::move(text); }
void set_seed(uint64_t value) {
  seed_value = value;
  stream = 0;
}

uint32_t random_bits() {
  if (stream == 0) restart_random();
  stream ^= stream << 13, stream ^= stream >> 7, stream ^= stream << 17;  // Marsaglia's xorshift64
  return static_cast<uint32_t>(stream >> 32);
}
bool arrives_early() { return (random_bits() & 255) < block.early; }

void fail(const char* what, const std::string& message, Site site) {
  set_failure("thread " + coordinates(thread()) + " at " + at_place(what, site) + ": " + message);
  throw Abort{};
}

void meet_warp(const char* what, uint32_t mask, void* slot, Complete complete, Site site) {
  if (block.aborting) throw Abort{};
  const int t = thread(), first = t / 32 * 32;
  Warp& my_warp = block.warp[static_cast<size_t>(t / 32)];
  const uint32_t bit = 1u << (t % 32);
  if (!(mask & bit)) fail(what, "the mask does not name the thread's own lane", site);
  if (const uint32_t gone = mask & (my_warp.exited | ~my_warp.exists))
    absent(what, site, first + std::countr_zero(gone));
  Meeting<32>* meeting = nullptr;
  for (auto& other : my_warp.meetings) {
    if (!(other.mask & bit)) continue;
    if (other.mask != mask || other.what != what || !same(other.site, site)) {
      const int earlier = first + std::countr_zero(other.arrived);
      std::ostringstream text;
      text << whereabouts(earlier);
      if (other.what == what && same(other.site, site))
        text << std::hex << " with mask 0x" << other.mask << ", not 0x" << mask;
      text << ", and waits for this thread there";
      fail(what, text.str(), site);
    }
    meeting = &other;
    break;
  }
  if (!meeting) {
    meeting = &my_warp.meetings.emplace_back();
    meeting->what = what, meeting->site = site, meeting->mask = mask, meeting->arrived = 0;
    meeting->slots.fill(nullptr);
  }
  meeting->slots[static_cast<size_t>(t % 32)] = slot;
  meeting->arrived |= bit;
  bank_meeting();
  if (meeting->arrived != mask) return wait(what, site);
  ++total.meetings;
  if (mask == my_warp.exists) bank_warp_met(t / 32);
  const auto slots = meeting->slots;  // complete may fail, which needs the list of meetings in order
  if (meeting != &my_warp.meetings.back()) *meeting = my_warp.meetings.back();
  my_warp.meetings.pop_back();
  complete(slots.data());
  make_ready(static_cast<size_t>(t / 32), mask & ~bit);
}

void meet_warpgroup(const char* what, void* slot, Complete complete, Site site) {
  if (block.aborting) throw Abort{};
  const int t = thread(), first = t / 128 * 128;
  auto& meeting = block.group[static_cast<size_t>(t / 128)];
  for (int w = first / 32; w < first / 32 + 4; ++w)
    if (const uint32_t gone = block.warp[static_cast<size_t>(w)].exited; w * 32 >= block.threads || gone)
      absent(what, site, w * 32 + (w * 32 >= block.threads ? 0 : std::countr_zero(gone)));
  if (meeting.count == 0) {
    meeting.what = what, meeting.site = site;
    meeting.slots.fill(nullptr);
  } else if (meeting.what != what || !same(meeting.site, site)) {
    fail(what, "the warpgroup's other threads wait at " + at_place(meeting.what, meeting.site), site);
  }
  meeting.slots[static_cast<size_t>(t - first)] = slot;
  bank_meeting();
  if (++meeting.count < 128) return wait(what, site);
  ++total.meetings;
  meeting.count = 0;
  const auto slots = meeting.slots;
  complete(slots.data());
  for (int w = first / 32; w < first / 32 + 4; ++w)
    make_ready(static_cast<size_t>(w), w == t / 32 ? ~(1u << (t % 32)) : ~0u);
}

void wait_until(const char* what, bool (*done)(const void*), const void* state, Site site) {
  if (block.aborting) throw Abort{};
  if (done(state)) return;
  current->done = done, current->state = state;
  block.polling.push_back(current);
  wait(what, site);
}

void yield() {
  make_ready(thread());
  suspend("yield", Site::current());
}

int barrier(const char* what, int id, int count, bool wait_there, int value, Site site) {
  if (block.aborting) throw Abort{};
  const int t = thread();
  const auto w = static_cast<size_t>(t / 32);
  const uint32_t bit = 1u << (t % 32);
  if (id < 0 || id >= kBarriers) fail(what, "there are 16 barriers, not " + std::to_string(id), site);
  if (id != 0 && (count <= 0 || count % 32 != 0 || count > kMaxThreads))
    fail(what, "the number of threads is a positive multiple of 32, not " + std::to_string(count), site);
  Barrier& my_barrier = block.barrier[static_cast<size_t>(id)];
  if (id == 0 && block.exited)
    for (int other = 0; other < block.threads; ++other)
      if (block.thread[static_cast<size_t>(other)].exited) absent(what, site, other);
  if (my_barrier.arrived == 0) {
    my_barrier.what = what, my_barrier.count = count, my_barrier.nonzero = 0;
    my_barrier.lanes.fill(0), my_barrier.waiting.fill(0);
    if (id == 0) my_barrier.sites.fill(site);
  } else if (my_barrier.count != count) {
    fail(what,
         "barrier " + std::to_string(id) + " is awaited over " + std::to_string(my_barrier.count) + " threads, not " +
             std::to_string(count),
         site);
  }
  if (my_barrier.lanes[w] & bit) fail(what, "the thread arrived twice at barrier " + std::to_string(id), site);
  if (id != 0 && my_barrier.lanes[w] == 0) my_barrier.sites[w] = site;
  if (!same(my_barrier.sites[w], site))
    fail(what,
         (id == 0 ? "other threads wait at " : "lanes of its warp are at ") +
             at_place(my_barrier.what, my_barrier.sites[w]),
         site);
  my_barrier.lanes[w] |= bit;
  my_barrier.nonzero += value != 0;
  bank_meeting();
  if (id != 0) release(my_barrier.order);
  if (++my_barrier.arrived < count) {
    if (!wait_there) return 0;
    my_barrier.waiting[w] |= bit;
    wait(what, site);
    if (id != 0) acquire(my_barrier.passed);
    return my_barrier.result;
  }
  for (size_t other = 0; id != 0 && other < kMaxWarps; ++other)
    if (const uint32_t lanes = my_barrier.lanes[other]; lanes && lanes != block.warp[other].exists)
      fail(what,
           "only " + std::to_string(std::popcount(lanes)) + " of 32 lanes of warp " + std::to_string(other) +
               " arrived at barrier " + std::to_string(id),
           site);
  ++total.barriers;
  my_barrier.result = my_barrier.nonzero;
  if (id == 0) {
    order_block();
    bank_block_met();
  } else {
    my_barrier.passed = std::exchange(my_barrier.order, {});
    if (wait_there) acquire(my_barrier.passed);
  }
  my_barrier.arrived = 0;
  for (size_t other = 0; other * 32 < static_cast<size_t>(block.threads); ++other)
    make_ready(other, my_barrier.waiting[other]);
  return my_barrier.result;
}

uint32_t shared_address(const char* what, const void* pointer, size_t bytes, size_t align, Site site) {
  const auto address = reinterpret_cast<uintptr_t>(pointer), base = reinterpret_cast<uintptr_t>(block.shared);
  if (address < base || address - base > block.shared_size || bytes > block.shared_size - (address - base)) {
    std::ostringstream text;
    text << bytes << " bytes at byte " << static_cast<int64_t>(address - base)
         << " from the start of shared memory, which has " << block.shared_size;
    fail(what, text.str(), site);
  }
  const uint32_t offset = static_cast<uint32_t>(address - base);
  if (offset % align != 0)
    fail(what, "byte " + std::to_string(offset) + " of shared memory is not aligned to " + std::to_string(align), site);
  return kSharedBase + offset;
}
char* shared_pointer(const char* what, uint32_t address, size_t bytes, size_t align, Site site) {
  char* pointer = block.shared + (static_cast<int64_t>(address) - kSharedBase);
  shared_address(what, pointer, bytes, align, site);
  return pointer;
}

size_t new_block_slot() {
  block.slots.push_back(nullptr);
  destroys->push_back(nullptr);
  return block.slots.size() - 1;
}
void*& block_slot(size_t index, Destroy destroy) {
  (*destroys)[index] = destroy;
  return block.slots[index];
}

namespace {
struct Begun {
  bool ahead = true;
};
bool grid_is_ahead = false;
}  // namespace

void begin_ahead() { per_thread<Begun>().ahead = false; }
bool has_begun() { return !grid_is_ahead || !per_thread<Begun>().ahead; }

bool run_grid(const char* name, dim3 grid, dim3 threads_of_block, size_t shared, const std::function<void()>& given,
              bool ahead) {
  grid_is_ahead = ahead;
  const std::function<void()> body = [&given] {
    given();
    if (!has_begun()) report_failure("launched ahead: the thread ends and has not called begin_ahead");
  };
  // Exactly the bytes asked for, so that the address sanitizer sees the first byte too many; without it, a margin that
  // nobody may change.
  constexpr size_t kMargin = 256;
  constexpr unsigned char kMarginByte = 0xa5;
  const size_t margin = __sanitizer_start_switch_fiber ? 0 : kMargin;
  void* memory = nullptr;
  if (posix_memalign(&memory, 1024, shared + margin) != 0) throw std::bad_alloc();
  const std::unique_ptr<void, void (*)(void*)> owner(memory, std::free);
  block.name = name, block.body = &body;
  block.threads = static_cast<int>(threads_of_block.x * threads_of_block.y * threads_of_block.z);
  block.shared = static_cast<char*>(memory), block.shared_size = shared;
  block.aborting = false;
  std::memset(block.shared + shared, kMarginByte, margin);
  gridDim = grid, blockDim = threads_of_block;
  for (unsigned t = 0, x = blockDim.x, y = blockDim.y; t < static_cast<unsigned>(block.threads); ++t)
    block.index[t] = {t % x, t / x % y, t / x / y};
  // Blocks in an order that the seed draws: a permutation for small grids, a coprime stride for large ones.
  const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
  std::vector<uint32_t> order(blocks <= 65536 ? blocks : 0);
  for (size_t i = 0; i < order.size(); ++i) {
    const size_t j = random_bits() % (i + 1);
    order[i] = order[j], order[j] = static_cast<uint32_t>(i);
  }
  const uint64_t start = random_bits() % blocks;
  uint64_t stride = blocks <= 65536 ? 1 : random_bits() % blocks | 1;
  while (std::gcd(stride, blocks) != 1) stride += 2;
  for (uint64_t i = 0; i < blocks; ++i) {
    const uint64_t linear = order.empty() ? (start + i * stride) % blocks : order[i];
    blockIdx = {static_cast<unsigned>(linear % grid.x), static_cast<unsigned>(linear / grid.x % grid.y),
                static_cast<unsigned>(linear / grid.x / grid.y)};
    run_block(i == 0);
    for (size_t byte = 0; byte < margin && !block.aborting; ++byte)
      if (static_cast<unsigned char>(block.shared[shared + byte]) != kMarginByte)
        set_failure("wrote byte " + std::to_string(shared + byte) + " of " + std::to_string(shared) +
                    " of shared memory");
    if (block.aborting) break;
  }
  current = nullptr;
  return !block.aborting;
}

}  // namespace emulator
