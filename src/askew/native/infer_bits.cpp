// Signs into bits, max-pooling of bits, and the machine's own bound for xor and popcount.
#include "infer_common.h"

namespace askew {
namespace {

using Pack = void (*)(const float* x, i64 channels, u64* out);

void pack_row(const float* x, i64 channels, u64* out) {
    for (i64 c = 0; c < channels; c += 64) {
        u64 word = 0;
        const i64 count = least<i64>(64, channels - c);
        for (i64 i = 0; i < count; ++i) word |= static_cast<u64>(x[c + i] >= 0.0f) << i;
        out[c / 64] = word;
    }
}

#if defined(ASKEW_X86)
AVX512_TARGET void pack_row_avx512(const float* x, i64 channels, u64* out) {
    const __m512 zero = _mm512_setzero_ps();
    i64 c = 0;
    for (; c + 64 <= channels; c += 64) {
        __mmask16 part[4];
        UNROLLED for (int i = 0; i < 4; ++i)
            part[i] = _mm512_cmp_ps_mask(_mm512_loadu_ps(x + c + 16 * i), zero, _CMP_GE_OQ);
        const __mmask32 low = _mm512_kunpackw(part[1], part[0]), high = _mm512_kunpackw(part[3], part[2]);
        out[c / 64] = _mm512_kunpackd(high, low);
    }
    if (c < channels) {
        u64 word = 0;
        for (i64 i = 0; c + i < channels; i += 16) {
            const i64 left = channels - c - i;
            const __mmask16 some = static_cast<__mmask16>(left >= 16 ? 0xffff : (1u << left) - 1);
            const __m512 v = _mm512_maskz_loadu_ps(some, x + c + i);
            word |= static_cast<u64>(_mm512_mask_cmp_ps_mask(some, v, zero, _CMP_GE_OQ)) << i;
        }
        out[c / 64] = word;
    }
}

AVX2_TARGET void pack_row_avx2(const float* x, i64 channels, u64* out) {
    i64 c = 0;
    for (; c + 64 <= channels; c += 64) {
        u64 word = 0;
        for (int i = 0; i < 64; i += 8) {
            const __m256 ge = _mm256_cmp_ps(_mm256_loadu_ps(x + c + i), _mm256_setzero_ps(), _CMP_GE_OQ);
            word |= static_cast<u64>(static_cast<u32>(_mm256_movemask_ps(ge))) << i;
        }
        out[c / 64] = word;
    }
    if (c < channels) pack_row(x + c, channels - c, out + c / 64);
}

// Eight independent chains of xor, popcount and add in registers: nothing that moves data can be faster.
AVX512_TARGET u64 bound_avx512(i64 rounds) {
    __m512i sum[16], v = _mm512_set1_epi64(0x0123456789abcdefLL);
    for (int i = 0; i < 16; ++i) sum[i] = _mm512_set1_epi64(i);
    for (i64 k = 0; k < rounds; ++k) {
        for (int i = 0; i < 16; ++i) sum[i] = _mm512_add_epi64(sum[i], _mm512_popcnt_epi64(_mm512_xor_si512(sum[i], v)));
        asm volatile("" : "+v"(v));
    }
    u64 total = 0;
    for (int i = 0; i < 16; ++i) total += static_cast<u64>(_mm512_reduce_add_epi64(sum[i]));
    return total;
}
#endif

Pack pick_pack() {
#if defined(ASKEW_X86)
    if (isa() == AVX512) return pack_row_avx512;
    if (isa() == AVX2) return pack_row_avx2;
#endif
    return pack_row;
}

}  // namespace
}  // namespace askew

// bits (rows, ceil(channels/64)) of x >= 0, x (rows, channels); bits beyond the last channel are 0.
ASKEW_API void askew_sign_pack(const float* x, std::int64_t rows, std::int64_t channels, void* to, int threads) {
    using namespace askew;
    u64* out = static_cast<u64*>(to);
    const bool whole = channels % 64 == 0;  // then all rows are one
    const i64 length = whole ? 4096 : channels, words = ceil_div(length, 64), block = whole ? 8 : 256;
    const i64 lines = whole ? ceil_div(rows * channels, length) : rows;
    const Pack pack = pick_pack();
    parallel_for(ceil_div(lines, block), threads, [&](i64 item) {
        for (i64 r = item * block; r < least(lines, (item + 1) * block); ++r)
            pack(x + r * length, least(length, rows * channels - r * length), out + r * words);
    });
}

// Max-pooling of bits is an OR over the window; positions outside are left out. Then xor with `flip` (words), if given.
ASKEW_API void askew_pool_bits(const std::uint64_t* x, const std::int64_t* geometry, const std::uint64_t* flip,
                               std::uint64_t* out) {
    using namespace askew;
    Geometry g;
    std::memcpy(&g, geometry, sizeof g);
    const i64 words = g.channels;
    for (i64 row = 0; row < g.rows(); ++row) {
        const i64 column = row % g.out_w, line = row / g.out_w % g.out_h, image = row / (g.out_w * g.out_h);
        u64* target = out + row * words;
        for (i64 k = 0; k < words; ++k) target[k] = 0;
        for (i64 i = 0; i < g.kernel_h; ++i)
            for (i64 j = 0; j < g.kernel_w; ++j) {
                const i64 y = line * g.stride_h - g.pad_h + i * g.dilation_h;
                const i64 z = column * g.stride_w - g.pad_w + j * g.dilation_w;
                if (y < 0 || y >= g.height || z < 0 || z >= g.width) continue;
                const u64* tap = x + ((image * g.height + y) * g.width + z) * words;
                for (i64 k = 0; k < words; ++k) target[k] |= tap[k];
            }
        if (flip != nullptr)
            for (i64 k = 0; k < words; ++k) target[k] ^= flip[k];
    }
}

// 16 * rounds vectors of 512 bits through xor, popcount, add; returns 0 where there is no such instruction.
ASKEW_API std::uint64_t askew_popcount_bound(std::int64_t rounds) {
#if defined(ASKEW_X86)
    if (askew::isa() == askew::AVX512) return askew::bound_avx512(rounds) | 1;
#endif
    return rounds < 0 ? 1 : 0;
}
