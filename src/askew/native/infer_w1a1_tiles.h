// The inner kernels of one-bit products: counts[row][output] = sum over words of popcount(x xor w) for a few rows and up
// to 64 outputs, on each instruction set. A vector holds the same word of 32 bits of 16 outputs, so that no horizontal
// sum is needed and the counts are ready where they lie.
#pragma once
#include "infer_codes.h"

namespace askew {

constexpr int ROWS = 4, BLOCKS = 4, TILE = BLOCKS * OUT;
enum Mode { INTEGERS = 0, FLOATS = 1, BITS = 2 };

// The taps of a window that lie inside the image, as runs of words: runs_h x runs_w runs of `run` words (an even number),
// the first at weight word `start`; the strides say where the next one lies in the input and in the weights.
struct Walk {
    i64 runs_h, runs_w, run, start;
    i64 x_h, x_w, w_h, w_w;
    i32 valid;  // products of signs there: dot = valid - 2 count
};

// Up to ROWS output positions with the same walk: where each one's first word is, and which row of the output it makes.
struct Group {
    i32 walk, size;
    const u32* x[ROWS];
    i64 row[ROWS];
};

// What becomes of the counts.
struct Ending {
    Mode mode;
    i64 outputs;
    Affine end;            // FLOATS: of the dot products
    const i32* threshold;  // BITS: bit = (dot >= threshold), then xor with flip, if given
    const u64* flip;
    void* out;
    i64 ldo;  // elements (words of 64 bits for BITS) from one output row to the next
};

using Tile = void (*)(const Group& group, const Walk& walk, const u32* w, const Ending& e, i64 tile);

ASKEW_INLINE void finish(const Ending& e, const i32* counts, i32 valid, i64 row, i64 tile) {
    const i64 first = tile * TILE, count = least<i64>(TILE, e.outputs - first);
    if (e.mode == BITS) {
        u64 bits = 0;
        for (i64 i = 0; i < count; ++i) bits |= static_cast<u64>(valid - 2 * counts[i] >= e.threshold[first + i]) << i;
        static_cast<u64*>(e.out)[row * e.ldo + tile] = e.flip == nullptr ? bits : bits ^ e.flip[tile];
    } else if (e.mode == INTEGERS) {
        i32* out = static_cast<i32*>(e.out) + row * e.ldo + first;
        for (i64 i = 0; i < count; ++i) out[i] = valid - 2 * counts[i];
    } else {
        float* out = static_cast<float*>(e.out) + row * e.ldo + first;
        for (i64 i = 0; i < count; ++i) out[i] = e.end(first + i, static_cast<float>(valid - 2 * counts[i]));
    }
}

template <int R, int B>
void tile_portable(const Group& group, const Walk& walk, const u32* w, const Ending& e, i64 tile) {
    for (int r = 0; r < R; ++r) {
        i32 counts[TILE] = {};
        for (i64 i = 0; i < walk.runs_h; ++i)
            for (i64 j = 0; j < walk.runs_w; ++j) {
                const u32* x = group.x[r] + i * walk.x_h + j * walk.x_w;
                const u32* v = w + (walk.start + i * walk.w_h + j * walk.w_w) * B * OUT;
                for (i64 k = 0; k < walk.run; k += 2, v += 2 * B * OUT)
                    for (int o = 0; o < B * OUT; ++o) {
                        const u64 low = x[k] ^ v[o], high = x[k + 1] ^ v[B * OUT + o];
                        counts[o] += __builtin_popcountll(high << 32 | low);
                    }
            }
        finish(e, counts, walk.valid, group.row[r], tile);
    }
}

#if defined(ASKEW_X86)
// One block of 16 outputs for all rows. FLOATS: scale (valid - 2 count) is taken as (-2 scale) (count - valid / 2), which
// rounds alike.
template <Mode M, int R>
AVX512_TARGET ASKEW_INLINE void finish_avx512(const Ending& e, const Group& group, const __m512i* counts, i32 valid,
                                              i64 first, u64* bits) {
    const i64 left = e.outputs - first;
    const __mmask16 some = static_cast<__mmask16>(left >= OUT ? 0xffff : (1u << left) - 1);
    if (M == FLOATS) {
        const __m512 half = _mm512_set1_ps(0.5f * static_cast<float>(valid)), low = _mm512_set1_ps(e.end.floor);
        const __m512 scale = _mm512_mul_ps(_mm512_maskz_loadu_ps(some, e.end.scale + first), _mm512_set1_ps(-2.0f));
        const __m512 bias = _mm512_maskz_loadu_ps(some, e.end.bias + first);
        UNROLLED for (int r = 0; r < R; ++r) {
            const __m512 away = _mm512_sub_ps(_mm512_cvtepi32_ps(counts[r]), half);
            const __m512 y = _mm512_add_ps(_mm512_mul_ps(away, scale), bias);
            _mm512_mask_storeu_ps(static_cast<float*>(e.out) + group.row[r] * e.ldo + first, some,
                                  _mm512_max_ps(low, y));  // NaN in the second operand stays
        }
        return;
    }
    const __m512i most = _mm512_set1_epi32(valid);
    const __m512i limit = M == BITS ? _mm512_maskz_loadu_epi32(some, e.threshold + first) : most;
    UNROLLED for (int r = 0; r < R; ++r) {
        const __m512i dot = _mm512_sub_epi32(most, _mm512_add_epi32(counts[r], counts[r]));
        if (M == BITS)
            bits[r] |= static_cast<u64>(_mm512_mask_cmpge_epi32_mask(some, dot, limit)) << (first % TILE);
        else
            _mm512_mask_storeu_epi32(static_cast<i32*>(e.out) + group.row[r] * e.ldo + first, some, dot);
    }
}

template <int R, int B>
AVX512_TARGET void tile_avx512(const Group& group, const Walk& walk, const u32* w, const Ending& e, i64 tile) {
    __m512i sum[B][R], v[B];
    UNROLLED for (int r = 0; r < R; ++r)
        UNROLLED for (int b = 0; b < B; ++b) sum[b][r] = _mm512_setzero_si512();
    for (i64 i = 0; i < walk.runs_h; ++i)
        for (i64 j = 0; j < walk.runs_w; ++j) {
            const u32 *at = w + (walk.start + i * walk.w_h + j * walk.w_w) * B * OUT, *x[R];
            UNROLLED for (int r = 0; r < R; ++r) x[r] = group.x[r] + i * walk.x_h + j * walk.x_w;
            for (i64 k = 0; k < walk.run; ++k, at += B * OUT) {
                UNROLLED for (int b = 0; b < B; ++b) v[b] = _mm512_loadu_si512(at + b * OUT);
                UNROLLED for (int r = 0; r < R; ++r) {
                    const __m512i word = _mm512_set1_epi32(static_cast<int>(x[r][k]));
                    UNROLLED for (int b = 0; b < B; ++b)
                        sum[b][r] = _mm512_add_epi32(sum[b][r], _mm512_popcnt_epi32(_mm512_xor_si512(word, v[b])));
                }
            }
        }
    const i64 first = tile * TILE;
    u64 bits[R] = {};
    if (e.mode == FLOATS) {
        UNROLLED for (int b = 0; b < B; ++b)
            finish_avx512<FLOATS, R>(e, group, sum[b], walk.valid, first + b * OUT, bits);
    } else if (e.mode == INTEGERS) {
        UNROLLED for (int b = 0; b < B; ++b)
            finish_avx512<INTEGERS, R>(e, group, sum[b], walk.valid, first + b * OUT, bits);
    } else {
        UNROLLED for (int b = 0; b < B; ++b)
            finish_avx512<BITS, R>(e, group, sum[b], walk.valid, first + b * OUT, bits);
        UNROLLED for (int r = 0; r < R; ++r)
            static_cast<u64*>(e.out)[group.row[r] * e.ldo + tile] = e.flip == nullptr ? bits[r] : bits[r] ^ e.flip[tile];
    }
}

// Nibble counts by pshufb, summed in bytes for up to 31 words (31 * 8 < 256), then in the 32-bit lanes.
template <int R, int B>
AVX2_TARGET void tile_avx2(const Group& group, const Walk& walk, const u32* w, const Ending& e, i64 tile) {
    const __m256i table = _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4, 0, 1, 1, 2, 1, 2, 2, 3, 1, 2,
                                           2, 3, 2, 3, 3, 4);
    const __m256i low = _mm256_set1_epi8(15), ones = _mm256_set1_epi8(1), pairs = _mm256_set1_epi16(1);
    alignas(32) i32 counts[R][TILE] = {};
    for (i64 i = 0; i < walk.runs_h; ++i)
        for (i64 j = 0; j < walk.runs_w; ++j)
            for (int b = 0; b < 2 * B; ++b) {
                const u32* at = w + (walk.start + i * walk.w_h + j * walk.w_w) * B * OUT + b * 8;
                const i64 from = i * walk.x_h + j * walk.x_w;
                for (i64 start = 0; start < walk.run; start += 31) {
                    __m256i bytes[R];
                    UNROLLED for (int r = 0; r < R; ++r) bytes[r] = _mm256_setzero_si256();
                    for (i64 k = start; k < least<i64>(start + 31, walk.run); ++k) {
                        const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + k * B * OUT));
                        UNROLLED for (int r = 0; r < R; ++r) {
                            const __m256i d = _mm256_xor_si256(v, _mm256_set1_epi32(static_cast<int>(group.x[r][from + k])));
                            const __m256i a = _mm256_shuffle_epi8(table, _mm256_and_si256(d, low));
                            const __m256i c = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(d, 4), low));
                            bytes[r] = _mm256_add_epi8(bytes[r], _mm256_add_epi8(a, c));
                        }
                    }
                    UNROLLED for (int r = 0; r < R; ++r) {
                        __m256i* sum = reinterpret_cast<__m256i*>(counts[r] + b * 8);
                        const __m256i words = _mm256_madd_epi16(_mm256_maddubs_epi16(bytes[r], ones), pairs);
                        _mm256_store_si256(sum, _mm256_add_epi32(_mm256_load_si256(sum), words));
                    }
                }
            }
    for (int r = 0; r < R; ++r) finish(e, counts[r], walk.valid, group.row[r], tile);
}
#endif

