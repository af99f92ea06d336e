/* CRC-32C (Castagnoli): txs_crc32c(crc, data, n) extends the finalised value `crc` by n bytes; start with 0.
 *
 * The CRC instruction takes 8 bytes a cycle but answers three cycles later, so one chain of them runs at a third of
 * its speed. Long buffers are therefore cut into three streams that run side by side:
 *
 *     | stream a: L bytes | stream b: L bytes | stream c: L bytes |     crc = a * x^(16L) + b * x^(8L) + c  (mod P)
 *
 * One carry-less multiplication by a constant moves a stream to its place, and the product is folded into the last
 * word of c. L is 1,360 (three streams are 4,080 bytes: one index block) and then 128 for the rest.
 *
 * That is as fast as the cache, but not as memory. Where there are carry-less multiplications of 512 bits, buffers from
 * 1 KiB up are folded instead, 256 bytes a step: two to three times as fast on data that was not in the cache.
 *
 * Without any of these, eight tables take eight bytes a step. The method is that of V. Gopal et al., "Fast CRC
 * Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009; the constants are powers of x mod P. */

#ifndef TXS_CRC32C_H
#define TXS_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the C modules are for little-endian machines; elsewhere the Python fallbacks serve"
#endif

static inline uint64_t
txs_crc_load64(const uint8_t *data)
{
    uint64_t word;
    memcpy(&word, data, sizeof word);
    return word;
}

/* table[k][i]: the CRC of byte i followed by k zero bytes. It is linear in i, so eight values span a row. */
#define TXS_BIT(i, b, value) (((i) >> (b) & 1) ? (uint32_t)(value) : 0u)
#define TXS_1(i, a, b, c, d, e, f, g, h)                                                                               \
    (TXS_BIT(i, 0, a) ^ TXS_BIT(i, 1, b) ^ TXS_BIT(i, 2, c) ^ TXS_BIT(i, 3, d) ^ TXS_BIT(i, 4, e) ^                    \
     TXS_BIT(i, 5, f) ^ TXS_BIT(i, 6, g) ^ TXS_BIT(i, 7, h))
#define TXS_4(i, ...)                                                                                                  \
    TXS_1(i, __VA_ARGS__), TXS_1(i + 1, __VA_ARGS__), TXS_1(i + 2, __VA_ARGS__), TXS_1(i + 3, __VA_ARGS__)
#define TXS_16(i, ...)                                                                                                 \
    TXS_4(i, __VA_ARGS__), TXS_4(i + 4, __VA_ARGS__), TXS_4(i + 8, __VA_ARGS__), TXS_4(i + 12, __VA_ARGS__)
#define TXS_64(i, ...)                                                                                                 \
    TXS_16(i, __VA_ARGS__), TXS_16(i + 16, __VA_ARGS__), TXS_16(i + 32, __VA_ARGS__), TXS_16(i + 48, __VA_ARGS__)
#define TXS_ROW(...)                                                                                                   \
    {TXS_64(0, __VA_ARGS__), TXS_64(64, __VA_ARGS__), TXS_64(128, __VA_ARGS__), TXS_64(192, __VA_ARGS__)}

static const uint32_t txs_crc_table[8][256] = {
    TXS_ROW(0xf26b8303, 0xe13b70f7, 0xc79a971f, 0x8ad958cf, 0x105ec76f, 0x20bd8ede, 0x417b1dbc, 0x82f63b78),
    TXS_ROW(0x13a29877, 0x274530ee, 0x4e8a61dc, 0x9d14c3b8, 0x3fc5f181, 0x7f8be302, 0xff17c604, 0xfbc3faf9),
    TXS_ROW(0xa541927e, 0x4f6f520d, 0x9edea41a, 0x38513ec5, 0x70a27d8a, 0xe144fb14, 0xc76580d9, 0x8b277743),
    TXS_ROW(0xdd45aab8, 0xbf672381, 0x7b2231f3, 0xf64463e6, 0xe964b13d, 0xd725148b, 0xaba65fe7, 0x52a0c93f),
    TXS_ROW(0x38116fac, 0x7022df58, 0xe045beb0, 0xc5670b91, 0x8f2261d3, 0x1ba8b557, 0x37516aae, 0x6ea2d55c),
    TXS_ROW(0xef306b19, 0xdb8ca0c3, 0xb2f53777, 0x6006181f, 0xc00c303e, 0x85f4168d, 0x0e045beb, 0x1c08b7d6),
    TXS_ROW(0x68032cc8, 0xd0065990, 0xa5e0c5d1, 0x4e2dfd53, 0x9c5bfaa6, 0x3d5b83bd, 0x7ab7077a, 0xf56e0ef4),
    TXS_ROW(0x493c7d27, 0x9278fa4e, 0x211d826d, 0x423b04da, 0x847609b4, 0x0d006599, 0x1a00cb32, 0x34019664),
};

