// askew_step: one call for a list of parameters, over threads, with the best instruction set of this machine.
#include <cmath>

#include "step.h"
#include "threads.h"

#if defined(__x86_64__) || defined(__i386__)
#define X86 1
#else
#define X86 0
#endif

#define DECLARE(isa)                                                                          \
  extern "C" void askew_step_span_##isa(const Job*, const Rule*, int64_t start, int64_t end); \
  extern "C" void askew_show_span_##isa(const Job*, const Rule*, int64_t start, int64_t end); \
  extern "C" int askew_bad_span_##isa(const void*, int type, int64_t start, int64_t end);
DECLARE(base)
#if X86
DECLARE(avx2)
DECLARE(avx512)
#endif

namespace {

constexpr int64_t CHUNK = 1 << 14;  // elements that one thread takes at a time
constexpr int64_t LAST = 16;        // one chunk in so many is shared out at the end

struct Set {
  void (*step)(const Job*, const Rule*, int64_t, int64_t);
  void (*show)(const Job*, const Rule*, int64_t, int64_t);
  int (*bad)(const void*, int, int64_t, int64_t);
};

const Set SETS[] = {
    {askew_step_span_base, askew_show_span_base, askew_bad_span_base},
#if X86
    {askew_step_span_avx2, askew_show_span_avx2, askew_bad_span_avx2},
    {askew_step_span_avx512, askew_show_span_avx512, askew_bad_span_avx512},
#endif
};

int best() {
#if X86
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return 2;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
  return 0;
}

int chosen = best();

// Adam's step count and bias corrections, in double as torch does.
void advance(Job& job, const Rule& r) {
  if (!job.count) return;
  double t = job.count_type ? *(double*)job.count += 1 : *(float*)job.count += 1;
  job.step = (float)(-r.lr / (1 - std::pow(r.exact1, t)));
  job.over_root = (float)(1 / std::sqrt(1 - std::pow(r.exact2, t)));
}

int64_t pieces(int64_t n) { return (n + CHUNK - 1) / CHUNK; }

// Calls visit(job index, start, end) for each chunk of the list, from all threads. Each thread has a stretch of its own,
// for long runs through memory are what its prefetching is good at; the last part is for whoever is free first.
template <typename Length, typename Visit>
void over_chunks(int64_t count, int threads, Length length, Visit visit) {
  int64_t total = 0;
  for (int64_t j = 0; j < count; ++j) total += pieces(length(j));
  const int64_t crew = threads < total ? threads : total, own = total - total / LAST;
  std::atomic<int64_t> stretch{0}, next{own};
  askew::parallel((int)crew, [&] {
    int64_t at = 0, first = 0;  // chunk numbers only grow, so each thread walks the list once
    auto chunk = [&](int64_t k) {
      while (k - first >= pieces(length(at))) first += pieces(length(at++));
      int64_t start = (k - first) * CHUNK, n = length(at);
      visit(at, start, start + CHUNK < n ? start + CHUNK : n);
    };
    for (int64_t i; (i = stretch.fetch_add(1)) < crew;)
      for (int64_t k = own * i / crew; k < own * (i + 1) / crew; ++k) chunk(k);
    for (int64_t k; (k = next.fetch_add(1)) < total;) chunk(k);
  });
}

}  // namespace

extern "C" {

// 0 portable, 1 AVX2, 2 AVX-512: the set in use; `wanted` >= 0 asks for a lesser one (tests compare them).
int askew_step_isa(int wanted) {
  if (wanted >= 0) chosen = wanted < best() ? wanted : best();
  return chosen;
}

// Version and the structs' sizes, so that a library built from other sources is not called.
int64_t askew_step_layout() { return 1000000 * (int64_t)VERSION + 1000 * (int64_t)sizeof(Rule) + (int64_t)sizeof(Job); }

void askew_step(Job* jobs, int64_t count, const Rule* rules, int threads) {
  for (int64_t j = 0; j < count; ++j) advance(jobs[j], rules[jobs[j].rule]);
  over_chunks(count, threads, [&](int64_t j) { return jobs[j].n; },
              [&](int64_t j, int64_t start, int64_t end) { SETS[chosen].step(jobs + j, rules, start, end); });
}

// What the network computes with, of weights that have made their step: once their scales are measured.
void askew_show(const Job* jobs, int64_t count, const Rule* rules, int threads) {
  over_chunks(count, threads, [&](int64_t j) { return jobs[j].n; },
              [&](int64_t j, int64_t start, int64_t end) { SETS[chosen].show(jobs + j, rules, start, end); });
}

// 1 if any gradient of the jobs holds NaN or infinity.
int askew_bad_gradients(const Job* jobs, int64_t count, int threads) {
  std::atomic<int> bad{0};
  over_chunks(count, threads, [&](int64_t j) { return jobs[j].n; }, [&](int64_t j, int64_t start, int64_t end) {
    if (!bad.load(std::memory_order_relaxed) && SETS[chosen].bad(jobs[j].g, jobs[j].g_type, start, end)) bad = 1;
  });
  return bad;
}
}
