/* Huffman codes of a baseline JPEG, and the blocks of coefficients that they stand for: see huffman.c. */

#ifndef TRAINYARD_HUFFMAN_H
#define TRAINYARD_HUFFMAN_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LOOK 11           /* bits of a code that one look-up takes; longer ones are found bit by bit */
#define MOST_BLOCKS 10    /* of an MCU (ITU-T T.81, B.2.3) */
#define PADDING 4096      /* bytes that must lie behind a lane's `stop`: more than a block can take */

typedef struct { /* a Huffman table (T.81, C and F.2.2.3); see `take_code` for the entries of `fast` */
  uint32_t fast[1 << LOOK];
  int32_t most[18], first[18]; /* by length: the largest code, and what to add to one for its place in `symbols` */
  uint8_t symbols[256];
  int known;
} Table;

typedef struct { /* where reading bits is: the next ones, from the highest on, of which `held` are valid */
  const uint8_t *at;
  uint64_t ahead;
  int held;
} Bits;

typedef struct { /* the blocks of an MCU: each one's component and tables */
  int blocks, component[MOST_BLOCKS];
  const Table *dc[MOST_BLOCKS], *ac[MOST_BLOCKS];
} Unit;

typedef struct { /* reads blocks one after the other */
  const Unit *unit;
  Bits now;
  const uint8_t *stop;    /* where the data end */
  int block, todo;        /* the current one, of its MCU; and how many are to be read with it */
  const Table *ac;        /* of the current block */
  unsigned k;             /* coefficients of it that are known; 64 and more: all */
  int16_t *out;           /* where they go */
  int apart;              /* from there to where the next block's go */
  int last[3];            /* DC values to predict from */
} Lane;

/* At least 56 bits ahead; reads 8 bytes. */
static inline void fill_bits(Bits *now) {
  uint64_t more;
  memcpy(&more, now->at, sizeof more);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  more = __builtin_bswap64(more);
#endif
  now->ahead |= more >> now->held;
  now->at += (63 - now->held) >> 3;
  now->held |= 56;
}

static inline void consume_bits(Bits *now, int bits) {
  now->ahead <<= bits;
  now->held -= bits;
}

/* Bits between where reading is and where the data end: less than none where it went too far. */
static inline ptrdiff_t bits_left(const Bits *now, const uint8_t *stop) { return (stop - now->at) * 8 + now->held; }

/* Where a block's coefficients lie, in the order of their codes. */
extern const uint8_t huffman_order[];

/* Take a DHT segment: `dc` and `ac` are four tables each. 1 where it is wrong. */
int huffman_tables(Table *dc, Table *ac, const uint8_t *from, size_t bytes);

/* Start a lane at `from`, with an MCU's first block and DC predictions of zero. */
void lane_start(Lane *lane, const Unit *unit, const uint8_t *from, const uint8_t *stop);

/* Make the lane read so many more MCUs, into blocks of zeros from `out` on, which lie `apart` numbers from each other.
   1 where data are damaged. */
int lane_ask(Lane *lane, int mcus, int16_t *out, int apart);

/* Read what two lanes were asked for, or one. 1 where data are damaged. */
int lanes_read(Lane *a, Lane *b);
int lane_read(Lane *lane);

/* Whether two lanes that begin a block and were asked for as much have the same numbers, code by code. Nothing is kept of
   these: `apart` must be 0. Not where data are damaged, and not where one says the same in other codes. */
int lanes_agree(Lane *a, Lane *b);

#endif
