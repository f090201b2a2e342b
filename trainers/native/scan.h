/* Reading a baseline JPEG's coefficients at any place: see scan.c. */

#ifndef TRAINYARD_SCAN_H
#define TRAINYARD_SCAN_H

#include <stddef.h>
#include <stdint.h>

#define LOOK 11           /* bits of a code that one look-up takes; longer ones are found bit by bit */
#define MOST_BLOCKS 10    /* of an MCU (ITU-T T.81, B.2.3) */

typedef struct { /* a Huffman table (T.81, C and F.2.2.3); see `take_table` for the entries of `fast` */
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

typedef struct { /* where the data of one interval lie in `bits`, without stuffed zeros */
  size_t start, end;
} Segment;

typedef struct {
  const uint8_t *data, *stop;        /* the scan's first byte, and the file's end */
  uint8_t *header;                   /* what libjpeg needs to know, without metadata and restart interval */
  size_t header_bytes, size_at;      /* the height lies there, then the width, two bytes each */
  int width, height, components, unit_x, unit_y; /* pixels; units are what areas of MCUs are cut at */
  int mcu_x, mcu_y, across, down;    /* pixels of an MCU, and their number */
  int interval;                      /* MCUs between two restart markers: all of them where there are none */
  int blocks, of[MOST_BLOCKS];       /* blocks of an MCU, and the component of each */
  uint8_t identity[3], sampling[3], dc_of[3], ac_of[3];
  Table *dc, *ac;                    /* four of each */
  uint8_t *bits;
  Segment *segments;
  int count;                         /* of segments */
  int left, top, wide;               /* the window, in MCUs */
  /* where the reading is */
  Bits now;
  int segment, next;                 /* what comes is MCU `next` of the picture */
  int last[3];                       /* DC values to predict from */
} Scan;

/* 0, or 1 where the file is none that can be read here: not baseline, several scans, something odd. */
int scan_open(Scan *scan, const uint8_t *data, size_t bytes);

/* Choose MCUs: columns left to right, rows top to bottom, both without the last. 1 where the file's restart markers are
   not as they must be, or memory is short. */
int scan_choose(Scan *scan, int left, int top, int right, int bottom);

/* Read MCU number `n` of the chosen ones, row by row, into blocks of zeros; `blocks` may be null. 1 where data are
   damaged. Numbers grow from call to call. */
int scan_read(Scan *scan, int n, int16_t (**blocks)[64]);

void scan_close(Scan *scan);

#endif
