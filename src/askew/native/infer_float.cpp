// Many rows of float activations times weights of 1, 2, 4 bits or floats. The packed weights are the only copy: a piece of
// them (DEPTH inputs x PANEL outputs) is decoded into the cache, used for all rows of a block, and forgotten.
#include "infer_codes.h"

#include <vector>

namespace askew {
namespace {

constexpr int ROWS = 8, VECTORS = 3, PANEL = VECTORS * OUT;
constexpr i64 DEPTH = 256, BLOCK = 128;

struct Weights {
    const void* codes;  // (blocks, words, 16) of 32 bits; bits = 32: (blocks, inputs, 16) floats
    int bits;
    float levels[16];  // repeated to 16, so that a lookup may leave the neighbours' bits in the index
    i64 inputs, words, outputs;
};

// panel[k - from][column + lane] = level of the code, for one block of 16 outputs and inputs from..to (from % 32 == 0).
ASKEW_INLINE void decode_portable(const Weights& w, i64 block, i64 from, i64 to, float* panel, i64 column, i64 width) {
    if (w.bits == 32) {
        const float* source = static_cast<const float*>(w.codes) + block * w.inputs * OUT;
        for (i64 k = from; k < to; ++k)
            for (int i = 0; i < OUT; ++i) panel[(k - from) * width + column + i] = source[k * OUT + i];
        return;
    }
    const i64 per = 32 / w.bits;
    for (i64 k = from; k < to; ++k) {
        const u32* word = static_cast<const u32*>(w.codes) + (block * w.words + k / per) * OUT;
        for (int i = 0; i < OUT; ++i)
            panel[(k - from) * width + column + i] = w.levels[(word[i] >> (k % per * w.bits)) & 15];
    }
}

// sums[r][i] = sum over k of a[r][k] panel[k][i]; the plain form of the kernels below.
template <int R, int V>
void multiply_portable(const float* a, i64 lda, const float* panel, i64 depth, float* sums) {
    float sum[R][V * OUT] = {};
    for (i64 k = 0; k < depth; ++k)
        for (int r = 0; r < R; ++r)
            for (int i = 0; i < V * OUT; ++i) sum[r][i] += a[r * lda + k] * panel[k * V * OUT + i];
    std::memcpy(sums, sum, sizeof sum);
}

#if defined(ASKEW_X86)
AVX512_TARGET void decode_avx512(const Weights& w, i64 block, i64 from, i64 to, float* panel, i64 column, i64 width) {
    if (w.bits == 32) return decode_portable(w, block, from, to, panel, column, width);
    const __m512 table = _mm512_loadu_ps(w.levels);
    const i64 per = 32 / w.bits;
    const __m128i step = _mm_cvtsi32_si128(w.bits);
    for (i64 k = from; k < to; k += per) {
        __m512i code = _mm512_loadu_si512(static_cast<const u32*>(w.codes) + (block * w.words + k / per) * OUT);
        for (i64 j = k; j < least(k + per, to); ++j) {
            _mm512_storeu_ps(panel + (j - from) * width + column, _mm512_permutexvar_ps(code, table));
            code = _mm512_srl_epi32(code, step);
        }
    }
}

template <int R, int V>
AVX512_TARGET void multiply_avx512(const float* a, i64 lda, const float* panel, i64 depth, float* sums) {
    __m512 sum[R][V];
    UNROLLED for (int r = 0; r < R; ++r)
        UNROLLED for (int v = 0; v < V; ++v) sum[r][v] = _mm512_setzero_ps();
    for (i64 k = 0; k < depth; ++k) {
        __m512 column[V];
        UNROLLED for (int v = 0; v < V; ++v) column[v] = _mm512_loadu_ps(panel + (k * V + v) * OUT);
        UNROLLED for (int r = 0; r < R; ++r) {
            const __m512 x = _mm512_set1_ps(a[r * lda + k]);
            UNROLLED for (int v = 0; v < V; ++v) sum[r][v] = _mm512_fmadd_ps(x, column[v], sum[r][v]);
        }
    }
    UNROLLED for (int r = 0; r < R; ++r)
        UNROLLED for (int v = 0; v < V; ++v) _mm512_storeu_ps(sums + (r * V + v) * OUT, sum[r][v]);
}

AVX2_TARGET void decode_avx2(const Weights& w, i64 block, i64 from, i64 to, float* panel, i64 column, i64 width) {
    if (w.bits == 32) return decode_portable(w, block, from, to, panel, column, width);
    const __m256 lower = _mm256_loadu_ps(w.levels), upper = _mm256_loadu_ps(w.levels + 8);
    const i64 per = 32 / w.bits;
    const __m128i step = _mm_cvtsi32_si128(w.bits);
    for (int half = 0; half < 2; ++half)
        for (i64 k = from; k < to; k += per) {
            const u32* source = static_cast<const u32*>(w.codes) + (block * w.words + k / per) * OUT + half * 8;
            __m256i code = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source));
            for (i64 j = k; j < least(k + per, to); ++j) {
                const __m256 level = _mm256_blendv_ps(_mm256_permutevar8x32_ps(lower, code),
                                                      _mm256_permutevar8x32_ps(upper, code),
                                                      _mm256_castsi256_ps(_mm256_slli_epi32(code, 28)));
                _mm256_storeu_ps(panel + (j - from) * width + column + half * 8, level);
                code = _mm256_srl_epi32(code, step);
            }
        }
}

