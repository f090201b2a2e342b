/* Cuts an area out of a JPEG and resizes it, decoding no more than that area needs.

   Rows above the area are skipped, columns beside it are not transformed, the inverse DCT itself scales by 1/2, 1/4 or
   1/8 where the area is large enough for that, and decoding stops after the last row. What is left is resized by a
   linear or cubic filter whose support grows with the scale (antialiasing), row by row as rows come in.

   All arithmetic on pixels is in integers and the exact inverse DCT is used, so the result does not depend on the
   machine. Errors of libjpeg-turbo return 1 and never end the process. */

#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>
#include <jerror.h>

#include "library.h"
#include "resize.h"
#include "scan.h"

#define MAX_PIXELS 128000000ull     /* trainyard/data/limits.py has the same: no other decoder takes more */
#define MAX_MEMORY (1l << 30)       /* of the coefficients of an image in several scans; 6 bytes a pixel as a rule */
#define MAX_SCANS 500               /* these two as in limits.py */
#define MAX_WORK 2000000000ull      /* pixels times scans */
#define MARGIN 4                    /* columns beside the area that smooth chroma upsampling looks at, and some */

typedef struct {
  struct jpeg_decompress_struct jpeg;
  struct jpeg_error_mgr errors;
  struct jpeg_progress_mgr progress;
  jmp_buf back;
  Work work;
  Scan scan;
  int mcu; /* of the window: the next one that libjpeg asks for */
} Decoder;

static void give_up(j_common_ptr jpeg) { longjmp(((Decoder *)jpeg)->back, 1); }
static void say_nothing(j_common_ptr jpeg) { (void)jpeg; }
static void note(j_common_ptr jpeg, int level) {
  if (level < 0) jpeg->err->num_warnings++;
  if (level < 0 && jpeg->err->msg_code == JWRN_JPEG_EOF) give_up(jpeg); /* cut short: grey would be trained on */
}
static void count_scans(j_common_ptr common) {
  j_decompress_ptr jpeg = (j_decompress_ptr)common;
  unsigned long long scans = jpeg->input_scan_number, pixels = (unsigned long long)jpeg->image_width * jpeg->image_height;
  if (scans > MAX_SCANS || scans * pixels > MAX_WORK) give_up(common);
}

/* Read the header; gives up on what is not one or three components of a bearable size. */
static void begin(Decoder *decoder, const uint8_t *data, size_t bytes) {
  j_decompress_ptr jpeg = &decoder->jpeg;
  /* every field is set here: jpeg_std_error would bring code that cannot be linked into a shared object statically */
  decoder->errors.error_exit = give_up;
  decoder->errors.emit_message = note;
  decoder->errors.output_message = decoder->errors.reset_error_mgr = say_nothing;
  jpeg->err = &decoder->errors;
  jpeg_create_decompress(jpeg);
  jpeg->mem->max_memory_to_use = MAX_MEMORY;
  decoder->progress.progress_monitor = count_scans;
  jpeg->progress = &decoder->progress;
  jpeg_mem_src(jpeg, (unsigned char *)data, bytes);
  jpeg_read_header(jpeg, TRUE);
  if (jpeg->num_components != 1 && jpeg->num_components != 3) give_up((j_common_ptr)jpeg);
  if ((unsigned long long)jpeg->image_width * jpeg->image_height > MAX_PIXELS) give_up((j_common_ptr)jpeg);
}

static int leave(Decoder *decoder, int code) {
  jpeg_destroy_decompress(&decoder->jpeg);
  resize_discard(&decoder->work);
  scan_close(&decoder->scan);
  free(decoder);
  return code;
}

#define TEXT(x) #x
#define TEXT_OF(x) TEXT(x)
/* The library's name and version, for the log. */
const char *trainyard_version(void) { return "libjpeg-turbo " TEXT_OF(LIBJPEG_TURBO_VERSION); }

