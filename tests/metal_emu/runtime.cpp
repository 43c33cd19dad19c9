// The scheduler: runs a grid threadgroup by threadgroup, and the threads of one as fibers in a chosen order.
#include "runtime.h"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

// Where the kernel's `threadgroup` variables lie; absent if it has none.
extern char __start_threadgroup_memory[] __attribute__((weak, visibility("hidden")));
extern char __stop_threadgroup_memory[] __attribute__((weak, visibility("hidden")));

namespace emu {

const Thread* self = nullptr;
Dispatch dispatch;

namespace {

constexpr size_t STACK = 256 << 10;
constexpr uint MOST_THREADS = 1024;
constexpr size_t MOST_MEMORY = 32 << 10;
constexpr unsigned char POISON = 0xff;  // NaN in every float format

enum class State { ready, at_simdgroup, at_threadgroup, ended };

struct Fiber {
  Thread thread;
  State state;
  Place place;
  jmp_buf resume;
  std::unique_ptr<char[]> stack;  // null until first entered
  unsigned char given[SLOT];
};

std::vector<Fiber> fibers;             // each serves one thread of every threadgroup in turn
std::vector<unsigned char> published;  // what each simdgroup handed over when it last met
uint alive;                            // fibers in use by this threadgroup
jmp_buf scheduler;
void* const* data;
const size_t* count;
std::string message;

Fiber& current() { return fibers[self->index]; }

std::string show(const Place& p) {
  return std::string(p.what) + " at " + p.file + " line " + std::to_string(p.line);
}

std::string show(const Thread& t) {
  const uint3 p = t.in_grid;
  return "thread (" + std::to_string(p.x) + ", " + std::to_string(p.y) + ", " + std::to_string(p.z) + ")";
}

std::string doing(const Fiber& f) {
  return show(f.thread) + (f.state == State::ended ? " has ended" : " waits in " + show(f.place));
}

bool same(const Place& a, const Place& b) {
  return a.line == b.line && a.column == b.column && !strcmp(a.file, b.file) && !strcmp(a.what, b.what);
}

void suspend(State state, Place at) {
  Fiber& f = current();
  f.state = state;
  f.place = at;
  if (!_setjmp(f.resume)) _longjmp(scheduler, 1);
}

void run_fiber() {
  for (;;) {
    kernel(data, count);
    suspend(State::ended, {});
  }
}

// Runs a fiber until it waits, ends or fails. Jumps, as swapcontext would cost two system calls each time.
void enter(Fiber& f) {
  self = &f.thread;
  if (_setjmp(scheduler)) return;
  if (f.stack) _longjmp(f.resume, 1);
  f.stack.reset(new char[STACK]);
  ucontext_t start;
  getcontext(&start);
  start.uc_stack.ss_sp = f.stack.get();
  start.uc_stack.ss_size = STACK;
  makecontext(&start, run_fiber, 0);
  setcontext(&start);
}

// Lets fibers [begin, end) pass if all wait at one place in `state`; otherwise says who does not.
bool pass(uint begin, uint end, State state, const char* who) {
  const Fiber& first = *std::find_if(fibers.begin() + begin, fibers.begin() + end, [=](Fiber& f) { return f.state == state; });
  for (uint i = begin; i < end; i++) {
    const Fiber& f = fibers[i];
    if (f.state == state && same(f.place, first.place)) continue;
    message = show(first.place) + " is not reached by its whole " + who + ": " + doing(first) + ", " + doing(f);
    return false;
  }
  for (uint i = begin; i < end; i++) fibers[i].state = State::ready;
  return true;
}

// Lets every simdgroup pass that has met, or else the threadgroup. False if some can never meet.
bool meet() {
  bool passed = false;
  for (uint begin = 0; begin < alive; begin += LANES) {
    const uint end = std::min(alive, begin + LANES);
    const auto waits = [](Fiber& f) { return f.state == State::at_simdgroup; };
    if (std::none_of(fibers.begin() + begin, fibers.begin() + end, waits)) continue;
    if (!pass(begin, end, State::at_simdgroup, "simdgroup")) return false;
    for (uint i = begin; i < end; i++) memcpy(&published[i * SLOT], fibers[i].given, SLOT);
    passed = true;
  }
  return passed || pass(0, alive, State::at_threadgroup, "threadgroup");
}

void place_threads(uint3 group) {
  const uint3 first = group * dispatch.group, left = dispatch.grid - first;
  const uint3 size = {std::min(dispatch.group.x, left.x), std::min(dispatch.group.y, left.y),
                      std::min(dispatch.group.z, left.z)};
  alive = 0;
  for (uint z = 0; z < size.z; z++)
    for (uint y = 0; y < size.y; y++)
      for (uint x = 0; x < size.x; x++) {
        const uint3 at = {x, y, z};
        Fiber& f = fibers[alive];
        f.thread = {first + at, at, group, size, alive};
        f.state = State::ready;
        alive++;
      }
}

// 0: as numbered, 1: backwards, else shuffled.
template <class T>
void arrange(std::vector<T>& items, int schedule, std::mt19937& random) {
  if (schedule == 1) std::reverse(items.begin(), items.end());
  if (schedule > 1) std::shuffle(items.begin(), items.end(), random);
}

bool run_threadgroup(uint3 group, int schedule, std::mt19937& random) {
  if (__start_threadgroup_memory)
    memset(__start_threadgroup_memory, POISON, __stop_threadgroup_memory - __start_threadgroup_memory);
  place_threads(group);
  std::vector<uint> order(alive);
  for (uint i = 0; i < alive; i++) order[i] = i;
  arrange(order, schedule, random);
  for (;;) {
    for (uint i : order) {
      if (fibers[i].state != State::ready) continue;
      enter(fibers[i]);
      if (!message.empty()) return false;
    }
    const auto ended = [](Fiber& f) { return f.state == State::ended; };
    if (std::all_of(fibers.begin(), fibers.begin() + alive, ended)) return true;
    if (!meet()) return false;
    if (schedule > 1) std::shuffle(order.begin(), order.end(), random);
  }
}

bool fits(uint threads, size_t memory) {
  if (threads > MOST_THREADS)
    message = "a threadgroup of " + std::to_string(threads) + " threads; a GPU allows 1024 at most";
  if (memory > MOST_MEMORY)
    message = "threadgroup memory of " + std::to_string(memory) + " bytes; a GPU allows 32768 at most";
  return message.empty();
}

void run(int schedule) {
  const uint3 grid = dispatch.grid, size = dispatch.group;
  const uint threads = size.x * size.y * size.z;
  if (!fits(threads, __stop_threadgroup_memory - __start_threadgroup_memory)) return;
  std::mt19937 random(schedule);
  while (fibers.size() < threads) fibers.emplace_back();
  published.resize(threads * SLOT);
  std::vector<uint3> groups;
  for (uint z = 0; z * size.z < grid.z; z++)
    for (uint y = 0; y * size.y < grid.y; y++)
      for (uint x = 0; x * size.x < grid.x; x++) groups.push_back(uint3{x, y, z});
  arrange(groups, schedule, random);
  for (uint3 group : groups)
    if (!run_threadgroup(group, schedule, random)) return;
}

}  // namespace

const unsigned char* exchange(const void* value, size_t bytes, Place at) {
  memcpy(current().given, value, bytes);
  suspend(State::at_simdgroup, at);
  return &published[self->simdgroup() * LANES * SLOT];
}

void simdgroup_meeting(Place at) { suspend(State::at_simdgroup, at); }

void threadgroup_meeting(Place at) { suspend(State::at_threadgroup, at); }

void fail(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  message = std::string(text) + ", in " + show(*self);
  _longjmp(scheduler, 1);
}

}  // namespace emu

// What clang's checks call (-fsanitize-minimal-runtime); they tell nothing but that it happened.
extern "C" void __ubsan_handle_out_of_bounds_minimal_abort() { emu::fail("an index past the end of an array"); }
extern "C" void __ubsan_handle_divrem_overflow_minimal_abort() { emu::fail("an integer divided by zero"); }

// Runs the kernel over grid[3] threads in threadgroups of group[3]. Null, or what went wrong (valid until the next run).
extern "C" const char* emu_run(void* const* data, const size_t* count, const uint* grid, const uint* group,
                               int schedule) {
  emu::data = data;
  emu::count = count;
  emu::dispatch.grid = uint3{grid[0], grid[1], grid[2]};
  emu::dispatch.group = uint3{std::min(grid[0], group[0]), std::min(grid[1], group[1]), std::min(grid[2], group[2])};
  if (!emu::message.empty()) emu::fibers.clear();  // they stand in the middle of the run that failed
  emu::message.clear();
  emu::run(schedule);
  return emu::message.empty() ? nullptr : emu::message.c_str();
}
