/* Reading a baseline JPEG's coefficients at any place: see scan.c. */

#ifndef TRAINYARD_SCAN_H
#define TRAINYARD_SCAN_H

#include "huffman.h"

typedef struct { /* where the data of one interval lie in `bits`, without stuffed zeros */
  size_t start, end; /* equal where it holds no byte */
  int wanted;        /* it holds chosen MCUs; those of others lie nowhere */
} Segment;

typedef struct {
  const uint8_t *data, *stop;        /* the scan's first byte, and the file's end */
  uint8_t *header;                   /* what libjpeg needs to know, without metadata and restart interval */
  size_t header_bytes, size_at;      /* the height lies there, then the width, two bytes each */
  int width, height, components, unit_x, unit_y; /* pixels; units are what areas of MCUs are cut at */
  int mcu_x, mcu_y, across, down;    /* pixels of an MCU, and their number */
  int interval;                      /* MCUs between two restart markers: all of them where there are none */
  uint8_t identity[3], sampling[3];
  Unit unit;
  Table *dc, *ac;                    /* four of each */
  uint8_t *bits;
  Segment *segments;
  int count;                         /* of segments */
  int left, top, wide;               /* the window, in MCUs */
  Lane lane[2];
  int16_t *store;                    /* coefficients that were read, of one MCU or of two intervals: */
  int stored[2];                     /* the segments that they are of */
  int next;                          /* where intervals are long: the MCU that comes next */
} Scan;

/* 0, or 1 where the file is none that can be read here: not baseline, several scans, something odd. */
int scan_open(Scan *scan, const uint8_t *data, size_t bytes);

/* Choose MCUs: columns left to right, rows top to bottom, both without the last. 1 where the file's restart markers are
   not as they must be, or memory is short. */
int scan_choose(Scan *scan, int left, int top, int right, int bottom);

/* Read MCU number `n` of the chosen ones, row by row, into blocks of zeros; `blocks` may be null. 1 where data are
   damaged. Numbers grow from call to call. */
int scan_read(Scan *scan, int n, int16_t (**blocks)[64]);

/* Start a lane where a chosen segment's data begin. */
void scan_enter(const Scan *scan, Lane *lane, int segment);

void scan_close(Scan *scan);

#endif
