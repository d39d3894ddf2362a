//! The arguments of the kernels: one list per kernel, from which everything else is made.
//!
//! A list becomes three things:
//!
//! * the type by which bodies, launches and tests name the arguments;
//! * the order in which a launch and the PTX interpreter pass them;
//! * the parameters of the entry point.
//!
//! To add an argument, add a row; the compiler then names every place that must set it. The parameters of an
//! entry stay scalars and pointers, because the compiler knows that such pointers are to global memory.
//!
//! Shapes are `[outer, .., inner]`. The head dim is `32 G`.

/// An argument in the form in which a kernel gets it. `M` is a place in device memory.
#[derive(Clone, Copy, Debug)]
pub enum Argument<M> {
    /// The start of a buffer.
    Memory(M),
    /// A number.
    Word(u32),
    /// A float.
    Float(f32),
}

/// The type of an argument.
#[doc(hidden)]
#[macro_export]
macro_rules! kind {
    (Memory $memory:ty) => {
        $memory
    };
    (Word $memory:ty) => {
        u32
    };
    (Float $memory:ty) => {
        f32
    };
}

/// Passes the argument lists of a kernel to the macro `$then`, after `$with`.
#[doc(hidden)]
#[macro_export]
macro_rules! with_arguments {
    (EncodeAppend => $then:ident! $with:tt) => {
        $then! { $with EncodeAppend {
            /// `[tokens, num_kv_heads, 32 G]` of element type `kind`.
            rows: Memory,
            /// Elements from a token of `rows` to the next.
            token_stride: Word,
            /// An [`element`](crate::encode::element).
            kind: Word,
            /// Number of tokens of the launch.
            tokens: Word,
            /// Number of KV heads.
            num_kv_heads: Word,
            /// `[G]` words of sign bits.
            signs: Memory,
            /// The code of a `ScaleMode`.
            mode: Word,
            /// Index in `Effort::ALL`.
            effort: Word,
            /// `[tokens]` in i64, the place of each token: 64 times its page, plus its slot there. A token of a
            /// negative place is skipped.
            slots: Memory,
            /// The pages; written.
            pool: Memory,
            /// Bytes from a page of `pool` to the next.
            stride: Word,
            /// The number of the last page.
            last_page: Word,
            /// For trellis codes [`workspace_bytes`](crate::viterbi::workspace_bytes) per vector, which
            /// nothing else uses during the launch. Empty for other codes.
            workspace: Memory,
            /// `[tokens, num_kv_heads]`; written with a [`status`](crate::encode::status).
            outcome: Memory,
            /// One word; 1 is written if a vector is refused. Several warps may write it, all the same value.
            refused: Memory,
        } }
    };
    (KeepRows => $then:ident! $with:tt) => {
        $then! { $with KeepRows {
            /// `[tokens, num_kv_heads, 32 G]` of element type `kind`.
            rows: Memory,
            /// Elements from a token of `rows` to the next.
            token_stride: Word,
            /// An [`element`](crate::encode::element).
            kind: Word,
            /// Number of tokens of the launch.
            tokens: Word,
            /// Number of KV heads.
            num_kv_heads: Word,
            /// `[tokens]` in i64, the place of each token in `pool`. A token of another place is skipped.
            places: Memory,
            /// `[num_kv_heads, head_places, 32 G]` of element type `kind`; written.
            pool: Memory,
            /// Places of each head.
            head_places: Word,
            /// Places of each head that may be written, the first ones.
            held: Word,
        } }
    };
    (DecodePages => $then:ident! $with:tt) => {
        $then! { $with DecodePages {
            /// The pages.
            pool: Memory,
            /// Bytes from a page of `pool` to the next.
            stride: Word,
            /// The number of the last page.
            last_page: Word,
            /// `[sequences, max_pages]`, numbers of blocks of pages in `pool`.
            page_table: Memory,
            /// Entries of `page_table` per sequence.
            max_pages: Word,
            /// The index of the last entry of `page_table`.
            last_entry: Word,
            /// A block has `1 << shift` pages.
            shift: Word,
            /// `[sequences + 1]` in i32, the first row of `out` of each sequence, ascending.
            offsets: Memory,
            /// `[sequences]` in i32, the number of tokens to decode of each sequence, from its first on.
            lengths: Memory,
            /// Number of sequences.
            sequences: Word,
            /// Rows of `out`. A row that belongs to no token stays as it is.
            tokens: Word,
            /// Number of KV heads.
            num_kv_heads: Word,
            /// `[G]` words of sign bits.
            signs: Memory,
            /// `[tokens, num_kv_heads, 32 G]` of element type `kind`; written.
            out: Memory,
            /// An [`element`](crate::encode::element).
            kind: Word,
        } }
    };
    (PlanParts => $then:ident! $with:tt) => {
        $then! { $with PlanParts {
            /// `[rows / queries]` in i32, the tokens of each sequence.
            lengths: Memory,
            /// `[rows / queries]` in i32, the first token that the query tokens of each sequence see.
            starts: Memory,
            /// 0 if they see all tokens from the first on. Then `starts` is not used.
            has_starts: Word,
            /// Query tokens of all sequences.
            rows: Word,
            /// Query tokens of each sequence, which are its last tokens.
            queries: Word,
            /// Most tokens of a sequence. Longer ones count as so long.
            most_tokens: Word,
            /// Multiprocessors of the device; this and the next three are [`Limits`](crate::plan::Limits).
            multiprocessors: Word,
            /// Blocks that run on a multiprocessor at once.
            blocks: Word,
            /// Warps of a part.
            warps: Word,
            /// Bytes from a partial result to the next.
            stride: Word,
            /// Entries of the list: [`Limits::most_parts`](crate::plan::Limits::most_parts) of the rows.
            entries: Word,
            /// `[3 rows + 1 + 3 entries]`; written: the sequence of each row, the tokens that it sees, its
            /// first part and after them the number of parts, and the list of [`Attend`].
            words: Memory,
        } }
    };
    (GiveUnits => $then:ident! $with:tt) => {
        $then! { $with GiveUnits {
            /// `[rows]`, the unit in each row or [`NONE`](tqkv_core::units::NONE); written.
            owners: Memory,
            /// Rows of units.
            rows: Word,
            /// `[rows]`, the step in which each was used last; written.
            used: Memory,
            /// The number of the step.
            step: Word,
            /// `[sequences, stride]` in i32, the blocks of each.
            table: Memory,
            /// Entries from the blocks of a sequence to those of the next.
            stride: Word,
            /// The index of the last entry of `table`.
            last_entry: Word,
            /// Units of a block.
            a_block: Word,
            /// `[sequences]` in i32, the tokens of each, those of this step included.
            lengths: Memory,
            /// `[sequences]` in i32, the new tokens of each, which are its last ones.
            queries: Memory,
            /// Number of sequences.
            sequences: Word,
            /// Units at the beginning of a sequence.
            first: Word,
            /// Units at its end.
            newest: Word,
        } }
    };
    (KeepUnits => $then:ident! $with:tt) => {
        $then! { $with KeepUnits {
            /// `[rows]`, the unit in each row or [`NONE`](tqkv_core::units::NONE).
            owners: Memory,
            /// Rows of units.
            rows: Word,
            /// `[slots_len]` in i64, the slot of each token of a step.
            slots: Memory,
            /// Number of slots.
            slots_len: Word,
            /// `[tokens]` in i64, the place of each token; written.
            kept: Memory,
            /// Most tokens of a step.
            tokens: Word,
        } }
    };
    (SeeUnits => $then:ident! $with:tt) => {
        $then! { $with SeeUnits {
            /// `[rows]`, the unit in each row or [`NONE`](tqkv_core::units::NONE).
            owners: Memory,
            /// Rows of units.
            rows: Word,
            /// `[sequences, stride]` in i32, the blocks of each.
            table: Memory,
            /// Entries from the blocks of a sequence to those of the next.
            stride: Word,
            /// The index of the last entry of `table`.
            last_entry: Word,
            /// Units of a block.
            a_block: Word,
            /// `[sequences]` in i32, the tokens of each, those of this step included.
            lengths: Memory,
            /// Number of sequences.
            sequences: Word,
            /// Units at the beginning of a sequence.
            first: Word,
            /// Units at its end.
            newest: Word,
            /// Tokens that a query token sees.
            window: Word,
            /// 1 for all exact tokens of a sequence and their numbers, without `starts` and `ends`.
            all: Word,
            /// `[sequences, first + newest, UNIT]` in i64, the places of exact tokens; written.
            places: Memory,
            /// Of the same shape, their numbers or -1; written with `all`.
            numbers: Memory,
            /// `[sequences]` in i32, the first token that is attended as a code; written without `all`.
            starts: Memory,
            /// `[sequences]` in i32, the token after the last one of these; written without `all`.
            ends: Memory,
        } }
    };
    (WeightDecode => $then:ident! $with:tt) => {
        $then! { $with WeightDecode {
            /// Blocks of SPEC.md back to back, each with its scale first.
            blocks: Memory,
            /// Number of blocks.
            count: Word,
            /// `[G]` words of sign bits.
            signs: Memory,
            /// `[count, 32 G]` of element type `kind`; written.
            out: Memory,
            /// A number of [`element`](crate::encode::element).
            kind: Word,
        } }
    };
    (RotateQueries => $then:ident! $with:tt) => {
        $then! { $with RotateQueries {
            /// `[count / heads, heads, 32 G]` of element type `kind`.
            queries: Memory,
            /// Elements from a token of `queries` to the next.
            token_stride: Word,
            /// Query heads of a token.
            heads: Word,
            /// An [`element`](crate::encode::element).
            kind: Word,
            /// Number of queries.
            count: Word,
            /// `[G]` words of sign bits.
            signs: Memory,
            /// 0 for f16 rows, which are not rotated.
            rotated: Word,
            /// A factor of the result.
            factor: Float,
            /// `[count, 32 G]` in f32; written.
            out: Memory,
        } }
    };
    (Scores => $then:ident! $with:tt) => {
        $then! { $with Scores {
            /// `[num_heads, 32 G]` in f32.
            rotated: Memory,
            /// Number of query heads.
            num_heads: Word,
            /// The pages of the keys.
            pool: Memory,
            /// `[sequences, max_pages]`, page numbers in `pool`.
            page_table: Memory,
            /// Entries of `page_table` per sequence.
            max_pages: Word,
            /// The sequence to score.
            sequence: Word,
            /// Number of tokens of the sequence.
            tokens: Word,
            /// Number of KV heads; divides `num_heads`.
            num_kv_heads: Word,
            /// `[tokens, num_heads]` in f32; written.
            out: Memory,
        } }
    };
    (Attend => $then:ident! $with:tt) => {
        $then! { $with Attend {
            /// Entries of `list`.
            parts: Word,
            /// `[parts, 3]`: row, first token and the page after the last one of each part. A row of
            /// [`UNUSED`](crate::attend::UNUSED) is an entry without work.
            list: Memory,
            /// `[rows, num_kv_heads * group, 32 G]` in f32, the output of `rotate_queries`. A row is a query
            /// token.
            queries: Memory,
            /// Number of KV heads.
            num_kv_heads: Word,
            /// Query heads per KV head.
            group: Word,
            /// The pages of the keys.
            keys: Memory,
            /// Bytes from a page of the keys to the next.
            key_stride: Word,
            /// The format of the keys.
            key_format: Word,
            /// The levels of the keys; not used for f16 rows.
            key_levels: Memory,
            /// The pages of the values.
            values: Memory,
            /// Bytes from a page of the values to the next.
            value_stride: Word,
            /// The format of the values.
            value_format: Word,
            /// The levels of the values; not used for f16 rows.
            value_levels: Memory,
            /// The prefetch one page ahead: 0 is nothing, 1 is keys, 2 is keys and values. Only the
            /// kernels on tensor cores prefetch.
            ahead: Word,
            /// The number of the last page of `keys` and `values`.
            last_page: Word,
            /// `[sequences, max_pages]`, numbers of blocks of pages in `keys` and `values`.
            page_table: Memory,
            /// Entries of `page_table` per sequence.
            max_pages: Word,
            /// The index of the last entry of `page_table`.
            last_entry: Word,
            /// A block has `1 << shift` pages.
            shift: Word,
            /// `[rows]`, the sequence whose pages each query token reads.
            sequence_of: Memory,
            /// `[rows]`, the number of tokens that each query token sees.
            lengths: Memory,
            /// `[parts, num_kv_heads * group, 4 + 32 G]` in f32; written. Each entry is maximum, sum, two
            /// unused floats, accumulator. A part without tokens has a sum of 0.
            partials: Memory,
        } }
    };
    (AttendMerge => $then:ident! $with:tt) => {
        $then! { $with AttendMerge {
            /// Query heads of all rows.
            count: Word,
            /// Query heads of a row.
            heads: Word,
            /// `[parts, heads, 4 + 32 G]` in f32, the output of `attend`.
            partials: Memory,
            /// `[rows + 1]`, the first part of each row, then the number of parts. A row has at least one.
            first_part: Memory,
            /// `[G]` words of sign bits.
            signs: Memory,
            /// 0 for f16 rows, which are not rotated.
            rotated: Word,
            /// `[count, 32 G]` of element type `kind`; written. Zeros for a row that sees no token.
            out: Memory,
            /// An [`element`](crate::encode::element).
            kind: Word,
            /// 1 if `lse` is written.
            has_lse: Word,
            /// `[count]` in f32; written if `has_lse` says so. The natural logarithm of the sum of the
            /// exponentials of all logits: minus infinity for a row that sees no token.
            lse: Memory,
        } }
    };
    (AttendMergeExact => $then:ident! $with:tt) => {
        $then! { $with AttendMergeExact {
            /// Query heads of all rows.
            count: Word,
            /// Query heads of a row.
            heads: Word,
            /// `[parts, heads, 4 + 32 G]` in f32, the output of `attend`.
            partials: Memory,
            /// `[rows + 1]`, the first part of each row, then the number of parts. A row has at least one.
            first_part: Memory,
            /// `[G]` words of sign bits.
            signs: Memory,
            /// `[count / heads, heads, 32 G]` of element type `query_kind`, as the model computed them.
            queries: Memory,
            /// Elements from a token of `queries` to the next.
            token_stride: Word,
            /// An [`element`](crate::encode::element).
            query_kind: Word,
            /// The factor that makes products logits in log2 units.
            factor: Float,
            /// Number of KV heads; divides `heads`.
            num_kv_heads: Word,
            /// `[num_kv_heads, head_places, 32 G]` of element type `exact_kind`, from a multiple of 16 bytes on.
            keys: Memory,
            /// The same of values.
            values: Memory,
            /// An [`element`](crate::encode::element).
            exact_kind: Word,
            /// Places of each head.
            head_places: Word,
            /// Places of each head that may hold a token, the first ones.
            held: Word,
            /// `[count / heads, columns]` in i64, the places of the exact tokens that each row sees. Another place
            /// is no token.
            places: Memory,
            /// Places of each row.
            columns: Word,
            /// 1 if there are `sinks`.
            has_sinks: Word,
            /// `[heads]` of element type `sink_kind`: learned sinks, each a logit without a value.
            sinks: Memory,
            /// An [`element`](crate::encode::element).
            sink_kind: Word,
            /// `[count, 32 G]` of element type `kind`; written. Zeros for a row that sees no token.
            out: Memory,
            /// An [`element`](crate::encode::element).
            kind: Word,
        } }
    };
    (ReadBytes => $then:ident! $with:tt) => {
        $then! { $with ReadBytes {
            /// `[runs, warps]` runs of 4096 bytes.
            memory: Memory,
            /// Number of warps.
            warps: Word,
            /// Runs per warp.
            runs: Word,
            /// `[warps, 32 threads, 4]` words; written.
            sums: Memory,
        } }
    };
    (QjlSketch => $then:ident! $with:tt) => {
        $then! { $with QjlSketch {
            /// `[count, 32 G]` in f32.
            residuals: Memory,
            /// Number of residuals.
            count: Word,
            /// S^T, `[32 G columns, 32 G rows]` in f32. It is transposed so that reads are contiguous.
            transposed: Memory,
            /// `[count, G]` words; written. A bit is set if (S r)_j >= 0.
            signs: Memory,
            /// `[count]` norms |r| in f32; written.
            norms: Memory,
        } }
    };
    (QjlCorrect => $then:ident! $with:tt) => {
        $then! { $with QjlCorrect {
            /// `[num_heads, 32 G]` in f32: S q.
            sketched: Memory,
            /// Number of query heads.
            num_heads: Word,
            /// `[tokens, num_kv_heads, G]` words of `qjl_sketch`.
            signs: Memory,
            /// `[tokens, num_kv_heads]` norms of `qjl_sketch`.
            norms: Memory,
            /// Number of tokens.
            tokens: Word,
            /// Number of KV heads; divides `num_heads`.
            num_kv_heads: Word,
            /// `[tokens, num_heads]` of element type `kind`. The estimates are added to it.
            scores: Memory,
            /// A number of [`element`](crate::encode::element).
            kind: Word,
        } }
    };
}

