//! The entry points of the PTX, made from the lists of [`crate::args`] and [`crate::codecs`].

use crate::args::{self, Attend};
use crate::attend::{self, Share};
use crate::bandwidth::read_bytes;
use crate::decode::{decode_pages, weight_decode};
use crate::device::DeviceThread;
use crate::encode::encode_append;
use crate::exact::{attend_merge_exact, keep_rows};
use crate::merge::attend_merge;
use crate::plan::plan_parts;
use crate::qjl::{qjl_correct, qjl_sketch};
use crate::rows::{Codes, Halves};
use crate::score::{rotate_queries, scores};
use crate::tensor;
use crate::threads::divide;
use crate::units::{give_units, keep_units, see_units};
use core::arch::nvptx;
use tqkv_core::code::{F16, I8, S2, S3, S4, T2, T3, T4};

/// The number of this warp along the launch's x axis.
#[inline(always)]
fn warp() -> u32 {
    // SAFETY: special registers can be read anywhere.
    unsafe { (nvptx::_block_idx_x() as u32) * (nvptx::_block_dim_y() as u32) + nvptx::_thread_idx_y() as u32 }
}

/// The work of this warp, if it has any, with `heads` query heads per warp.
#[inline(always)]
fn share(heads: u32, args: &Attend<*mut u8>) -> Option<Share> {
    // SAFETY: special registers can be read anywhere.
    let y = unsafe { nvptx::_block_idx_y() as u32 };
    let part = warp();
    if part >= args.parts {
        return None;
    }
    let (kv_head, chunk) = divide(y, args.group.div_ceil(heads));
    Some(Share { part, chunk, kv_head })
}

/// Defines an entry point: its name, and the body that it runs with its arguments.
macro_rules! entry {
    (
        [$symbol:expr, $args:ident => $body:expr]
        $name:ident { $($(#[$doc:meta])* $argument:ident: $kind:ident,)* }
    ) => {
        const _: () = {
            #[unsafe(export_name = $symbol)]
            unsafe extern "ptx-kernel" fn entry($($argument: kind!($kind *mut u8)),*) {
                let $args = args::$name { $($argument),* };
                $body
            }
        };
    };
}

/// Defines an entry point of attention: its name, heads per warp, and the body that it runs.
macro_rules! attend_entry {
    ($symbol:expr, $heads:expr, $attend:expr) => {
        with_arguments!(Attend => entry! [$symbol, args => if let Some(share) = share($heads, &args) {
            $attend(share, args);
        }]);
    };
}

/// Entry points of one head dim and every codec.
macro_rules! codec_entries {
    ([$dim:literal] $($codec:ident $name:literal),*) => { $(
        with_arguments!(EncodeAppend => entry! [
            concat!("encode_append_", $name, "_d", $dim),
            args => encode_append::<DeviceThread, $codec, { $dim / 32 }>(warp(), args)
        ]);
        with_arguments!(DecodePages => entry! [
            concat!("decode_pages_", $name, "_d", $dim),
            args => decode_pages::<DeviceThread, $codec, { $dim / 32 }>(warp(), args)
        ]);
        with_arguments!(Scores => entry! [
            concat!("scores_", $name, "_d", $dim),
            args => scores::<DeviceThread, $codec, { $dim / 32 }>(warp(), args)
        ]);
        with_arguments!(WeightDecode => entry! [
            concat!("weight_decode_", $name, "_d", $dim),
            args => weight_decode::<DeviceThread, $codec, { $dim / 32 }>(warp(), args)
        ]);
    )* };
}

/// Entry points of every head dim.
macro_rules! entries {
    ([] $($dim:literal),*) => { $(
        codecs!([codec_entries] [$dim]);
        with_arguments!(EncodeAppend => entry! [
            concat!("encode_append_f16_d", $dim),
            args => encode_append::<DeviceThread, F16, { $dim / 32 }>(warp(), args)
        ]);
        with_arguments!(DecodePages => entry! [
            concat!("decode_pages_f16_d", $dim),
            args => decode_pages::<DeviceThread, F16, { $dim / 32 }>(warp(), args)
        ]);
        with_arguments!(RotateQueries => entry! [
            concat!("rotate_queries_d", $dim),
            args => rotate_queries::<DeviceThread, { $dim / 32 }>(warp(), args)
        ]);
        with_arguments!(AttendMerge => entry! [
            concat!("attend_merge_d", $dim),
            args => attend_merge::<DeviceThread, { $dim / 32 }>(warp(), args)
        ]);
        with_arguments!(KeepRows => entry! [
            concat!("keep_rows_d", $dim),
            args => keep_rows::<DeviceThread, { $dim / 32 }>(warp(), args)
        ]);
        with_arguments!(AttendMergeExact => entry! [
            concat!("attend_merge_exact_d", $dim),
            args => attend_merge_exact::<DeviceThread, { $dim / 32 }>(warp(), args)
        ]);
        with_arguments!(QjlSketch => entry! [
            concat!("qjl_sketch_d", $dim),
            args => qjl_sketch::<DeviceThread, { $dim / 32 }>(warp(), args)
        ]);
        with_arguments!(QjlCorrect => entry! [
            concat!("qjl_correct_d", $dim),
            args => qjl_correct::<DeviceThread, { $dim / 32 }>(warp(), args)
        ]);
        attend_entry!(concat!("attend_d", $dim, "_r1"), 1, attend::attend::<DeviceThread, Codes, { $dim / 32 }, 1>);
        attend_entry!(concat!("attend_f16_d", $dim, "_r1"), 1, attend::attend::<DeviceThread, Halves, { $dim / 32 }, 1>);
        attend_entry!(concat!("attend_f16_d", $dim, "_r2"), 2, attend::attend::<DeviceThread, Halves, { $dim / 32 }, 2>);
        attend_entry!(
            concat!("attend_tensor_d", $dim, "_r4"),
            tensor::HEADS,
            tensor::attend::<DeviceThread, { $dim / 32 }, false, { tensor::slice($dim / 32, false) }, 1>
        );
        attend_entry!(
            concat!("attend_trellis_d", $dim, "_r4"),
            tensor::HEADS,
            tensor::attend::<DeviceThread, { $dim / 32 }, true, { tensor::slice($dim / 32, true) }, 1>
        );
    )* };
}

head_dims!([entries] []);

/// Entry points of eight query heads per warp, which fit the registers up to D = 128.
macro_rules! entries_of_eight {
    ($($dim:literal),*) => { $(
        attend_entry!(
            concat!("attend_tensor_d", $dim, "_r8"),
            2 * tensor::HEADS,
            tensor::attend::<DeviceThread, { $dim / 32 }, false, { tensor::slice($dim / 32, false) }, 2>
        );
    )* };
}

entries_of_eight!(64, 128);

with_arguments!(PlanParts => entry! ["plan_parts", args => plan_parts::<DeviceThread>(warp(), args)]);
with_arguments!(GiveUnits => entry! ["give_units", args => give_units::<DeviceThread>(warp(), args)]);
with_arguments!(KeepUnits => entry! ["keep_units", args => keep_units::<DeviceThread>(warp(), args)]);
with_arguments!(SeeUnits => entry! ["see_units", args => see_units::<DeviceThread>(warp(), args)]);
with_arguments!(ReadBytes => entry! ["read_bytes", args => read_bytes::<DeviceThread>(warp(), args)]);

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: a trap ends the kernel.
    unsafe { nvptx::trap() }
}