/* size = {height, width, whether decoding holds all of it} of a JPEG; 1 where it is none that `trainyard_cut` takes. */
int trainyard_size(const uint8_t *data, size_t bytes, int *size) {
  Decoder *decoder = calloc(1, sizeof *decoder);
  if (!decoder) return 1;
  if (setjmp(decoder->back)) return leave(decoder, 1);
  begin(decoder, data, bytes);
  size[0] = (int)decoder->jpeg.image_height;
  size[1] = (int)decoder->jpeg.image_width;
  size[2] = jpeg_has_multiple_scans(&decoder->jpeg);
  return leave(decoder, 0);
}

/* By what libjpeg divides an image's sides for this box: 8, 4, 2 or 1, as far as that leaves the wanted size. */
static int denominator_of(const double *box, int size_y, int size_x) {
  int denominator = 8;
  while (denominator > 1 && (box[2] < (double)size_x * denominator || box[3] < (double)size_y * denominator))
    denominator /= 2;
  return denominator;
}

static void start(j_decompress_ptr jpeg, int denominator) {
  jpeg->scale_num = 1;
  jpeg->scale_denom = denominator;
  jpeg->out_color_space = JCS_RGB;
  jpeg->dct_method = JDCT_ISLOW;
  jpeg_start_decompress(jpeg);
}

static int scaled(int pixels, int denominator) { return (pixels + denominator - 1) / denominator; }

/* The columns of the decoded image that the filter looks at, and some beside them. */
static void columns_of(const Work *work, int columns, int *left, int *right) {
  int first = work->across.start[0], end = work->across.end;
  *left = first > MARGIN ? first - MARGIN : 0;
  *right = end + MARGIN < columns ? end + MARGIN : columns;
}

/* Read the rows that the filter needs, of which the decoder gives those from `top` and columns from `left` on. */
static void resize(Decoder *decoder, int left, int top, int size_y, int size_x, uint8_t *out) {
  j_decompress_ptr jpeg = &decoder->jpeg;
  Work *work = &decoder->work;
  if (!resize_allot(work, jpeg->output_width)) give_up((j_common_ptr)jpeg);
  int row = work->down.start[0];
  if (row > top) jpeg_skip_scanlines(jpeg, row - top);
  for (int y = 0; y < size_y; y++) {
    for (; row < work->down.start[y] + work->down.count[y]; row++) {
      JSAMPROW line = resize_ring(work, row);
      if (jpeg_read_scanlines(jpeg, &line, 1) != 1) give_up((j_common_ptr)jpeg);
    }
    resize_row(work, y, left, size_x, out);
  }
}

/* libjpeg reads everything up to the area's last row. */
static void decode(Decoder *decoder, const double *box, const int *bounds, int cubic, int size_y, int size_x,
                   uint8_t *out) {
  j_decompress_ptr jpeg = &decoder->jpeg;
  int denominator = denominator_of(box, size_y, size_x), first, end;
  start(jpeg, denominator);
  if (!resize_axes(&decoder->work, box, bounds, cubic, denominator, jpeg->output_width, jpeg->output_height, size_y,
                   size_x))
    give_up((j_common_ptr)jpeg);
  columns_of(&decoder->work, jpeg->output_width, &first, &end);
  JDIMENSION left = first, width = end - first;
  if (width < jpeg->output_width) jpeg_crop_scanline(jpeg, &left, &width);
  resize(decoder, left, 0, size_y, size_x, out);
}

struct jpeg_entropy_decoder { /* as in every version of libjpeg since 6, whose jpegint.h is not installed */
  void (*start_pass)(j_decompress_ptr);
  boolean (*decode_mcu)(j_decompress_ptr, JBLOCKROW *);
};

static boolean next_mcu(j_decompress_ptr jpeg, JBLOCKROW *blocks) {
  Decoder *decoder = (Decoder *)jpeg;
  if (scan_read(&decoder->scan, decoder->mcu++, blocks)) give_up((j_common_ptr)jpeg);
  return TRUE;
}

