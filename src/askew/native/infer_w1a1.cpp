// One-bit weights, one-bit activations: dot = sum over valid taps of C - 2 popcount(x xor w).
//
// Activations: (rows, words) of 64 bits, bit 1 for +1. Weights: in tiles of 64 outputs, (words, 8 blocks, 8 outputs), the
// last tile with as many blocks as it needs; one vector holds the same word of 8 outputs, so that no horizontal sum is
// needed, and a tile is read from start to end. Bits beyond the last channel are 0 on both sides.
// Zero padding is not a value of {-1, +1}: a tap outside reads as bits 0, and `base` makes up for it exactly; it holds
// for each class of border position (row class x column class) and each output K_valid + 2 popcount(w outside).
#include "infer_codes.h"

#include <vector>

namespace askew {
namespace {

constexpr int ROWS = 2, BLOCKS = 8, LANES = 8, TILE = BLOCKS * LANES;
enum Mode { INTEGERS = 0, FLOATS = 1, BITS = 2 };

// counts[r][8 b + lane] = sum over words of popcount(x[r] xor w[b, lane]), for up to 2 rows and 8 blocks.
using Tile = void (*)(const u64* x, i64 ldx, const u64* w, i64 words, i32* counts);

template <int R, int B>
void tile_portable(const u64* x, i64 ldx, const u64* w, i64 words, i32* counts) {
    for (int r = 0; r < R; ++r)
        for (int b = 0; b < B; ++b) {
            i32 sum[LANES] = {};
            for (i64 k = 0; k < words; ++k)
                for (int lane = 0; lane < LANES; ++lane)
                    sum[lane] += __builtin_popcountll(x[r * ldx + k] ^ w[(k * B + b) * LANES + lane]);
            for (int lane = 0; lane < LANES; ++lane) counts[r * TILE + b * LANES + lane] = sum[lane];
        }
}

#if defined(ASKEW_X86)
template <int R, int B>
AVX512_TARGET void tile_avx512(const u64* x, i64 ldx, const u64* w, i64 words, i32* counts) {
    __m512i sum[R][B], v[B];
    UNROLLED for (int b = 0; b < B; ++b) v[b] = _mm512_loadu_si512(w + b * LANES);
    UNROLLED for (int r = 0; r < R; ++r) {
        const __m512i word = _mm512_set1_epi64(static_cast<long long>(x[r * ldx]));
        UNROLLED for (int b = 0; b < B; ++b) sum[r][b] = _mm512_popcnt_epi64(_mm512_xor_si512(word, v[b]));
    }
    for (i64 k = 1; k < words; ++k) {
        UNROLLED for (int b = 0; b < B; ++b) v[b] = _mm512_loadu_si512(w + (k * B + b) * LANES);
        UNROLLED for (int r = 0; r < R; ++r) {
            const __m512i word = _mm512_set1_epi64(static_cast<long long>(x[r * ldx + k]));
            UNROLLED for (int b = 0; b < B; ++b)
                sum[r][b] = _mm512_add_epi64(sum[r][b], _mm512_popcnt_epi64(_mm512_xor_si512(word, v[b])));
        }
    }
    // Two blocks in one store: what reads the counts reads 16 at a time, and a store is only forwarded whole.
    UNROLLED for (int r = 0; r < R; ++r)
        UNROLLED for (int b = 0; b < B; b += 2) {
            const __m256i low = _mm512_cvtepi64_epi32(sum[r][b]);
            const __m256i high = b + 1 < B ? _mm512_cvtepi64_epi32(sum[r][b + 1 < B ? b + 1 : b]) : low;
            _mm512_storeu_si512(counts + r * TILE + b * LANES,
                                _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
        }
}

// Nibble counts by pshufb, summed in bytes for up to 31 words (31 * 8 < 256), then by psadbw into the 64-bit lanes.
template <int R, int B>
AVX2_TARGET void tile_avx2(const u64* x, i64 ldx, const u64* w, i64 words, i32* counts) {
    const __m256i table = _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4, 0, 1, 1, 2, 1, 2, 2, 3, 1, 2,
                                           2, 3, 2, 3, 3, 4);
    const __m256i low = _mm256_set1_epi8(15), zero = _mm256_setzero_si256();
    for (int b = 0; b < B; ++b)
        for (int half = 0; half < 2; ++half) {
            const u64* block = w + b * LANES + half * 4;
            __m256i sum[R];
            for (int r = 0; r < R; ++r) sum[r] = zero;
            for (i64 start = 0; start < words; start += 31) {
                __m256i bytes[R];
                for (int r = 0; r < R; ++r) bytes[r] = zero;
                for (i64 k = start; k < least<i64>(start + 31, words); ++k) {
                    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + k * B * LANES));
                    for (int r = 0; r < R; ++r) {
                        const __m256i d = _mm256_xor_si256(v, _mm256_set1_epi64x(static_cast<long long>(x[r * ldx + k])));
                        const __m256i a = _mm256_shuffle_epi8(table, _mm256_and_si256(d, low));
                        const __m256i c = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(d, 4), low));
                        bytes[r] = _mm256_add_epi8(bytes[r], _mm256_add_epi8(a, c));
                    }
                }
                for (int r = 0; r < R; ++r) sum[r] = _mm256_add_epi64(sum[r], _mm256_sad_epu8(bytes[r], zero));
            }
            for (int r = 0; r < R; ++r) {
                u64 lanes[4];
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes), sum[r]);
                for (int lane = 0; lane < 4; ++lane)
                    counts[r * TILE + b * LANES + half * 4 + lane] = static_cast<i32>(lanes[lane]);
            }
        }
}
#endif

