// One row a codec and head dim, one a head dim: the names of all kernels.
encode_entry!(Scalar<2>, 2: encode_append_s2_d64);
encode_entry!(Scalar<3>, 2: encode_append_s3_d64);
encode_entry!(Scalar<4>, 2: encode_append_s4_d64);
encode_entry!(Nested<4>, 2: encode_append_n4_d64);
encode_entry!(Int8, 2: encode_append_i8_d64);
read_entries!(Scalar<2>, 2: decode_pages_s2_d64 scores_s2_d64 weight_decode_s2_d64);
read_entries!(Scalar<3>, 2: decode_pages_s3_d64 scores_s3_d64 weight_decode_s3_d64);
read_entries!(Scalar<4>, 2: decode_pages_s4_d64 scores_s4_d64 weight_decode_s4_d64);
read_entries!(Nested<4>, 2: decode_pages_n4_d64 scores_n4_d64 weight_decode_n4_d64);
read_entries!(Int8, 2: decode_pages_i8_d64 scores_i8_d64 weight_decode_i8_d64);
read_entries!(Trellis<2>, 2: decode_pages_t2_d64 scores_t2_d64 weight_decode_t2_d64);
read_entries!(Trellis<3>, 2: decode_pages_t3_d64 scores_t3_d64 weight_decode_t3_d64);
read_entries!(Trellis<4>, 2: decode_pages_t4_d64 scores_t4_d64 weight_decode_t4_d64);
dim_entries!(2: rotate_queries_d64 attend_merge_d64 qjl_sketch_d64 qjl_correct_d64
    attend_d64_r1 attend_d64_r2 attend_f16_d64_r1 attend_f16_d64_r2);
encode_entry!(Scalar<2>, 4: encode_append_s2_d128);
encode_entry!(Scalar<3>, 4: encode_append_s3_d128);
encode_entry!(Scalar<4>, 4: encode_append_s4_d128);
encode_entry!(Nested<4>, 4: encode_append_n4_d128);
encode_entry!(Int8, 4: encode_append_i8_d128);
read_entries!(Scalar<2>, 4: decode_pages_s2_d128 scores_s2_d128 weight_decode_s2_d128);
read_entries!(Scalar<3>, 4: decode_pages_s3_d128 scores_s3_d128 weight_decode_s3_d128);
read_entries!(Scalar<4>, 4: decode_pages_s4_d128 scores_s4_d128 weight_decode_s4_d128);
read_entries!(Nested<4>, 4: decode_pages_n4_d128 scores_n4_d128 weight_decode_n4_d128);
read_entries!(Int8, 4: decode_pages_i8_d128 scores_i8_d128 weight_decode_i8_d128);
read_entries!(Trellis<2>, 4: decode_pages_t2_d128 scores_t2_d128 weight_decode_t2_d128);
read_entries!(Trellis<3>, 4: decode_pages_t3_d128 scores_t3_d128 weight_decode_t3_d128);
read_entries!(Trellis<4>, 4: decode_pages_t4_d128 scores_t4_d128 weight_decode_t4_d128);
dim_entries!(4: rotate_queries_d128 attend_merge_d128 qjl_sketch_d128 qjl_correct_d128
    attend_d128_r1 attend_d128_r2 attend_f16_d128_r1 attend_f16_d128_r2);
encode_entry!(Scalar<2>, 8: encode_append_s2_d256);
encode_entry!(Scalar<3>, 8: encode_append_s3_d256);
encode_entry!(Scalar<4>, 8: encode_append_s4_d256);
encode_entry!(Nested<4>, 8: encode_append_n4_d256);
encode_entry!(Int8, 8: encode_append_i8_d256);
read_entries!(Scalar<2>, 8: decode_pages_s2_d256 scores_s2_d256 weight_decode_s2_d256);
read_entries!(Scalar<3>, 8: decode_pages_s3_d256 scores_s3_d256 weight_decode_s3_d256);
read_entries!(Scalar<4>, 8: decode_pages_s4_d256 scores_s4_d256 weight_decode_s4_d256);
read_entries!(Nested<4>, 8: decode_pages_n4_d256 scores_n4_d256 weight_decode_n4_d256);
read_entries!(Int8, 8: decode_pages_i8_d256 scores_i8_d256 weight_decode_i8_d256);
read_entries!(Trellis<2>, 8: decode_pages_t2_d256 scores_t2_d256 weight_decode_t2_d256);
read_entries!(Trellis<3>, 8: decode_pages_t3_d256 scores_t3_d256 weight_decode_t3_d256);
read_entries!(Trellis<4>, 8: decode_pages_t4_d256 scores_t4_d256 weight_decode_t4_d256);
dim_entries!(8: rotate_queries_d256 attend_merge_d256 qjl_sketch_d256 qjl_correct_d256
    attend_d256_r1 attend_d256_r2 attend_f16_d256_r1 attend_f16_d256_r2);
