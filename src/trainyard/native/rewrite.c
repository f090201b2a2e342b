/* Rewrites a JPEG without a change to its pixels, so that scan.c can read areas of it: baseline, one scan, Huffman tables
   made for the picture, restart markers. Coefficients, quantization tables and metadata stay as they are.

   What comes out is read again and compared with what went in. Whatever is not certain to give the same pixels (damage
   that decoders patch up, progressive scans that are missing, which they smooth over) is refused. */

#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#include "library.h"
#include "scan.h"

#define MAX_PIXELS (1ull << 24) /* all coefficients are in memory: up to 6 bytes a pixel */
#define MAX_MEMORY (1l << 30)
#define MAX_SCANS 500         /* these two as in trainyard/data/limits.py */
#define MAX_WORK 2000000000ull /* pixels times scans */

/* A restart marker costs about 4.5 bytes: itself, bits that fill a byte, and DC values that are not differences. Where
   an area begins inside of an interval, what lies before it is read in vain. */
#define MARKER_BYTES 9 / 2
#define SHARE 64           /* of a file's bytes, markers take 1/SHARE at most */
#define SHORTEST 3         /* MCUs */

enum { REWRITTEN, NO_JPEG, OTHER_KIND, DAMAGED, INEXACT, TOO_LARGE };

typedef struct {
  struct jpeg_error_mgr manager; /* first: what libjpeg points to is this */
  struct jpeg_progress_mgr progress;
  jmp_buf back;
  int meaning; /* of an error: why the file stays as it is */
} Errors;

typedef struct {
  Errors errors;
  struct jpeg_decompress_struct from, check;
  struct jpeg_compress_struct to;
  struct jpeg_destination_mgr place;
  Scan scan;
  uint8_t *out;
  size_t bytes;
} Rewriter;

static void give_up(j_common_ptr jpeg) { longjmp(((Errors *)jpeg->err)->back, 1); }
static void say_nothing(j_common_ptr jpeg) { (void)jpeg; }
static void count_warnings(j_common_ptr jpeg, int level) { jpeg->err->num_warnings += level < 0; }
static void count_scans(j_common_ptr common) {
  j_decompress_ptr jpeg = (j_decompress_ptr)common;
  unsigned long long scans = jpeg->input_scan_number, pixels = (unsigned long long)jpeg->image_width * jpeg->image_height;
  if (scans > MAX_SCANS || scans * pixels > MAX_WORK) give_up(common);
}

/* libjpeg writes to the caller's memory: its own growing buffer (jpeg_mem_dest) is lost, and freed twice, at an error. */
static void need_nothing(j_compress_ptr jpeg) { (void)jpeg; }
static boolean end_of_room(j_compress_ptr jpeg) {
  ((Errors *)jpeg->err)->meaning = TOO_LARGE;
  give_up((j_common_ptr)jpeg);
  return FALSE;
}

/* Every field is set here: jpeg_std_error would bring code that cannot be linked into a shared object statically. */
static void set_errors(Errors *errors) {
  errors->manager.error_exit = give_up;
  errors->manager.emit_message = count_warnings;
  errors->manager.output_message = errors->manager.reset_error_mgr = say_nothing;
  errors->progress.progress_monitor = count_scans;
}

static void open_source(Rewriter *all, j_decompress_ptr jpeg, const uint8_t *data, size_t bytes) {
  jpeg->err = &all->errors.manager;
  jpeg_create_decompress(jpeg);
  jpeg->mem->max_memory_to_use = MAX_MEMORY;
  jpeg->progress = &all->errors.progress;
  jpeg_mem_src(jpeg, (unsigned char *)data, bytes);
}

/* Whether chroma can be enlarged to the picture's size; where it takes a fraction, no decoder of ours does. */
static int whole_sampling(j_decompress_ptr jpeg) {
  for (int c = 0; c < jpeg->num_components; c++)
    if (jpeg->max_h_samp_factor % jpeg->comp_info[c].h_samp_factor ||
        jpeg->max_v_samp_factor % jpeg->comp_info[c].v_samp_factor)
      return 0;
  return 1;
}