/* Choose the MCUs around the area, and change the header's size to theirs: {left, top} is where they begin. */
static void choose_mcus(Decoder *decoder, int denominator, int *corner) {
  Scan *scan = &decoder->scan;
  const Axis *down = &decoder->work.down;
  int left, right, columns = scaled(scan->width, denominator), rows = scaled(scan->height, denominator);
  columns_of(&decoder->work, columns, &left, &right);
  int top = down->start[0] > MARGIN ? down->start[0] - MARGIN : 0;
  int bottom = down->end + MARGIN;
  int unit_x = scan->unit_x, unit_y = scan->unit_y;
  left = left * denominator / unit_x * unit_x, top = top * denominator / unit_y * unit_y;
  right = right < columns ? scaled(right * denominator, unit_x) * unit_x : scan->width;
  bottom = bottom < rows ? scaled(bottom * denominator, unit_y) * unit_y : scan->height;
  if (right > scan->width) right = scan->width;
  if (bottom > scan->height) bottom = scan->height;
  if (scan_choose(scan, left / scan->mcu_x, top / scan->mcu_y, scaled(right, scan->mcu_x), scaled(bottom, scan->mcu_y)))
    give_up((j_common_ptr)&decoder->jpeg);
  uint8_t *size = scan->header + scan->size_at;
  size[0] = (uint8_t)((bottom - top) >> 8), size[1] = (uint8_t)(bottom - top);
  size[2] = (uint8_t)((right - left) >> 8), size[3] = (uint8_t)(right - left);
  corner[0] = left / denominator, corner[1] = top / denominator;
}

/* libjpeg gets a header of the size of the area's MCUs, and asks us for their coefficients, which come from the
   segments that hold them. The filter is computed for the whole image: its weights must be the same to the last bit. */
static void decode_window(Decoder *decoder, const uint8_t *data, size_t bytes, const double *box, const int *bounds,
                          int cubic, int size_y, int size_x, uint8_t *out) {
  Scan *scan = &decoder->scan;
  int denominator = denominator_of(box, size_y, size_x), corner[2];
  if (scan_open(scan, data, bytes) ||
      !resize_axes(&decoder->work, box, bounds, cubic, denominator, scaled(scan->width, denominator),
                   scaled(scan->height, denominator), size_y, size_x))
    longjmp(decoder->back, 1);
  choose_mcus(decoder, denominator, corner);
  begin(decoder, scan->header, scan->header_bytes);
  start(&decoder->jpeg, denominator);
  decoder->jpeg.entropy->decode_mcu = next_mcu;
  resize(decoder, corner[0], corner[1], size_y, size_x, out);
}

static enum { BOTH, LIBJPEG, WINDOW } ways; /* set by tests: only libjpeg's reading, or only ours */
void trainyard_ways(int which) { ways = which; }

static int cut_window(const uint8_t *data, size_t bytes, const double *box, const int *bounds, int cubic, int size_y,
                      int size_x, uint8_t *out) {
  Decoder *decoder = calloc(1, sizeof *decoder);
  if (!decoder) return 1;
  if (setjmp(decoder->back)) return leave(decoder, 1);
  decode_window(decoder, data, bytes, box, bounds, cubic, size_y, size_x, out);
  return leave(decoder, 0);
}

/* Resize the area `box` = {left, top, width, height} of a JPEG, in its own pixels, to size_y x size_x RGB pixels.
   No pixel outside of `bounds` = {left, top, right, bottom} counts; `cubic` names the filter. 0, or 1 where this
   decoder cannot. */
int trainyard_cut(const uint8_t *data, size_t bytes, const double *box, const int *bounds, int cubic, int size_y,
                  int size_x, uint8_t *out) {
  if (ways != LIBJPEG && !cut_window(data, bytes, box, bounds, cubic, size_y, size_x, out)) return 0;
  if (ways == WINDOW) return 1;
  Decoder *decoder = calloc(1, sizeof *decoder);
  if (!decoder) return 1;
  if (setjmp(decoder->back)) return leave(decoder, 1);
  begin(decoder, data, bytes);
  decode(decoder, box, bounds, cubic, size_y, size_x, out);
  return leave(decoder, 0);
}