#if defined(ASKEW_NEON)
template <int R, int B>
void tile_neon(const u64* x, i64 ldx, const u64* w, i64 words, i32* counts) {
    for (int b = 0; b < B; ++b)
        for (int pair = 0; pair < LANES / 2; ++pair) {
            const u64* block = w + b * LANES + pair * 2;
            uint64x2_t sum[R];
            for (int r = 0; r < R; ++r) sum[r] = vdupq_n_u64(0);
            for (i64 start = 0; start < words; start += 31) {
                uint8x16_t bytes[R];
                for (int r = 0; r < R; ++r) bytes[r] = vdupq_n_u8(0);
                for (i64 k = start; k < least<i64>(start + 31, words); ++k) {
                    const uint64x2_t v = vld1q_u64(block + k * B * LANES);
                    for (int r = 0; r < R; ++r) {
                        const uint64x2_t d = veorq_u64(v, vdupq_n_u64(x[r * ldx + k]));
                        bytes[r] = vaddq_u8(bytes[r], vcntq_u8(vreinterpretq_u8_u64(d)));
                    }
                }
                for (int r = 0; r < R; ++r) sum[r] = vpadalq_u32(sum[r], vpaddlq_u16(vpaddlq_u8(bytes[r])));
            }
            for (int r = 0; r < R; ++r) {
                counts[r * TILE + b * LANES + pair * 2] = static_cast<i32>(vgetq_lane_u64(sum[r], 0));
                counts[r * TILE + b * LANES + pair * 2 + 1] = static_cast<i32>(vgetq_lane_u64(sum[r], 1));
            }
        }
}
#endif

#define TILES_OF(name, R) \
    { name<R, 1>, name<R, 2>, name<R, 3>, name<R, 4>, name<R, 5>, name<R, 6>, name<R, 7>, name<R, 8> }
#define ALL_TILES(name) \
    { TILES_OF(name, 1), TILES_OF(name, 2) }

Tile pick(int rows, int blocks) {
    static const Tile portable[ROWS][BLOCKS] = ALL_TILES(tile_portable);
#if defined(ASKEW_X86)
    static const Tile avx512[ROWS][BLOCKS] = ALL_TILES(tile_avx512);
    static const Tile avx2[ROWS][BLOCKS] = ALL_TILES(tile_avx2);
    if (isa() == AVX512) return avx512[rows - 1][blocks - 1];
    if (isa() == AVX2) return avx2[rows - 1][blocks - 1];
#elif defined(ASKEW_NEON)
    static const Tile neon[ROWS][BLOCKS] = ALL_TILES(tile_neon);
    if (isa() == NEON) return neon[rows - 1][blocks - 1];
#endif
    return portable[rows - 1][blocks - 1];
}

// What becomes of the counts; `base` is per border class, (classes, padded outputs).
struct Ending {
    Mode mode;
    i64 outputs, padded;
    const i32* base;       // INTEGERS, FLOATS: dot = base - 2 count. BITS: bit = (count <= base)
    const i32* row_class;  // (out_h), already times the number of column classes
    const i32* column_class;
    Affine end;  // FLOATS: of the dot products
    void* out;
    i64 ldo;  // elements (words of 64 bits for BITS) from one output row to the next
};

ASKEW_INLINE void finish(const Ending& e, const i32* counts, const i32* base, i64 row, i64 first, i64 count) {
    if (e.mode == BITS) {
        u64 bits = 0;
        for (i64 i = 0; i < count; ++i) bits |= static_cast<u64>(counts[i] <= base[first + i]) << i;
        static_cast<u64*>(e.out)[row * e.ldo + first / TILE] = bits;
        return;
    }
    if (e.mode == INTEGERS) {
        i32* out = static_cast<i32*>(e.out) + row * e.ldo + first;
        for (i64 i = 0; i < count; ++i) out[i] = base[first + i] - 2 * counts[i];
        return;
    }
    float* out = static_cast<float*>(e.out) + row * e.ldo + first;
    for (i64 i = 0; i < count; ++i) out[i] = e.end(first + i, static_cast<float>(base[first + i] - 2 * counts[i]));
}

