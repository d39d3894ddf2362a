//! Takes bytes as packed rows of a saved state: after a correct head, and as changes to good ones with a corrected CRC.
//! None causes a panic. Refused ones leave every row as it was, to the bit. Accepted ones can be read, packed again for
//! another store, where they are the same, turned to other positions, and followed by new rows.
#![no_main]

mod edits;
mod seeds;

use half::f16;
use libfuzzer_sys::fuzz_target;
use std::sync::OnceLock;
use tqkv::cache::CacheSpec;
use tqkv::unstable::slots::{Shift, SlotStore, StoreSide, rotate};

const HEADS: usize = 2;
const DIM: usize = 32;
const WIDTH: usize = HEADS * DIM;
const SLOTS: usize = 400;
/// Rows of the good state. They fill two pages and begin a third.
const ROWS: usize = 300;
/// Bytes of a row, with room for all that the rows of a short text need.
const ROW_BYTES: usize = 4 * WIDTH;
/// Bytes of the mark, the numbers of rows and of bytes, and the CRC-32.
const HEAD: usize = 20;

const POLICIES: [(StoreSide, &str); 5] = [
    (StoreSide::Keys, "s4 hot=16"),
    (StoreSide::Values, "t4"),
    (StoreSide::Keys, "t2 hot=0"),
    (StoreSide::Keys, "i8 hot=0 sinks=0"),
    (StoreSide::Keys, "t4,t2 hot=8 tier=128:t2"),
];

/// A store with a text, and the payload of its packed rows.
struct Good {
    store: SlotStore,
    payload: Vec<u8>,
}

static GOOD: [OnceLock<Good>; POLICIES.len()] = [const { OnceLock::new() }; POLICIES.len()];

fn store(number: usize) -> SlotStore {
    let (side, words) = POLICIES[number];
    let spec = CacheSpec::new(1, HEADS, HEADS, DIM).with(words).expect("a policy");
    let mut store = SlotStore::new(side, &spec, WIDTH, SLOTS, 1);
    assert!(store.divide(DIM, if side == StoreSide::Keys { spec.key } else { spec.value }));
    store
}

/// One coordinate of a head is much larger than the others, so that keys of few bits get factors by pair.
fn row(seed: usize) -> Vec<f16> {
    let value = |i: usize| (seed * WIDTH + i).wrapping_mul(2_654_435_761) >> 7 & 0xff;
    let size = |i: usize| if i % DIM == 3 { 20.0 } else { 1.0 };
    (0..WIDTH).map(|i| f16::from_f32((value(i) as f32 / 64.0 - 2.0) * size(i) + (i % 5) as f32)).collect()
}

fn fill(store: &mut SlotStore, first: usize, rows: usize, seed: usize) {
    for at in first..first + rows {
        store.write(at, &row(seed + at));
        store.cool();
    }
}

fn good(number: usize) -> Good {
    let mut store = store(number);
    fill(&mut store, 0, 200, 0);
    let is_keys = store.side() == StoreSide::Keys;
    if is_keys {
        // So that some codes have turns.
        rotate(&mut store, &Shift::plain(DIM), &[-8; SLOTS]);
    }
    fill(&mut store, 200, ROWS - 200, 1000);
    let packed = pack(&store).expect("there is room");
    let bytes = u32::from_le_bytes(packed[HEAD - 8..HEAD - 4].try_into().expect("four bytes"));
    Good { payload: packed[HEAD..HEAD + bytes as usize].to_vec(), store }
}

fn pack(store: &SlotStore) -> Option<Vec<u8>> {
    let mut bytes = vec![0; ROWS * ROW_BYTES];
    store.pack(0, ROWS, &mut bytes).then_some(bytes)
}

fn with_head(payload: &[u8]) -> Vec<u8> {
    let mut bytes = b"tqkvrow1".to_vec();
    for number in [ROWS as u32, payload.len() as u32, crc32fast::hash(payload)] {
        bytes.extend(number.to_le_bytes());
    }
    [&bytes, payload].concat()
}

fn read(store: &SlotStore) -> Vec<u16> {
    let mut rows = vec![f16::ZERO; SLOTS * WIDTH];
    store.read(0, &mut rows);
    rows.iter().map(|x| x.to_bits()).collect()
}

fuzz_target!(|data: &[u8]| {
    let [number, mode, bytes @ ..] = data else { return seeds::refused("too short") };
    let number = usize::from(*number) % POLICIES.len();
    let good = GOOD[number].get_or_init(|| good(number));
    // What codes depend on comes first, and another number there is refused at once.
    let mut payload = good.payload.clone();
    if mode % 2 == 0 {
        payload.truncate(4);
        payload.extend(bytes);
    } else {
        for [op, low, high, value] in bytes.as_chunks::<4>().0.iter().take(32) {
            edits::edit(&mut payload, *op, u16::from_le_bytes([*low, *high]), *value);
        }
    }
    let rows: Vec<usize> = (0..ROWS).collect();
    let mut back = good.store.clone();
    fill(&mut back, 0, 30, 5000);
    let before = read(&back);
    if let Err(error) = back.unpack(&rows, &with_head(&payload)) {
        assert_eq!(read(&back), before);
        return seeds::refused(error);
    }
    let held = read(&back);
    if let Some(packed) = pack(&back) {
        let mut other = store(number);
        other.unpack(&rows, &packed).expect("what was packed is accepted");
        assert_eq!(read(&other)[..ROWS * WIDTH], held[..ROWS * WIDTH]);
    }
    if back.side() == StoreSide::Keys {
        rotate(&mut back, &Shift::plain(DIM), &[3; SLOTS]);
    }
    fill(&mut back, 150, SLOTS - 150, 9000);
    let _ = (read(&back), pack(&back));
});
