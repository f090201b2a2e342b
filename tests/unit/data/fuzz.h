/* What programs share that feed the library any input: draws that a seed repeats, looks at results, counts of them. */

#ifndef TRAINYARD_FUZZ_H
#define TRAINYARD_FUZZ_H

#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static uint64_t state;
static uint32_t draw(uint32_t below) { /* xorshift64*, Vigna 2016 */
  state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
  return below ? (uint32_t)((state * 2685821657736338717ull) >> 33) % below : 0;
}
static double fraction(void) { return draw(1 << 20) / (double)(1 << 20); }

/* Take a result into the digest. Valgrind reports what the kernel is given and was never written. */
static uint64_t digest;
static void look_at(const uint8_t *bytes, size_t count) {
  static int nowhere;
  if (!nowhere) nowhere = open("/dev/null", O_WRONLY);
  if (write(nowhere, bytes, count) != (ssize_t)count) abort();
  for (size_t i = 0; i < count; i++) digest = (digest ^ bytes[i]) * 0x100000001b3ull; /* FNV-1a */
}

/* Call `fuzz` for INPUTS and SECONDS, as SEED draws: the first three arguments. Returns how often. */
static uint64_t repeat(char **arguments, void (*fuzz)(char **rest)) {
  uint64_t done = 0, least = strtoull(arguments[1], NULL, 10);
  state = strtoull(arguments[3], NULL, 10) * 0x9e3779b97f4a7c15ull + 1;
  for (time_t end = time(NULL) + atoi(arguments[2]); done < least || time(NULL) < end; done++) fuzz(arguments + 4);
  return done;
}

#endif
