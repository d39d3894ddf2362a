//! Tests that run on the microcontroller itself.
#![no_std]
#![no_main]

#[cfg(target_arch = "arm")]
use cortex_m as _;
use defmt_semihosting as _;
use firmware as _;

#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    defmt::error!("{}", defmt::Display2Format(info));
    firmware::exit(101)
}

#[defmt_test::tests]
mod tests {
    use defmt::{assert, assert_eq};
    use tqkv_core::fixed::{FixedCodec, RingCache};
    use tqkv_core::{DecodeError, EncodeError};
    use workload::{BLOCK, CODEC, EXPONENT, vector};

    /// The block of `workload::vector(1)`, as the host encodes it.
    const GOLDEN: [u8; BLOCK] = workload::GOLDEN;

    #[test]
    fn golden_bytes() {
        let mut block = [0; BLOCK];
        assert_eq!(CODEC.encode(&vector(1), EXPONENT, &mut block), Ok(()));
        assert_eq!(block, GOLDEN);
    }

    #[test]
    fn smallest_samples() {
        let (mut block, mut back) = ([0; BLOCK], [0; 128]);
        assert_eq!(CODEC.encode(&[i16::MIN; 128], EXPONENT, &mut block), Ok(()));
        assert_eq!(CODEC.decode(&block, EXPONENT, &mut back), Ok(()));
        assert!(back.iter().all(|&v| v < -16_384));
    }

    #[test]
    fn zeros() {
        let (mut block, mut back) = ([1; BLOCK], [1; 128]);
        assert_eq!(CODEC.encode(&[0_i16; 128], EXPONENT, &mut block), Ok(()));
        assert_eq!(CODEC.decode(&block, EXPONENT, &mut back), Ok(()));
        assert!(block == [0; BLOCK] && back == [0; 128]);
    }

    #[test]
    fn too_large() {
        let mut block = [1; BLOCK];
        assert_eq!(CODEC.encode(&[i16::MAX; 128], 10, &mut block), Err(EncodeError::OutOfRange));
        assert!(block == [0; BLOCK]);
    }

    #[test]
    fn damaged_block() {
        let (mut back, query) = ([7; 128], CODEC.query(&vector(2), EXPONENT));
        let mut block = [0xa5; BLOCK];
        block[..2].copy_from_slice(&[0xff, 0x7f]);
        assert_eq!(CODEC.decode(&block, EXPONENT, &mut back), Err(DecodeError::NonFiniteScale));
        assert_eq!(CODEC.score(&query, &block), Err(DecodeError::NonFiniteScale));
        assert!(back == [7; 128]);
    }

    #[test]
    fn ring_past_its_capacity() {
        type Half = FixedCodec<64, 4>;
        const BYTES: usize = RingCache::<Half, Half, 0>::bytes_for(4);
        let mut ring = RingCache::<Half, Half, BYTES>::new(Half::DEFAULT, Half::DEFAULT, 1);
        for token in 0..11 {
            assert_eq!(ring.push(&vector(token), &vector(token), EXPONENT), Ok(()));
        }
        assert_eq!(ring.len(), 4);
        ring.clear();
        assert!(ring.is_empty());
    }
}
