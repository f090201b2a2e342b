/* Rewrites a JPEG by libjpeg alone: its coefficients are read, and written with optimized tables and restart markers. What
   trainyard_rewrite gives must be the same, byte for byte. */

#ifndef TRAINYARD_REFERENCE_REWRITE_H
#define TRAINYARD_REFERENCE_REWRITE_H

#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <jpeglib.h>

typedef struct {
  struct jpeg_error_mgr manager; /* first: what libjpeg points to is this */
  struct jpeg_progress_mgr progress;
  jmp_buf back;
  int code; /* what an error means */
} Reference;

static void reference_error(j_common_ptr jpeg) { longjmp(((Reference *)jpeg->err)->back, 1); }
static void reference_silence(j_common_ptr jpeg) { (void)jpeg; }
static void reference_warning(j_common_ptr jpeg, int level) { jpeg->err->num_warnings += level < 0; }
static void reference_no_call(j_compress_ptr jpeg) { (void)jpeg; }
static void reference_scans(j_common_ptr common) {
  j_decompress_ptr jpeg = (j_decompress_ptr)common;
  unsigned long long scans = jpeg->input_scan_number, pixels = (unsigned long long)jpeg->image_width * jpeg->image_height;
  if (scans > 500 || scans * pixels > 2000000000ull) reference_error(common);
}
static boolean reference_full(j_compress_ptr jpeg) {
  ((Reference *)jpeg->err)->code = 5;
  reference_error((j_common_ptr)jpeg);
  return FALSE;
}

static int reference_interval(j_decompress_ptr jpeg, size_t bytes) {
  unsigned wide = jpeg->num_components == 1 ? 8 : 8 * jpeg->max_h_samp_factor;
  unsigned tall = jpeg->num_components == 1 ? 8 : 8 * jpeg->max_v_samp_factor;
  uint64_t across = (jpeg->image_width + wide - 1) / wide, down = (jpeg->image_height + tall - 1) / tall;
  uint64_t interval = across * down * 9 / 2 * 64 / bytes + 1;
  if (interval < 3) interval = 3;
  return (int)(interval < across ? interval : across);
}

static int reference_kind(j_decompress_ptr jpeg) {
  int fractions = 0;
  for (int c = 0; c < jpeg->num_components; c++)
    fractions |= jpeg->max_h_samp_factor % jpeg->comp_info[c].h_samp_factor ||
                 jpeg->max_v_samp_factor % jpeg->comp_info[c].v_samp_factor;
  return !fractions && (jpeg->num_components == 1 || jpeg->num_components == 3) && jpeg->data_precision == 8 &&
         !jpeg->arith_code;
}

static int reference_convert(Reference *errors, j_decompress_ptr from, j_compress_ptr to, const uint8_t *data, size_t bytes,
                             int interval, struct jpeg_destination_mgr *place) {
  errors->code = 1;
  jpeg_mem_src(from, (unsigned char *)data, bytes);
  for (int marker = 0; marker < 16; marker++) jpeg_save_markers(from, JPEG_APP0 + marker, 0xffff);
  jpeg_save_markers(from, JPEG_COM, 0xffff);
  jpeg_read_header(from, TRUE);
  if (!reference_kind(from)) return 2;
  if ((uint64_t)from->image_width * from->image_height > 1 << 24) return 5;
  errors->code = 3;
  jvirt_barray_ptr *coefficients = jpeg_read_coefficients(from);
  if (errors->manager.num_warnings) return 3;
  for (int c = 0; from->coef_bits && c < from->num_components; c++)
    for (int k = 0; k < 64; k++)
      if (from->coef_bits[c][k]) return 3;
  errors->code = 4;
  to->dest = place;
  jpeg_copy_critical_parameters(from, to);
  to->write_JFIF_header = to->write_Adobe_marker = FALSE;
  to->optimize_coding = TRUE;
  to->restart_interval = (unsigned)(interval ? interval : reference_interval(from, bytes));
  jpeg_write_coefficients(to, coefficients);
  for (jpeg_saved_marker_ptr one = from->marker_list; one; one = one->next)
    jpeg_write_marker(to, one->marker, one->data, one->data_length);
  jpeg_finish_compress(to);
  return 0;
}

/* As trainyard_rewrite, but for the check of what was written. */
static int reference_rewrite(const uint8_t *data, size_t bytes, int interval, uint8_t *out, size_t *room) {
  static Reference errors;
  static struct jpeg_decompress_struct from;
  static struct jpeg_compress_struct to;
  static struct jpeg_destination_mgr place;
  errors = (Reference){.code = 1};
  jpeg_std_error(&errors.manager);
  errors.manager.error_exit = reference_error, errors.manager.emit_message = reference_warning;
  errors.manager.output_message = errors.manager.reset_error_mgr = reference_silence;
  errors.progress.progress_monitor = reference_scans;
  place = (struct jpeg_destination_mgr){out, *room, reference_no_call, reference_full, reference_no_call};
  memset(&from, 0, sizeof from), memset(&to, 0, sizeof to);
  from.err = to.err = &errors.manager;
  jpeg_create_decompress(&from), jpeg_create_compress(&to);
  from.mem->max_memory_to_use = 1l << 30;
  from.progress = &errors.progress;
  int code = setjmp(errors.back) ? errors.code : reference_convert(&errors, &from, &to, data, bytes, interval, &place);
  *room -= place.free_in_buffer;
  jpeg_destroy_decompress(&from), jpeg_destroy_compress(&to);
  return code;
}

#endif
