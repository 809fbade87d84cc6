// 8-bit (or narrower) integer activations times weights of 1, 2 or 4 bits: exact sums of code * x in 32 bits.
//
// Layout as in infer_codes.h, with the codes of a word ordered so that (word >> bits s) & mask gives the bytes that meet
// inputs 4 s .. 4 s + 3 of the word's share: activations are then read as they lie, four at a time (vpdpbusd).
// Levels are a + d code: y = scale (d sum(code x) + a sum(x)) + bias.
#include "infer_codes.h"

#include <vector>

namespace askew {
namespace {

constexpr int ROWS = 4, BLOCKS = 4;
constexpr i64 BLOCK = 64;

// sums[r][16 b + lane] += code * x over all words; x rows are `bytes` long, words * (32 / bits).
using Tile = void (*)(const i8* x, i64 bytes, const u32* w, i64 words, i32* sums);

template <int BITS>
void tile_portable(const i8* x, i64 bytes, const u32* w, i64 words, i32* sums, int rows, int blocks) {
    constexpr int steps = 8 / BITS;
    constexpr u32 mask = (1u << BITS) - 1;
    for (int r = 0; r < rows; ++r)
        for (int b = 0; b < blocks; ++b) {
            i32 sum[OUT] = {};
            for (i64 k = 0; k < words; ++k)
                for (int lane = 0; lane < OUT; ++lane) {
                    const u32 word = w[(b * words + k) * OUT + lane];
                    for (int s = 0; s < steps; ++s)
                        for (int j = 0; j < 4; ++j)
                            sum[lane] += static_cast<i32>((word >> (8 * j + BITS * s)) & mask) *
                                         x[r * bytes + (k * steps + s) * 4 + j];
                }
            std::memcpy(sums + (r * BLOCKS + b) * OUT, sum, sizeof sum);
        }
}

#if defined(ASKEW_X86)
template <int BITS, int R, int B>
AVX512_TARGET void tile_avx512(const i8* x, i64 bytes, const u32* w, i64 words, i32* sums) {
    constexpr int steps = 8 / BITS;
    const __m512i mask = _mm512_set1_epi8((1 << BITS) - 1);
    __m512i sum[R][B];
    UNROLLED for (int r = 0; r < R; ++r)
        UNROLLED for (int b = 0; b < B; ++b) sum[r][b] = _mm512_setzero_si512();
    for (i64 k = 0; k < words; ++k) {
        __m512i code[B];
        UNROLLED for (int b = 0; b < B; ++b) code[b] = _mm512_loadu_si512(w + (b * words + k) * OUT);
#pragma GCC unroll 8
        for (int s = 0; s < steps; ++s) {
            __m512i u[B];
            UNROLLED for (int b = 0; b < B; ++b) u[b] = _mm512_and_si512(_mm512_srli_epi32(code[b], BITS * s), mask);
            UNROLLED for (int r = 0; r < R; ++r) {
                i32 four;
                std::memcpy(&four, x + r * bytes + (k * steps + s) * 4, 4);
                const __m512i v = _mm512_set1_epi32(four);
                UNROLLED for (int b = 0; b < B; ++b) sum[r][b] = _mm512_dpbusd_epi32(sum[r][b], u[b], v);
            }
        }
    }
    UNROLLED for (int r = 0; r < R; ++r)
        UNROLLED for (int b = 0; b < B; ++b) _mm512_storeu_si512(sums + (r * BLOCKS + b) * OUT, sum[r][b]);
}

// maddubs adds two products of a 4-bit code and an 8-bit x: at most 15 * 128 * 2 = 3840, far from saturating 16 bits.
template <int BITS, int R, int B>
AVX2_TARGET void tile_avx2(const i8* x, i64 bytes, const u32* w, i64 words, i32* sums) {
    constexpr int steps = 8 / BITS;
    const __m256i mask = _mm256_set1_epi8((1 << BITS) - 1), ones = _mm256_set1_epi16(1);
    for (int b = 0; b < 2 * B; ++b) {
        const u32* block = w + (b / 2) * words * OUT + (b % 2) * 8;
        __m256i sum[R];
        for (int r = 0; r < R; ++r) sum[r] = _mm256_setzero_si256();
        for (i64 k = 0; k < words; ++k) {
            __m256i code = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + k * OUT));
            for (int s = 0; s < steps; ++s) {
                const __m256i u = _mm256_and_si256(code, mask);
                for (int r = 0; r < R; ++r) {
                    i32 four;
                    std::memcpy(&four, x + r * bytes + (k * steps + s) * 4, 4);
                    const __m256i pairs = _mm256_maddubs_epi16(u, _mm256_set1_epi32(four));
                    sum[r] = _mm256_add_epi32(sum[r], _mm256_madd_epi16(pairs, ones));
                }
                code = _mm256_srli_epi32(code, BITS);
            }
        }
        for (int r = 0; r < R; ++r)
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums + r * BLOCKS * OUT + b * 8), sum[r]);
    }
}