#if defined(ASKEW_NEON)
template <int R, int B>
void tile_neon(const Group& group, const Walk& walk, const u32* w, const Ending& e, i64 tile) {
    alignas(16) u32 counts[R][TILE] = {};
    for (i64 i = 0; i < walk.runs_h; ++i)
        for (i64 j = 0; j < walk.runs_w; ++j)
            for (int b = 0; b < 4 * B; ++b) {
                const u32* at = w + (walk.start + i * walk.w_h + j * walk.w_w) * B * OUT + b * 4;
                const i64 from = i * walk.x_h + j * walk.x_w;
                for (i64 start = 0; start < walk.run; start += 31) {
                    uint8x16_t bytes[R];
                    for (int r = 0; r < R; ++r) bytes[r] = vdupq_n_u8(0);
                    for (i64 k = start; k < least<i64>(start + 31, walk.run); ++k) {
                        const uint32x4_t v = vld1q_u32(at + k * B * OUT);
                        for (int r = 0; r < R; ++r) {
                            const uint32x4_t d = veorq_u32(v, vdupq_n_u32(group.x[r][from + k]));
                            bytes[r] = vaddq_u8(bytes[r], vcntq_u8(vreinterpretq_u8_u32(d)));
                        }
                    }
                    for (int r = 0; r < R; ++r) {
                        const uint32x4_t sum = vld1q_u32(counts[r] + b * 4);
                        vst1q_u32(counts[r] + b * 4, vpadalq_u16(sum, vpaddlq_u8(bytes[r])));
                    }
                }
            }
    for (int r = 0; r < R; ++r)
        finish(e, reinterpret_cast<const i32*>(counts[r]), walk.valid, group.row[r], tile);
}
#endif

#define TILES_OF(name, R) \
    { name<R, 1>, name<R, 2>, name<R, 3>, name<R, 4> }
#define ALL_TILES(name) \
    { TILES_OF(name, 1), TILES_OF(name, 2), TILES_OF(name, 3), TILES_OF(name, 4) }

using Tiles = Tile[ROWS][BLOCKS];

// The kernels of the instruction set in use, by rows and blocks of 16 outputs, both from 1.
inline const Tiles& tiles_in_use() {
    static const Tiles portable = ALL_TILES(tile_portable);
#if defined(ASKEW_X86)
    static const Tiles avx512 = ALL_TILES(tile_avx512), avx2 = ALL_TILES(tile_avx2);
    if (isa() == AVX512) return avx512;
    if (isa() == AVX2) return avx2;
#elif defined(ASKEW_NEON)
    static const Tiles neon = ALL_TILES(tile_neon);
    if (isa() == NEON) return neon;
#endif
    return portable;
}

}  // namespace askew
