// Instruction sets of this machine, and one small pool of threads.
#include "infer_common.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#if !defined(_WIN32)
#include <unistd.h>
#endif

namespace askew {
namespace {

Isa best() {
#if defined(ASKEW_X86)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vpopcntdq") &&
        __builtin_cpu_supports("avx512vnni"))
        return AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return AVX2;
#elif defined(ASKEW_NEON)
    return NEON;
#endif
    return PORTABLE;
}

std::atomic<int> limit{AVX512};

// Workers spin for a short while between jobs, because layers follow each other within microseconds; then they sleep.
// A job is open from its start until the caller has nothing left to do; who comes later finds it closed, and the caller
// waits only for those who are inside.
class Pool {
  public:
    explicit Pool(int workers) : size_(workers) {
        for (int i = 0; i < workers; ++i) std::thread([this, i] { work(i); }).detach();
    }
    int size() const { return size_; }

    void run(i64 count, int helpers, const std::function<void(i64)>& body) {
        next_.store(0);
        count_ = count;
        body_ = &body;
        helpers_ = helpers;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            open_.store(++jobs_);
        }
        wake_.notify_all();
        drain();
        open_.store(0);
        while (inside_.load() > 0) pause();
    }

  private:
    static void pause() {
#if defined(ASKEW_X86)
        _mm_pause();
#else
        std::this_thread::yield();
#endif
    }
    void drain() {
        for (i64 i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) (*body_)(i);
    }
    void work(int me) {
        u64 done = 0;
        const auto fresh = [&] {
            const u64 job = open_.load();
            return job != 0 && job != done;
        };
        for (;;) {
            for (int spin = 0; spin < 20000 && !fresh(); ++spin) pause();
            if (!fresh()) {
                std::unique_lock<std::mutex> lock(mutex_);
                wake_.wait(lock, fresh);
            }
            inside_.fetch_add(1);
            const u64 job = open_.load();
            if (job != 0 && job != done) {
                done = job;
                if (me < helpers_) drain();
            }
            inside_.fetch_sub(1);
        }
    }
    const int size_;
    std::atomic<i64> next_{0};
    std::atomic<u64> open_{0};
    std::atomic<int> inside_{0};
    u64 jobs_ = 0;
    i64 count_ = 0;
    int helpers_ = 0;
    const std::function<void(i64)>* body_ = nullptr;
    std::mutex mutex_;
    std::condition_variable wake_;
};

std::mutex entrance;  // one parallel job at a time; whoever finds it taken works alone
Pool* pool = nullptr;
long owner = 0;

long process() {
#if defined(_WIN32)
    return 1;
#else
    return static_cast<long>(getpid());  // after a fork the threads are gone and the pool is made anew
#endif
}

}  // namespace

Isa isa() {
    static const Isa own = best();
    const int allowed = limit.load(std::memory_order_relaxed);
    return own == NEON ? (allowed >= NEON ? NEON : PORTABLE) : least(own, static_cast<Isa>(allowed == NEON ? 0 : allowed));
}

void parallel_for(i64 count, int threads, const std::function<void(i64)>& body) {
    const int helpers = static_cast<int>(least<i64>(threads, count)) - 1;
    if (helpers > 0 && entrance.try_lock()) {
        std::lock_guard<std::mutex> lock(entrance, std::adopt_lock);
        if (pool == nullptr || owner != process() || pool->size() < helpers) {
            pool = new Pool(helpers);  // an older one sleeps on; it is never destroyed, so nothing joins at exit
            owner = process();
        }
        pool->run(count, helpers, body);
        return;
    }
    for (i64 i = 0; i < count; ++i) body(i);
}

}  // namespace askew

// The instruction set in use: 0 portable, 1 NEON, 2 AVX2, 3 AVX-512 with VPOPCNTDQ and VNNI.
ASKEW_API int askew_isa() { return askew::isa(); }

// Use at most this instruction set from now on (tests run every path); returns what is in use then.
ASKEW_API int askew_limit_isa(int highest) {
    askew::limit.store(highest);
    return askew::isa();
}