#define INT_ROW(name, BITS, R) \
    { name<BITS, R, 1>, name<BITS, R, 2>, name<BITS, R, 3>, name<BITS, R, 4> }
#define ALL_INT(name, BITS) \
    { INT_ROW(name, BITS, 1), INT_ROW(name, BITS, 2), INT_ROW(name, BITS, 3), INT_ROW(name, BITS, 4) }
#endif

template <int BITS>
void tile(const i8* x, i64 bytes, const u32* w, i64 words, i32* sums, int rows, int blocks) {
#if defined(ASKEW_X86)
    static const Tile avx512[ROWS][BLOCKS] = ALL_INT(tile_avx512, BITS);
    static const Tile avx2[ROWS][BLOCKS] = ALL_INT(tile_avx2, BITS);
    if (isa() == AVX512) return avx512[rows - 1][blocks - 1](x, bytes, w, words, sums);
    if (isa() == AVX2) return avx2[rows - 1][blocks - 1](x, bytes, w, words, sums);
#endif
    tile_portable<BITS>(x, bytes, w, words, sums, rows, blocks);
}

i32 total(const i8* x, i64 count) {
    i32 sum = 0;
    for (i64 i = 0; i < count; ++i) sum += x[i];
    return sum;
}

}  // namespace
}  // namespace askew

// conv(x, W) for bytes x; geometry's channels are bytes. integers: the sums of code * x (int32) and nothing else;
// otherwise floats y = max(scale (d sum + a sum(x)) + bias, floor).
ASKEW_API void askew_int(const std::int8_t* x, const std::int64_t* geometry, const std::uint32_t* w,
                         std::int64_t outputs, int bits, int integers, float a, float d, const float* scale,
                         const float* bias, float floor, void* out, int threads) {
    using namespace askew;
    Geometry g;
    std::memcpy(&g, geometry, sizeof g);
    const i64 inputs = g.depth(), words = ceil_div(inputs, 32 / bits), bytes = words * (32 / bits), rows = g.rows();
    const i64 tiles = ceil_div(outputs, BLOCKS * OUT), blocks = ceil_div(outputs, OUT);
    const i64 block = least<i64>(BLOCK, rows), row_blocks = ceil_div(rows, block);
    const i64 splits = row_blocks >= threads ? 1 : least<i64>(tiles, ceil_div(threads, row_blocks) * 4);
    const Affine end{scale, bias, floor};
    const auto run = bits == 1 ? tile<1> : bits == 2 ? tile<2> : tile<4>;
    parallel_for(row_blocks * splits, threads, [&](i64 item) {
        const i64 first = item / splits * block, count = least(block, rows - first), part = item % splits;
        thread_local std::vector<i8> unfolded;
        thread_local std::vector<float> shift;
        unfolded.assign(static_cast<std::size_t>(count * bytes), 0);
        shift.resize(static_cast<std::size_t>(count));
        unfold(x, g, first, count, unfolded.data(), bytes);
        for (i64 r = 0; r < count; ++r)
            shift[static_cast<std::size_t>(r)] =
                integers ? 0.0f : a * static_cast<float>(total(unfolded.data() + r * bytes, inputs));
        alignas(64) i32 sums[ROWS * BLOCKS * OUT];
        for (i64 t = tiles * part / splits; t < tiles * (part + 1) / splits; ++t) {
            const int here = static_cast<int>(least<i64>(BLOCKS, blocks - t * BLOCKS));
            const i64 start = t * BLOCKS * OUT, wide = least<i64>(here * OUT, outputs - start);
            for (i64 r = 0; r < count; r += ROWS) {
                const int group = static_cast<int>(least<i64>(ROWS, count - r));
                run(unfolded.data() + r * bytes, bytes, w + t * BLOCKS * words * OUT, words, sums, group, here);
                for (int i = 0; i < group; ++i) {
                    const i32* sum = sums + i * BLOCKS * OUT;
                    const i64 at = (first + r + i) * outputs + start;
                    const float offset = shift[static_cast<std::size_t>(r + i)];
                    for (i64 j = 0; j < wide; ++j) {
                        if (integers) {
                            static_cast<i32*>(out)[at + j] = sum[j];
                            continue;
                        }
                        static_cast<float*>(out)[at + j] = end(start + j, d * static_cast<float>(sum[j]) + offset);
                    }
                }
            }
        }
    });
}
