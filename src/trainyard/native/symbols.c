/* Lists a scan's symbols with the bits behind their codes, as they are when it is written with other tables and restart
   markers: of AC coefficients the same, of DC values the differences within the new intervals.

   So coefficients need not be computed to rewrite a baseline JPEG. What the standard allows and encoders do not write
   (runs of zeros before a block's end, other symbols for that end) is listed as encoders write it. Padding holds the DC
   value of the block before it, and no AC. */

#include "symbols.h"

#include <stdlib.h>

#define WIDE 11        /* bits of a code that one look-up takes */
#define BLOCK 64       /* symbols of a block at most: its DC value, then one for each coefficient or an end before the last */
#define END 128        /* a step beyond a block's end, wherever it begins */
#define NO_CODE 64u    /* a step to where no block ends */
#define AC 0x100u
#define ZEROS 0xf0u    /* 16 of them */

/* For what the next WIDE bits may be: bits 0-7 bits to consume, with those behind the code; 8-15 the step in the block;
   16-23 the symbol. 0: a longer code, or no table has it. */
typedef struct {
  uint32_t entry[1 << WIDE];
  const Table *table;
} Codes;

typedef struct {
  Codes dc[4], ac[4];
} Reader;

static uint32_t entry_of(int symbol, int length) {
  uint32_t size = symbol & 15, run = (uint32_t)symbol >> 4;
  uint32_t step = size || symbol == ZEROS ? run + 1 : END;
  return (step == END ? size : (uint32_t)symbol) << 16 | step << 8 | ((uint32_t)length + size);
}

static void fill_codes(Codes *codes, const Table *table) {
  memset(codes->entry, 0, sizeof codes->entry);
  codes->table = table;
  int code = 0;
  for (int length = 1; length <= WIDE; length++, code <<= 1)
    for (; code <= table->most[length]; code++) {
      uint32_t entry = entry_of(table->symbols[code + table->first[length]], length);
      uint32_t *first = codes->entry + ((size_t)code << (WIDE - length));
      for (int rest = 0; rest < 1 << (WIDE - length); rest++) first[rest] = entry;
    }
}

static __attribute__((noinline)) uint32_t long_entry(uint64_t ahead, const Table *table) {
  for (int length = WIDE + 1; length <= 16; length++) {
    int code = (int)(ahead >> (64 - length));
    if (code <= table->most[length]) return entry_of(table->symbols[(code + table->first[length]) & 255], length);
  }
  return NO_CODE << 8 | 1;
}

static unsigned step_of(uint32_t entry) { return entry >> 8 & 255; }

/* Take a code with the bits behind it: 27 must be ahead. Gives the entry; `number` becomes one of a list, but its kind. */
static inline __attribute__((always_inline)) uint32_t take(Bits *now, const Codes *codes, uint32_t *number) {
  uint32_t entry = codes->entry[now->ahead >> (64 - WIDE)];
  if (__builtin_expect(!entry, 0)) entry = long_entry(now->ahead, codes->table);
  int bits = (int)(entry & 63);
  *number = (uint32_t)(now->ahead >> (64 - bits)) << 16 | entry >> 16;
  consume_bits(now, bits);
  return entry;
}

static int size_of(int number) { return number ? 32 - __builtin_clz((unsigned)abs(number)) : 0; }

/* The bits that follow a number's code (T.81, F.1.2.1.1), where they belong in a list. */
static uint32_t behind_code(int number) { return (uint32_t)(number - (number < 0)) << 16; }

static int add_dc(Symbols *symbols, int c, int value) {
  int difference = value - symbols->last[c], size = size_of(difference);
  symbols->last[c] = value;
  if (size > 11) return 1;
  symbols->list[symbols->count++] = (uint32_t)(symbols->grid->table[c] << 9 | size) | behind_code(difference);
  return 0;
}

static void add_padding(Symbols *symbols, int c) {
  add_dc(symbols, c, symbols->last[c]);
  symbols->list[symbols->count++] = (uint32_t)symbols->grid->table[c] << 9 | AC;
}

int symbols_add(Symbols *symbols, int c, const int16_t *block) {
  if (!block) return add_padding(symbols, c), 0;
  if (add_dc(symbols, c, block[0])) return 1;
  uint64_t set = 0; /* which are not zero */
  for (int k = 1; k < 64; k++) set |= (uint64_t)(block[huffman_order[k]] != 0) << k;
  uint32_t kind = (uint32_t)symbols->grid->table[c] << 9 | AC, *to = symbols->list + symbols->count;
  int before = 0;
  for (; set; set &= set - 1) {
    int k = __builtin_ctzll(set), run = k - before - 1, number = block[huffman_order[k]], size = size_of(number);
    if (size > 10) return 1;
    for (; run > 15; run -= 16) *to++ = kind | ZEROS;
    *to++ = kind | (uint32_t)(run << 4 | size) | behind_code(number);
    before = k;
  }
  if (before != 63) *to++ = kind;
  symbols->count = (size_t)(to - symbols->list);
  return 0;
}