/// Defines the type of a list.
macro_rules! arguments {
    ([$entry:literal] $name:ident { $($(#[$doc:meta])* $field:ident: $kind:ident,)* }) => {
        #[doc = concat!("Arguments of `", $entry, "`.")]
        pub struct $name<M> {
            $($(#[$doc])* pub $field: kind!($kind M),)*
        }

        impl<M: Copy> Clone for $name<M> {
            #[inline(always)]
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<M: Copy> Copy for $name<M> {}

        impl<M> $name<M> {
            /// The name of each parameter of the entry, and its size in bytes.
            pub const PARAMETERS: [(&str, usize); [$(stringify!($field)),*].len()] =
                [$((stringify!($field), size_of::<kind!($kind u64)>())),*];

            /// The arguments in the order of the entry's parameters.
            pub fn list(self) -> [Argument<M>; [$(stringify!($field)),*].len()] {
                [$(Argument::$kind(self.$field)),*]
            }
        }
    };
}

with_arguments!(EncodeAppend => arguments! ["encode_append"]);
with_arguments!(KeepRows => arguments! ["keep_rows"]);
with_arguments!(DecodePages => arguments! ["decode_pages"]);
with_arguments!(PlanParts => arguments! ["plan_parts"]);
with_arguments!(GiveUnits => arguments! ["give_units"]);
with_arguments!(KeepUnits => arguments! ["keep_units"]);
with_arguments!(SeeUnits => arguments! ["see_units"]);
with_arguments!(WeightDecode => arguments! ["weight_decode"]);
with_arguments!(RotateQueries => arguments! ["rotate_queries"]);
with_arguments!(Scores => arguments! ["scores"]);
with_arguments!(Attend => arguments! ["attend"]);
with_arguments!(AttendMerge => arguments! ["attend_merge"]);
with_arguments!(AttendMergeExact => arguments! ["attend_merge_exact"]);
with_arguments!(ReadBytes => arguments! ["read_bytes"]);
with_arguments!(QjlSketch => arguments! ["qjl_sketch"]);
with_arguments!(QjlCorrect => arguments! ["qjl_correct"]);
