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
    use tqkv_core::code::S4;
    use tqkv_core::fixed::{FixedCodec, RingCache, TrellisWorkspace};
    use tqkv_core::{DecodeError, EncodeError};
    use workload::{BLOCK, CODEC, EXPONENT, TRELLIS, TRELLIS_BLOCK, vector};

    /// The block of `workload::vector(1)` that the host encodes.
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
    fn damaged_trellis_block() {
        let mut back = [7; 128];
        let mut block = [0x5a; TRELLIS_BLOCK];
        assert_eq!(TRELLIS.decode(&block, EXPONENT, &mut back), Ok(()));
        block[..2].copy_from_slice(&[0x01, 0xfc]);
        back = [7; 128];
        assert_eq!(TRELLIS.decode(&block, EXPONENT, &mut back), Err(DecodeError::NonFiniteScale));
        assert!(back == [7; 128]);
    }

    #[test]
    fn hard_vectors_of_a_trellis_codec() {
        let (mut workspace, mut block, mut back) = (TrellisWorkspace::new(), [1; TRELLIS_BLOCK], [1; 128]);
        assert_eq!(TRELLIS.encode(&[0_i16; 128], EXPONENT, &mut workspace, &mut block), Ok(()));
        assert!(block == [0; TRELLIS_BLOCK]);
        let result = TRELLIS.encode(&[i16::MAX; 128], 10, &mut workspace, &mut block);
        assert_eq!(result, Err(EncodeError::OutOfRange));
        assert!(block == [0; TRELLIS_BLOCK]);
        assert_eq!(TRELLIS.encode(&[i16::MIN; 128], EXPONENT, &mut workspace, &mut block), Ok(()));
        assert_eq!(TRELLIS.decode(&block, EXPONENT, &mut back), Ok(()));
        assert!(back.iter().all(|&v| v < -10_000));
    }

    #[test]
    fn saturated_vectors_and_samples() {
        let (mut block, mut back) = ([0; BLOCK], [0; 128]);
        assert_eq!(CODEC.encode(&[i16::MAX; 128], EXPONENT, &mut block), Ok(()));
        // The unit is finer than the vector's, so every sample is out of range.
        assert_eq!(CODEC.decode(&block, EXPONENT - 4, &mut back), Ok(()));
        assert!(back == [i16::MAX; 128]);
        let (narrow, mut other) = ([i8::MIN; 128], [0; BLOCK]);
        assert_eq!(CODEC.encode(&narrow, -7, &mut other), Ok(()));
        assert_eq!(CODEC.decode(&other, EXPONENT, &mut back), Ok(()));
        assert!(back.iter().all(|&v| v < -16_384));
    }

    #[test]
    fn kernels_agree_with_the_portable_code() {
        assert!(workload::kernels_agree());
    }

    #[test]
    fn ring_past_its_capacity() {
        static CODEC: FixedCodec<64, S4> = FixedCodec::DEFAULT;
        let mut memory = [0; RingCache::<64, S4, S4>::bytes_for(4)];
        let mut ring = RingCache::new(&CODEC, &CODEC, &mut memory, 1);
        for token in 0..11 {
            assert_eq!(ring.push(&vector(token), EXPONENT, &vector(token), EXPONENT), Ok(()));
        }
        assert_eq!(ring.len(), 4);
        ring.clear();
        assert!(ring.is_empty());
    }
}