void symbols_begin_mcu(Symbols *symbols, int mcu) {
  if (mcu % symbols->grid->interval) return;
  symbols->starts[symbols->intervals++] = symbols->count;
  memset(symbols->last, 0, sizeof symbols->last);
}

void symbols_end(Symbols *symbols) { symbols->starts[symbols->intervals] = symbols->count; }

int symbols_open(Symbols *symbols, const Grid *grid) {
  size_t blocks = 0, mcus = (size_t)grid->across * grid->down;
  for (int c = 0; c < grid->components; c++) blocks += (size_t)(grid->wide[c] * grid->tall[c]);
  *symbols = (Symbols){.grid = grid};
  symbols->list = malloc(mcus * blocks * BLOCK * sizeof *symbols->list);
  symbols->starts = malloc((mcus / grid->interval + 2) * sizeof *symbols->starts);
  return !symbols->list || !symbols->starts;
}

void symbols_close(Symbols *symbols) {
  free(symbols->list);
  free(symbols->starts);
  *symbols = (Symbols){0};
}

/* Read a block's AC symbols to the end of the list. 1 where they do not make a block. */
static inline int read_ac(Symbols *symbols, Bits *place, const Codes *codes, uint32_t kind) {
  Bits now = *place; /* in registers, like the rest */
  uint32_t *to = symbols->list + symbols->count, number;
  unsigned k = 1;
  do {
    fill_bits(&now); /* for two codes: each has 26 bits at most with those behind it */
    k += step_of(take(&now, codes, &number)), *to++ = kind | number;
    if (k >= 64) break;
    k += step_of(take(&now, codes, &number)), *to++ = kind | number;
  } while (k < 64);
  if (k > 64 && k < END) return 1;
  int ends = k >= END;
  to -= ends;
  while ((to[-1] & (KINDS - 1)) == (kind | ZEROS)) to--, ends = 1;
  if (ends) *to++ = kind;
  symbols->count = (size_t)(to - symbols->list);
  *place = now;
  return 0;
}

/* The value that a number of a list stands for (T.81, figure F.12). */
static int value_of(uint32_t number) {
  int size = number & 15, most = (1 << size) - 1, behind = (int)(number >> 16) & most;
  return behind > most / 2 ? behind : behind - most;
}

static int read_block(Symbols *symbols, const Reader *reader, Bits *now, const Scan *scan, int b, int padding, int *last) {
  int c = scan->unit.component[b];
  const Codes *dc = reader->dc + (scan->unit.dc[b] - scan->dc), *ac = reader->ac + (scan->unit.ac[b] - scan->ac);
  uint32_t number, kind = (uint32_t)symbols->grid->table[c] << 9 | AC;
  fill_bits(now);
  if (step_of(take(now, dc, &number)) == NO_CODE) return 1;
  last[c] += value_of(number);
  if (last[c] > 32767 || last[c] < -32768) return 1;
  size_t before = symbols->count;
  if (add_dc(symbols, c, padding ? symbols->last[c] : last[c]) || read_ac(symbols, now, ac, kind)) return 1;
  if (!padding) return 0;
  symbols->count = before;
  add_padding(symbols, c);
  return 0;
}

static int read_all(Symbols *symbols, const Scan *scan, const Reader *reader) {
  const Grid *grid = symbols->grid;
  int last[3], mcus = grid->across * grid->down;
  Bits now = {0};
  const uint8_t *stop = NULL;
  for (int mcu = 0; mcu < mcus; mcu++) {
    int column = mcu % grid->across, row = mcu / grid->across;
    int at_edge = column + 1 == grid->across || row + 1 == grid->down; /* only there is padding */
    if (mcu % scan->interval == 0) {
      const Segment *segment = scan->segments + mcu / scan->interval;
      now = (Bits){.at = scan->bits + segment->start}, stop = scan->bits + segment->end;
      memset(last, 0, sizeof last);
    }
    symbols_begin_mcu(symbols, mcu);
    for (int b = 0, i = 0; b < scan->unit.blocks; b++, i++) {
      int c = scan->unit.component[b];
      if (b && c != scan->unit.component[b - 1]) i = 0;
      int padding = at_edge && is_padding(grid, c, i, column, row);
      if (read_block(symbols, reader, &now, scan, b, padding, last)) return 1;
      if (bits_left(&now, stop) < 0) return 1; /* seen only now: there is PADDING */
    }
    /* what is left of a segment: ones that fill a byte, or bytes that libjpeg warns of */
    if (((mcu + 1) % scan->interval == 0 || mcu + 1 == mcus) && bits_left(&now, stop) > 7) return 1;
  }
  symbols_end(symbols);
  return 0;
}

int symbols_read(Symbols *symbols, const Scan *scan) {
  Reader *reader = malloc(sizeof *reader);
  if (!reader) return 1;
  for (int k = 0; k < 4; k++) {
    if (scan->dc[k].known) fill_codes(reader->dc + k, scan->dc + k);
    if (scan->ac[k].known) fill_codes(reader->ac + k, scan->ac + k);
  }
  int failed = read_all(symbols, scan, reader);
  free(reader);
  return failed;
}
