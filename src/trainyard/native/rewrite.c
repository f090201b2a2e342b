/* Rewrites a JPEG without a change to its pixels, so that scan.c can read areas of it: baseline, one scan, Huffman tables
   made for the image, restart markers. Coefficients, quantization tables and metadata stay as they are.

   Symbols are copied without computing coefficients (symbols.c) where scan.c takes the file; libjpeg reads all others.
   What comes out is read again and compared with what went in: with the coefficients that training would have read of it.
   Whatever is not certain to give the same pixels (damage that decoders patch up, progressive scans that are missing,
   which they smooth over) is refused. */

#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#include "encode.h"
#include "library.h"

#define MAX_PIXELS (1ull << 24) /* in memory are all symbols, 12 bytes a pixel at most; or coefficients, too */
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
  Scan source, scan; /* of what goes in, where scan.c takes it, and of what comes out */
  Grid grid;
  Symbols symbols;
  Coding coding;
  Output output;
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

/* Whether chroma can be enlarged to the image's size; where it takes a fraction, no decoder of ours does. */
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

/* MCUs between two markers: as few as the markers' share of the file allows, a row of the image at most. */
static int interval_for(const Grid *grid, size_t bytes) {
  uint64_t across = (uint64_t)grid->across, interval = across * grid->down * MARKER_BYTES * SHARE / bytes + 1;
  if (interval < SHORTEST) interval = SHORTEST;
  return (int)(interval < across ? interval : across);
}

static void set_grid(Grid *grid, j_decompress_ptr jpeg, int interval, size_t bytes) {
  int one = jpeg->num_components == 1; /* MCUs are blocks then, whatever its sampling */
  int wide = 8 * (one ? 1 : jpeg->max_h_samp_factor), tall = 8 * (one ? 1 : jpeg->max_v_samp_factor);
  grid->components = jpeg->num_components;
  grid->across = ((int)jpeg->image_width + wide - 1) / wide, grid->down = ((int)jpeg->image_height + tall - 1) / tall;
  for (int c = 0; c < grid->components; c++) {
    jpeg_component_info *component = jpeg->comp_info + c;
    grid->wide[c] = one ? 1 : component->h_samp_factor, grid->tall[c] = one ? 1 : component->v_samp_factor;
    grid->columns[c] = (int)component->width_in_blocks, grid->rows[c] = (int)component->height_in_blocks;
    grid->table[c] = c > 0 && jpeg->jpeg_color_space == JCS_YCbCr; /* as libjpeg has it, so that bytes stay the same */
  }
  grid->interval = interval ? interval : interval_for(grid, bytes);
}

/* List a file's symbols by scan.c. 1 where it does not take the file, or something about it is unusual. */
static int list_directly(Rewriter *all, const uint8_t *data, size_t bytes) {
  Scan *scan = &all->source;
  if (scan_open(scan, data, bytes) || scan->across != all->grid.across || scan->down != all->grid.down) return 1;
  return scan_choose(scan, 0, 0, scan->across, scan->down) || symbols_read(&all->symbols, scan);
}

/* The rows of blocks of each component that a row of MCUs is made of. */
static void rows_of(Rewriter *all, jvirt_barray_ptr *coefficients, int row, JBLOCKARRAY *rows) {
  j_decompress_ptr from = &all->from;
  for (int c = 0; c < all->grid.components; c++) {
    int tall = all->grid.tall[c];
    rows[c] = from->mem->access_virt_barray((j_common_ptr)from, coefficients[c], row * tall, tall, FALSE);
  }
}

/* List the symbols of coefficients. 1 where no baseline JPEG has them. */
static int list_coefficients(Rewriter *all, jvirt_barray_ptr *coefficients) {
  const Grid *grid = &all->grid;
  for (int row = 0, mcu = 0; row < grid->down; row++) {
    JBLOCKARRAY rows[3];
    rows_of(all, coefficients, row, rows);
    for (int column = 0; column < grid->across; column++) {
      symbols_begin_mcu(&all->symbols, mcu++);
      for (int c = 0; c < grid->components; c++)
        for (int i = 0; i < grid->wide[c] * grid->tall[c]; i++) {
          int16_t *block = NULL;
          if (!is_padding(grid, c, i, column, row))
            block = rows[c][i / grid->wide[c]][column * grid->wide[c] + i % grid->wide[c]];
          if (symbols_add(&all->symbols, c, block)) return 1;
        }
    }
  }
  symbols_end(&all->symbols);
  return 0;
}

/* A marker and its segment's length, for so many bytes. */
static void put_marker(Output *output, int marker, size_t bytes) {
  uint8_t head[] = {0xff, (uint8_t)marker, (uint8_t)((bytes + 2) >> 8), (uint8_t)(bytes + 2)};
  output_put(output, head, sizeof head);
}

static const JQUANT_TBL *quantization(j_decompress_ptr jpeg, int c) {
  int number = jpeg->comp_info[c].quant_tbl_no;
  return number < 0 || number >= NUM_QUANT_TBLS ? NULL : jpeg->quant_tbl_ptrs[number];
}

