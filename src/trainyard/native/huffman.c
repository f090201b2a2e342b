/* Reads Huffman codes, and the coefficients that they stand for.

   Where a code begins is known only when the one before it was looked up: a processor spends most of its time waiting
   for that. So blocks of two places are read at the same time, code by code in turn (`lanes_read`): while one waits, the
   other goes on. Places where reading can begin are those behind restart markers (scan.c).

   Nothing is guessed: a code that no table has, a block of more than 64 coefficients and data that end too early are
   damage. */

#include "huffman.h"

#define FAST 128     /* see take_code */
#define END 128      /* a step that is beyond a block's end wherever it begins */
#define NO_CODE 64u  /* a step to where no block ends */

/* Where the coefficients lie in a block; the rest, for what comes behind the last: damage, and the block's end */
const uint8_t huffman_order[63 + END + 1] = {
   0,  1,  8, 16,  9,  2,  3, 10, 17, 24, 32, 25, 18, 11,  4,  5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13,  6,  7, 14,
  21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54,
  47, 55, 62, 63, [64 ... 63 + END] = 63};

static int extend(unsigned bits, int size) { /* T.81, figure F.12 */
  return (int)bits - (bits < 1u << (size - 1) ? (1 << size) - 1 : 0);
}

/* By how much a symbol moves on in the block: over a run of zeros and the number, or beyond its end. */
static unsigned step_of(int symbol) { return symbol & 15 || symbol == 0xf0 ? (unsigned)(symbol >> 4) + 1 : END; }

/* An entry of `fast`, for what the next LOOK bits may be: bits 0-6 bits to consume, 7 is FAST, 8-15 the step, 16-31 the
   number; without FAST its size, where LOOK bits do not hold all of it. 0: a longer code, or no table has it. */
static void take_code(Table *table, unsigned code, int length, int symbol) {
  int size = symbol & 15, spare = LOOK - length - size;
  uint32_t entry = step_of(symbol) << 8 | (uint32_t)(length + size);
  if (spare < 0) {
    uint32_t *first = table->fast + (code << (LOOK - length));
    for (unsigned rest = 0; rest < 1u << (LOOK - length); rest++) first[rest] = (uint32_t)size << 16 | entry;
    return;
  }
  for (unsigned bits = 0; bits < 1u << size; bits++) {
    uint32_t number = size ? (uint32_t)extend(bits, size) << 16 : 0;
    uint32_t *first = table->fast + ((code << size | bits) << spare);
    for (unsigned rest = 0; rest < 1u << spare; rest++) first[rest] = number | entry | FAST;
  }
}

/* 17 bytes and more of a DHT segment: how many codes have each length, and their symbols. Bytes taken, 0 if wrong. */
static size_t take_table(Table *dc, Table *ac, const uint8_t *from, size_t bytes) {
  if (bytes < 17) return 0;
  int class = from[0] >> 4, place = from[0] & 15, total = 0;
  if (class > 1 || place > 3) return 0;
  for (int length = 1; length <= 16; length++) total += from[length];
  if (total > 256 || bytes < 17 + (size_t)total) return 0;
  Table *table = (class ? ac : dc) + place;
  memset(table, 0, sizeof *table);
  memcpy(table->symbols, from + 17, total);
  unsigned code = 0;
  for (int length = 1, k = 0; length <= 16; length++, code <<= 1) {
    table->first[length] = k - (int)code;
    for (int n = from[length]; n > 0; n--, k++, code++) {
      if (code >= 1u << length) return 0;
      if (class ? (table->symbols[k] & 15) > 10 : table->symbols[k] > 11) return 0; /* T.81, tables F.1 and F.2 */
      if (length <= LOOK) take_code(table, code, length, table->symbols[k]);
    }
    table->most[length] = from[length] ? (int)code - 1 : -1;
  }
  table->known = 1;
  return 17 + (size_t)total;
}

int huffman_tables(Table *dc, Table *ac, const uint8_t *from, size_t bytes) {
  for (size_t taken; bytes; from += taken, bytes -= taken)
    if (!(taken = take_table(dc, ac, from, bytes))) return 1;
  return 0;
}

/* The entry for a code that is longer than LOOK bits, or whose number is; `entry` is what `fast` has. */
static __attribute__((noinline)) uint32_t slow_entry(uint64_t ahead, const Table *table, uint32_t entry) {
  int size = (int)(entry >> 16), length = (int)(entry & 63) - size;
  for (int longer = LOOK + 1; !entry && longer <= 16; longer++) {
    int code = (int)(ahead >> (64 - longer));
    if (code > table->most[longer]) continue;
    int symbol = table->symbols[(code + table->first[longer]) & 255];
    size = symbol & 15, length = longer;
    entry = step_of(symbol) << 8 | (uint32_t)(length + size);
  }
  if (!entry) return NO_CODE << 8;
  uint32_t number = size ? (uint32_t)extend((unsigned)(ahead << length >> (64 - size)), size) << 16 : 0;
  return number | (entry & 0xffff);
}