static int right_kind(j_decompress_ptr jpeg) {
  return whole_sampling(jpeg) && (jpeg->num_components == 1 || jpeg->num_components == 3) && jpeg->data_precision == 8 && !jpeg->arith_code;
}

/* Whether each coefficient of a progressive file was sent to its last bit; what was not, decoders smooth over. */
static int complete(j_decompress_ptr jpeg) {
  for (int c = 0; jpeg->coef_bits && c < jpeg->num_components; c++)
    for (int k = 0; k < DCTSIZE2; k++)
      if (jpeg->coef_bits[c][k]) return 0;
  return 1;
}

/* MCUs between two markers: as few as the markers' share of the file allows, a row of the picture at most. */
static int interval_for(j_decompress_ptr jpeg, size_t bytes) {
  int wide = 8 * (jpeg->num_components == 1 ? 1 : jpeg->max_h_samp_factor);
  int tall = 8 * (jpeg->num_components == 1 ? 1 : jpeg->max_v_samp_factor);
  uint64_t across = (jpeg->image_width + wide - 1) / wide, down = (jpeg->image_height + tall - 1) / tall;
  uint64_t interval = across * down * MARKER_BYTES * SHARE / bytes + 1;
  if (interval < SHORTEST) interval = SHORTEST;
  return (int)(interval < across ? interval : across);
}

static void write_out(Rewriter *all, jvirt_barray_ptr *coefficients, int interval, size_t room) {
  j_compress_ptr to = &all->to;
  to->err = &all->errors.manager;
  jpeg_create_compress(to);
  all->place = (struct jpeg_destination_mgr){all->out, room, need_nothing, end_of_room, need_nothing};
  to->dest = &all->place;
  if (!room) end_of_room(to); /* libjpeg asks only after a byte */
  jpeg_copy_critical_parameters(&all->from, to);
  to->write_JFIF_header = to->write_Adobe_marker = FALSE; /* they are among the markers, as they were */
  to->optimize_coding = TRUE;
  to->restart_interval = (unsigned)interval;
  jpeg_write_coefficients(to, coefficients);
  for (jpeg_saved_marker_ptr one = all->from.marker_list; one; one = one->next)
    jpeg_write_marker(to, one->marker, one->data, one->data_length);
  jpeg_finish_compress(to);
  all->bytes = room - all->place.free_in_buffer;
}

/* Whether libjpeg takes the written header as it took the source's. */
static int same_header(Rewriter *all) {
  j_decompress_ptr from = &all->from, check = &all->check;
  open_source(all, check, all->out, all->bytes);
  jpeg_read_header(check, TRUE);
  int same = from->image_width == check->image_width && from->image_height == check->image_height &&
             from->num_components == check->num_components && from->jpeg_color_space == check->jpeg_color_space;
  for (int c = 0; same && c < from->num_components; c++) {
    jpeg_component_info *one = from->comp_info + c, *other = check->comp_info + c;
    JQUANT_TBL *table = check->quant_tbl_ptrs[other->quant_tbl_no];
    same = one->h_samp_factor == other->h_samp_factor && one->v_samp_factor == other->v_samp_factor && table &&
           one->quant_table && !memcmp(one->quant_table->quantval, table->quantval, sizeof table->quantval);
  }
  return same;
}

