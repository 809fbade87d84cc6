// Threads without a runtime of our own: torch's OpenMP pool where the process has one, else std::thread.
//
// A second OpenMP runtime beside torch's would have a second set of threads, spinning against the first. torch has
// loaded its own by the time we are called, so its entry point is looked up instead of linked.
#pragma once
#include <atomic>
#include <thread>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <dlfcn.h>
#endif

namespace askew {

// Runs work() on `threads` threads, this one included; work() shares out what is to be done by itself.
template <typename Work>
void parallel(int threads, Work work) {
  if (threads < 2) return work();
  auto call = [](void* w) { (*static_cast<Work*>(w))(); };
#if defined(__unix__) || defined(__APPLE__)
  using Entry = void (*)(void (*)(void*), void*, unsigned, unsigned);
  static Entry pool = reinterpret_cast<Entry>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
  if (pool) return pool(call, &work, (unsigned)threads, 0);
#endif
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(call, &work);
  work();
  for (auto& t : others) t.join();
}

}  // namespace askew