/* LOOK bits must be ahead, and after a `fill_bits` are for five codes. */
static inline __attribute__((always_inline)) uint32_t next_entry(Bits *now, const Table *table) {
  uint32_t entry = table->fast[now->ahead >> (64 - LOOK)];
  if (__builtin_expect(entry & FAST, FAST)) {
    consume_bits(now, (int)(entry & 63));
    return entry;
  }
  fill_bits(now); /* a code has 16 bits at most, its number 11 */
  entry = slow_entry(now->ahead, table, entry);
  consume_bits(now, (int)(entry & 63));
  fill_bits(now);
  return entry;
}

/* The next coefficient of a block; of an end and of a run alone: 0, where 0 is. */
static inline __attribute__((always_inline)) void step(Bits *now, const Table *table, unsigned *k, int16_t *block) {
  uint32_t entry = next_entry(now, table);
  *k += entry >> 8 & 255;
  block[huffman_order[*k - 1]] = (int16_t)(entry >> 16);
}

static int begin_block(Lane *lane) {
  const Unit *unit = lane->unit;
  fill_bits(&lane->now);
  uint32_t entry = next_entry(&lane->now, unit->dc[lane->block]);
  int value = lane->last[unit->component[lane->block]] += (int16_t)(entry >> 16);
  lane->out[0] = (int16_t)value;
  lane->ac = unit->ac[lane->block];
  lane->k = 1;
  return (entry >> 8 & 255) == NO_CODE || value > 32767 || value < -32768;
}

/* Whether the segment had so much data is seen only now: there is PADDING. */
static int end_block(Lane *lane) {
  if ((lane->k > 64 && lane->k < END) || bits_left(&lane->now, lane->stop) < 0) return 1;
  lane->block = lane->block + 1 == lane->unit->blocks ? 0 : lane->block + 1;
  lane->out += lane->apart;
  return --lane->todo ? begin_block(lane) : 0;
}

void lane_start(Lane *lane, const Unit *unit, const uint8_t *from, const uint8_t *stop) {
  *lane = (Lane){.unit = unit, .now = {.at = from}, .stop = stop};
}

int lane_ask(Lane *lane, int mcus, int16_t *out, int apart) {
  lane->todo = mcus * lane->unit->blocks, lane->out = out, lane->apart = apart;
  return mcus ? begin_block(lane) : 0;
}

int lane_read(Lane *lane) {
  while (lane->todo) {
    Bits now = lane->now; /* in registers, like the rest */
    unsigned k = lane->k;
    const Table *ac = lane->ac;
    int16_t *out = lane->out;
    while (k < 64) {
      fill_bits(&now);
      for (int n = 0; n < 5 && k < 64; n++) step(&now, ac, &k, out);
    }
    lane->now = now, lane->k = k;
    if (end_block(lane)) return 1;
  }
  return 0;
}

int lanes_read(Lane *a, Lane *b) {
  while (a->todo && b->todo) {
    Bits now_a = a->now, now_b = b->now;
    unsigned i = a->k, j = b->k;
    const Table *ac_a = a->ac, *ac_b = b->ac;
    int16_t *out_a = a->out, *out_b = b->out;
    while ((i | j) < 64) {
      fill_bits(&now_a), fill_bits(&now_b);
      for (int n = 0; n < 5 && (i | j) < 64; n++) step(&now_a, ac_a, &i, out_a), step(&now_b, ac_b, &j, out_b);
    }
    a->now = now_a, a->k = i, b->now = now_b, b->k = j;
    if ((i >= 64 && end_block(a)) || (j >= 64 && end_block(b))) return 1;
  }
  return lane_read(a) || lane_read(b);
}

int lanes_agree(Lane *a, Lane *b) {
  while (a->todo && b->todo) {
    Bits now_a = a->now, now_b = b->now;
    const Table *ac_a = a->ac, *ac_b = b->ac;
    uint32_t differ = *a->out != *b->out ? FAST << 1 : 0;
    unsigned k = a->k;
    while (k < 64) {
      fill_bits(&now_a), fill_bits(&now_b);
      for (int n = 0; n < 5 && k < 64; n++) {
        uint32_t entry = next_entry(&now_a, ac_a);
        k += entry >> 8 & 255, differ |= entry ^ next_entry(&now_b, ac_b);
      }
    }
    a->now = now_a, a->k = k, b->now = now_b, b->k = k;
    if (differ >> 8 || end_block(a) || end_block(b)) return 0; /* bits 0-7 are about codes, which may differ */
  }
  return !a->todo && !b->todo;
}