/* Write each quantization table once. Whether one needs 16 bits. */
static int put_quantization(Output *output, j_decompress_ptr jpeg) {
  int long_ones = 0;
  for (int c = 0; c < jpeg->num_components; c++) {
    const JQUANT_TBL *table = quantization(jpeg, c);
    uint8_t numbers[1 + 2 * DCTSIZE2];
    size_t bytes = 1;
    int long_one = 0, written = 0;
    for (int k = 0; k < DCTSIZE2; k++) long_one |= table->quantval[k] > 255;
    for (int before = 0; before < c; before++) written |= quantization(jpeg, before) == table;
    for (int k = 0; k < DCTSIZE2; k++) {
      int number = table->quantval[huffman_order[k]];
      if (long_one) numbers[bytes++] = (uint8_t)(number >> 8);
      numbers[bytes++] = (uint8_t)number;
    }
    numbers[0] = (uint8_t)(long_one << 4 | jpeg->comp_info[c].quant_tbl_no);
    long_ones |= long_one;
    if (written) continue;
    put_marker(output, 0xdb, bytes);
    output_put(output, numbers, bytes);
  }
  return long_ones;
}

static void put_frame(Output *output, j_decompress_ptr jpeg, int marker) {
  uint8_t frame[6 + 3 * 3] = {8, (uint8_t)(jpeg->image_height >> 8), (uint8_t)jpeg->image_height,
                              (uint8_t)(jpeg->image_width >> 8), (uint8_t)jpeg->image_width,
                              (uint8_t)jpeg->num_components};
  size_t bytes = 6;
  for (int c = 0; c < jpeg->num_components; c++) {
    jpeg_component_info *one = jpeg->comp_info + c;
    frame[bytes++] = (uint8_t)one->component_id;
    frame[bytes++] = (uint8_t)(one->h_samp_factor << 4 | one->v_samp_factor);
    frame[bytes++] = (uint8_t)one->quant_tbl_no;
  }
  put_marker(output, marker, bytes);
  output_put(output, frame, bytes);
}

static void put_tables(Output *output, const Coding *coding) {
  for (int k = 0; k < 4; k++) {
    const Tailored *table = coding->table + k;
    if (!table->count) continue;
    put_marker(output, 0xc4, 17 + (size_t)table->count);
    output_put(output, (uint8_t[]){(uint8_t)(k % 2 << 4 | k / 2)}, 1);
    output_put(output, table->lengths + 1, 16);
    output_put(output, table->symbols, (size_t)table->count);
  }
}

static void put_scan(Output *output, j_decompress_ptr jpeg, const Grid *grid) {
  put_marker(output, 0xdd, 2);
  output_put(output, (uint8_t[]){(uint8_t)(grid->interval >> 8), (uint8_t)grid->interval}, 2);
  put_marker(output, 0xda, 4 + 2 * (size_t)grid->components);
  output_put(output, (uint8_t[]){(uint8_t)grid->components}, 1);
  for (int c = 0; c < grid->components; c++)
    output_put(output, (uint8_t[]){(uint8_t)jpeg->comp_info[c].component_id, (uint8_t)(grid->table[c] * 0x11)}, 2);
  output_put(output, (uint8_t[]){0, 63, 0}, 3);
}

/* Write the file as libjpeg would. 1 where its symbols have no codes, or `out` no room. */
static int write_out(Rewriter *all, size_t room) {
  j_decompress_ptr from = &all->from;
  Output *output = &all->output;
  *output = (Output){all->out, all->out + room, 0};
  if (coding_make(&all->coding, &all->symbols)) return 1;
  output_put(output, (uint8_t[]){0xff, 0xd8}, 2);
  for (jpeg_saved_marker_ptr one = from->marker_list; one; one = one->next) {
    put_marker(output, one->marker, one->data_length);
    output_put(output, one->data, one->data_length);
  }
  put_frame(output, from, put_quantization(output, from) ? 0xc1 : 0xc0);
  put_tables(output, &all->coding);
  put_scan(output, from, &all->grid);
  encode_symbols(output, &all->symbols, &all->coding);
  output_put(output, (uint8_t[]){0xff, 0xd9}, 2);
  all->bytes = (size_t)(output->at - all->out);
  return output->full;
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
    const JQUANT_TBL *table = quantization(from, c), *written = quantization(check, c);
    same = one->h_samp_factor == other->h_samp_factor && one->v_samp_factor == other->v_samp_factor && table && written &&
           !memcmp(table->quantval, written->quantval, sizeof table->quantval);
  }
  return same;
}

/* Compare MCUs at an edge, without blocks beyond it. */
static int same_mcu(const Grid *grid, int mcu, int16_t (*one)[64], int16_t (*other)[64]) {
  int column = mcu % grid->across, row = mcu / grid->across;
  for (int c = 0, b = 0; c < grid->components; c++)
    for (int i = 0; i < grid->wide[c] * grid->tall[c]; i++, b++)
      if (!is_padding(grid, c, i, column, row) && memcmp(one[b], other[b], sizeof *one)) return 0;
  return 1;
}

