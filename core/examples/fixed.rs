//! The integer codec and a ring cache, as on a microcontroller: `cargo run -p tqkv-core --example fixed`.

use tqkv_core::code::{S3, S4};
use tqkv_core::fixed::{FixedCodec, RingCache};

// In flash: the signs, and the tables of these two codecs alone.
static KEYS: FixedCodec<64, S4> = FixedCodec::DEFAULT;
static VALUES: FixedCodec<64, S3> = FixedCodec::DEFAULT;
/// Memory for 32 tokens.
const BYTES: usize = RingCache::<64, S4, S3>::bytes_for(32);

/// Samples in Q15.
fn samples(token: i16) -> [i16; 64] {
    core::array::from_fn(|i| {
        token.wrapping_mul(1237).wrapping_add(i as i16 * 411).wrapping_mul(i as i16 ^ 29)
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut block = [0; FixedCodec::<64, S4>::BLOCK_BYTES];
    let key = samples(1);
    KEYS.encode(&key, -15, &mut block)?;
    let mut back = [0; 64];
    KEYS.decode(&block, -15, &mut back)?;
    println!("128 bytes of samples become {}; the first: {} and {}", block.len(), key[0], back[0]);

    // In RAM: zeros until the first push, so that a `static` of them takes no flash.
    let mut memory = [0; BYTES];
    let mut ring = RingCache::new(&KEYS, &VALUES, &mut memory, 4);
    for token in 0..100 {
        // Keys in Q12, values in Q15.
        ring.push(&samples(token), -12, &samples(token + 1000), -15)?;
    }
    let mut out = [0; 64];
    ring.attend(&samples(99), -12, -15, &mut out)?;
    println!(
        "{} of {} tokens held in {BYTES} bytes; attention begins {:?}",
        ring.len(),
        ring.capacity(),
        &out[..4]
    );
    Ok(())
}