/* Compare the blocks of one MCU with the source's, without those beyond its edges. */
static int same_mcu(Rewriter *all, JBLOCKARRAY *rows, int column, int row, int16_t (*blocks)[64]) {
  for (int c = 0, b = 0; c < all->from.num_components; c++) {
    jpeg_component_info *one = all->from.comp_info + c;
    int wide = all->from.num_components == 1 ? 1 : one->h_samp_factor;
    int tall = all->from.num_components == 1 ? 1 : one->v_samp_factor;
    for (int i = 0; i < wide * tall; i++, b++) {
      JDIMENSION x = column * wide + i % wide, y = row * tall + i / wide;
      if (x >= one->width_in_blocks || y >= one->height_in_blocks) continue;
      if (memcmp(rows[c][i / wide][x], blocks[b], sizeof *blocks)) return 0;
    }
  }
  return 1;
}

static int same_coefficients(Rewriter *all, jvirt_barray_ptr *coefficients) {
  Scan *scan = &all->scan;
  j_decompress_ptr from = &all->from;
  if (scan_open(scan, all->out, all->bytes) || scan_choose(scan, 0, 0, scan->across, scan->down)) return 0;
  int16_t blocks[MOST_BLOCKS][64], (*places[MOST_BLOCKS])[64];
  for (int b = 0; b < MOST_BLOCKS; b++) places[b] = blocks + b;
  for (int row = 0; row < scan->down; row++) {
    JBLOCKARRAY rows[3];
    for (int c = 0; c < from->num_components; c++) {
      int tall = from->num_components == 1 ? 1 : from->comp_info[c].v_samp_factor;
      rows[c] = from->mem->access_virt_barray((j_common_ptr)from, coefficients[c], row * tall, tall, FALSE);
    }
    for (int column = 0; column < scan->across; column++) {
      memset(blocks, 0, sizeof *blocks * scan->unit.blocks);
      if (scan_read(scan, row * scan->across + column, places)) return 0;
      if (!same_mcu(all, rows, column, row, blocks)) return 0;
    }
  }
  return 1;
}

static int rewrite(Rewriter *all, const uint8_t *data, size_t bytes, int interval, size_t room) {
  j_decompress_ptr from = &all->from;
  all->errors.meaning = NO_JPEG;
  open_source(all, from, data, bytes);
  for (int marker = 0; marker < 16; marker++) jpeg_save_markers(from, JPEG_APP0 + marker, 0xffff);
  jpeg_save_markers(from, JPEG_COM, 0xffff);
  jpeg_read_header(from, TRUE);
  if (!right_kind(from)) return OTHER_KIND;
  if ((unsigned long long)from->image_width * from->image_height > MAX_PIXELS) return TOO_LARGE;
  all->errors.meaning = DAMAGED;
  jvirt_barray_ptr *coefficients = jpeg_read_coefficients(from);
  if (all->errors.manager.num_warnings || !complete(from)) return DAMAGED;
  all->errors.meaning = INEXACT;
  write_out(all, coefficients, interval ? interval : interval_for(from, bytes), room);
  return same_header(all) && same_coefficients(all, coefficients) ? REWRITTEN : INEXACT;
}

/* Rewrite a JPEG into `out`, which has room for *room bytes; *room becomes the bytes taken. `interval`: MCUs between
   restart markers, 0 chooses. Returns 0, or why the file has to stay as it is: 1 no JPEG, 2 a kind that is not taken
   (CMYK, 12 bits, arithmetic coding, fractional sampling), 3 damaged or incomplete, 4 no exact copy was possible, 5 too
   large. */
int trainyard_rewrite(const uint8_t *data, size_t bytes, int interval, uint8_t *out, size_t *room) {
  Rewriter *all = calloc(1, sizeof *all);
  if (!all) return TOO_LARGE;
  int code;
  all->out = out;
  set_errors(&all->errors);
  if (setjmp(all->errors.back)) code = all->errors.meaning;
  else code = rewrite(all, data, bytes, interval, *room);
  if (code == REWRITTEN) *room = all->bytes;
  jpeg_destroy_decompress(&all->from);
  jpeg_destroy_decompress(&all->check);
  jpeg_destroy_compress(&all->to);
  scan_close(&all->scan);
  free(all);
  return code;
}