template <int R, int V>
AVX2_TARGET void multiply_avx2(const float* a, i64 lda, const float* panel, i64 depth, float* sums) {
    for (int half = 0; half < 2 * V; ++half) {  // eight outputs at a time: R accumulators, R up to 8
        __m256 sum[R];
        for (int r = 0; r < R; ++r) sum[r] = _mm256_setzero_ps();
        for (i64 k = 0; k < depth; ++k) {
            const __m256 column = _mm256_loadu_ps(panel + k * V * OUT + half * 8);
            for (int r = 0; r < R; ++r) sum[r] = _mm256_fmadd_ps(_mm256_set1_ps(a[r * lda + k]), column, sum[r]);
        }
        for (int r = 0; r < R; ++r) _mm256_storeu_ps(sums + r * V * OUT + half * 8, sum[r]);
    }
}
#endif

using Decode = void (*)(const Weights&, i64, i64, i64, float*, i64, i64);
using Multiply = void (*)(const float*, i64, const float*, i64, float*);

Decode pick_decode() {
#if defined(ASKEW_X86)
    if (isa() == AVX512) return decode_avx512;
    if (isa() == AVX2) return decode_avx2;
#endif
    return [](const Weights& w, i64 b, i64 f, i64 t, float* p, i64 c, i64 n) { decode_portable(w, b, f, t, p, c, n); };
}

#define FLOAT_ROW(name, R) \
    { name<R, 1>, name<R, 2>, name<R, 3> }
#define ALL_FLOAT(name)                                                                                         \
    {                                                                                                           \
        FLOAT_ROW(name, 1), FLOAT_ROW(name, 2), FLOAT_ROW(name, 3), FLOAT_ROW(name, 4), FLOAT_ROW(name, 5),     \
            FLOAT_ROW(name, 6), FLOAT_ROW(name, 7), FLOAT_ROW(name, 8)                                          \
    }

Multiply pick(int rows, int vectors) {
    static const Multiply portable[ROWS][VECTORS] = ALL_FLOAT(multiply_portable);
#if defined(ASKEW_X86)
    static const Multiply avx512[ROWS][VECTORS] = ALL_FLOAT(multiply_avx512);
    static const Multiply avx2[ROWS][VECTORS] = ALL_FLOAT(multiply_avx2);
    if (isa() == AVX512) return avx512[rows - 1][vectors - 1];
    if (isa() == AVX2) return avx2[rows - 1][vectors - 1];
#endif
    return portable[rows - 1][vectors - 1];
}

