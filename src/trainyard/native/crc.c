/* CRC-32 of a sample as zip, zlib and the shards' indexes have it, 16 bytes by one multiplication without carries.

   A message's CRC is its remainder as a polynomial, so 64 bytes can be added to those that lie 64 bytes further on, once
   they are multiplied by the remainder of that distance (Gopal et al., "Fast CRC Computation for Generic Polynomials Using
   PCLMULQDQ Instruction", Intel 2009). What 16 bytes are left of it at the end goes through the definition. */

#include "library.h"

#define POLYNOMIAL 0xedb88320u /* ITU-T V.42, bits reversed */

static uint32_t by_definition(uint32_t remainder, const uint8_t *data, size_t bytes) {
  for (size_t i = 0; i < bytes; i++) {
    remainder ^= data[i];
    for (int bit = 0; bit < 8; bit++) remainder = remainder >> 1 ^ (remainder & 1 ? POLYNOMIAL : 0);
  }
  return remainder;
}

#ifdef __x86_64__
#include <immintrin.h>

/* Remainders of x^(bits + 32) and x^(bits - 32), bits reversed, for distances of 64 and of 16 bytes: the paper's k1 to k4 */
#define FAR _mm_set_epi64x(0x01c6e41596, 0x0154442bd4)
#define NEAR _mm_set_epi64x(0x00ccaa009e, 0x01751997d0)

__attribute__((target("pclmul"))) static inline __m128i moved(__m128i part, __m128i distance, __m128i onto) {
  __m128i low = _mm_clmulepi64_si128(part, distance, 0x00), high = _mm_clmulepi64_si128(part, distance, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), onto);
}

__attribute__((target("pclmul"))) static uint32_t by_multiplying(const uint8_t *data, size_t bytes) {
  const __m128i *from = (const __m128i *)data, *end = from + bytes / 64 * 4;
  __m128i part[4];
  for (int i = 0; i < 4; i++) part[i] = _mm_loadu_si128(from++);
  part[0] = _mm_xor_si128(part[0], _mm_cvtsi32_si128(-1));
  while (from < end)
    for (int i = 0; i < 4; i++) part[i] = moved(part[i], FAR, _mm_loadu_si128(from++));
  for (int i = 1; i < 4; i++) part[i] = moved(part[i - 1], NEAR, part[i]);
  uint32_t remainder = by_definition(0, (const uint8_t *)(part + 3), 16);
  return by_definition(remainder, (const uint8_t *)end, bytes % 64);
}

/* Whether `trainyard_crc32` is fast on this machine. */
int trainyard_has_crc32(void) { return __builtin_cpu_supports("pclmul") != 0; }

uint32_t trainyard_crc32(const uint8_t *data, size_t bytes) {
  return ~(bytes < 64 || !trainyard_has_crc32() ? by_definition(~0u, data, bytes) : by_multiplying(data, bytes));
}
#else
int trainyard_has_crc32(void) { return 0; }

uint32_t trainyard_crc32(const uint8_t *data, size_t bytes) { return ~by_definition(~0u, data, bytes); }
#endif