#undef TXS_BIT
#undef TXS_1
#undef TXS_4
#undef TXS_16
#undef TXS_64
#undef TXS_ROW

static inline uint32_t
txs_crc32c_table(uint32_t crc, const uint8_t *data, size_t n)
{
    const uint32_t(*t)[256] = txs_crc_table;
    crc = ~crc;
    for (; n >= 8; n -= 8, data += 8) {
        uint64_t w = txs_crc_load64(data) ^ crc;
        crc = t[7][w & 255] ^ t[6][w >> 8 & 255] ^ t[5][w >> 16 & 255] ^ t[4][w >> 24 & 255] ^
              t[3][w >> 32 & 255] ^ t[2][w >> 40 & 255] ^ t[1][w >> 48 & 255] ^ t[0][w >> 56];
    }
    for (; n; n--, data++)
        crc = crc >> 8 ^ t[0][(crc ^ *data) & 255];
    return ~crc;
}

#if defined(__GNUC__) && defined(__x86_64__)

#include <immintrin.h>

/* x^(8L - 33) and x^(16L - 33) mod P: 33 less, because a carry-less product of reflected values is one x too high
 * and the CRC instruction that reduces it multiplies by x^32. */
#define TXS_LONG 1360
#define TXS_LONG_1 0x3f70cc6f
#define TXS_LONG_2 0x5aa1f3cf
#define TXS_SHORT 128
#define TXS_SHORT_1 0x0d3b6092
#define TXS_SHORT_2 0xb9e02b86

__attribute__((target("sse4.2,pclmul"))) static inline uint64_t
txs_crc_moved(uint64_t crc, uint32_t by)
{
    __m128i left = _mm_cvtsi64_si128((int64_t)crc), right = _mm_cvtsi64_si128((int64_t)by);
    return (uint64_t)_mm_cvtsi128_si64(_mm_clmulepi64_si128(left, right, 0));
}

__attribute__((target("sse4.2,pclmul"))) static inline uint64_t
txs_crc_three(uint64_t a, const uint8_t *data, size_t length, uint32_t by_one, uint32_t by_two)
{
    const uint8_t *last = data + length - 8;
    uint64_t b = 0, c = 0;
    for (; data < last; data += 8) {
        a = _mm_crc32_u64(a, txs_crc_load64(data));
        b = _mm_crc32_u64(b, txs_crc_load64(data + length));
        c = _mm_crc32_u64(c, txs_crc_load64(data + 2 * length));
    }
    a = _mm_crc32_u64(a, txs_crc_load64(data));
    b = _mm_crc32_u64(b, txs_crc_load64(data + length));
    return _mm_crc32_u64(c, txs_crc_load64(data + 2 * length) ^ txs_crc_moved(a, by_two) ^ txs_crc_moved(b, by_one));
}

__attribute__((target("sse4.2,pclmul"))) static inline uint32_t
txs_crc32c_sse42(uint32_t start, const uint8_t *data, size_t n)
{
    uint64_t crc = (uint32_t)~start;
    for (; n >= 3 * TXS_LONG; n -= 3 * TXS_LONG, data += 3 * TXS_LONG)
        crc = txs_crc_three(crc, data, TXS_LONG, TXS_LONG_1, TXS_LONG_2);
    for (; n >= 3 * TXS_SHORT; n -= 3 * TXS_SHORT, data += 3 * TXS_SHORT)
        crc = txs_crc_three(crc, data, TXS_SHORT, TXS_SHORT_1, TXS_SHORT_2);
    for (; n >= 8; n -= 8, data += 8)
        crc = _mm_crc32_u64(crc, txs_crc_load64(data));
    for (; n; n--, data++)
        crc = _mm_crc32_u8((uint32_t)crc, *data);
    return ~(uint32_t)crc;
}