/* Read both files side by side, and compare them: symbol by symbol, at edges by blocks, whose padding may differ. */
static int same_scans(Rewriter *all) {
  const Grid *grid = &all->grid;
  const Scan *scans[] = {&all->source, &all->scan};
  Lane lanes[2];
  int16_t blocks[2][MOST_BLOCKS][64];
  if (all->source.unit.blocks != all->scan.unit.blocks) return 0;
  for (int mcu = 0; mcu < grid->across * grid->down; mcu++) {
    int at_edge = (mcu + 1) % grid->across == 0 || mcu / grid->across + 1 == grid->down;
    for (int k = 0; k < 2; k++) {
      if (mcu % scans[k]->interval == 0) scan_enter(scans[k], lanes + k, mcu / scans[k]->interval);
      if (at_edge) memset(blocks[k], 0, sizeof blocks[k]);
      if (lane_ask(lanes + k, 1, *blocks[k], at_edge ? 64 : 0)) return 0;
    }
    if (!at_edge && !lanes_agree(lanes, lanes + 1)) return 0;
    if (at_edge && (lanes_read(lanes, lanes + 1) || !same_mcu(grid, mcu, blocks[0], blocks[1]))) return 0;
  }
  return 1;
}

/* Compare the written file's coefficients with those that libjpeg read. */
static int same_coefficients(Rewriter *all, jvirt_barray_ptr *coefficients) {
  const Grid *grid = &all->grid;
  int16_t blocks[MOST_BLOCKS][64], (*places[MOST_BLOCKS])[64];
  for (int b = 0; b < MOST_BLOCKS; b++) places[b] = blocks + b;
  for (int row = 0, mcu = 0; row < grid->down; row++) {
    JBLOCKARRAY rows[3];
    rows_of(all, coefficients, row, rows);
    for (int column = 0; column < grid->across; column++) {
      if (scan_read(&all->scan, mcu++, places)) return 0;
      for (int c = 0, b = 0; c < grid->components; c++)
        for (int i = 0; i < grid->wide[c] * grid->tall[c]; i++, b++) {
          if (is_padding(grid, c, i, column, row)) continue;
          int16_t *block = rows[c][i / grid->wide[c]][column * grid->wide[c] + i % grid->wide[c]];
          if (memcmp(block, blocks[b], sizeof *blocks)) return 0;
        }
    }
  }
  return 1;
}

/* Read what was written, whole, as training reads it; `coefficients` are null where libjpeg has read none. */
static int same(Rewriter *all, jvirt_barray_ptr *coefficients) {
  Scan *scan = &all->scan;
  if (!same_header(all) || scan_open(scan, all->out, all->bytes)) return 0;
  if (scan->across != all->grid.across || scan->down != all->grid.down) return 0;
  if (scan_choose(scan, 0, 0, scan->across, scan->down)) return 0;
  return coefficients ? same_coefficients(all, coefficients) : same_scans(all);
}

/* Whether each component's table is the one that its scans were read with: a file may replace tables between scans. */
static int same_tables(j_decompress_ptr jpeg) {
  for (int c = 0; c < jpeg->num_components; c++) {
    const JQUANT_TBL *table = quantization(jpeg, c), *used = jpeg->comp_info[c].quant_table;
    if (!table || (used && memcmp(table->quantval, used->quantval, sizeof table->quantval))) return 0;
  }
  return 1;
}

/* Write what is listed, and read it again. */
static int write_and_check(Rewriter *all, jvirt_barray_ptr *coefficients, size_t room) {
  all->errors.meaning = INEXACT;
  if (!same_tables(&all->from)) return INEXACT;
  if (write_out(all, room)) return all->output.full ? TOO_LARGE : INEXACT;
  return same(all, coefficients) ? REWRITTEN : INEXACT;
}

/* Copy a file's symbols. INEXACT where that is not possible: libjpeg knows whether it is in another way. */
static int rewrite_symbols(Rewriter *all, const uint8_t *data, size_t bytes, size_t room) {
  if (symbols_open(&all->symbols, &all->grid)) return TOO_LARGE;
  if (all->errors.manager.num_warnings || list_directly(all, data, bytes)) return INEXACT;
  return write_and_check(all, NULL, room);
}

static int rewrite_coefficients(Rewriter *all, size_t room) {
  j_decompress_ptr from = &all->from;
  all->errors.meaning = DAMAGED;
  jvirt_barray_ptr *coefficients = jpeg_read_coefficients(from);
  if (all->errors.manager.num_warnings || !complete(from)) return DAMAGED;
  if (symbols_open(&all->symbols, &all->grid)) return TOO_LARGE;
  return list_coefficients(all, coefficients) ? INEXACT : write_and_check(all, coefficients, room);
}

static void discard(Rewriter *all) {
  jpeg_destroy_decompress(&all->check);
  symbols_close(&all->symbols);
  scan_close(&all->source);
  scan_close(&all->scan);
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
  set_grid(&all->grid, from, interval, bytes);
  int code = rewrite_symbols(all, data, bytes, room);
  if (code != INEXACT) return code;
  discard(all);
  return rewrite_coefficients(all, room);
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
  discard(all);
  free(all);
  return code;
}