// Adds one piece of depth to the output, and finishes with scale, bias and floor after the last.
ASKEW_INLINE void store(const Affine& e, const float* sum, i64 first, i64 count, bool begin, bool end, float* out) {
    for (i64 i = 0; i < count; ++i) {
        const float total = begin ? sum[i] : out[first + i] + sum[i];
        out[first + i] = end ? e(first + i, total) : total;
    }
}
using Store = void (*)(const Affine&, const float*, i64, i64, bool, bool, float*);
void store_portable(const Affine& e, const float* sum, i64 first, i64 count, bool begin, bool end, float* out) {
    store(e, sum, first, count, begin, end, out);
}
#if defined(ASKEW_X86)
AVX512_TARGET void store_avx512(const Affine& e, const float* sum, i64 first, i64 count, bool begin, bool end,
                                float* out) {
    for (i64 i = 0; i < count; i += 16) {
        const __mmask16 some = static_cast<__mmask16>(count - i >= 16 ? 0xffff : (1u << (count - i)) - 1);
        __m512 y = _mm512_loadu_ps(sum + i);
        if (!begin) y = _mm512_add_ps(_mm512_maskz_loadu_ps(some, out + first + i), y);
        if (end) {
            y = _mm512_mul_ps(y, _mm512_maskz_loadu_ps(some, e.scale + first + i));
            y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(some, e.bias + first + i));
            y = _mm512_max_ps(_mm512_set1_ps(e.floor), y);  // NaN in the second operand stays
        }
        _mm512_mask_storeu_ps(out + first + i, some, y);
    }
}
AVX2_TARGET void store_avx2(const Affine& e, const float* sum, i64 first, i64 count, bool begin, bool end, float* out) {
    store(e, sum, first, count, begin, end, out);
}
#endif

// One block of rows times the panels from..to.
void product(const float* x, const Geometry& g, i64 first, i64 rows, const Weights& w, i64 from, i64 to,
             const Affine& e, float* y) {
    thread_local std::vector<float> unfolded, decoded;
    const float* a = x + first * w.inputs;
    if (!g.plain()) {
        unfolded.resize(static_cast<std::size_t>(rows * w.inputs));
        unfold(x, g, first, rows, unfolded.data(), w.inputs);
        a = unfolded.data();
    }
    decoded.resize(DEPTH * PANEL);
    alignas(64) float sums[ROWS * PANEL];
    const Decode decode = pick_decode();
#if defined(ASKEW_X86)
    const Store put = isa() == AVX512 ? store_avx512 : isa() == AVX2 ? store_avx2 : store_portable;
#else
    const Store put = store_portable;
#endif
    for (i64 k = 0; k < w.inputs; k += DEPTH) {
        const i64 depth = least(DEPTH, w.inputs - k);
        for (i64 p = from; p < to; ++p) {
            const i64 start = p * PANEL, outputs = least<i64>(PANEL, w.outputs - start);
            const int vectors = static_cast<int>(ceil_div(outputs, OUT));
            for (int v = 0; v < vectors; ++v)
                decode(w, p * VECTORS + v, k, k + depth, decoded.data(), v * OUT, vectors * OUT);
            const Multiply whole = pick(ROWS, vectors);
            for (i64 r = 0; r < rows; r += ROWS) {
                const int group = static_cast<int>(least<i64>(ROWS, rows - r));
                (group == ROWS ? whole : pick(group, vectors))(a + r * w.inputs + k, w.inputs, decoded.data(), depth, sums);
                for (int i = 0; i < group; ++i)
                    put(e, sums + i * vectors * OUT, start, outputs, k == 0, k + depth == w.inputs,
                        y + (first + r + i) * w.outputs);
            }
        }
    }
}

}  // namespace
}  // namespace askew

// y (rows, outputs) = conv(x, W), floats; geometry's channels are floats. bits: 1, 2, 4, or 32 for float weights.
ASKEW_API void askew_float(const float* x, const std::int64_t* geometry, const void* codes, std::int64_t outputs,
                           int bits, const float* levels, const float* scale, const float* bias, float floor, float* y,
                           int threads) {
    using namespace askew;
    Geometry g;
    std::memcpy(&g, geometry, sizeof g);
    Weights w{codes, bits, {}, g.depth(), bits == 32 ? 0 : ceil_div(g.depth(), 32 / bits), outputs};
    if (bits < 32)
        for (int i = 0; i < 16; ++i) w.levels[i] = levels[i & ((1 << bits) - 1)];
    const Affine e{scale, bias, floor};
    const i64 rows = g.rows(), panels = ceil_div(outputs, PANEL), blocks = ceil_div(rows, BLOCK);
    const i64 splits = blocks >= threads ? 1 : least<i64>(panels, ceil_div(threads, blocks));
    parallel_for(blocks * splits, threads, [&](i64 item) {
        const i64 first = item / splits * BLOCK, part = item % splits;
        product(x, g, first, least(BLOCK, rows - first), w, panels * part / splits, panels * (part + 1) / splits, e, y);
    });
}
