//! What the kernels take: one list a kernel, and everything else is made of it.
//!
//! A list becomes the type by which bodies, launches and tests name the arguments, the order in which a
//! launch and the PTX interpreter hand them over, and the parameters of the entry point. To add an argument,
//! add a row: the compiler then names every place that has to say what it is. The parameters of an entry stay
//! scalars and pointers, which the compiler knows to be of global memory.
//!
//! Shapes are [outer, .., inner]; `32 G` is the head dim.

/// An argument as it is handed to a kernel; `M` is a place in device memory.
#[derive(Clone, Copy, Debug)]
pub enum Argument<M> {
    /// Where a buffer starts.
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

/// Hands the arguments of a kernel to the macro `$then`, after `$with`: the lists.
#[doc(hidden)]
#[macro_export]
macro_rules! with_arguments {
    (EncodeAppend => $then:ident! $with:tt) => {
        $then! { $with EncodeAppend {
            /// [tokens, num_kv_heads, 32 G] of element type `kind`.
            rows: Memory,
            /// An [`element`](crate::encode::element).
            kind: Word,
            /// Tokens of the launch.
            tokens: Word,
            /// KV heads of a token.
            num_kv_heads: Word,
            /// [G] words of sign bits.
            signs: Memory,
            /// Code of a `ScaleMode`.
            mode: Word,
            /// Position in `Effort::ALL`.
            effort: Word,
            /// [tokens], where each token goes.
            sequence_of: Memory,
            /// [tokens]
            position_of: Memory,
            /// [sequences, max_pages] of page numbers in `pool`.
            page_table: Memory,
            /// Entries a sequence.
            max_pages: Word,
            /// The pages, written.
            pool: Memory,
            /// For trellis codes [`workspace_bytes`](crate::viterbi::workspace_bytes) a vector, which no one
            /// else uses meanwhile; nothing for others.
            workspace: Memory,
            /// [tokens, num_kv_heads], written with a [`status`](crate::encode::status).
            outcome: Memory,
        } }
    };
    (DecodePages => $then:ident! $with:tt) => {
        $then! { $with DecodePages {
            /// The pages.
            pool: Memory,
            /// [sequences, max_pages]
            page_table: Memory,
            /// Entries a sequence.
            max_pages: Word,
            /// The sequence that is decoded.
            sequence: Word,
            /// Its first position.
            start: Word,
            /// Positions.
            tokens: Word,
            /// KV heads of a token.
            num_kv_heads: Word,
            /// [G] words of sign bits.
            signs: Memory,
            /// [tokens, num_kv_heads, 32 G] of `kind`, written.
            out: Memory,
            /// An [`element`](crate::encode::element).
            kind: Word,
        } }
    };
    (WeightDecode => $then:ident! $with:tt) => {
        $then! { $with WeightDecode {
            /// Blocks of SPEC.md back to back, scale first.
            blocks: Memory,
            /// How many.
            count: Word,
            /// [G] words of sign bits.
            signs: Memory,
            /// [count, 32 G] in f16, written.
            out: Memory,
        } }
    };
    (RotateQueries => $then:ident! $with:tt) => {
        $then! { $with RotateQueries {
            /// [count, 32 G] of element type `kind`.
            queries: Memory,
            /// An [`element`](crate::encode::element).
            kind: Word,
            /// Queries.
            count: Word,
            /// [G] words of sign bits.
            signs: Memory,
            /// 0 leaves the rotation out, for f16 rows.
            rotated: Word,
            /// What the result is multiplied by.
            factor: Float,
            /// [count, 32 G] in f32, written.
            out: Memory,
        } }
    };
    (Scores => $then:ident! $with:tt) => {
        $then! { $with Scores {
            /// [num_heads, 32 G] in f32.
            rotated: Memory,
            /// Query heads.
            num_heads: Word,
            /// The pages of the keys.
            pool: Memory,
            /// [sequences, max_pages]
            page_table: Memory,
            /// Entries a sequence.
            max_pages: Word,
            /// The sequence that is scored.
            sequence: Word,
            /// Its tokens.
            tokens: Word,
            /// KV heads of a token; divides `num_heads`.
            num_kv_heads: Word,
            /// [tokens, num_heads] in f32, written.
            out: Memory,
        } }
    };
    (Attend => $then:ident! $with:tt) => {
        $then! { $with Attend {
            /// Parts that a sequence is split into.
            parts: Word,
            /// [rows, num_kv_heads * group, 32 G] in f32, as `rotate_queries` leaves them; a row is a query
            /// token.
            queries: Memory,
            /// KV heads of a token.
            num_kv_heads: Word,
            /// Query heads a KV head.
            group: Word,
            /// The pages of the keys.
            keys: Memory,
            /// How they are read.
            key_format: Word,
            /// Their levels; not used for f16 rows.
            key_levels: Memory,
            /// The pages of the values.
            values: Memory,
            /// How they are read.
            value_format: Word,
            /// Their levels; not used for f16 rows.
            value_levels: Memory,
            /// [sequences, max_pages]
            page_table: Memory,
            /// Entries a sequence.
            max_pages: Word,
            /// [rows], the sequence whose pages each query token reads.
            sequence_of: Memory,
            /// [rows], how many of its tokens it sees.
            lengths: Memory,
            /// [rows, num_kv_heads * group, parts, 4 + 32 G] in f32, written: maximum, sum, two unused,
            /// accumulator. A part without tokens has a sum of 0.
            partials: Memory,
        } }
    };
    (AttendMerge => $then:ident! $with:tt) => {
        $then! { $with AttendMerge {
            /// Query heads of all rows.
            count: Word,
            /// [count, parts, 4 + 32 G] in f32, as `attend` leaves them.
            partials: Memory,
            /// Parts of each.
            parts: Word,
            /// [G] words of sign bits.
            signs: Memory,
            /// 0 leaves the rotation out, for f16 rows.
            rotated: Word,
            /// [count, 32 G] of `kind`, written; zeros where there was no token.
            out: Memory,
            /// An [`element`](crate::encode::element).
            kind: Word,
        } }
    };
    (ReadBytes => $then:ident! $with:tt) => {
        $then! { $with ReadBytes {
            /// [runs, warps] of 4096 bytes.
            memory: Memory,
            /// Warps.
            warps: Word,
            /// Runs of each.
            runs: Word,
            /// [warps, 32 threads, 4] words, written.
            sums: Memory,
        } }
    };
    (QjlSketch => $then:ident! $with:tt) => {
        $then! { $with QjlSketch {
            /// [count, 32 G] in f32.
            residuals: Memory,
            /// Residuals.
            count: Word,
            /// S^T, [32 G columns, 32 G rows] in f32, so that reads are contiguous.
            transposed: Memory,
            /// [count, G] words, written: bit set where (S r)_j >= 0.
            signs: Memory,
            /// [count] in f32, written: |r|.
            norms: Memory,
        } }
    };
    (QjlCorrect => $then:ident! $with:tt) => {
        $then! { $with QjlCorrect {
            /// [num_heads, 32 G] in f32: S q.
            sketched: Memory,
            /// Query heads.
            num_heads: Word,
            /// [tokens, num_kv_heads, G] words of `qjl_sketch`.
            signs: Memory,
            /// [tokens, num_kv_heads] of `qjl_sketch`.
            norms: Memory,
            /// Tokens.
            tokens: Word,
            /// KV heads of a token; divides `num_heads`.
            num_kv_heads: Word,
            /// [tokens, num_heads] in f32, added to.
            scores: Memory,
        } }
    };
}

/// The type of a list.
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
            /// The name of each parameter of the entry, and its bytes.
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
with_arguments!(DecodePages => arguments! ["decode_pages"]);
with_arguments!(WeightDecode => arguments! ["weight_decode"]);
with_arguments!(RotateQueries => arguments! ["rotate_queries"]);
with_arguments!(Scores => arguments! ["scores"]);
with_arguments!(Attend => arguments! ["attend"]);
with_arguments!(AttendMerge => arguments! ["attend_merge"]);
with_arguments!(ReadBytes => arguments! ["read_bytes"]);
with_arguments!(QjlSketch => arguments! ["qjl_sketch"]);
with_arguments!(QjlCorrect => arguments! ["qjl_correct"]);
