#include "pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

namespace dspark {
namespace {

constexpr int max_threads = 256;
constexpr double inline_below_nanoseconds = 8000;  // about what waking a sleeping worker costs
constexpr auto spin_time = std::chrono::microseconds(200);

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void futex_wait(std::atomic<uint32_t>& word, uint32_t expected) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>& word, int count) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

// Waits until `word` differs from `old`: spins for a while, giving way to any thread that wants the core (the one that
// builds the graph, above all), then sleeps. `sleepers` counts those asleep.
uint32_t wait_for_change(std::atomic<uint32_t>& word, uint32_t old, std::atomic<int>& sleepers) {
  const auto until = std::chrono::steady_clock::now() + spin_time;
  do {
    for (int i = 0; i < 64; ++i) {
      const uint32_t now = word.load(std::memory_order_acquire);
      if (now != old) return now;
      relax();
    }
    sched_yield();
  } while (std::chrono::steady_clock::now() < until);
  sleepers.fetch_add(1);
  uint32_t now = word.load();
  while (now == old) {
    futex_wait(word, old);
    now = word.load();
  }
  sleepers.fetch_sub(1);
  return now;
}

// One loop at a time. `ticket_` hands out task numbers: the loop's task count in its high half, the next task in its
// low half, so a worker that comes late reads "nothing left" from the word itself and never touches an old loop.
class Pool {
 public:
  explicit Pool(int threads) : threads_(threads) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // signals go to the program's own threads
    for (int i = 1; i < threads; ++i) {
      pthread_t id;
      if (pthread_create(&id, nullptr, &Pool::enter, this) != 0) {
        threads_ = i;
        break;
      }
      workers_.push_back(id);
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  ~Pool() {
    stop_.store(true);
    rounds_.fetch_add(1);
    futex_wake(rounds_, max_threads);
    for (pthread_t id : workers_) pthread_join(id, nullptr);
  }

  int threads() const { return threads_; }

  void run(int tasks, TaskBody body, void* context) {
    body_ = body;
    context_ = context;
    done_.store(0, std::memory_order_relaxed);
    ticket_.store(static_cast<uint64_t>(tasks) << 32, std::memory_order_release);
    rounds_.fetch_add(1);
    if (idle_.load() > 0) futex_wake(rounds_, std::min(tasks, threads_) - 1);
    drain();
    uint32_t done = done_.load(std::memory_order_acquire);
    while (done != static_cast<uint32_t>(tasks)) done = wait_for_change(done_, done, waiting_);
  }

 private:
  static void* enter(void* self) {
    static_cast<Pool*>(self)->work();
    return nullptr;
  }

  void work() {
    uint32_t seen = 0;
    for (;;) {
      seen = wait_for_change(rounds_, seen, idle_);
      if (stop_.load()) return;
      drain();
    }
  }

  void drain() {
    for (;;) {
      // Looking before taking bounds the low half: each thread overshoots a loop by one at most.
      const uint64_t glance = ticket_.load(std::memory_order_acquire);
      if (static_cast<uint32_t>(glance) >= static_cast<uint32_t>(glance >> 32)) return;
      const uint64_t mine = ticket_.fetch_add(1, std::memory_order_acq_rel);
      const uint32_t task = static_cast<uint32_t>(mine), tasks = static_cast<uint32_t>(mine >> 32);
      if (task >= tasks) return;
      body_(context_, static_cast<int>(task));
      const uint32_t done = done_.fetch_add(1) + 1;
      if (done == tasks && waiting_.load() > 0) futex_wake(done_, 1);
    }
  }

  int threads_;
  std::vector<pthread_t> workers_;
  TaskBody body_ = nullptr;
  void* context_ = nullptr;
  std::atomic<bool> stop_{false};
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<uint32_t> done_{0};
  alignas(64) std::atomic<uint32_t> rounds_{0};
  std::atomic<int> idle_{0}, waiting_{0};
};

std::atomic<bool> busy{false};       // a loop is running, or the pool is being replaced
std::atomic<int> wanted_threads{0};  // 0 until first asked
Pool* pool = nullptr;                // made and replaced only while `busy` is held; never destroyed at exit

void forget_in_child() {  // the child has none of the parent's threads
  pool = nullptr;
  busy.store(false);
}

bool try_enter() { return !busy.exchange(true, std::memory_order_acquire); }
void leave() { busy.store(false, std::memory_order_release); }

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

double quota_v2(const std::string& folder) {  // "max 100000" or "150000 100000"
  std::istringstream text(first_line(folder + "/cpu.max"));
  double quota = 0, period = 0;
  return text >> quota >> period && quota > 0 && period > 0 ? quota / period : INFINITY;
}

double quota_v1(const std::string& folder) {
  const double quota = std::atof(first_line(folder + "/cpu.cfs_quota_us").c_str());
  const double period = std::atof(first_line(folder + "/cpu.cfs_period_us").c_str());
  return quota > 0 && period > 0 ? quota / period : INFINITY;
}

// The smallest quota from a cgroup up to its root. In a container the path may name a folder of the host that is not
// visible here; the walk up ends at the mount point, which is then the container's own group.
template <typename Quota>
double smallest_quota(const std::string& mount, std::string path, Quota quota) {
  double least = INFINITY;
  for (;;) {
    least = std::min(least, quota(mount + path));
    const size_t slash = path.rfind('/');
    if (path.empty() || slash == std::string::npos) return least;
    path.resize(slash);
  }
}

double cgroup_cpus() {
  double least = INFINITY;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "hierarchy:controllers:path"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    if (controllers == ",,") {
      least = std::min(least, smallest_quota("/sys/fs/cgroup", path, quota_v2));
      least = std::min(least, smallest_quota("/sys/fs/cgroup/unified", path, quota_v2));
    } else if (controllers.find(",cpu,") != std::string::npos) {
      least = std::min(least, smallest_quota("/sys/fs/cgroup/cpu", path, quota_v1));
      least = std::min(least, smallest_quota("/sys/fs/cgroup/cpu,cpuacct", path, quota_v1));
    }
  }
  return least;
}

int affinity_cpus() {
  for (int cpus = 1024; cpus <= 1 << 16; cpus *= 2) {
    cpu_set_t* set = CPU_ALLOC(cpus);
    if (set == nullptr) return 1;
    const size_t bytes = CPU_ALLOC_SIZE(cpus);
    const int failed = sched_getaffinity(0, bytes, set);
    const int error = errno, count = failed ? 0 : CPU_COUNT_S(bytes, set);
    CPU_FREE(set);
    if (!failed) return std::max(count, 1);
    if (error != EINVAL) return 1;
  }
  return 1;
}

int wanted() {
  int count = wanted_threads.load();
  if (count == 0) {
    count = allowed_threads();
    wanted_threads.store(count);
  }
  return count;
}

}  // namespace