/* Four accumulators of 64 bytes. Each 128-bit lane is moved over the D bits that it is folded by: its low half times
 * x^(D + 31), its high half times x^(D - 33) mod P, reflected (see TXS_LONG_1 about the 33). */
#define TXS_WIDE 1024
#define TXS_FOLD(a, k, next)                                                                                           \
    _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(a, k, 0x00), _mm512_clmulepi64_epi128(a, k, 0x11), next, 0x96)

__attribute__((target("sse4.2,pclmul,avx512f,vpclmulqdq"))) static inline uint32_t
txs_crc32c_avx512(uint32_t start, const uint8_t *data, size_t n)
{
    const __m512i by_2048 = _mm512_set4_epi64(0xb9e02b86, 0xdcb17aa4, 0xb9e02b86, 0xdcb17aa4);
    const __m512i by_512 = _mm512_set4_epi64(0x9e4addf8, 0x740eef02, 0x9e4addf8, 0x740eef02);
    const __m512i by_384_256_128 =
        _mm512_set_epi64(0, 0, 0x493c7d27, 0xf20c0dfe, 0xba4fc28e, 0x3da6d0cb, 0xddc0152b, 0x1c291d04);
    __m512i a = _mm512_loadu_si512(data), b = _mm512_loadu_si512(data + 64);
    __m512i c = _mm512_loadu_si512(data + 128), d = _mm512_loadu_si512(data + 192);

    a = _mm512_xor_si512(a, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)~start)));
    for (data += 256, n -= 256; n >= 256; data += 256, n -= 256) {
        a = TXS_FOLD(a, by_2048, _mm512_loadu_si512(data));
        b = TXS_FOLD(b, by_2048, _mm512_loadu_si512(data + 64));
        c = TXS_FOLD(c, by_2048, _mm512_loadu_si512(data + 128));
        d = TXS_FOLD(d, by_2048, _mm512_loadu_si512(data + 192));
    }
    b = TXS_FOLD(a, by_512, b);
    c = TXS_FOLD(b, by_512, c);
    d = TXS_FOLD(c, by_512, d);
    for (; n >= 64; data += 64, n -= 64)
        d = TXS_FOLD(d, by_512, _mm512_loadu_si512(data));

    /* Lanes 0 to 2 move to the place of lane 3, which stays. The CRC instruction reduces the 16 bytes that are left. */
    __m512i moved = TXS_FOLD(d, by_384_256_128, _mm512_setzero_si512());
    __m128i sum = _mm_xor_si128(
        _mm_xor_si128(_mm512_castsi512_si128(moved), _mm512_extracti32x4_epi32(moved, 1)),
        _mm_xor_si128(_mm512_extracti32x4_epi32(moved, 2), _mm512_extracti32x4_epi32(d, 3)));
    uint64_t crc = _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(sum));
    crc = _mm_crc32_u64(crc, (uint64_t)_mm_extract_epi64(sum, 1));
    return txs_crc32c_sse42(~(uint32_t)crc, data, n);
}

static inline uint32_t
txs_crc32c(uint32_t crc, const void *data, size_t n)
{
    if (n >= TXS_WIDE && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq"))
        return txs_crc32c_avx512(crc, (const uint8_t *)data, n);
    if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul"))
        return txs_crc32c_sse42(crc, (const uint8_t *)data, n);
    return txs_crc32c_table(crc, (const uint8_t *)data, n);
}

#elif defined(__GNUC__) && defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)

#include <arm_acle.h>

static inline uint32_t
txs_crc32c(uint32_t crc, const void *from, size_t n)
{
    const uint8_t *data = (const uint8_t *)from;
    crc = ~crc;
    for (; n >= 8; n -= 8, data += 8)
        crc = __crc32cd(crc, txs_crc_load64(data));
    for (; n; n--, data++)
        crc = __crc32cb(crc, *data);
    return ~crc;
}

#else

static inline uint32_t
txs_crc32c(uint32_t crc, const void *data, size_t n)
{
    return txs_crc32c_table(crc, (const uint8_t *)data, n);
}

#endif

#endif