using Finish = void (*)(const Ending&, const i32*, const i32*, i64, i64, i64);
void finish_portable(const Ending& e, const i32* counts, const i32* base, i64 row, i64 first, i64 count) {
    finish(e, counts, base, row, first, count);
}
#if defined(ASKEW_X86)
AVX512_TARGET void finish_avx512(const Ending& e, const i32* counts, const i32* base, i64 row, i64 first, i64 count) {
    if (e.mode == BITS) {
        u64 bits = 0;
        for (int i = 0; i < count; i += 16) {
            const __mmask16 some = static_cast<__mmask16>(count - i >= 16 ? 0xffff : (1u << (count - i)) - 1);
            const __m512i limit = _mm512_maskz_loadu_epi32(some, base + first + i);
            bits |= static_cast<u64>(_mm512_mask_cmple_epi32_mask(some, _mm512_loadu_si512(counts + i), limit)) << i;
        }
        static_cast<u64*>(e.out)[row * e.ldo + first / TILE] = bits;
        return;
    }
    if (count < TILE) return finish(e, counts, base, row, first, count);
    for (int i = 0; i < TILE; i += 16) {
        const __m512i twice = _mm512_slli_epi32(_mm512_loadu_si512(counts + i), 1);
        const __m512i dot = _mm512_sub_epi32(_mm512_loadu_si512(base + first + i), twice);
        if (e.mode == INTEGERS) {
            _mm512_storeu_si512(static_cast<i32*>(e.out) + row * e.ldo + first + i, dot);
            continue;
        }
        const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(dot), _mm512_loadu_ps(e.end.scale + first + i));
        const __m512 y = _mm512_add_ps(scaled, _mm512_loadu_ps(e.end.bias + first + i));
        _mm512_storeu_ps(static_cast<float*>(e.out) + row * e.ldo + first + i,
                         _mm512_max_ps(_mm512_set1_ps(e.end.floor), y));  // NaN in the second operand stays
    }
}
#endif

Finish pick_finish() {
#if defined(ASKEW_X86)
    if (isa() == AVX512) return finish_avx512;
#endif
    return finish_portable;
}

constexpr i64 BLOCK = 64;  // rows that share their unfolded input

// `rows` rows from first_row on, already unfolded, times the tiles from..to.
void rows_times_weights(const u64* x, i64 first_row, i64 rows, const u64* w, i64 words, i64 from, i64 to,
                        const Geometry& g, const Ending& e) {
    alignas(64) i32 counts[ROWS * TILE];
    const i32* base[BLOCK];
    i64 column = first_row % g.out_w, line = first_row / g.out_w % g.out_h;
    for (i64 r = 0; r < rows; ++r) {
        base[r] = e.base + (e.row_class[line] + e.column_class[column]) * e.padded;
        if (++column == g.out_w) {
            column = 0;
            line = line + 1 == g.out_h ? 0 : line + 1;
        }
    }
    const Finish done = pick_finish();
    for (i64 t = from; t < to; ++t) {
        const int here = static_cast<int>(least<i64>(BLOCKS, e.padded / LANES - t * BLOCKS));
        const i64 outputs = least<i64>(TILE, e.outputs - t * TILE);
        const Tile pair = pick(ROWS, here), single = pick(1, here);
        const u64* tile = w + t * words * TILE;
        for (i64 r = 0; r < rows; r += ROWS) {
            const i64 group = least<i64>(ROWS, rows - r);
            (group == ROWS ? pair : single)(x + r * words, words, tile, words, counts);
            for (i64 i = 0; i < group; ++i)
                done(e, counts + i * TILE, base[r + i], first_row + r + i, t * TILE, outputs);
        }
    }
}

}  // namespace
}  // namespace askew

// out = conv(sign bits x, sign bits w); geometry's channels are words of 64 bits. See Ending for the rest.
ASKEW_API void askew_w1a1(const std::uint64_t* x, const std::int64_t* geometry, const std::uint64_t* w,
                          std::int64_t outputs, int mode, const std::int32_t* base, const std::int32_t* row_class,
                          const std::int32_t* column_class, const float* scale, const float* bias, float floor,
                          void* out, std::int64_t ldo, int threads) {
    using namespace askew;
    Geometry g;
    std::memcpy(&g, geometry, sizeof g);
    const i64 words = g.depth(), rows = g.rows(), padded = ceil_div(outputs, LANES) * LANES;
    const Ending e{static_cast<Mode>(mode), outputs, padded, base, row_class, column_class, {scale, bias, floor}, out, ldo};
    const i64 tiles = ceil_div(padded, TILE);
    const i64 block = least<i64>(BLOCK, ceil_div(rows, ROWS) * ROWS), row_blocks = ceil_div(rows, block);
    const i64 splits = row_blocks >= threads ? 1 : least<i64>(tiles, ceil_div(threads, row_blocks));
    parallel_for(row_blocks * splits, threads, [&](i64 item) {
        const i64 first = item / splits * block, count = least(block, rows - first), part = item % splits;
        const i64 from = tiles * part / splits, to = tiles * (part + 1) / splits;
        if (g.plain()) {
            rows_times_weights(x + first * words, first, count, w, words, from, to, g, e);
            return;
        }
        thread_local std::vector<u64> unfolded;
        unfolded.resize(static_cast<std::size_t>(count * words));
        unfold(x, g, first, count, unfolded.data(), words);
        rows_times_weights(unfolded.data(), first, count, w, words, from, to, g, e);
    });
}
