// Few rows of float activations times weights of 1, 2 or 4 bits, by tables: the four bits of a nibble stand for 4, 2 or 1
// weights, so 16 sums T[nibble] of the inputs they meet are made once, and every output picks one of them (vpermps).
#include "infer_codes.h"

#include <vector>

namespace askew {
namespace {

// T_g[i] = sum over j of level[(i >> bits j) & mask] x[g per + j], per = 4 / bits; inputs beyond the last are 0.
ASKEW_INLINE void fill_tables(const float* x, i64 inputs, i64 groups, int bits, const float* levels, float* tables) {
    const int per = 4 / bits, mask = (1 << bits) - 1;
    float part[4][16];
    for (int j = 0; j < per; ++j)
        for (int i = 0; i < 16; ++i) part[j][i] = levels[(i >> (bits * j)) & mask];
    for (i64 g = 0; g < groups; ++g) {
        float sum[16] = {};
        for (i64 j = 0; j < least<i64>(per, inputs - g * per); ++j)
            for (int i = 0; i < 16; ++i) sum[i] += part[j][i] * x[g * per + j];
        std::memcpy(tables + g * 16, sum, sizeof sum);
    }
}
#if defined(ASKEW_X86)
AVX2_TARGET void fill_tables_avx2(const float* x, i64 inputs, i64 groups, int bits, const float* levels, float* tables) {
    fill_tables(x, inputs, groups, bits, levels, tables);
}
#endif

void make_tables(const float* x, i64 inputs, i64 groups, int bits, const float* levels, float* tables) {
#if defined(ASKEW_X86)
    if (isa() >= AVX2) return fill_tables_avx2(x, inputs, groups, bits, levels, tables);
#endif
    fill_tables(x, inputs, groups, bits, levels, tables);
}

// sums[16 b + lane] for `blocks` blocks of 16 outputs.
using Lookup = void (*)(const u32* w, i64 words, const float* tables, float* sums);

template <int B>
void lookup_portable(const u32* w, i64 words, const float* tables, float* sums) {
    for (int b = 0; b < B; ++b) {
        float sum[OUT] = {};
        for (i64 k = 0; k < words; ++k)
            for (int lane = 0; lane < OUT; ++lane) {
                u32 word = w[(b * words + k) * OUT + lane];
                for (int j = 0; j < 8; ++j, word >>= 4) sum[lane] += tables[(k * 8 + j) * 16 + (word & 15)];
            }
        for (int lane = 0; lane < OUT; ++lane) sums[b * OUT + lane] = sum[lane];
    }
}

#if defined(ASKEW_X86)
template <int B>
AVX512_TARGET void lookup_avx512(const u32* w, i64 words, const float* tables, float* sums) {
    __m512 sum[B];
    UNROLLED for (int b = 0; b < B; ++b) sum[b] = _mm512_setzero_ps();
    for (i64 k = 0; k < words; ++k) {
        __m512i code[B];
        UNROLLED for (int b = 0; b < B; ++b) code[b] = _mm512_loadu_si512(w + (b * words + k) * OUT);
#pragma GCC unroll 8
        for (int j = 0; j < 8; ++j) {
            const __m512 table = _mm512_loadu_ps(tables + (k * 8 + j) * 16);
            UNROLLED for (int b = 0; b < B; ++b) {
                sum[b] = _mm512_add_ps(sum[b], _mm512_permutexvar_ps(code[b], table));
                code[b] = _mm512_srli_epi32(code[b], 4);
            }
        }
    }
    UNROLLED for (int b = 0; b < B; ++b) _mm512_storeu_ps(sums + b * OUT, sum[b]);
}

// Tables of 16 in two halves of 8: both are looked up, bit 3 chooses.
template <int B>
AVX2_TARGET void lookup_avx2(const u32* w, i64 words, const float* tables, float* sums) {
    for (int b = 0; b < 2 * B; ++b) {
        const u32* block = w + (b / 2) * words * OUT + (b % 2) * 8;
        __m256 even = _mm256_setzero_ps(), odd = _mm256_setzero_ps();
        for (i64 k = 0; k < words; ++k) {
            __m256i code = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + k * OUT));
            for (int j = 0; j < 8; ++j) {
                const float* table = tables + (k * 8 + j) * 16;
                const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), code);
                const __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), code);
                const __m256 upper = _mm256_castsi256_ps(_mm256_slli_epi32(code, 28));
                const __m256 one = _mm256_blendv_ps(low, high, upper);
                if (j % 2 == 0)
                    even = _mm256_add_ps(even, one);
                else
                    odd = _mm256_add_ps(odd, one);
                code = _mm256_srli_epi32(code, 4);
            }
        }
        _mm256_storeu_ps(sums + b * 8, _mm256_add_ps(even, odd));
    }
}
#endif

constexpr int MOST = 8;  // blocks at a time
#define ALL_LOOKUPS(name) \
    { name<1>, name<2>, name<3>, name<4>, name<5>, name<6>, name<7>, name<8> }

Lookup pick(int blocks) {
    static const Lookup portable[MOST] = ALL_LOOKUPS(lookup_portable);
#if defined(ASKEW_X86)
    static const Lookup avx512[MOST] = ALL_LOOKUPS(lookup_avx512);
    static const Lookup avx2[MOST] = ALL_LOOKUPS(lookup_avx2);
    if (isa() == AVX512) return avx512[blocks - 1];
    if (isa() == AVX2) return avx2[blocks - 1];
#endif
    return portable[blocks - 1];
}

}  // namespace
}  // namespace askew

// y (rows, outputs) = x (rows, inputs) W^T with W of `bits` bits in the layout of infer_codes.h, levels[2^bits].
ASKEW_API void askew_lookup(const float* x, std::int64_t rows, std::int64_t inputs, const std::uint32_t* w,
                            std::int64_t outputs, int bits, const float* levels, const float* scale, const float* bias,
                            float floor, float* y, int threads) {
    using namespace askew;
    const i64 words = ceil_div(inputs, 32 / bits), blocks = ceil_div(outputs, OUT), chunks = ceil_div(blocks, MOST);
    const Affine end{scale, bias, floor};
    std::vector<float> tables(static_cast<std::size_t>(words * 8 * 16));
    for (i64 r = 0; r < rows; ++r) {
        make_tables(x + r * inputs, inputs, words * 8, bits, levels, tables.data());
        parallel_for(chunks, threads, [&](i64 chunk) {
            const i64 first = chunk * MOST, count = least<i64>(MOST, blocks - first);
            float sums[MOST * OUT];
            pick(static_cast<int>(count))(w + first * words * OUT, words, tables.data(), sums);
            for (i64 i = 0; i < least(count * OUT, outputs - first * OUT); ++i) {
                const i64 n = first * OUT + i;
                y[r * outputs + n] = end(n, sums[i]);
            }
        });
    }
}
