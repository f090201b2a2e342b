/* Reads the coefficients of a baseline JPEG's MCUs, in any area of it.

   A JPEG's symbols have no fixed length, and each DC value is the difference to the one before: an MCU can only be read
   after all others before it. Restart markers (ITU-T T.81, B.2.4.4 and E.1.4) end that: behind each one the data begin
   at a byte, with DC predictions of zero. So the markers are looked for first, and only the segments that hold wanted
   MCUs are read. A file without markers is one segment, which is read from its start.

   Nothing is guessed. Whatever is not exactly as the standard says (markers out of order, a code that no table has, a
   segment that ends too early) is refused, and the caller takes libjpeg, which knows what to make of damage. */

#include "scan.h"

#include <stdlib.h>
#include <string.h>

#define PADDING 4096 /* bytes behind the bits: more than an MCU can take, so that damage is seen after it */
#define MOST_PIXELS 128000000ull /* as in trainers/data/limits.py */
#define FOLLOWS 128  /* see take_code */
#define END 128      /* a step that is beyond a block's end wherever it begins */

/* Where the coefficients lie in a block; the rest, for what comes behind the last: damage, and the block's end */
static const uint8_t zigzag[63 + END + 1] = {
   0,  1,  8, 16,  9,  2,  3, 10, 17, 24, 32, 25, 18, 11,  4,  5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13,  6,  7, 14,
  21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54,
  47, 55, 62, 63, [64 ... 63 + END] = 63};

static int extend(unsigned bits, int size) { /* T.81, figure F.12 */
  return (int)bits - (bits < 1u << (size - 1) ? (1 << size) - 1 : 0);
}

/* By how much a symbol moves on in the block: over a run of zeros and the number, or beyond its end. */
static unsigned step_of(int symbol) { return symbol & 15 || symbol == 0xf0 ? (unsigned)(symbol >> 4) + 1 : END; }

/* An entry of `fast`, for what the next LOOK bits may be: bits 0-6 bits to consume, 8-15 the step, 16-31 the number, or
   its size with FOLLOWS where LOOK bits do not hold all of it. 0: a longer code, or no table has it. */
static void take_code(Table *table, unsigned code, int length, int symbol) {
  int size = symbol & 15, spare = LOOK - length - size;
  if (spare < 0) {
    uint32_t entry = (uint32_t)size << 16 | step_of(symbol) << 8 | FOLLOWS | (uint32_t)(length + size);
    for (unsigned rest = 0; rest < 1u << (LOOK - length); rest++) table->fast[code << (LOOK - length) | rest] = entry;
    return;
  }
  for (unsigned bits = 0; bits < 1u << size; bits++) {
    uint32_t number = size ? (uint32_t)extend(bits, size) << 16 : 0;
    uint32_t entry = number | step_of(symbol) << 8 | (uint32_t)(length + size);
    uint32_t *first = table->fast + ((code << size | bits) << spare);
    for (unsigned rest = 0; rest < 1u << spare; rest++) first[rest] = entry;
  }
}

