// What all inference kernels share: types, instruction sets, threads, the geometry of a convolution.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

#if defined(_WIN32)
#define ASKEW_API extern "C" __declspec(dllexport)
#else
#define ASKEW_API extern "C" __attribute__((visibility("default")))
#endif

#if defined(__x86_64__)
#define ASKEW_X86 1
#include <immintrin.h>
#define AVX2_TARGET __attribute__((target("avx2,fma,bmi2,popcnt")))
#define AVX512_TARGET \
    __attribute__((target("avx2,fma,bmi2,popcnt,avx512f,avx512bw,avx512dq,avx512vl,avx512vpopcntdq,avx512vnni")))
#elif defined(__aarch64__)
#define ASKEW_NEON 1
#include <arm_neon.h>
#endif

#define ASKEW_INLINE inline __attribute__((always_inline))
#define UNROLLED _Pragma("GCC unroll 16")  // before loops over registers: only then do arrays of vectors become registers

namespace askew {

using i8 = std::int8_t;
using i32 = std::int32_t;
using u32 = std::uint32_t;
using i64 = std::int64_t;
using u64 = std::uint64_t;

// Instruction sets from slow to fast; `isa()` is the best this machine has, at most what `askew_limit_isa` allows.
enum Isa { PORTABLE = 0, NEON = 1, AVX2 = 2, AVX512 = 3 };
Isa isa();

// body(i) for every i in [0, count), on up to `threads` threads of one pool that lives as long as the process.
void parallel_for(i64 count, int threads, const std::function<void(i64)>& body);

inline i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }
template <class T>
inline T least(T a, T b) { return a < b ? a : b; }

// A convolution over images (batch, height, width, channels); a linear layer is the 1x1 case with 1x1 images.
struct Geometry {
    i64 batch, height, width, channels;  // channels in elements of the packed kind: words, bytes or floats
    i64 kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
    i64 out_h, out_w;

    i64 rows() const { return batch * out_h * out_w; }
    i64 depth() const { return kernel_h * kernel_w * channels; }
    bool plain() const {  // rows of the input are the rows of the product as they lie
        return kernel_h == 1 && kernel_w == 1 && stride_h == 1 && stride_w == 1 && pad_h == 0 && pad_w == 0;
    }
};

// memcpy for a few dozen bytes, without the call.
ASKEW_INLINE void copy_few(void* to, const void* from, std::size_t bytes) {
    char* t = static_cast<char*>(to);
    const char* f = static_cast<const char*>(from);
    for (; bytes >= 32; bytes -= 32, t += 32, f += 32) std::memcpy(t, f, 32);
    if (bytes & 16) std::memcpy(t, f, 16), t += 16, f += 16;
    if (bytes & 8) std::memcpy(t, f, 8), t += 8, f += 8;
    if (bytes & 4) std::memcpy(t, f, 4), t += 4, f += 4;
    for (bytes &= 3; bytes > 0; --bytes) *t++ = *f++;
}

// Rows first .. first + rows of the unfolded input, `ldo` elements apart: for each output position the taps under the
// kernel one after the other, zeros outside the image. Taps side by side lie side by side in the image too, unless they
// are dilated, and are copied at once.
template <class T>
void unfold(const T* x, const Geometry& g, i64 first, i64 rows, T* out, i64 ldo) {
    const i64 c = g.channels, wide = g.dilation_w == 1 ? g.kernel_w : 1;
    i64 column = first % g.out_w, line = first / g.out_w % g.out_h, image = first / (g.out_w * g.out_h);
    for (i64 r = 0; r < rows; ++r) {
        const T* source = x + image * g.height * g.width * c;
        T* to = out + r * ldo;
        for (i64 i = 0; i < g.kernel_h; ++i) {
            const i64 y = line * g.stride_h - g.pad_h + i * g.dilation_h;
            for (i64 j = 0; j < g.kernel_w; j += wide, to += wide * c) {
                const i64 z = column * g.stride_w - g.pad_w + j * g.dilation_w;
                const T* tap = source + (y * g.width + z) * c;
                if (y >= 0 && y < g.height && z >= 0 && z + wide <= g.width) {
                    copy_few(to, tap, static_cast<std::size_t>(wide * c) * sizeof(T));
                    continue;
                }
                for (i64 k = 0; k < wide; ++k)
                    for (i64 d = 0; d < c; ++d) {
                        const bool inside = y >= 0 && y < g.height && z + k >= 0 && z + k < g.width;
                        to[k * c + d] = inside ? tap[k * c + d] : T(0);
                    }
            }
        }
        if (++column == g.out_w) {
            column = 0;
            if (++line == g.out_h) {
                line = 0;
                ++image;
            }
        }
    }
}

}  // namespace askew