int allowed_threads() {
  if (const char* text = std::getenv("MLX_DSPARK_THREADS")) {
    char* end = nullptr;
    const long count = std::strtol(text, &end, 10);
    if (end != text && *end == '\0' && count >= 1) return static_cast<int>(std::min<long>(count, max_threads));
  }
  const double quota = std::ceil(cgroup_cpus());
  return static_cast<int>(std::clamp<double>(std::min<double>(affinity_cpus(), quota), 1, max_threads));
}

int threads() { return wanted(); }

void set_threads(int count) {
  while (!try_enter()) sched_yield();
  wanted_threads.store(count < 1 ? allowed_threads() : std::min(count, max_threads));
  delete pool;
  pool = nullptr;
  leave();
}

void parallel_for(int tasks, double nanoseconds, TaskBody body, void* context) noexcept {
  static const int registered = pthread_atfork(nullptr, nullptr, forget_in_child);
  (void)registered;
  const bool small = tasks <= 1 || nanoseconds < inline_below_nanoseconds || wanted() == 1;
  if (small || !try_enter()) {
    for (int i = 0; i < tasks; ++i) body(context, i);
    return;
  }
  if (pool == nullptr) pool = new (std::nothrow) Pool(wanted());
  if (pool != nullptr) {
    pool->run(tasks, body, context);
  } else {
    for (int i = 0; i < tasks; ++i) body(context, i);
  }
  leave();
}

}  // namespace dspark
