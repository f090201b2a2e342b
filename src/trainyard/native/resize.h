/* Resizing an area of RGB pixels, row by row as rows come in: see resize.c. */

#ifndef TRAINYARD_RESIZE_H
#define TRAINYARD_RESIZE_H

#include <stddef.h>
#include <stdint.h>

#define GROUP 4 /* outputs that are computed at once across */

typedef struct { /* the filter along one axis: output i is made of count[i] inputs from start[i] on */
  int *start, *count, most;
  int end;          /* behind the last input of all outputs: not always the last output's, whose trailing zeros are cut */
  int16_t *weights; /* `most` for each output, a multiple of 4; zeros after the last */
  int *pairs;       /* of each group of outputs: pairs of inputs that its longest output needs */
  int16_t *spread;  /* of each group and pair: the weights of each output in turn, four times */
} Axis;

typedef struct {
  Axis across, down;
  uint8_t *ring;   /* the last `down.most` rows read */
  int16_t *mid;    /* one row after the vertical pass */
  const uint8_t **rows;
  size_t stride;
} Work;

/* Compute both filters for the area `box`, of an image of `columns` x `rows` pixels that is `denominator` times
   smaller than `box` and `bounds` take it for. 0 where no pixel of it counts, or memory is short. */
int resize_axes(Work *work, const double *box, const int *bounds, int cubic, int denominator, int columns, int rows,
                int size_y, int size_x);

/* Room for rows of `columns` pixels. 0 where memory is short. */
int resize_allot(Work *work, size_t columns);

uint8_t *resize_ring(const Work *work, int row);

/* One row of the result; the rows it is made of are in the ring, whose first pixel is column `first`. */
void resize_row(Work *work, int y, int first, int size_x, uint8_t *out);

void resize_discard(Work *work);

#endif
