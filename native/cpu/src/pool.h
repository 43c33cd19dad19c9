// A process-wide pool of worker threads for data-parallel loops.
//
// It starts on first use with as many threads as the process may use (CPU affinity, cgroup CPU quota; the environment
// variable MLX_DSPARK_THREADS overrides both). Idle workers sleep. A forked child gets a pool of its own. While one
// loop runs, a second caller (another thread, or a task of the loop) runs its loop alone on its own thread.
#pragma once

#include <type_traits>

namespace dspark {

using TaskBody = void (*)(void* context, int task);

// Runs body(context, i) once for each i in [0, tasks), in any order, on any thread, and returns when all are done.
// `nanoseconds` estimates the work of the whole loop on one thread: small loops stay on the caller. What a task
// computes must not depend on which thread runs it. A task must not throw.
void parallel_for(int tasks, double nanoseconds, TaskBody body, void* context) noexcept;

// The same with a callable: f(int task).
template <typename Callable>
void parallel_for(int tasks, double nanoseconds, Callable&& f) noexcept {
  using Plain = std::remove_reference_t<Callable>;
  parallel_for(tasks, nanoseconds, [](void* context, int task) { (*static_cast<Plain*>(context))(task); },
               const_cast<void*>(static_cast<const void*>(&f)));
}

// Threads a loop may use, the caller's included (>= 1).
int threads();

// Changes it; count < 1 returns to what the process may use. Waits for a running loop to end.
void set_threads(int count);

// What affinity, cgroup and environment allow (>= 1); does not start the pool.
int allowed_threads();

}  // namespace dspark
