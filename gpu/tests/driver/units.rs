//! Rows of exact tokens: the launches give the numbers of the core, and calls that do not fit are refused.

use super::*;
use tqkv_core::units::{self, NONE, Sequences, UNIT, Window};
use tqkv_gpu::paged::{BlockTable, Integers, Seen, UnitRows, Units};
use tqkv_tests::inputs::Gaussian;

const WINDOW: Window = Window { first: 1, newest: 2 };
const WIDTH: usize = (3 * UNIT) as usize;
const BLOCK: usize = 64;
/// Blocks of a sequence, rows of units, and most tokens of a step.
const ENTRIES: usize = 4;
const ROWS: usize = 7;
const TOKENS: usize = 500;

fn i32s(numbers: &CudaSlice<i32>, len: usize) -> Integers {
    // SAFETY: the buffer has at least this length, and tests keep it until the stream is done.
    unsafe { Integers::i32(numbers.device_ptr(numbers.stream()).0, len) }
}

fn i64s(numbers: &CudaSlice<i64>, len: usize) -> Integers {
    // SAFETY: as for `i32s`.
    unsafe { Integers::i64(numbers.device_ptr(numbers.stream()).0, len) }
}

fn read<T: DeviceRepr + Default + Clone>(device: &Device, of: &CudaSlice<T>) -> Vec<T> {
    device.stream().clone_dtoh(of).unwrap()
}

#[test]
fn rows_of_exact_tokens_are_those_of_the_core() {
    let device = device(0);
    let kernels = Units::new(&device, WINDOW, BLOCK).unwrap();
    let [owners, used] = [-1, 0].map(|number| upload(&device, &[number; ROWS]));
    let rows = UnitRows { owners: i32s(&owners, ROWS), used: i32s(&used, ROWS) };
    let (mut owner, mut last_used) = ([NONE; ROWS], [0; ROWS]);
    let mut random = Gaussian::new(5);
    let mut held = 0;
    for step in 1..12 {
        let mut core = units::Units {
            owner: &mut owner,
            used: &mut last_used,
            window: WINDOW,
            a_block: BLOCK as u32 / UNIT,
        };
        let count = 1 + random.below(40);
        let table: Vec<i32> = (0..count * ENTRIES).map(|_| random.below(9) as i32).collect();
        let lengths: Vec<i32> = (0..count).map(|_| random.below(ENTRIES * BLOCK + 1) as i32).collect();
        let queries: Vec<i32> =
            lengths.iter().map(|&length| random.below(length as usize + 1) as i32).collect();
        let mut slots: Vec<i64> = (0..random.below(TOKENS)).map(|_| random.below(9 * BLOCK) as i64).collect();
        slots.push(-1);
        let of = Sequences { table: &table, lengths: &lengths };
        let there = [&table, &lengths, &queries].map(|of| upload(&device, of));
        let [in_table, in_lengths, in_queries] = there.each_ref().map(|of| i32s(of, of.len()));
        let blocks = BlockTable { numbers: in_table, max_blocks: ENTRIES };
        kernels.give(&device, rows, step, blocks, in_lengths, in_queries).unwrap();
        core.give(step, &of, &queries);
        assert_eq!(
            read(&device, &owners),
            core.owner.iter().map(|unit| unit.cast_signed()).collect::<Vec<_>>()
        );
        assert_eq!(read(&device, &used), core.used.iter().map(|step| step.cast_signed()).collect::<Vec<_>>());

        let (given, kept) = (upload(&device, &slots), upload(&device, &[7_i64; TOKENS]));
        kernels.keep(&device, rows, i64s(&given, slots.len()), i64s(&kept, TOKENS)).unwrap();
        let mut expected = [0; TOKENS];
        core.keep(&slots, &mut expected);
        assert_eq!(read(&device, &kept), expected);

        let [places, numbers] = [(); 2].map(|()| upload(&device, &vec![7_i64; count * WIDTH]));
        let [starts, ends] = [(); 2].map(|()| upload(&device, &vec![7_i32; count]));
        let at = i64s(&places, count * WIDTH);
        let mut seen = vec![0; count * WIDTH];
        for window in [None, Some(50)] {
            let what = Seen::Newest { window, starts: i32s(&starts, count), ends: i32s(&ends, count) };
            kernels.see(&device, rows, blocks, in_lengths, at, what).unwrap();
            let (mut from, mut to) = (vec![0; count], vec![0; count]);
            core.see(&of, window, &mut seen, &mut from, &mut to);
            held += seen.iter().filter(|place| **place != core.zero()).count();
            assert_eq!(
                (read(&device, &places), read(&device, &starts), read(&device, &ends)),
                (seen.clone(), from, to)
            );
        }
        kernels.see(&device, rows, blocks, in_lengths, at, Seen::All(i64s(&numbers, count * WIDTH))).unwrap();
        let mut tokens = vec![0; count * WIDTH];
        core.earlier(&of, &mut seen, &mut tokens);
        assert_eq!((read(&device, &places), read(&device, &numbers)), (seen, tokens));
    }
    assert!(held > 500, "{held}");
}

#[test]
fn calls_that_do_not_fit_are_refused() {
    let device = device(0);
    let refused = |made: Result<Units, GpuError>| made.unwrap_err().to_string();
    assert!(refused(Units::new(&device, WINDOW, 40)).contains("blocks of 40 tokens are not valid"));
    let huge = Window { first: u32::MAX, newest: 2 };
    assert!(refused(Units::new(&device, huge, BLOCK)).contains("4294967295 first and 2 newest units"));

    let kernels = Units::new(&device, WINDOW, BLOCK).unwrap();
    let (words, places) = (upload(&device, &[0_i32; 2 * WIDTH]), upload(&device, &[0_i64; 2 * WIDTH]));
    let [of, two] = [i32s(&words, 2); 2];
    let good = UnitRows { owners: i32s(&words, ROWS), used: i32s(&words, ROWS) };
    let blocks = BlockTable { numbers: i32s(&words, 2 * ENTRIES), max_blocks: ENTRIES };
    let short = BlockTable { numbers: i32s(&words, ENTRIES), ..blocks };
    let few = UnitRows { owners: i32s(&words, ROWS - 1), ..good };
    let newest = |starts| Seen::Newest { window: None, starts, ends: two };
    let wrong = [
        kernels.give(&device, few, 1, blocks, of, two),
        kernels.give(&device, good, 1, short, of, two),
        kernels.give(&device, good, 1, blocks, of, i32s(&words, 1)),
        kernels.give(&device, good, 1, blocks, i64s(&places, 2), two),
        kernels.keep(&device, good, i64s(&places, 2), i64s(&places, 1)),
        kernels.keep(&device, good, i32s(&words, 2), i64s(&places, 2)),
        kernels.see(&device, good, blocks, of, i64s(&places, 2 * WIDTH - 1), newest(two)),
        kernels.see(&device, good, blocks, of, i64s(&places, 2 * WIDTH), newest(i32s(&words, 1))),
        kernels.see(&device, good, blocks, of, i64s(&places, 2 * WIDTH), Seen::All(i64s(&places, 2))),
    ];
    for (i, wrong) in wrong.into_iter().enumerate() {
        assert!(wrong.is_err(), "call {i}");
    }
    // A step without sequences is none.
    let nothing = BlockTable { numbers: i32s(&words, 0), max_blocks: 0 };
    kernels.give(&device, good, 1, nothing, i32s(&words, 0), i32s(&words, 0)).unwrap();
    assert_eq!(read(&device, &words), [0; 2 * WIDTH]);
}
