/* Makes baseline JPEGs that no encoder writes but the standard allows: any Huffman tables with codes of up to 16 bits, any
   coefficients, padding that holds some, runs of zeros before a block's end, and all symbols that stand for that end. */

#ifndef TRAINYARD_RANDOM_JPEG_H
#define TRAINYARD_RANDOM_JPEG_H

#include "damage_jpeg.h"

typedef struct {
  int count, length[257]; /* of symbols; bits of each one's code */
  uint8_t symbol[257];
  uint32_t code[257];
} RandomTable;

typedef struct {
  uint8_t *at;
  uint32_t bits; /* of which the lowest `held` do not fill a byte yet */
  int held;
} BitWriter;

static void write_bits(BitWriter *to, uint32_t bits, int count) {
  while (count-- > 0) {
    to->bits = to->bits << 1 | (bits >> count & 1);
    if (++to->held < 8) continue;
    *to->at++ = (uint8_t)to->bits;
    if ((uint8_t)to->bits == 0xff) *to->at++ = 0;
    to->held = 0;
  }
}

static void align(BitWriter *to) {
  while (to->held) write_bits(to, 1, 1);
}

/* Any codes for some symbols: one after the other becomes two, which are a bit longer. The last of all is not used. */
static void random_codes(RandomTable *table) {
  int leaves = 1, counts[17] = {1}, steep = draw(3);
  while (leaves < table->count + 1) {
    int at = steep ? 0 : (int)draw(16);
    for (int length = 0; steep && length < 16; length++)
      if (counts[length] && (!at || draw(steep + 1))) at = length;
    if (!counts[at]) continue;
    counts[at]--, counts[at + 1] += 2, leaves++;
  }
  uint32_t code = 0;
  for (int length = 1, k = 0; length <= 16; length++, code <<= 1)
    for (int n = counts[length]; n > 0 && k < table->count; n--) table->length[k] = length, table->code[k++] = code++;
}

static void random_table(RandomTable *table, int ac, int in_order) {
  int few = (int)draw(3);
  table->count = 0;
  if (ac) table->symbol[table->count++] = 0; /* the end must be among them */
  for (int symbol = ac; symbol < (ac ? 256 : 12); symbol++)
    if ((symbol & 15) <= (ac ? 10 : 11) && (!few || !draw(4 * few))) table->symbol[table->count++] = (uint8_t)symbol;
  if (!table->count) table->symbol[table->count++] = (uint8_t)draw(12);
  for (int k = table->count - 1; k > 0 && !in_order; k--) {
    int other = (int)draw(k + 1);
    uint8_t symbol = table->symbol[k];
    table->symbol[k] = table->symbol[other], table->symbol[other] = symbol;
  }
  random_codes(table);
}

static void write_symbol(BitWriter *to, const RandomTable *table, int k) {
  write_bits(to, table->code[k], table->length[k]);
  write_bits(to, draw(1 << 11), table->symbol[k] & 15);
}

/* Most often one of the first; where `skewed`, each behind the end 3/5 as often as the one before, of which some tailored
   codes become longer than 16 bits. */
static int draw_symbol(const RandomTable *table, int skewed) {
  int k = skewed && table->count > 1;
  if (!skewed) return (int)draw(draw(4) ? (uint32_t)(table->count + 2) / 3 : (uint32_t)table->count);
  while (k + 1 < table->count && draw(5) < 3) k++;
  return k;
}

static void random_block(BitWriter *to, const RandomTable *dc, const RandomTable *ac, int dense, int skewed) {
  int end = 0;
  while (ac->symbol[end]) end++;
  write_symbol(to, dc, draw_symbol(dc, skewed));
  for (int k = 1, n; k < 64;) {
    n = draw(dense) ? draw_symbol(ac, skewed) : end;
    int symbol = ac->symbol[n], run = symbol >> 4, ends = !(symbol & 15) && run < 15;
    if (!ends && k + run + 1 > 64) n = end, ends = 1;
    write_symbol(to, ac, n);
    k = ends ? 64 : k + run + 1;
  }
}

static void write_table(BitWriter *to, const RandomTable *table, int number) {
  uint8_t lengths[17] = {(uint8_t)number};
  for (int k = 0; k < table->count; k++) lengths[table->length[k]]++;
  to->at[0] = 0xff, to->at[1] = 0xc4, put(to->at + 2, 19 + table->count);
  memcpy(to->at + 4, lengths, 17), memcpy(to->at + 21, table->symbol, (size_t)table->count);
  to->at += 21 + table->count;
}

/* Write one to `out`, which has room for MOST_BYTES, and return its bytes. */
static size_t random_jpeg(uint8_t *out) {
  static const uint8_t factors[] = {0x11, 0x11, 0x21, 0x12, 0x22, 0x41};
  RandomTable tables[4]; /* DC and AC of 0, then of 1 */
  int skewed = !draw(8), most = skewed ? 300 : draw(4) ? 40 : 200;
  int components = draw(4) ? 3 : 1, height = 1 + (int)draw(most), width = 1 + (int)draw(most);
  int interval = draw(2) ? (int)draw(9) : 0, dense = skewed ? 60 : 2 + (int)draw(draw(2) ? 6 : 60);
  int wide = 1, tall = 1, blocks[3];
  BitWriter to = {.at = out};
  memcpy(to.at, "\xff\xd8\xff\xdb\0\x43\0", 7), to.at += 7;
  for (int k = 0; k < 64; k++) *to.at++ = 1 + draw(255);
  for (int k = 0; k < 4; k++) random_table(tables + k, k & 1, skewed), write_table(&to, tables + k, k / 2 | (k & 1) << 4);
  to.at[0] = 0xff, to.at[1] = 0xc0, put(to.at + 2, 8 + 3 * components), to.at[4] = 8;
  put(to.at + 5, height), put(to.at + 7, width), to.at[9] = (uint8_t)components, to.at += 10;
  for (int c = 0; c < components; c++) {
    int sampling = c ? 0x11 : factors[draw(sizeof factors)];
    to.at[0] = (uint8_t)(c + 1), to.at[1] = (uint8_t)sampling, to.at[2] = 0, to.at += 3;
    blocks[c] = components == 1 ? 1 : (sampling >> 4) * (sampling & 15);
    if (components > 1 && !c) wide = sampling >> 4, tall = sampling & 15;
  }
  if (interval) memcpy(to.at, "\xff\xdd\0\x04\0", 5), to.at[5] = (uint8_t)interval, to.at += 6;
  to.at[0] = 0xff, to.at[1] = SOS, put(to.at + 2, 6 + 2 * components), to.at[4] = (uint8_t)components, to.at += 5;
  int table = (int)draw(4), mcus = round_up(width, 8 * wide) * round_up(height, 8 * tall);
  for (int c = 0; c < components; c++)
    *to.at++ = (uint8_t)(c + 1), *to.at++ = c ? (uint8_t)(table >> 1 << 4 | (table & 1)) : 0;
  memcpy(to.at, "\0\x3f\0", 3), to.at += 3;
  for (int mcu = 0; mcu < mcus; mcu++) {
    if (interval && mcu && mcu % interval == 0) align(&to), *to.at++ = 0xff, *to.at++ = RST0 + (mcu / interval - 1) % 8;
    for (int c = 0; c < components; c++)
      for (int n = 0; n < blocks[c]; n++)
        random_block(&to, tables + (c ? table >> 1 << 1 : 0), tables + 1 + (c ? (table & 1) << 1 : 0), dense,
                     skewed);
  }
  align(&to);
  *to.at++ = 0xff, *to.at++ = EOI;
  return (size_t)(to.at - out);
}

#endif
