# CRC-32 (as in zlib) using x86 carry-less multiplication, if the processor supports it.
# Each 16 bytes are folded onto those that follow (Gopal et al., Intel, 2009) until one block is
# left, which has the same CRC as all the data.  Processors with VPCLMULQDQ fold 32 bytes at once.

from libc.stdint cimport uint8_t, uint32_t


cdef extern from *:
    """
    #ifndef RBFLY_CRC_H
    #define RBFLY_CRC_H
    #include <stddef.h>
    #include <stdint.h>

    /* Debug builds run all implementations and use the result of zlib. */
    #if RBFLY_DEBUG
    #define CRC_IS_CHECKED 1
    #else
    #define CRC_IS_CHECKED 0
    #endif

    #if defined(__x86_64__) && defined(__GNUC__)
    #include <cpuid.h>
    #include <immintrin.h>

    /* 0: no carry-less multiplication; 1: PCLMULQDQ; 2: VPCLMULQDQ with AVX2 too.
       `__builtin_cpu_supports` would make clang add 150 KB to the module. */
    static int crc_level(void) {
        const unsigned avx = 1u << 28 | 1u << 27;  /* bits of AVX and XGETBV */
        unsigned a = 0, b = 0, c = 0, d = 0, low, high;
        if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & 2)) return 0;
        if ((c & avx) != avx || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 1;
        __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        (void)high;
        return (low & 6) == 6 && (b & 1u << 5) && (c & 1u << 10) ? 2 : 1;
    }

    /* Four bits at a time, for less than 64 bytes. */
    static inline uint32_t crc_slow(uint32_t crc, const uint8_t *p, size_t n) {
        static const uint32_t table[16] = {
            0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4, 0x4db26158,
            0x5005713c, 0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c, 0x9b64c2b0, 0x86d3d2d4,
            0xa00ae278, 0xbdbdf21c,
        };
        while (n--) {
            crc ^= *p++;
            crc = (crc >> 4) ^ table[crc & 15];
            crc = (crc >> 4) ^ table[crc & 15];
        }
        return crc;
    }

    #define CRC_TARGET __attribute__((target("pclmul")))
    #define CRC_WIDE_TARGET __attribute__((target("pclmul,avx2,vpclmulqdq")))
    #define CRC_OVER_64 0x1c6e41596, 0x154442bd4

    /* Move x past the bytes up to next, using the remainders of powers of two in k. */
    CRC_TARGET static inline __m128i crc_fold(__m128i x, __m128i k, __m128i next) {
        __m128i low = _mm_clmulepi64_si128(x, k, 0x00);
        __m128i high = _mm_clmulepi64_si128(x, k, 0x11);
        return _mm_xor_si128(_mm_xor_si128(low, high), next);
    }

    /* The same for two blocks at once. */
    CRC_WIDE_TARGET static inline __m256i crc_fold_wide(__m256i x, __m256i k, __m256i next) {
        __m256i low = _mm256_clmulepi64_epi128(x, k, 0x00);
        __m256i high = _mm256_clmulepi64_epi128(x, k, 0x11);
        return _mm256_xor_si256(_mm256_xor_si256(low, high), next);
    }

    /* Fold n bytes, a multiple of 128 and not 0, into the 64 bytes of x. */
    CRC_WIDE_TARGET static void crc_wide(
        __m256i *x, uint32_t crc, const uint8_t *p, size_t n
    ) {
        const __m256i over128 = _mm256_set_epi64x(
            0x14a7fe880, 0x1e88ef372, 0x14a7fe880, 0x1e88ef372
        );
        const __m256i over64 = _mm256_set_epi64x(CRC_OVER_64, CRC_OVER_64);
        __m256i y[4];
        int i;
        #define CRC_LOAD_WIDE(at) _mm256_loadu_si256((const __m256i *)(at))
        for (i = 0; i < 4; i++) y[i] = CRC_LOAD_WIDE(p + 32 * i);
        y[0] = _mm256_xor_si256(y[0], _mm256_set_epi32(0, 0, 0, 0, 0, 0, 0, (int)crc));
        for (p += 128, n -= 128; n; p += 128, n -= 128)
            for (i = 0; i < 4; i++)
                y[i] = crc_fold_wide(y[i], over128, CRC_LOAD_WIDE(p + 32 * i));
        for (i = 0; i < 2; i++)
            _mm256_storeu_si256(x + i, crc_fold_wide(y[i], over64, y[i + 2]));
    }

    /* Continue with a CRC of what precedes; 0 for nothing. */
    CRC_TARGET static uint32_t crc_of(
        int level, uint32_t crc, const uint8_t *p, size_t n
    ) {
        const __m128i over64 = _mm_set_epi64x(CRC_OVER_64);
        const __m128i over16 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
        uint8_t last[16];
        __m128i x[4];
        int i;
        crc = ~crc;
        #define CRC_LOAD(at) _mm_loadu_si128((const __m128i *)(at))
        if (n >= 64) {
            if (level > 1 && n >= 256) {
                crc_wide((__m256i *)x, crc, p, n & ~(size_t)127);
                p += n & ~(size_t)127;
                n &= 127;
            } else {
                for (i = 0; i < 4; i++) x[i] = CRC_LOAD(p + 16 * i);
                x[0] = _mm_xor_si128(x[0], _mm_cvtsi32_si128((int)crc));
                p += 64;
                n -= 64;
            }
            for (; n >= 64; p += 64, n -= 64)
                for (i = 0; i < 4; i++) x[i] = crc_fold(x[i], over64, CRC_LOAD(p + 16 * i));
            for (i = 1; i < 4; i++) x[0] = crc_fold(x[0], over16, x[i]);
            for (; n >= 16; p += 16, n -= 16) x[0] = crc_fold(x[0], over16, CRC_LOAD(p));
            _mm_storeu_si128((__m128i *)last, x[0]);
            crc = crc_slow(0, last, 16);
        }
        return ~crc_slow(crc, p, n);
    }
    #else
    static int crc_level(void) { return 0; }
    static uint32_t crc_of(int level, uint32_t crc, const uint8_t *p, size_t n) {
        (void)level; (void)p; (void)n;
        return crc;
    }
    #endif
    #endif
    """
    bint CRC_IS_CHECKED
    # What the processor supports; 0: do not call `crc_of`.
    int crc_level() noexcept nogil
    uint32_t crc_of(int level, uint32_t crc, const uint8_t *p, size_t n) noexcept nogil