/* 17 bytes and more of a DHT segment: how many codes have each length, and their symbols. Bytes taken, 0 if wrong. */
static size_t take_table(Scan *scan, const uint8_t *from, size_t bytes) {
  if (bytes < 17) return 0;
  int class = from[0] >> 4, place = from[0] & 15, total = 0;
  if (class > 1 || place > 3) return 0;
  for (int length = 1; length <= 16; length++) total += from[length];
  if (total > 256 || bytes < 17 + (size_t)total) return 0;
  Table *table = (class ? scan->ac : scan->dc) + place;
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

static int take_tables(Scan *scan, const uint8_t *from, size_t bytes) {
  for (size_t taken; bytes; from += taken, bytes -= taken)
    if (!(taken = take_table(scan, from, bytes))) return 1;
  return 0;
}

static int round_up(int number, int unit) { return (number + unit - 1) / unit; }

static int take_frame(Scan *scan, const uint8_t *from, size_t bytes) {
  if (scan->components || bytes < 6 || from[0] != 8) return 1;
  int components = from[5], tall = 1, wide = 1;
  scan->height = from[1] << 8 | from[2];
  scan->width = from[3] << 8 | from[4];
  if ((components != 1 && components != 3) || bytes != 6 + 3 * (size_t)components) return 1;
  if (!scan->height || !scan->width || (uint64_t)scan->height * scan->width > MOST_PIXELS) return 1;
  for (int c = 0; c < components; c++) {
    const uint8_t *one = from + 6 + 3 * c;
    int h = one[1] >> 4, v = one[1] & 15;
    if (h < 1 || h > 4 || v < 1 || v > 4) return 1;
    scan->identity[c] = one[0], scan->sampling[c] = one[1];
    if (h > wide) wide = h;
    if (v > tall) tall = v;
    for (int n = components == 1 ? 1 : h * v; n > 0; n--) {
      if (scan->blocks == MOST_BLOCKS) return 1;
      scan->of[scan->blocks++] = c;
    }
  }
  scan->components = components;
  scan->unit_x = 8 * wide, scan->unit_y = 8 * tall;
  scan->mcu_x = components == 1 ? 8 : scan->unit_x, scan->mcu_y = components == 1 ? 8 : scan->unit_y;
  scan->across = round_up(scan->width, scan->mcu_x), scan->down = round_up(scan->height, scan->mcu_y);
  return 0;
}

/* The one scan must hold all components, whole and in the frame's order. */
static int take_scan(Scan *scan, const uint8_t *from, size_t bytes) {
  int count = scan->components;
  if (!count || bytes != 4 + 2 * (size_t)count || from[0] != count) return 1;
  for (int c = 0; c < count; c++) {
    int dc = from[2 + 2 * c] >> 4, ac = from[2 + 2 * c] & 15;
    if (from[1 + 2 * c] != scan->identity[c] || dc > 3 || ac > 3) return 1;
    if (!scan->dc[dc].known || !scan->ac[ac].known) return 1;
    scan->dc_of[c] = (uint8_t)dc, scan->ac_of[c] = (uint8_t)ac;
  }
  const uint8_t *rest = from + 1 + 2 * count;
  return rest[0] != 0 || rest[1] != 63 || rest[2] != 0;
}

enum { APP0 = 0xe0, APP14 = 0xee, APP15 = 0xef, COM = 0xfe, DQT = 0xdb, DHT = 0xc4, DRI = 0xdd, SOF0 = 0xc0, SOF1 = 0xc1,
       SOS = 0xda, RST0 = 0xd0, RST7 = 0xd7, EOI = 0xd9 };

static int take_segment(Scan *scan, int marker, const uint8_t *from, size_t bytes) {
  switch (marker) {
    case DHT: return take_tables(scan, from, bytes);
    case SOF0: case SOF1: scan->size_at = scan->header_bytes + 5; return take_frame(scan, from, bytes);
    case SOS: return take_scan(scan, from, bytes);
    case DRI: if (bytes == 2) scan->interval = from[0] << 8 | from[1]; return bytes != 2;
    default: return !(marker == DQT || (marker >= APP0 && marker <= APP15) || marker == COM);
  }
}

static int read_header(Scan *scan, const uint8_t *data, size_t bytes) {
  if (bytes < 4 || data[0] != 0xff || data[1] != 0xd8) return 1;
  memcpy(scan->header, data, 2);
  scan->header_bytes = 2;
  for (size_t at = 2; at + 4 <= bytes;) {
    int marker = data[at + 1];
    size_t length = (size_t)(data[at + 2] << 8 | data[at + 3]);
    if (data[at] != 0xff || length < 2 || at + 2 + length > bytes) return 1;
    if (take_segment(scan, marker, data + at + 4, length - 2)) return 1;
    /* APP0 and APP14 say what the components mean; other metadata libjpeg would skip, and it gets no intervals */
    if ((marker < APP0 || marker == APP0 || marker == APP14) && marker != DRI) {
      memcpy(scan->header + scan->header_bytes, data + at, length + 2);
      scan->header_bytes += length + 2;
    }
    at += length + 2;
    if (marker == SOS) {
      scan->data = data + at, scan->stop = data + bytes;
      return 0;
    }
  }
  return 1;
}

int scan_open(Scan *scan, const uint8_t *data, size_t bytes) {
  memset(scan, 0, sizeof *scan);
  /* a header is small as a rule; where it is not, `header` is as long as the file, which it cannot exceed */
  scan->header = malloc(bytes + 2);
  scan->dc = malloc(8 * sizeof(Table));
  scan->ac = scan->dc ? scan->dc + 4 : NULL;
  for (int k = 0; scan->dc && k < 8; k++) scan->dc[k].known = 0;
  if (!scan->header || !scan->dc || read_header(scan, data, bytes)) return 1;
  int all = scan->across * scan->down;
  if (!scan->interval || scan->interval > all) scan->interval = all;
  scan->count = round_up(all, scan->interval);
  return scan->count > (scan->stop - scan->data) / 2; /* a header that claims more than there is */
}

void scan_close(Scan *scan) {
  free(scan->header);
  free(scan->dc);
  free(scan->bits);
  free(scan->segments);
  memset(scan, 0, sizeof *scan);
}

/* The segments that hold chosen MCUs get an end other than 0. */
static void mark_wanted(Scan *scan, int right, int bottom) {
  for (int row = scan->top; row < bottom; row++) {
    int first = (row * scan->across + scan->left) / scan->interval;
    int last = (row * scan->across + right - 1) / scan->interval;
    for (int k = first; k <= last; k++) scan->segments[k].end = 1;
  }
}

/* Copy wanted segments to `bits`, without the zeros that are stuffed behind 0xff; check every marker. */
static int gather(Scan *scan) {
  const uint8_t *from = scan->data;
  uint8_t *to = scan->bits;
  int k = 0;
  scan->segments[0].start = 0;
  for (;;) {
    const uint8_t *found = memchr(from, 0xff, (size_t)(scan->stop - from));
    if (!found || found + 1 >= scan->stop) return 1; /* cut short: no EOI */
    size_t bytes = (size_t)(found - from) + (found[1] == 0);
    if (scan->segments[k].end) {
      memcpy(to, from, bytes);
      to += bytes;
    }
    from = found + 2;
    if (found[1] == 0) continue;
    if (scan->segments[k].end) scan->segments[k].end = (size_t)(to - scan->bits);
    if (found[1] == EOI) break;
    if (found[1] < RST0 || found[1] > RST7 || found[1] - RST0 != (k & 7) || ++k == scan->count) return 1;
    scan->segments[k].start = (size_t)(to - scan->bits);
  }
  memset(to, 0, PADDING);
  return k != scan->count - 1;
}

int scan_choose(Scan *scan, int left, int top, int right, int bottom) {
  if (left < 0 || top < 0 || left >= right || top >= bottom || right > scan->across || bottom > scan->down) return 1;
  scan->left = left, scan->top = top, scan->wide = right - left;
  scan->segments = calloc((size_t)scan->count, sizeof(Segment));
  scan->bits = malloc((size_t)(scan->stop - scan->data) + PADDING);
  if (!scan->segments || !scan->bits) return 1;
  mark_wanted(scan, right, bottom);
  scan->segment = -1;
  return gather(scan);
}

/* At least 56 bits ahead. */
static inline void fill(Bits *now) {
  uint64_t more;
  memcpy(&more, now->at, sizeof more);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  more = __builtin_bswap64(more);
#endif
  now->ahead |= more >> now->held;
  now->at += (63 - now->held) >> 3;
  now->held |= 56;
}

static inline void consume(Bits *now, int bits) {
  now->ahead <<= bits;
  now->held -= bits;
}

/* The entry of a code that is longer than LOOK: bits to consume, the step, the number. 0 where no table has the code. */
static uint32_t slow_entry(uint64_t ahead, const Table *table) {
  for (int length = LOOK + 1; length <= 16; length++) {
    int code = (int)(ahead >> (64 - length));
    if (code > table->most[length]) continue;
    int symbol = table->symbols[(code + table->first[length]) & 255], size = symbol & 15;
    uint32_t number = size ? (uint32_t)extend((unsigned)(ahead << length >> (64 - size)), size) << 16 : 0;
    return number | step_of(symbol) << 8 | (uint32_t)(length + size);
  }
  return 0;
}

static inline uint32_t next_entry(Bits *now, const Table *table) {
  if (now->held < 32) fill(now); /* a code has 16 bits at most, its number 11 */
  uint32_t entry = table->fast[now->ahead >> (64 - LOOK)];
  if (__builtin_expect(!entry, 0)) entry = slow_entry(now->ahead, table);
  if (entry & FOLLOWS) {
    int size = (int)(entry >> 16), length = (int)(entry & 63) - size;
    uint32_t number = (uint32_t)extend((unsigned)(now->ahead << length >> (64 - size)), size);
    entry = number << 16 | (entry & 0xff7f);
  }
  consume(now, (int)(entry & 63));
  return entry;
}

static inline __attribute__((always_inline)) int read_ac(Bits *bits, const Table *table, int16_t *block) {
  Bits now = *bits; /* in registers */
  unsigned k = 1;
  while (k < 64) {
    uint32_t entry = next_entry(&now, table);
    if (__builtin_expect(!entry, 0)) return 1;
    k += entry >> 8 & 255;
    if (block) block[zigzag[k - 1]] = (int16_t)(entry >> 16); /* of an end and of a run alone: 0, where 0 is */
  }
  *bits = now;
  return k > 64 && k < END;
}

static int read_block(Scan *scan, int c, int16_t *block) {
  int *value = scan->last + c;
  uint32_t entry = next_entry(&scan->now, scan->dc + scan->dc_of[c]);
  *value += (int16_t)(entry >> 16);
  if (!entry || *value > 32767 || *value < -32768) return 1;
  if (!block) return read_ac(&scan->now, scan->ac + scan->ac_of[c], NULL);
  block[0] = (int16_t)*value;
  return read_ac(&scan->now, scan->ac + scan->ac_of[c], block);
}

/* The next MCU of the segment. Whether the segment had so much data is seen afterwards: there is PADDING. */
static int read_mcu(Scan *scan, int16_t (**blocks)[64]) {
  for (int b = 0; b < scan->blocks; b++)
    if (read_block(scan, scan->of[b], blocks ? *blocks[b] : NULL)) return 1;
  scan->next++;
  return (scan->now.at - scan->bits) * 8 - scan->now.held > (ptrdiff_t)scan->segments[scan->segment].end * 8;
}

int scan_read(Scan *scan, int n, int16_t (**blocks)[64]) {
  int wanted = (scan->top + n / scan->wide) * scan->across + scan->left + n % scan->wide;
  int segment = wanted / scan->interval;
  if (segment != scan->segment) {
    scan->segment = segment;
    scan->next = segment * scan->interval;
    scan->now = (Bits){.at = scan->bits + scan->segments[segment].start};
    memset(scan->last, 0, sizeof scan->last);
  }
  while (scan->next < wanted)
    if (read_mcu(scan, NULL)) return 1;
  return read_mcu(scan, blocks);
}
